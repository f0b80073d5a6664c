// SPDX-License-Identifier: Apache-2.0

// arbalest report LOG… or DIR: a page that shows runs, or a sweep, in one file.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/process.h"
#include "executor/session/output_paths.h"
#include "tools/command/commands.h"
#include "tools/command/subcommand.h"
#include "tools/page/page_file.h"
#include "tools/report/report_page.h"
#include "tools/report/run_plots.h"
#include "tools/report/sweep/sweep_page.h"
#include "tools/sweep/sweep_log.h"

namespace arbalest {
namespace {

// "runs/lenet.jsonl" is called "lenet".
std::string run_name(const std::string& log) {
  return name_without(log, {".jsonl", ".json", ".log"});
}

// The page of a log is called like it, that of several after the folder that they are all in, or "report".
std::string page_name(const std::vector<std::string>& logs, const char* ending) {
  if (logs.size() == 1) return run_name(logs[0]) + ending;
  const std::string folder = std::filesystem::path(logs[0]).parent_path().filename().string();
  const bool one = std::all_of(logs.begin(), logs.end(), [&](const std::string& log) {
    return std::filesystem::path(log).parent_path() == std::filesystem::path(logs[0]).parent_path();
  });
  const bool named = one && folder.find_first_not_of('.') != folder.npos;
  return named ? folder + ending : "report" + std::string(ending == std::string_view(".svg") ? ending : ".html");
}

int write(const std::string& file, const LinePlot& plot) {
  AtomicFile written(file);
  written.write(svg_of(plot));
  written.commit();
  fmt::print("{}: a picture (SVG)\n", printable(file));
  return kDone;
}

int report_sweep(const ReportOptions& options) {
  const std::string& folder = options.logs.front();
  if (options.plot != ReportOptions::Plot::None) {
    throw GraphError(fmt::format("--plot: found {}, a folder, expected logs of runs", folder));
  }
  const std::string file = options.file.empty() ? sweep_name(folder) + "-sweep.html" : options.file;
  check_inputs_kept({{"DIR", sweep_log_path(folder)}}, {{"--output", file}});
  check_kind_kept("--output", file, OutputKind::Page);
  const auto held = hold_outputs({{"--output", file}});
  write_page(file, sweep_page(folder));
  return kDone;
}

}  // namespace

int command_report(const ReportOptions& options) {
  using Plot = ReportOptions::Plot;
  const auto folder = std::find_if(options.logs.begin(), options.logs.end(), is_sweep_folder);
  if (folder != options.logs.end() && options.logs.size() > 1) {
    throw GraphError(
        fmt::format("report: {} is a folder; expected logs of runs, or one sweep's folder alone", *folder));
  }
  if (folder != options.logs.end()) return report_sweep(options);
  const bool page = options.plot == Plot::None;
  const std::string file =
      options.file.empty() ? page_name(options.logs, page ? ".report.html" : ".svg") : options.file;
  NamedPaths logs;
  for (const std::string& log : options.logs) logs.emplace_back("LOG", log);
  check_inputs_kept(logs, {{"--output", file}});
  check_kind_kept("--output", file, page ? OutputKind::Page : OutputKind::Picture);
  const auto held = hold_outputs({{"--output", file}});
  if (options.plot == Plot::Scaling) return write(file, scaling_plot(options.logs));
  const std::vector<std::string> names = names_apart(options.logs, run_name);
  std::vector<RunLog> runs;
  for (size_t i = 0; i < options.logs.size(); ++i) {
    for (RunLog& run : read_run_logs(options.logs[i], names[i])) {
      if (!run["faults"].empty()) {
        warn(fmt::format("{}:{}: {}{}", options.logs[i], run["faults"][0]["line"].get<size_t>(),
                         run["faults"][0]["what"].get<std::string>(),
                         run["faulty_lines"] > 1 ? fmt::format("; {} lines are damaged, the page lists them",
                                                               run["faulty_lines"].get<int>())
                                                 : ""));
      }
      runs.push_back(std::move(run));
    }
  }
  if (options.plot == Plot::Accuracy) return write(file, accuracy_plot(runs));
  write_page(file, report_page(runs));
  return kDone;
}

void declare_report(Subcommands& commands) {
  const auto command =
      commands.add<ReportOptions>("report", "show runs: one HTML file, which opens without a network", command_report);
  CLI::App& app = command.app;
  ReportOptions& options = command.options;
  app.add_option("LOG", options.logs, "logs written by run --log; several runs are compared. Or the folder of a sweep")
      ->type_name("")
      ->check(not_empty());
  app.add_option("-o,--output", options.file,
                 "the page, or the plot; otherwise LOG's name with .report.html, or .svg, here; of several logs their "
                 "folder's name, or report.html; of a sweep its folder's name with -sweep.html")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option_function<std::string>(
         "--plot",
         [&options](const std::string& kind) {
           if (kind == "scaling")
             options.plot = ReportOptions::Plot::Scaling;
           else if (kind == "accuracy")
             options.plot = ReportOptions::Plot::Accuracy;
           else
             throw GraphError(fmt::format("--plot '{}': expected scaling or accuracy", kind));
         },
         "a picture (SVG) instead: accuracy over seconds, or scaling, of files of bench scaling --json")
      ->type_name("KIND");
  command.check = [&app, &options] { require(options.logs.empty() ? "" : options.logs.front(), "LOG", app); };
}

}  // namespace arbalest
