// SPDX-License-Identifier: Apache-2.0

// arbalest trace FILE: a summary of a trace in the terminal, and the gain from possible changes. arbalest view TRACE…:
// a page that shows schedules, in one file.

#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "executor/session/output_paths.h"
#include "executor/trace/trace_summary.h"
#include "tools/command/commands.h"
#include "tools/page/page_file.h"
#include "tools/view/trace_json.h"
#include "tools/view/viewer_page.h"
#include "tools/watch/fitted_text.h"

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

// The result of `make` on a trace that was read from `file`. Some faults of the trace's plan show only here; their
// errors name the file too.
template <typename Make>
auto made_of(const std::string& file, const Make& make) {
  try {
    return make();
  } catch (const GraphError& error) {
    throw GraphError(Position{file, 0, 0}, error.what());
  }
}

}  // namespace

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
        made_of(options.file, [&] { return trace_json(trace, analyze(trace, summary), what_pays(trace)); });
    const std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kDone;
  }
  std::string text = made_of(options.file, [&] { return summarize(trace, summary); });
  if (!options.what_if.empty()) text += '\n' + predict(trace, options.what_if);
  put_report(stdout, text);
  return kDone;
}

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
    traces.push_back(made_of(options.traces[i], [&] { return viewer_data(trace, names[i]); }));
  }
  write_page(file, viewer_page(traces));
  return kDone;
}

}  // namespace arbalest
