// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CPU kernel of every optimiser: its rule (rule.h) with averaging, restarts, clipping, parameter groups and rates
// by parameter.

#include <algorithm>
#include <array>
#include <vector>

#include "ops/cpu.h"
#include "ops/optim/rule.h"
#include "ops/optim/update.h"

namespace arbalest {

// Operands of an update, (P) if they are by element; null if left out. Outputs may be the memory of their inputs
// (Op::aliases).
template <typename T, int Slots>
struct UpdateArrays {
  const T *gradients, *weights;
  std::array<const T*, Slots> slots;
  const int32_t* tensors;
  const T *average, *averaged, *clip;
  const uint8_t* groups;
  T* new_weights;
  std::array<T*, Slots> new_slots;
  bfloat16* lowered;
  T* restarted;
};

// Numbers that an update uses for all elements of one parameter group.
template <typename T>
struct UpdateNumbers {
  T rate, decay, clip, correction;
};

// The operands of an update node, found by its optimiser's record.
template <typename T, int Slots>
class UpdateBinding {
 public:
  explicit UpdateBinding(const KernelRequest& request)
      : place_(*request.node.op->optimizer), per_tensor_(request.node.op->optimizer->per_tensor) {
    for (size_t i = 0; i < place_.inputs(); ++i) has_input_[i] = request.has_input(i);
    for (size_t i = 0; i < place_.outputs(); ++i) has_output_[i] = request.has_output(i);
  }

  // The arrays of one launch.
  UpdateArrays<T, Slots> arrays(const KernelContext& context) const {
    const auto in = [&](size_t i) { return has_input_[i] ? input<T>(context, i) : nullptr; };
    const auto out = [&](size_t i) { return has_output_[i] ? context.outputs[i] : nullptr; };
    UpdateArrays<T, Slots> a;
    a.gradients = in(place_.kGradients);
    a.weights = in(place_.kWeights);
    a.tensors = per_tensor_ ? input<int32_t>(context, place_.tensors()) : nullptr;
    a.average = in(place_.average());
    a.averaged = in(place_.averaged());
    a.clip = in(place_.clip());
    a.groups = has_input_[place_.groups()] ? input<uint8_t>(context, place_.groups()) : nullptr;
    a.new_weights = output<T>(context, place_.kNewWeights);
    for (size_t k = 0; k < size_t(Slots); ++k) {
      a.slots[k] = in(place_.kFirstSlot + k);
      a.new_slots[k] = output<T>(context, place_.kFirstNewSlot + k);
    }
    a.lowered = static_cast<bfloat16*>(out(place_.lowered()));
    a.restarted = static_cast<T*>(out(place_.restarted()));
    return a;
  }

 private:
  UpdateOperands place_;
  bool per_tensor_;
  std::array<bool, size_t(Slots) + 7> has_input_ = {};
  std::array<bool, size_t(Slots) + 3> has_output_ = {};
};

// The learner starts again from the average, and the average from what it has become.
template <typename T, int Slots>
void restart_elements(const UpdateArrays<T, Slots>& a, int64_t begin, int64_t end) {
  std::copy(a.averaged + begin, a.averaged + end, a.new_weights + begin);
  for (T* slot : a.new_slots) std::fill(slot + begin, slot + end, T(0));
  if (a.restarted) std::copy(a.averaged + begin, a.averaged + end, a.restarted + begin);
}

// An update that is skipped: only averaging is left of it.
template <typename T, int Slots>
void skip_elements(const UpdateArrays<T, Slots>& a, T correction, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) a.new_weights[i] = a.weights[i] - correction * (a.weights[i] - a.average[i]);
}

// Less correction · (w − average), of the w before. Without a correction `average` is not read, since it may be being
// written.
template <typename T, template <typename> typename Rule>
void update_elements(Rule<T> rule, UpdateNumbers<T> by, UpdateArrays<T, Rule<T>::kSlots> a, int64_t begin,
                     int64_t end) {
  constexpr int kSlots = Rule<T>::kSlots;
  const auto plain = [&](int64_t i) {
    T w = a.weights[i], slots[kSlots];
    for (int k = 0; k < kSlots; ++k) slots[k] = a.slots[size_t(k)][i];
    rule(by.rate, by.decay, by.clip * a.gradients[i], w, slots);
    for (int k = 0; k < kSlots; ++k) a.new_slots[size_t(k)][i] = slots[k];
    return w;
  };
  if (by.correction == 0) {
    ARBALEST_INDEPENDENT
    for (int64_t i = begin; i < end; ++i) a.new_weights[i] = plain(i);
  } else {
    ARBALEST_INDEPENDENT
    for (int64_t i = begin; i < end; ++i) {
      const T pull = by.correction * (a.weights[i] - a.average[i]);
      a.new_weights[i] = plain(i) - pull;
    }
  }
}

