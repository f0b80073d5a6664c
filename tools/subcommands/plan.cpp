// SPDX-License-Identifier: Apache-2.0

// arbalest plan: the plan, or the graph as a pass leaves it.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "executor/plan/plan_part.h"
#include "executor/segment/cursor.h"
#include "executor/trace/trace_record.h"
#include "graph/op.h"
#include "tools/command/commands.h"
#include "tools/command/graph_listing.h"
#include "tools/command/plan_summary.h"
#include "tools/command/session_setup.h"
#include "tools/command/subcommand.h"
#include "tools/command/world_setup.h"
#include "tools/watch/fitted_text.h"

namespace arbalest {
namespace {

using nlohmann::json;

json operand_record(const Plan& plan, const Graph& graph, ValueId value, const Operand& operand) {
  const Buffer& buffer = plan.buffers[operand.buffer];
  return {{"value", graph.values[value].name},
          {"type", to_string(graph.values[value].type)},
          {"arena", plan.arenas[buffer.arena].name},
          {"offset", buffer.offset + operand.offset},
          {"slots", buffer.slots}};
}

// The part of the plan that a trace holds, plus its memory and the nodes of each task.
json full_record(const Plan& plan) {
  json record = plan_record(plan);
  for (const Arena& arena : plan.arenas) {
    record["arenas"].push_back({{"name", arena.name},
                                {"device", arena.device},
                                {"memory", arena.memory == Arena::Memory::Pinned ? "pinned" : "device"},
                                {"bytes", arena.bytes}});
  }
  for (const TaskId t : plan.tasks.ids()) {
    const Task& task = plan.tasks[t];
    json nodes = json::array();
    for (int32_t i = 0; i < task.launches; ++i) {
      const Launch& launch = plan.launches[size_t(task.first_launch + i)];
      const Graph& graph = plan.graphs[size_t(launch.program)];
      const Node& node = graph.nodes[launch.node];
      json entry = {{"name", node.name},
                    {"op", node.op->qualified_name()},
                    {"inputs", json::array()},
                    {"outputs", json::array()}};
      const auto list = [&](const char* key, const std::vector<ValueId>& values, int32_t first) {
        for (size_t v = 0; v < values.size(); ++v) {
          if (values[v] != kNone)
            entry[key].push_back(operand_record(plan, graph, values[v], plan.operands[size_t(first) + v]));
        }
      };
      list("inputs", node.inputs, launch.first_operand);
      list("outputs", node.outputs, launch.first_operand + launch.inputs);
      nodes.push_back(std::move(entry));
    }
    if (!nodes.empty()) record["tasks"][size_t(t)]["nodes"] = std::move(nodes);
  }
  return record;
}

// Names need not be UTF-8, JSON has to be.
std::string json_text(const nlohmann::json& record) {
  return record.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

int command_plan(const PlanCommandOptions& options) {
  SessionOptions session = session_options(options);
  if (!options.world.empty()) {
    session.learners.devices = devices_of_world(options.world, session.learners.devices.front().kind);
  }
  if (options.after.empty()) {
    Prepared prepared = prepare(load_with_overrides(options), session);
    Cursor begin;
    take_rest(prepared.request, begin, prepared.program);  // as long as the first strategy holds
    const Plan plan = make_plan(prepared.program, prepared.request);
    const int32_t ranks = rank_count(plan);
    for (int32_t rank = 0; rank < ranks; ++rank) part_of(plan, rank);  // proven, as the whole is
    const Recomputation& again = prepared.recomputation;
    if (options.json) {
      json record = full_record(plan);
      if (again.limit > 0) record["memory_limit"] = recomputation_record(again);
      std::fputs(json_text(record).c_str(), stdout);
    } else {
      std::string text = summarize_plan(plan, again) + "\n" + print_plan(part_of(plan, 0));
      if (ranks > 1) {
        text += fmt::format("These are the tasks of {}, one of {} hosts; --json prints those of all.\n",
                            plan.devices.front().host, ranks);
      }
      if (prepared.strategies.size() > 1) {
        text = fmt::format("strategies: {}; this is the plan of the first\n\n{}", to_string(prepared.strategies), text);
      }
      put_report(stdout, text);
    }
    return kDone;
  }
  const auto& passes = pass_names();
  if (std::find(passes.begin(), passes.end(), options.after) == passes.end()) {
    throw GraphError(fmt::format("unknown pass '{}'; the passes are {}{}", options.after, fmt::join(passes, ", "),
                                 did_you_mean(options.after, passes)));
  }
  prepare(load_with_overrides(options), session, [&](std::string_view pass, const Graph& graph) {
    if (pass != options.after) return;
    std::fputs((options.json ? json_text(graph_record(graph)) : list_graph(graph)).c_str(), stdout);
  });
  return kDone;
}

void declare_plan(Subcommands& commands) {
  const auto command =
      commands.add<PlanCommandOptions>("plan", "print the plan, or the graph after a pass", command_plan);
  CLI::App& app = command.app;
  PlanCommandOptions& options = command.options;
  bind_graph(app, options);
  bind_batch(app, options);
  bind_plan(app, options.session);
  app.add_option("--after", options.after, "print the graph as this pass leaves it")
      ->type_name("PASS")
      ->check(not_empty());
  app.add_option("--world", options.world, "for so many hosts with so many devices each, none of which need be there")
      ->type_name("HOSTSxDEVICES")
      ->check(not_empty());
  app.add_option_function<std::string>(
         "--gpu", [&options](const std::string& name) { options.session.execution.gpu = device_model(name); },
         "for GPUs of this model, which need not be there, as in A100")
      ->type_name("MODEL")
      ->check(not_empty());
  app.add_flag("--json", options.json, "as JSON");
}

}  // namespace arbalest
