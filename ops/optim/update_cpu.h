#pragma once
// The CPU kernel of every optimiser: its rule (rule.h) with averaging, restarts, clipping and parameter groups.

#include <array>

#include "ops/cpu.h"
#include "ops/optim/update.h"

namespace arbalest {

// (P) each; null where left out. Outputs may be the memory of their inputs (Op::aliases).
template <typename T, int Slots>
struct UpdateArrays {
  const T *gradients, *weights;
  std::array<const T*, Slots> slots;
  const T *average, *averaged, *clip;
  const uint8_t* groups;
  T* new_weights;
  std::array<T*, Slots> new_slots;
  bfloat16* lowered;
  T* restarted;
};

// What elements of one parameter group have in common in one update.
template <typename T>
struct UpdateNumbers {
  T rate, decay, clip, correction;
};

template <typename T, int Slots>
class UpdateBinding {
 public:
  explicit UpdateBinding(const KernelRequest& request) : place_(*request.node.op->optimizer) {
    for (size_t i = 0; i < place_.inputs(); ++i) has_input_[i] = request.has_input(i);
    for (size_t i = 0; i < place_.outputs(); ++i) has_output_[i] = request.has_output(i);
  }

  UpdateArrays<T, Slots> arrays(const KernelContext& context) const {
    const auto in = [&](size_t i) { return has_input_[i] ? input<T>(context, i) : nullptr; };
    const auto out = [&](size_t i) { return has_output_[i] ? context.outputs[i] : nullptr; };
    UpdateArrays<T, Slots> a;
    a.gradients = in(place_.kGradients);
    a.weights = in(place_.kWeights);
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
  std::array<bool, size_t(Slots) + 6> has_input_ = {};
  std::array<bool, size_t(Slots) + 3> has_output_ = {};
};

// The learner starts again from the average, and the average from what it has become.
template <typename T, int Slots>
void restart_elements(const UpdateArrays<T, Slots>& a, int64_t begin, int64_t end) {
  std::copy(a.averaged + begin, a.averaged + end, a.new_weights + begin);
  for (T* slot : a.new_slots) std::fill(slot + begin, slot + end, T(0));
  if (a.restarted) std::copy(a.averaged + begin, a.averaged + end, a.restarted + begin);
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

// Calls update(group, begin, end) for each run of elements of one group.
template <typename F>
void for_each_group(const uint8_t* groups, int64_t begin, int64_t end, const F& update) {
  while (begin < end) {
    const int64_t block = begin / kParameterAlignment;
    int64_t next = block + 1;
    while (next * kParameterAlignment < end && groups[next] == groups[block]) ++next;
    const int64_t stop = std::min(end, next * kParameterAlignment);
    update(groups[block], begin, stop);
    begin = stop;
  }
}

template <template <typename> typename Rule, typename T>
std::unique_ptr<Kernel> update_kernel(const KernelRequest& request) {
  constexpr int kSlots = Rule<T>::kSlots;
  const int64_t count = request.inputs[0].elements();
  const auto rule = Rule<T>::of(request.node);
  const T decay = T(float_attribute(request.node, "weight_decay"));
  const GroupNumbers groups(request.node);
  const UpdateBinding<T, kSlots> binding(request);
  return make_kernel([=](const KernelContext& context) {
    const StepScalars& scalars = *context.scalars;
    if (scalars.update == 0) return;
    const UpdateArrays<T, kSlots> a = binding.arrays(context);
    const auto now = rule.at(scalars.updates);
    const UpdateNumbers<T> numbers{T(scalars.learning_rate), decay, a.clip ? *a.clip : T(1),
                                   a.average ? T(scalars.correction) : T(0)};
    const bool again = scalars.restart != 0 && a.averaged;
    parallel_for(count, 2, [&](int64_t begin, int64_t end) {
      if (again) {
        restart_elements(a, begin, end);
      } else if (!a.groups) {
        update_elements<T, Rule>(now, numbers, a, begin, end);
      } else {
        for_each_group(a.groups, begin, end, [&](size_t group, int64_t from, int64_t to) {
          UpdateNumbers<T> own = numbers;
          own.rate *= T(groups.rate_factors[group]);
          own.decay = T(groups.decays[group]);
          update_elements<T, Rule>(now, own, a, from, to);
        });
      }
      if (!a.lowered) return;
      for (int64_t i = begin; i < end; ++i) a.lowered[i] = bfloat16(float(a.new_weights[i]));
    });
  });
}

// A kernel factory for the rule.
template <template <typename> typename Rule>
std::unique_ptr<Kernel> update_cpu(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::Float64 ? update_kernel<Rule, double>(request)
                                                      : update_kernel<Rule, float>(request);
}

}  // namespace arbalest