// Calls update(block, begin, end) for each run of elements whose blocks of 64 are alike: alike(block, next).
template <typename Alike, typename F>
void for_each_run(int64_t begin, int64_t end, const Alike& alike, const F& update) {
  while (begin < end) {
    const int64_t block = begin / kParameterAlignment;
    int64_t next = block + 1;
    while (next * kParameterAlignment < end && alike(block, next)) ++next;
    const int64_t stop = std::min(end, next * kParameterAlignment);
    update(block, begin, stop);
    begin = stop;
  }
}

// Finds the factor of the rate of each block of 64 elements, for a rule with a rate by parameter. `sums`, (blocks, 2),
// first holds Σ w² and Σ direction² of each block, and in the end the factor and an unused number. numbers_of(block):
// the update's numbers without that factor.
template <typename T, template <typename> typename Rule, typename NumbersOf>
void find_trust(const Rule<T>& rule, const UpdateArrays<T, Rule<T>::kSlots>& a, const NumbersOf& numbers_of,
                int64_t count, int64_t parameters, double* sums) {
  const int64_t blocks = (count + kParameterAlignment - 1) / kParameterAlignment;
  parallel_for(blocks, 16 * kParameterAlignment, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const UpdateNumbers<T> by = numbers_of(block);
      double weights = 0, directions = 0;
      const int64_t end = std::min(count, (block + 1) * kParameterAlignment);
      for (int64_t i = block * kParameterAlignment; i < end; ++i) {
        T slots[Rule<T>::kSlots];
        for (size_t k = 0; k < a.slots.size(); ++k) slots[k] = a.slots[k][i];
        const double w = a.weights[i], u = rule.direction(by.decay, by.clip * a.gradients[i], a.weights[i], slots);
        weights += w * w;
        directions += u * u;
      }
      sums[2 * block] = weights;
      sums[2 * block + 1] = directions;
    }
  });
  for (int64_t k = 0; k < parameters; ++k) {
    const int64_t begin = a.tensors[2 * k], end = k + 1 < parameters ? a.tensors[2 * (k + 1)] : blocks;
    double weights = 0, directions = 0;
    for (int64_t block = begin; block < end; ++block) {
      weights += sums[2 * block];
      directions += sums[2 * block + 1];
    }
    const bool alone = a.tensors[2 * k + 1] != 0;
    const double ratio = alone ? 1.0 : trust_ratio(double(rule.trust), weights, directions);
    for (int64_t block = begin; block < end; ++block) sums[2 * block] = ratio;
  }
}

// Updates parameter by parameter, each less correction · (w − average). `workspace`: numbers for the largest parameter,
// and those that the rule asks for.
template <typename T, template <typename> typename Rule, typename NumbersOf>
void update_matrices(const Rule<T>& rule, const UpdateArrays<T, Rule<T>::kSlots>& a, const NumbersOf& numbers_of,
                     const std::vector<int64_t>& matrices, T* workspace) {
  for (size_t k = 0; 3 * k < matrices.size(); ++k) {
    const int64_t block = a.tensors[2 * k], begin = block * kParameterAlignment;
    ParameterMatrix<T, Rule<T>::kSlots> parameter{matrices[3 * k], matrices[3 * k + 1], matrices[3 * k + 2] != 0,
                                                  a.gradients + begin};
    const int64_t count = parameter.rows * parameter.columns;
    const UpdateNumbers<T> by = numbers_of(block);
    T* pull = workspace;
    for (int64_t i = 0; i < count && by.correction != 0; ++i) {
      pull[i] = by.correction * (a.weights[begin + i] - a.average[begin + i]);
    }
    const auto place = [&](const T* from, T* to) {
      if (from != to) std::copy(from + begin, from + begin + count, to + begin);
      return to + begin;
    };
    parameter.clip = by.clip;
    parameter.weights = place(a.weights, a.new_weights);
    for (size_t s = 0; s < a.slots.size(); ++s) parameter.slots[s] = place(a.slots[s], a.new_slots[s]);
    rule(by.rate, by.decay, parameter, workspace + count);
    for (int64_t i = 0; i < count && by.correction != 0; ++i) parameter.weights[i] -= pull[i];
  }
}

