#pragma once
// Where the command line meets SessionOptions: each option that sets one of its fields is declared here, once for all
// commands that take it. What is written wrong is refused as it is parsed: GraphError, with the option in front.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

#include "tools/command/options.h"

namespace arbalest {

// Checks with messages that say what was found and what is expected.
CLI::Validator whole(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
CLI::Validator real(double least, double most);
CLI::Validator not_empty();
// A time in seconds, as seconds_of() takes it; for transform(), which leaves the number of seconds.
CLI::Validator duration(double least, double most);

inline constexpr int kMostReplicas = 1024;  // and devices: a typing error makes no plan of millions

// What all commands take that take a graph.
void bind_graph(CLI::App& command, GraphOptions& options);
// How much of devices' memory may be planned for.
void bind_memory(CLI::App& command, SessionOptions& session);
// Which passes there are.
void bind_passes(CLI::App& command, SessionOptions& session);
// How learners agree.
void bind_strategy(CLI::App& command, SessionOptions& session);
// The file of weights to begin with.
void bind_weights(CLI::App& command, FileOptions& files, const char* description);
// What happens to samples that cannot be read.
void bind_reading(CLI::App& command, SessionOptions& session, const char* description);
// What makes a plan: how many learners, how long.
void bind_plan(CLI::App& command, SessionOptions& session);
// What a run does besides: rules, files, reports.
void bind_run(CLI::App& command, SessionOptions& session);

// What becomes of a run whose loss is not finite.
void bind_divergence(CLI::App& command, DivergenceOptions& divergence);

// What a run that goes on has otherwise.
void bind_changes(CLI::App& command, std::vector<std::string>& changes);

// Checkpoints, and how long a run may take.
void bind_checkpoints(CLI::App& command, SessionOptions& session);

// `arbalest data` and `arbalest data pack`, which have no session.
void bind_data(CLI::App& command, DataOptions& options);
void bind_pack(CLI::App& command, PackCommandOptions& options);

}  // namespace arbalest
