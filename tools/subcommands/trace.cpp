// SPDX-License-Identifier: Apache-2.0

// arbalest trace FILE: a summary of a trace in the terminal, and the gain from possible changes.

#include <fmt/format.h>

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
  if (!options.worlds.empty()) text += '\n' + predict_worlds(trace, options.worlds, options.links);
  put_report(stdout, text);
  return kDone;
}

namespace {

// Throws GraphError if a world has a link of which nothing is known.
void take_links(TraceOptions& options, const std::string& within, const std::string& between) {
  if (!within.empty()) options.links.within = parse_link("--within", within);
  if (!between.empty()) options.links.between = parse_link("--between", between);
  const auto need = [&](const char* option, const Link& link, int64_t WorldSize::*count) {
    for (const WorldSize& size : options.worlds) {
      if (size.*count == 1 || link.bytes_per_second > 0) continue;
      throw GraphError(fmt::format("--world {}x{} needs {}, a latency and a bandwidth such as 10us,400Gbit/s",
                                   size.hosts, size.devices, option));
    }
  };
  need("--within", options.links.within, &WorldSize::devices);
  need("--between", options.links.between, &WorldSize::hosts);
}

}  // namespace

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
  const auto worlds = std::make_shared<std::vector<std::string>>();
  const auto within = std::make_shared<std::string>(), between = std::make_shared<std::string>();
  app.add_option("--world", *worlds, "predict the time per iteration with so many hosts x devices of each; repeatable")
      ->type_name("HxD")
      ->take_all()
      ->allow_extra_args(false);
  const auto link = [&](const char* name, std::string& value, const char* description) {
    app.add_option(name, value, description)->type_name("LATENCY,RATE");
  };
  link("--within", *within, "of the link of each device to others of its host, for --world: 5us,300GB/s");
  link("--between", *between, "of the link of each host to others, for --world: 10us,400Gbit/s");
  app.footer(
      "A CHANGE is prefetch.depth=N (batches read ahead), source*F (reading takes F times as long), learners-N\n"
      "(learners fewer on each device) or PATTERN*F: the layer of that name takes F times as long, forward and\n"
      "backward ('conv1*0.5'), or where there is none, tasks whose names contain the pattern, or else nodes\n"
      "('grad_weight*0.5'); in it, * stands for anything, as in 'cuda:*/update*0.5'. Each is predicted by itself, "
      "from\n"
      "a simulation of the trace's plan with the measured durations. --world simulates the plan of the trace's "
      "devices\n"
      "with all-reduces that take as long as links of the given speed need. --slowest, --gaps and --reasons imply\n"
      "--full.");
  command.check = [&app, &options, what_if, worlds, within, between] {
    require(options.file, "FILE", app);
    for (const std::string& change : *what_if) options.what_if.push_back(parse_what_if(change));
    for (const std::string& world : *worlds) options.worlds.push_back(parse_world_size("--world", world));
    take_links(options, *within, *between);
    for (const char* list : {"--slowest", "--gaps", "--reasons"}) options.full |= app.count(list) > 0;
  };
}

}  // namespace arbalest
