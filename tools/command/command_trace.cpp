// arbalest trace FILE: what a trace says, in the terminal, and what would change if. arbalest view TRACE…: a page that
// shows schedules, in one file.

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "executor/trace/trace_summary.h"
#include "io/formats/atomic_file.h"
#include "tools/command/commands.h"
#include "tools/view/trace_json.h"
#include "tools/view/viewer_page.h"

namespace arbalest {
namespace {

// "runs/lenet.trace.json.gz" is called "lenet".
std::string name_of(const std::string& path) {
  std::string name = std::filesystem::path(path).filename().string();
  for (const char* ending : {".gz", ".json", ".trace"}) {
    if (name.ends_with(ending) && name.size() > std::string_view(ending).size()) {
      name.resize(name.size() - std::string_view(ending).size());
    }
  }
  return name;
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
    const Json json = trace_json(trace, analyze(trace, summary), what_pays(trace));
    const std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kDone;
  }
  std::string text = summarize(trace, summary);
  if (!options.what_if.empty()) text += '\n' + predict(trace, options.what_if);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kDone;
}

int command_view(const ViewOptions& options) {
  std::vector<ViewerData> traces;
  for (const std::string& file : options.traces) traces.push_back(viewer_data(read_trace(file), name_of(file)));
  const std::string file = options.file.empty() ? name_of(options.traces[0]) + ".html" : options.file;
  const std::string page = viewer_page(traces);
  AtomicFile written(file);
  written.write(page);
  written.commit();
  fmt::print("{}: {:.1f} MB; open it in a browser\n", file, double(page.size()) / 1e6);
  return kDone;
}

}  // namespace arbalest
