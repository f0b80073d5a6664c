// SPDX-License-Identifier: Apache-2.0
#pragma once
// From options to what executor/session/session.h takes.

#include <optional>

#include "executor/session/output_paths.h"
#include "executor/session/session.h"
#include "tools/command/options.h"

namespace arbalest {

// The graph as the file says, changed by --set; not yet verified. `files` becomes those that were read, as load_graph()
// tells them. Throws GraphError.
Graph load_with_overrides(const GraphOptions& options, std::vector<std::string>* files = nullptr);

// Throws GraphError if an output would overwrite the graph's file, a model's that it calls, or their data, or the
// map of weights' names.
void check_graph_kept(const std::vector<std::string>& graph_files, const FileOptions& files, const NamedPaths& outputs);

// Throws GraphError if a metric that Validate lists has one of the names, which are keys of what an option writes.
void check_metric_names(const Graph& graph, const std::vector<std::string>& keys, const std::string& option);

// The graph as it trains when nothing validates it.
Graph without_validation(Graph graph);

// Whether validations before the end judge weights whose rate has yet to fall, and no moving average of them.
bool judges_falling_rate(const Graph& graph);

// A warning if there are no --weights: what a model says that was not trained means nothing.
void tell_of_fresh_weights(const FileOptions& files);

// The graph as it is measured: without validation, and with a learning rate that lets no loss diverge, unless --set
// states another. Throws GraphError.
Graph graph_to_measure(const GraphOptions& options);

// A GPU runs streams through 8 hardware queues unless CUDA_DEVICE_MAX_CONNECTIONS says otherwise, and streams that
// share one wait for each other. With more learners than that on a device there are as many queues as learners. If
// there are more than four on each of several devices, there are twice as many, up to 32. `learners`: 0 for auto;
// `devices`: as --devices takes them, of which "auto" counts as one, since to count them would be to call CUDA. Has to
// be called before CUDA is; what the environment says stays. Throws GraphError for a wrong list of devices.
void give_learners_queues(int learners, const std::string& devices);

// A warning if `threads` is far more than the machine has processors for, so that it is a typing error or wasteful.
void tell_of_many_threads(int threads);

// The session's options with the devices looked up, and queues for its learners, unless it is one of several in the
// process, whose caller has seen to that. Throws GraphError for a wrong list of devices.
SessionOptions session_options(const GraphOptions& options, bool alone = true);

}  // namespace arbalest
