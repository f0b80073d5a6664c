// SPDX-License-Identifier: Apache-2.0
#pragma once
// Strategies of synchronisation as Synchronize states them: their facts, and the numbers that a run gives them. What a
// strategy does is an object of executor/plan/strategy.h.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// Facts of a strategy that passes, plans and sessions go by.
struct StrategySpec {
  std::string name = {};         // value of arbalest.Synchronize's attribute `strategy`
  bool alone = false;            // every learner trains a model of its own and waits for no other
  bool sums_gradients = false;   // the gradients of all learners make each update, so that learners stay alike
  bool averages_models = false;  // models meet after each group of `every` updates: there is a sync clock
  bool replaces_models = false;  // by averages_models: learners are alike afterwards
  bool corrects = false;         // by averages_models: updates correct towards an average
  bool restarts = false;         // by corrects: learners start again from it where the rate drops in a step
  // By corrects: towards the learners' mean after the group before, without β and μ, rather than towards the average
  // before that.
  bool draws_to_mean = false;
  // By averages_models: hosts may average with each other more rarely than learners of a host do (`every_hosts`).
  bool averages_hosts_apart = false;
  bool goes_on_apart = false;  // if ranks are lost, learners go on from what each of them has
  // Attributes of arbalest.Synchronize, but for `strategy` and `from`, that have an effect; others are refused.
  std::vector<std::string> reads = {};
  // Numbers that it has where Synchronize gives none; `momentum` is that of StrategyOptions.
  int64_t every = 1;
  double alpha = 0.5, beta = 1, momentum = -1;
};

// Stands for the strategy's own number, in attributes of Synchronize and in what strategy_options() returns.
inline constexpr int kOwnNumber = -1;

// The strategy of a single learner.
inline constexpr const char* kNoStrategy = "none";

// Numbers of a strategy. k learners, replicas w_j, the averaged model z (docs/training.md, "Strategies").
struct StrategyOptions {
  std::string name = "sma";
  int64_t every = 1;                // τ: updates from one averaging to the next
  int64_t every_hosts = 1;          // averagings from one that spans all hosts to the next; others are within a host
  double alpha = 0.5, beta = 1;     // α and β
  double momentum = -1;             // μ; negative: 0.9 where Train's optimiser keeps no momentum of its own, else 0
  bool follows_rate = false;        // α falls and rises with the learning rate
  double growth = 0;                // `every` grows to (growth / the rate)² where that is more; 0: it stays
  int64_t bucket_bytes = 32 << 20;  // of gradients that travel together, at least

  bool operator==(const StrategyOptions&) const = default;
};

// Makes the facts known. Throws GraphError if the name is empty or taken, or the facts contradict each other.
// register_strategy() of executor/plan/strategy.h calls it.
void add_strategy_spec(const StrategySpec& spec);
std::vector<std::string> strategy_names();  // in the order in which they were added
std::string strategies_in_words();          // "none, ssgd, sma or local"
// Throws GraphError, naming the nearest strategy, if there is none of this name. The result stays valid.
const StrategySpec& strategy_spec(std::string_view name);

// The strategy that an arbalest.Synchronize node states. Throws GraphError as strategy_spec() does, or where a number
// is out of range.
StrategyOptions strategy_options(const Node& synchronize);
// Throws GraphError for an attribute of the node that only other strategies than its own read: it has no effect.
void check_read(const Node& synchronize);

// The nodes of a graph that state strategies, in the order in which these follow each other.
std::vector<const Node*> synchronize_nodes(const Graph& graph);

// The strategy with the numbers that are used with k learners of a Train node; that of a single learner is kNoStrategy.
StrategyOptions resolved(StrategyOptions options, int64_t learners, const Node& train);

}  // namespace arbalest
