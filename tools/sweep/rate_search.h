// SPDX-License-Identifier: Apache-2.0
#pragma once
// A search for a learning rate: short trainings at constant rates, and how low each brings the loss.

#include <string>
#include <vector>

#include "graph/graph.h"
#include "tools/command/options.h"
#include "tools/sweep/sweep_log.h"

namespace arbalest {

// Adds to the words of a run what makes it short and its rate constant. The graph is the trials'.
void add_words_of_rate_search(std::vector<std::string>& words, const Graph& graph, const SweepOptions& options);

// Whether the setting is a learning rate: "train.lr".
bool is_rate(const std::string& setting);

// Which rate to take, in words, a line for each combination of other settings; "" if no trial has a loss. Losses of
// seeds and folds are averaged.
std::string rate_advice(const SweepRecord& record);

// The losses over the rates, as a picture (SVG); "" if no trial has a loss.
std::string rate_plot(const SweepRecord& record);

}  // namespace arbalest
