// SPDX-License-Identifier: Apache-2.0

// Muon: the optimiser "muon".

#include <utility>

#include "ops/definition.h"
#include "ops/optim/orthogonal/turns.h"
#include "ops/optim/update_cpu.h"

namespace arbalest {
namespace {

// y (m, n) += a (m, k) · b (k, n), row by row.
template <typename T>
void add_product(int64_t m, int64_t n, int64_t k, const T* a, const T* b, T* y) {
  parallel_for(m, 2 * k * n, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t j = 0; j < k; ++j) {
        const T times = a[row * k + j], *from = b + j * n;
        T* to = y + row * n;
        ARBALEST_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) to[i] += times * from[i];
      }
    }
  });
}

template <typename T>
void scale(int64_t count, double factor, const T* from, T* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = T(factor) * from[i];
}

template <typename T>
void transpose(int64_t rows, int64_t columns, const T* from, T* to) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
  }
}

// v ← mv + g;  u = v, or with Nesterov's momentum g + mv;  w ← w − γ(λw + sO), where O is u of a vector, and of a
// matrix u with its singular values brought near 1. Only matrices have a factor s.
template <typename T>
struct MuonRule {
  static constexpr int kSlots = 1;
  T momentum;
  bool nesterov;

  static MuonRule of(const Node& update) {
    return {T(float_attribute(update, "momentum")), int_attribute(update, "nesterov") != 0};
  }
  MuonRule at(int32_t) const { return *this; }
  int64_t workspace(int64_t rows, int64_t columns) const {
    const int64_t count = rows * columns, less = std::min(rows, columns);
    return is_muon_matrix(rows, columns) ? 3 * count + 3 * less * less : count;
  }

  void operator()(T rate, T decay, const ParameterMatrix<T, kSlots>& parameter, T* workspace) const {
    const int64_t rows = parameter.rows, columns = parameter.columns, count = rows * columns;
    T *velocity = parameter.slots[0], *direction = workspace, scale = 1;
    double squares = 0;
    for (int64_t i = 0; i < count; ++i) {
      const T g = parameter.clip * parameter.gradient[i];
      velocity[i] = momentum * velocity[i] + g;
      direction[i] = nesterov ? g + momentum * velocity[i] : velocity[i];
      squares += double(direction[i]) * double(direction[i]);
    }
    if (is_muon_matrix(rows, columns)) {
      const T share = T(1 / (std::sqrt(squares) + MuonTurns::kEpsilon));
      for (int64_t i = 0; i < count; ++i) direction[i] *= share;
      make_orthogonal(rows, columns, direction, workspace + count);
      scale = T(muon_scale(rows, columns, parameter.puts_out_columns));
    }
    for (int64_t i = 0; i < count; ++i) {
      parameter.weights[i] -= rate * (decay * parameter.weights[i] + scale * direction[i]);
    }
  }

  // Turns `direction` or its transpose, whichever has fewer rows.
  static void make_orthogonal(int64_t rows, int64_t columns, T* direction, T* workspace) {
    const int64_t less = std::min(rows, columns), more = std::max(rows, columns), count = rows * columns;
    T *x = workspace, *other = x + count, *a = other + count, *scaled = a + less * less, *by = scaled + less * less;
    const bool tall = rows > columns;
    tall ? transpose(rows, columns, direction, x) : scale(count, 1, direction, x);
    for (int turn = 0; turn < MuonTurns::kCount; ++turn) {
      transpose(less, more, x, other);
      std::fill(a, a + less * less, T(0));
      add_product(less, less, more, x, other, a);
      scale(less * less, MuonTurns::kC, a, scaled);
      scale(less * less, MuonTurns::kB, a, by);
      add_product(less, less, less, a, scaled, by);
      scale(count, MuonTurns::kA, x, other);
      add_product(less, more, less, by, x, other);
      std::swap(x, other);
    }
    tall ? transpose(less, more, x, direction) : scale(count, 1, x, direction);
  }
};

// The least work: each turn has two products with X and one of A with itself.
Cost cost_of_update(const Graph& graph, const Node& node) {
  Cost cost = elementwise_cost(10)(graph, node);
  const std::vector<int64_t> matrices = ints_attribute(node, "matrices");
  for (size_t k = 0; k < matrices.size(); k += 3) {
    const auto less = double(std::min(matrices[k], matrices[k + 1])),
               more = double(std::max(matrices[k], matrices[k + 1]));
    if (less > 1) cost.flops += MuonTurns::kCount * 2 * less * less * (2 * more + less);
  }
  return cost;
}

}  // namespace

void register_optim_muon(OpRegistry& registry) {
  const auto check = [](const Node& train) {
    check_momentum(train);
    check_above_0(train, "momentum_only_factor");
  };
  const OptimizerSpec optimizer{.name = "muon",
                                .slots = {"velocity"},
                                .per_tensor = true,
                                .matrices = true,
                                .check = check,
                                .vectors = "momentum_only",
                                .vector_factor = "momentum_only_factor"};
  Op op = update_op(
      "Muon", "one step of Muon on flat arrays, with the step's learning rate", optimizer,
      {float_spec("momentum", 0.0, "share of the last step's direction that stays, below 1"),
       int_spec("nesterov", 0, "1: Nesterov's momentum"),
       strings_spec("momentum_only", {},
                    "names of parameters whose steps are not made orthogonal, as those of embeddings and "
                    "of the last layer; * stands for any characters"),
       float_spec("momentum_only_factor", 1.0, "times the rate, of those, and of biases and scales of norms")});
  op.cost = cost_of_update;
  op.samples = [optimizer] {
    std::vector<Sample> all =
        update_samples(optimizer,
                       {{"plain", {}},
                        {"momentum", {{"momentum", 0.9}, {"weight_decay", 1e-2}}},
                        {"nesterov", {{"momentum", 0.9}, {"nesterov", int64_t{1}}, {"weight_decay", 0.1}}}},
                       {-1});
    // Matrix units take operands in bfloat16, and an update is a part of the weights.
    for (Sample& sample : all) sample.tolerance = std::max(sample.tolerance, 4e-3);
    return all;
  };
  op.cpu = update_cpu<MuonRule>;
  registry.add(std::move(op));
}

}  // namespace arbalest
