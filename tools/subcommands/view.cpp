// SPDX-License-Identifier: Apache-2.0

// arbalest view: traces as a page.

#include <string>
#include <vector>

#include "executor/session/output_paths.h"
#include "tools/command/commands.h"
#include "tools/command/subcommand.h"
#include "tools/page/page_file.h"
#include "tools/view/viewer_page.h"

namespace arbalest {
namespace {

// "runs/lenet.trace.json.gz" is called "lenet".
std::string trace_name(const std::string& path) {
  return name_without(path, {".gz", ".json", ".trace"});
}

// "lenet.html", and for two traces "lenet-starved.html", which leaves the page of the first one alone.
std::string page_of(const std::vector<std::string>& traces) {
  const std::string first = trace_name(traces[0]), last = trace_name(traces.back());
  return (first == last ? first : first + "-" + last) + ".html";
}

}  // namespace

int command_view(const ViewOptions& options) {
  const std::string file = options.file.empty() ? page_of(options.traces) : options.file;
  NamedPaths read;
  for (const std::string& trace : options.traces) read.emplace_back("TRACE", trace);
  check_inputs_kept(read, {{"--output", file}});
  check_kind_kept("--output", file, OutputKind::Page);
  const auto held = hold_outputs({{"--output", file}});
  std::vector<ViewerData> traces;
  const std::vector<std::string> names = names_apart(options.traces, trace_name);
  for (size_t i = 0; i < names.size(); ++i) {
    const TraceFile trace = read_trace(options.traces[i]);
    traces.push_back(made_of_trace(options.traces[i], [&] { return viewer_data(trace, names[i]); }));
  }
  write_page(file, viewer_page(traces));
  return kDone;
}

void declare_view(Subcommands& commands) {
  const auto command =
      commands.add<ViewOptions>("view", "show traces: one HTML file, which opens without a network", command_view);
  CLI::App& app = command.app;
  ViewOptions& options = command.options;
  app.add_option("TRACE", options.traces, "traces written by run --trace; of several, the page shows what changed")
      ->type_name("")
      ->check(not_empty());
  app.add_option("-o,--output", options.file, "the page; otherwise TRACE.html, or of two A-B.html, here")
      ->type_name("FILE")
      ->check(not_empty());
  command.check = [&app, &options] { require(options.traces.empty() ? "" : options.traces.front(), "TRACE", app); };
}

}  // namespace arbalest
