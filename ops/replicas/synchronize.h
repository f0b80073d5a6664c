#pragma once
// Strategies of synchronisation, as Synchronize states them and the planner and the executor read them.

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace arbalest {

// k learners, replicas w_j, the averaged model z (docs/design.md, "Synchronisation").
struct Strategy {
  enum class Kind : uint8_t {
    None,  // every learner trains a model of its own
    Ssgd,  // gradients are averaged over all learners at every update
    Sma,  // synchronous model averaging: w_j ← w_j − γv_j − α(w_j − z);  z' = z + β(mean w_j − z) + μ(z − z_prev)
    Local,  // local SGD: every `every` updates each replica becomes the mean of all
  };
  Kind kind = Kind::Sma;
  int64_t every = 1;                // τ: updates from one averaging to the next (Sma, Local)
  double alpha = 0.5, beta = 1;     // α and β (Sma)
  double momentum = -1;             // μ; negative: 0.9 if Train is sgd without momentum, else 0
  int64_t bucket_bytes = 32 << 20;  // Ssgd: gradients that travel together, at least

  bool operator==(const Strategy&) const = default;
};

std::string_view name_of(Strategy::Kind kind);  // "none", "ssgd", "sma", "local"
// Throws GraphError, naming the nearest strategy, if there is none of this name.
Strategy::Kind parse_strategy(std::string_view name);

// The strategy that an arbalest.Synchronize node states.
Strategy strategy_of(const Node& synchronize);

// The strategy with the μ that is used with k learners of a Train node; without synchronisation (k = 1) its kind is
// None.
Strategy resolved(Strategy strategy, int64_t learners, const Node& train);

}  // namespace arbalest
