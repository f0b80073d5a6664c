// arbalest plan: the plan, or the graph as a pass leaves it.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "executor/trace_plan.h"
#include "tools/graph_listing.h"
#include "tools/commands.h"
#include "tools/session_setup.h"

namespace arbalest {

int command_plan(const PlanCommandOptions& options) {
  const SessionOptions session = session_options(options);
  if (options.after.empty()) {
    const Prepared prepared = prepare(load_with_overrides(options), session);
    const Plan plan = make_plan(prepared.program, prepared.request);
    const std::string text = options.json ? plan_record(plan).dump(2) + "\n" : print_plan(plan);
    std::fputs(text.c_str(), stdout);
    return kDone;
  }
  const auto& passes = pass_names();
  if (std::find(passes.begin(), passes.end(), options.after) == passes.end()) {
    throw GraphError(fmt::format("unknown pass '{}'; the passes are {}{}", options.after, fmt::join(passes, ", "),
                                 did_you_mean(options.after, passes)));
  }
  prepare(load_with_overrides(options), session, [&](std::string_view pass, const Graph& graph) {
    if (pass != options.after) return;
    std::fputs((options.json ? graph_record(graph).dump(2) + "\n" : list_graph(graph)).c_str(), stdout);
  });
  return kDone;
}

}  // namespace arbalest
