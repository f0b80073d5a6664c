// SPDX-License-Identifier: Apache-2.0
#pragma once
// Declares the command-line options that set fields of SessionOptions, each once for all commands that take it. A
// malformed value is refused while it is parsed: GraphError, with the option in front.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <vector>

#include "executor/session/option_ranges.h"
#include "tools/command/options.h"

namespace arbalest {

// Checks whose messages say what was found and what is expected.
CLI::Validator whole(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
CLI::Validator whole(WholeRange range);
CLI::Validator real(double least, double most);
CLI::Validator real(RealRange range);
CLI::Validator not_empty();
// A time in seconds, as seconds_of() takes it; for transform(), which leaves the number of seconds.
CLI::Validator duration(double least, double most);
CLI::Validator duration(RealRange range);

// The bytes of an option's value, "6GiB", "900MiB" or a number. Throws GraphError.
int64_t bytes_of(const char* option, const std::string& text);

// Options of all commands that take a graph.
void bind_graph(CLI::App& command, GraphOptions& options);
// The samples of a learner's batch, as one more of GraphOptions::set.
void bind_batch(CLI::App& command, GraphOptions& options);
// The limit on devices' memory that may be planned for.
void bind_memory(CLI::App& command, SessionOptions& session);
// The choice of passes.
void bind_passes(CLI::App& command, SessionOptions& session);
// The strategy by which learners agree.
void bind_strategy(CLI::App& command, SessionOptions& session);
// The file of weights to begin with.
void bind_weights(CLI::App& command, FileOptions& files, const char* description);
inline constexpr const char* kModelsWeights =
    "the model's weights (safetensors), with what their run changed by --set; otherwise the graph's own";
// Options that say which of several processes this one is.
void bind_world(CLI::App& command, WorldOptions& world);
// A trained model, and the split that it looks at.
void bind_inference(CLI::App& command, GraphOptions& options, std::string& split, std::string& class_names);
// The treatment of samples that cannot be read.
void bind_reading(CLI::App& command, SessionOptions& session, const char* description);
// Options that determine the plan: number of learners, length of the run.
void bind_plan(CLI::App& command, SessionOptions& session);
// Other options of a run: rules, files, reports.
void bind_run(CLI::App& command, SessionOptions& session);

// The treatment of a run whose loss is not finite.
void bind_divergence(CLI::App& command, DivergenceOptions& divergence);

// The treatment of processes that are lost.
void bind_on_lost(CLI::App& command, SessionOptions& session);

// Attributes that change when a run goes on from a checkpoint.
void bind_changes(CLI::App& command, std::vector<std::string>& changes);

// Checkpoints, and how long a run may take.
void bind_checkpoints(CLI::App& command, SessionOptions& session);

// All options of a training, but those of several processes and of logs.
void bind_training(CLI::App& command, GraphOptions& options);

// The options of a command as given, or their defaults.
std::vector<OptionValue> option_values(const CLI::App& command);

}  // namespace arbalest
