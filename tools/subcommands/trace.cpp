// SPDX-License-Identifier: Apache-2.0

// arbalest trace FILE: a summary of a trace in the terminal, and the gain from possible changes.

#include <climits>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "executor/trace/trace_summary.h"
#include "tools/command/commands.h"
#include "tools/command/subcommand.h"
#include "tools/view/trace_json.h"
#include "tools/watch/fitted_text.h"

namespace arbalest {

int command_trace(const TraceOptions& options) {
  SummaryOptions summary;
  summary.slowest = options.slowest;
  summary.each = options.each;
  summary.gaps = options.gaps;
  summary.reasons = options.reasons;
  summary.full = options.full;
  const TraceFile trace = read_trace(options.file);
  if (options.json) {
    using Json = nlohmann::ordered_json;
    const Json json =
        made_of_trace(options.file, [&] { return trace_json(trace, analyze(trace, summary), what_pays(trace)); });
    const std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kDone;
  }
  std::string text = made_of_trace(options.file, [&] { return summarize(trace, summary); });
  if (!options.what_if.empty()) text += '\n' + predict(trace, options.what_if);
  put_report(stdout, text);
  return kDone;
}

void declare_trace(Subcommands& commands) {
  const auto command = commands.add<TraceOptions>("trace", "summarise a trace", command_trace);
  CLI::App& app = command.app;
  TraceOptions& options = command.options;
  const auto what_if = std::make_shared<std::vector<std::string>>();
  app.add_option("FILE", options.file, "trace written by run --trace")->type_name("");
  const auto count = [&](const char* name, int& value, const char* description) {
    app.add_option(name, value, description)->capture_default_str()->type_name("N")->check(whole(0, INT_MAX));
  };
  app.add_flag("--full", options.full, "all lanes' causes, slowest instances, gaps, overlaps");
  app.add_flag("--json", options.json, "as JSON, what pays included");
  app.add_flag("--each", options.each, "every lane and task by itself, not all learners' together");
  count("--slowest", options.slowest, "task instances to list");
  count("--gaps", options.gaps, "gaps to list");
  count("--reasons", options.reasons, "causes of idleness to list a lane");
  app.add_option("--what-if", *what_if, "predict the time per iteration after a change; repeatable")
      ->type_name("CHANGE")
      ->take_all()
      ->allow_extra_args(false);
  app.footer(
      "A CHANGE is prefetch.depth=N (batches read ahead), source*F (reading takes F times as long), learners-N\n"
      "(learners fewer on each device) or PATTERN*F: the layer of that name takes F times as long, forward and\n"
      "backward ('conv1*0.5'), or where there is none, tasks whose names contain the pattern, or else nodes\n"
      "('grad_weight*0.5'); in it, * stands for anything, as in 'cuda:*/update*0.5'. Each is predicted by itself, "
      "from\n"
      "a simulation of the trace's plan with the measured durations. --slowest, --gaps and --reasons imply --full.");
  command.check = [&app, &options, what_if] {
    require(options.file, "FILE", app);
    for (const std::string& change : *what_if) options.what_if.push_back(parse_what_if(change));
    for (const char* list : {"--slowest", "--gaps", "--reasons"}) options.full |= app.count(list) > 0;
  };
}

}  // namespace arbalest