// Bytes that update_matrices() needs.
template <typename T, template <typename> typename Rule>
int64_t matrices_workspace(const Rule<T>& rule, const std::vector<int64_t>& matrices) {
  int64_t most = 0;
  for (size_t k = 0; k < matrices.size(); k += 3) {
    most = std::max(most, matrices[k] * matrices[k + 1] + rule.workspace(matrices[k], matrices[k + 1]));
  }
  return most * int64_t(sizeof(T));
}

// The kernel of an optimiser for CPUs: the rule for each element, or for each parameter's matrix.
template <template <typename> typename Rule, typename T>
std::unique_ptr<Kernel> update_kernel(const KernelRequest& request) {
  constexpr int kSlots = Rule<T>::kSlots;
  const int64_t count = request.inputs[UpdateOperands::kWeights].elements();
  const int64_t blocks = (count + kParameterAlignment - 1) / kParameterAlignment;
  const auto rule = Rule<T>::of(request.node);
  const T decay = T(float_attribute(request.node, "weight_decay"));
  const GroupNumbers groups(request.node);
  const UpdateBinding<T, kSlots> binding(request);
  int64_t parameters = 0, workspace = 0;
  std::vector<int64_t> matrices;
  if constexpr (ByMatrix<Rule<T>>) {
    matrices = ints_attribute(request.node, "matrices");
    workspace = matrices_workspace<T, Rule>(rule, matrices);
  }
  if constexpr (PerTensor<Rule<T>>) {
    workspace = blocks * 2 * int64_t(sizeof(double));
    parameters = request.inputs[UpdateOperands(*request.node.op->optimizer).tensors()].shape[0];
  }
  auto run = [=](const KernelContext& context) {
    const StepScalars& scalars = *context.scalars;
    if (scalars.update == 0) return;
    const UpdateArrays<T, kSlots> a = binding.arrays(context);
    const auto now = rule.at(scalars.updates);
    const UpdateNumbers<T> numbers{T(scalars.learning_rate), decay, a.clip ? *a.clip : T(1),
                                   a.average ? T(scalars.correction) : T(0)};
    const bool again = scalars.restart != 0 && a.averaged, skip = !again && numbers.clip < 0;
    if (skip && numbers.correction == 0) return;
    const auto numbers_of_group = [&](int64_t block) {
      UpdateNumbers<T> own = numbers;
      if (!a.groups) return own;
      own.rate *= T(groups.rate_factors[a.groups[block]]);
      own.decay = T(groups.decays[a.groups[block]]);
      return own;
    };
    const double* trust = nullptr;  // of block b in element 2 b
    if constexpr (PerTensor<Rule<T>>) {
      double* sums = static_cast<double*>(context.workspace);
      if (!again && !skip) find_trust<T, Rule>(now, a, numbers_of_group, count, parameters, sums);
      trust = sums;
    }
    if constexpr (ByMatrix<Rule<T>>) {
      if (!again && !skip) {
        update_matrices<T, Rule>(now, a, numbers_of_group, matrices, static_cast<T*>(context.workspace));
      }
    }
    const auto alike = [&](int64_t block, int64_t next) {
      return (!a.groups || a.groups[block] == a.groups[next]) && (!trust || trust[2 * block] == trust[2 * next]);
    };
    parallel_for(count, 2, [&](int64_t begin, int64_t end) {
      if (again) {
        restart_elements(a, begin, end);
      } else if (skip) {
        skip_elements(a, numbers.correction, begin, end);
      } else if constexpr (ByMatrix<Rule<T>>) {
        // Updated already.
      } else if (!a.groups && !trust) {
        update_elements<T, Rule>(now, numbers, a, begin, end);
      } else {
        for_each_run(begin, end, alike, [&](int64_t block, int64_t from, int64_t to) {
          UpdateNumbers<T> own = numbers_of_group(block);
          if (trust) own.rate *= T(trust[2 * block]);
          update_elements<T, Rule>(now, own, a, from, to);
        });
      }
      if (!a.lowered) return;
      for (int64_t i = begin; i < end; ++i) a.lowered[i] = bfloat16(float(a.new_weights[i]));
    });
  };
  return make_kernel(run, workspace);
}

// A kernel factory for the rule.
template <template <typename> typename Rule>
std::unique_ptr<Kernel> update_cpu(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::Float64 ? update_kernel<Rule, double>(request)
                                                      : update_kernel<Rule, float>(request);
}

}  // namespace arbalest
