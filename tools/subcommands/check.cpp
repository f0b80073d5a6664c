// SPDX-License-Identifier: Apache-2.0

// arbalest check: parse, verify, infer; labels and numbers of samples; what a run would take. Runs nothing.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/shell_word.h"
#include "executor/session/reading.h"
#include "executor/session/state.h"
#include "graph/op.h"
#include "ops/names.h"
#include "passes/samples_apart.h"
#include "tools/command/commands.h"
#include "tools/command/plan_summary.h"
#include "tools/command/session_setup.h"
#include "tools/command/subcommand.h"

namespace arbalest {
namespace {

double flops_of(const Graph& graph) {
  double flops = 0;
  for (const Node& node : graph.nodes) flops += cost_of(graph, node).flops;
  return flops;
}

// A model whose file leaves the batch open may still mix samples, on purpose or since the exporter made a number of the
// batch.
std::string mixing_note(const Graph& graph) {
  const std::optional<MixingNode> mixing = find_mixing(graph, ModelBatch::Open);
  if (!mixing) return "";
  return fmt::format(
      "node '{}' ({}) of {}: samples of a batch do not stay apart here, so that what the model gives for one depends "
      "on the others",
      mixing->node.name, mixing->node.op->qualified_name(), mixing->node.where.file);
}

bool reads_files(const Prepared& prepared) {
  const std::vector<Field> fields = prepared.training->fields();
  return std::any_of(fields.begin(), fields.end(), [](const Field& field) { return field.dtype == DataType::String; });
}

// A note on a rate that never reaches lr, if the command line says how long the run is.
std::string warmup_note(const Prepared& prepared, const SessionOptions& options) {
  const Node& train = prepared.program.train;
  const double warmup = float_attribute(train, "warmup"), stated = float_attribute(train, "epochs");
  const bool told = stated > 0 && warmup >= stated;  // by the graph's own length
  if (told || warmup == 0 || !options.length.epochs || warmup < prepared.total_epochs) return "";
  return fmt::format("node '{}' ({}): warms up for {:g} epochs, and the run has {:g}: the rate never reaches lr",
                     train.name, train.op->qualified_name(), warmup, prepared.total_epochs);
}

// The contents of the file of weights, by the names that 'frozen', --weights and --fresh take.
void print_weights(const Graph& graph) {
  fmt::print("weights\n");
  for (const Value& value : graph.values) {
    // An arena, no weight, or a copy in the precision of the step.
    if (value.view.base == kNone || value.type.dtype != DataType::Float32) continue;
    const char* how = value.role == Role::Parameter ? "trained"
                      : value.role == Role::Frozen  ? "frozen"
                      : value.role == Role::State   ? "statistics"
                                                    : nullptr;
    if (how) fmt::print("  {:<24} {:<28} {}\n", printable(value.name), to_string(value.type), how);
  }
}

}  // namespace

int command_check(const CheckOptions& options) {
  Prepared prepared = prepare(load_with_overrides(options), session_options(options));
  check_samples(prepared);
  if (std::string note = mixing_note(prepared.graph); !note.empty()) prepared.notes.push_back(std::move(note));
  if (std::string note = warmup_note(prepared, options.session); !note.empty())
    prepared.notes.push_back(std::move(note));
  const Plan plan = make_plan(prepared.program, prepared.request);
  for (std::string& note : memory_notes(plan, prepared)) prepared.notes.push_back(std::move(note));
  const Loop& loop = prepared.program.training();
  const int64_t parameters = parameter_count(loop.graph);
  const double flops = flops_of(loop.graph) / double(loop.batch);

  if (options.json) {
    nlohmann::ordered_json memory;
    for (size_t d = 0; d < plan.devices.size(); ++d)
      memory[to_string(plan.devices[d])] = planned_bytes(plan, int32_t(d));
    nlohmann::ordered_json kept;
    for (const SamplesOnDevice& samples : plan.handles.samples) {
      const Arena& arena = plan.arenas[samples.arena];
      kept[arena.name] = arena.bytes;
    }
    nlohmann::ordered_json report = {{"graph", prepared.graph.name},
                                     {"parameters", parameters},
                                     {"training_flops_per_sample", flops},
                                     {"nodes", loop.graph.nodes.size()},
                                     {"iterations_per_epoch", prepared.request.rounds},
                                     {"samples_left_out_per_epoch", samples_left_out(prepared)},
                                     {"planned_bytes", memory}};
    if (!kept.empty()) report["samples_on_devices"] = kept;
    if (prepared.recomputation.limit > 0) report["memory_limit"] = recomputation_record(prepared.recomputation);
    if (!prepared.notes.empty()) report["note"] = fmt::format("{}", fmt::join(prepared.notes, "; "));
    fmt::print("{}\n", report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return kDone;
  }
  fmt::print("{}: the graph is sound\n", printable(options.graph));
  fmt::print("  data        {}\n", printable(prepared.training->describe()));
  if (prepared.validation) fmt::print("  validation  {}\n", printable(prepared.validation->describe()));
  if (reads_files(prepared)) {
    fmt::print("  files       not read; to decode all of them and list those that cannot be: arbalest data {}\n",
               printable(shell_word(string_attribute(*prepared.graph.find_op(op::Prefetch), "source"))));
  }
  fmt::print("  parameters  {}\n", parameters);
  fmt::print("  work        {:.3f} MFLOP per sample, forward, backward and update; {} nodes\n", flops * 1e-6,
             loop.graph.nodes.size());
  const int64_t left_out = samples_left_out(prepared);
  fmt::print("  epoch       {} iterations of batch {}{}\n", prepared.request.rounds, loop.batch,
             left_out == 0 ? ""
                           : fmt::format("; batches are whole, so that {} of {} samples {} left out, others each time",
                                         left_out, prepared.request.training_samples, left_out == 1 ? "is" : "are"));
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    fmt::print("  memory      {:.1f} MiB on {}, workspace apart\n", double(planned_bytes(plan, int32_t(d))) / (1 << 20),
               to_string(plan.devices[d]));
  }
  for (const SamplesOnDevice& samples : plan.handles.samples) {
    const Arena& arena = plan.arenas[samples.arena];
    fmt::print("    of which  {:.1f} MiB {}\n", double(arena.bytes) / (1 << 20), arena.name);
  }
  if (const Recomputation& again = prepared.recomputation; again.limit > 0) {
    fmt::print("    limit     {}: {}\n", size_text(again.limit), to_string(again));
  }
  if (const int64_t cached = bytes_of_caches(prepared); cached > 0) {
    fmt::print("  cache       {:.1f} MiB of the host's memory\n", double(cached) / (1 << 20));
  }
  for (const std::string& note : prepared.notes) fmt::print("  note        {}\n", printable(note));
  print_weights(loop.graph);
  fmt::print("values\n");
  for (const Node& node : prepared.graph.nodes) {
    for (const ValueId output : node.outputs) {
      if (output == kNone) continue;
      const Value& value = prepared.graph.values[output];
      fmt::print("  {:<24} {:<28} {}\n", printable(value.name), to_string(value.type), node.op->qualified_name());
    }
  }
  return kDone;
}

void declare_check(Subcommands& commands) {
  const auto command = commands.add<CheckOptions>(
      "check",
      "verify, infer shapes, look at labels, count parameters, work and memory, note what is "
      "probably not meant; run nothing",
      command_check);
  CLI::App& app = command.app;
  CheckOptions& options = command.options;
  bind_graph(app, options);
  bind_batch(app, options);
  bind_plan(app, options.session);
  app.add_flag("--json", options.json, "as JSON");
}

}  // namespace arbalest
