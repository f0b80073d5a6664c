// SPDX-License-Identifier: Apache-2.0

// arbalest bench FILE: the cells of an experiment, measured one after the other, and what they say.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/files/folder.h"
#include "base/process.h"
#include "base/shell_word.h"
#include "base/time/deadlines.h"
#include "executor/session/output_paths.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/session_setup.h"
#include "tools/experiment/answer/bench_page.h"
#include "tools/experiment/answer/bundle.h"
#include "tools/experiment/answer/summary.h"
#include "tools/experiment/cells/cells.h"
#include "tools/experiment/quote/quote.h"
#include "tools/experiment/trials/bench_trials.h"
#include "tools/experiment/trials/cell_command.h"
#include "tools/experiment/trials/child_process.h"
#include "tools/experiment/trials/machine_state.h"
#include "tools/experiment/trials/queue_script.h"
#include "tools/experiment/trials/run_trial.h"
#include "tools/experiment/trials/trials.h"
#include "tools/page/page_file.h"

namespace arbalest {
namespace {

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

// A file, its cells and its results.
class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_(options),
        file_(read_bench_file(options.file, options.set)),
        cells_(expand(file_)),
        identities_(options.program),
        trials_(!options.collect.empty()) {
    give_queues();
    keep_cells(cells_, options.cells, options.file);
    const std::string name = name_without(options.file, {".toml"});
    results_path_ = options.results.empty() ? name + ".results.jsonl" : options.results;
    for (const Position& idle : cells_.idle) {
      warn(fmt::format("{}:{}: [[exclude]]: leaves out nothing", idle.file, idle.line));
    }
  }

  int run() {
    const auto held = hold_outputs({{"--output", options_.output}, {"--bundle", options_.bundle}});
    if (!options_.output.empty()) check_kind_kept("--output", options_.output, OutputKind::Page);
    if (!options_.bundle.empty()) check_kind_kept("--bundle", options_.bundle, OutputKind::Bundle);
    const bool draws = options_.slurm.empty() && !options_.quote && !options_.dry_run;
    if (draws && !options_.svg.empty()) make_folders(options_.svg);
    if (!options_.slurm.empty()) {
      write_queue_scripts(
          file_, cells_, options_.set,
          {std::filesystem::absolute(options_.program.empty() ? own_program() : options_.program).string(),
           std::filesystem::absolute(options_.slurm).lexically_normal().string(),
           std::filesystem::current_path().string()},
          name_without(options_.file, {".toml"}));
      fmt::print("then arbalest bench {} --collect {}\n", shell_word(options_.file), shell_word(options_.slurm));
      return kDone;
    }
    if (!options_.collect.empty()) collect();
    trials_.set(trials_of(file_, cells_,
                          [&](const BenchCell& cell, const auto& words) { return identities_.of(cell, words); }));
    trials_.take(told_results(results_path_));
    trials_.tell_changes();
    if (options_.quote) return quote();
    if (options_.dry_run) return dry_run();
    if (!options_.collect.empty()) {
      print();
      return trials_.pending(again()).empty() ? kDone : kFailed;
    }
    if (!trials_.pending(again()).empty()) check_one_machine();
    const int status = trials_.pending(again()).empty() ? kDone : measure();
    print();
    if (status != kDone) return status;
    return trials_.all_good() ? kDone : kFailed;
  }

 private:
  // The files of results that elements of an array job, or machines, have left in the folder that is collected.
  std::vector<std::filesystem::path> collected_files() const {
    namespace fs = std::filesystem;
    const fs::path folder = fs::path(options_.collect) / "results";
    std::error_code unknown;
    if (!fs::is_directory(folder, unknown)) {
      throw GraphError(
          fmt::format("--collect {}: has no folder 'results'; expected what --slurm wrote", options_.collect));
    }
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  // Takes over the results of those files, whatever machine they are of; a dry run shows them and writes nothing.
  void collect() {
    const std::vector<std::filesystem::path> files = collected_files();
    std::vector<TrialResult> fresh;
    std::set<std::pair<std::string, std::string>> seen;  // another program's trial may be that of several cells
    for (const TrialResult& trial : read_results(results_path_).trials) seen.emplace(trial.key, trial.cell);
    for (const std::filesystem::path& file : files) {
      for (TrialResult& trial : told_results(file.string())) {
        if (seen.emplace(trial.key, trial.cell).second) fresh.push_back(std::move(trial));
      }
    }
    warn(fmt::format("{}: {} results of {} files are new", results_path_, fresh.size(), files.size()));
    if (options_.dry_run) {
      for (TrialResult& trial : fresh) trials_.hold(std::move(trial));
      return;
    }
    check_kind_kept("--results", results_path_, OutputKind::Log);
    ResultsFile written(results_path_);
    for (TrialResult& trial : fresh) written.add(std::move(trial));
  }

  // The needs of a cell for a measure; of another program nothing is known.
  const CellNeeds& needs(const BenchCell& cell, Measure measure) {
    const auto [place, fresh] = needs_.try_emplace({cell.id, measure});
    if (fresh && cell.peer.empty()) {
      place->second = needs_of(cell_words(file_, cell, measure), hosts_in(cell.settings), options_.gpu_memory,
                               measure == Measure::Accuracy ? &*file_.accuracy : nullptr);
    }
    return place->second;
  }
  BenchTrials::Again again() const {
    return {options_.retry, options_.retry && !options_.anyway && options_.collect.empty()};
  }

  // The needs of a cell for all that is measured of it.
  CellNeeds needs(const BenchCell& cell) {
    CellNeeds all;
    for (const Measure measure : {Measure::Throughput, Measure::Accuracy}) {
      if (measure == Measure::Throughput ? !file_.throughput : !file_.accuracy) continue;
      const CellNeeds& each = needs(cell, measure);
      all.bytes = std::max(all.bytes, each.bytes);
      if (!each.fault.empty() && (all.fault.empty() || all.too_large)) {  // an error before what does not fit
        all.fault = each.fault;
        all.too_large = each.too_large;
      }
    }
    return all;
  }

  int dry_run() {
    quotes_ = current_quotes();
    std::vector<const Trial*> waiting = trials_.pending(again());
    std::erase_if(waiting, [&](const Trial* trial) { return !needs(*trial->cell, trial->measure).fault.empty(); });
    std::vector<TimeLeft> lefts;
    double longest = 0;
    for (const BenchCell& cell : cells_.cells)
      longest = std::max(longest, lefts.emplace_back(time_left(cell, waiting)).seconds);
    const TimeUnit unit = unit_of(longest);
    const auto number = [](double value) {
      return value > 0 ? TableValue{shown(value), value} : TableValue{"-", value};
    };
    ResultTable table{
        file_.title.empty() ? options_.file : file_.title,
        {{"cell", false}, {"id", false}, {"planned memory"}, {"trials to run"}, {fmt::format("{}, about", unit.name)}},
        {},
        {}};
    if (file_.price) table.columns.push_back({file_.price->currency + ", about"});
    table.columns.push_back({"note", false});
    double total = 0;
    bool all_known = true, all_run = true;
    for (size_t c = 0; c < cells_.cells.size(); ++c) {
      const BenchCell& cell = cells_.cells[c];
      const CellNeeds takes = needs(cell);
      all_run = all_run && (takes.fault.empty() || takes.too_large);
      const auto count =
          std::count_if(waiting.begin(), waiting.end(), [&](auto* trial) { return trial->cell == &cell; });
      const TimeLeft& left = lefts[c];
      total += left.seconds;
      all_known = all_known && left.known;
      table.rows.push_back({{cell.name},
                            {cell.id},
                            takes.bytes > 0 ? TableValue{size_text(takes.bytes), double(takes.bytes)} : TableValue{"-"},
                            {std::to_string(count), double(count)},
                            left.known ? number(left.seconds / unit.seconds) : TableValue{"unknown"}});
      if (file_.price) {
        const double money = left.seconds / 3600 * number_of(file_.price->per_hour, cell.settings, file_.price->where);
        table.rows.back().push_back(left.known ? number(money) : TableValue{"unknown"});
      }
      table.rows.back().push_back({takes.fault.empty() ? lacks(cell) : takes.fault});
    }
    for (const ExcludedCell& excluded : cells_.excluded) {
      std::vector<TableValue> row(table.columns.size(), TableValue{"-"});
      row.front().text = excluded.name;
      row.back().text = "excluded: " + excluded.reason;
      table.rows.push_back(std::move(row));
    }
    table.notes.push_back(
        fmt::format("{} cell{}, {} trial{} to run{}{}", cells_.cells.size(), cells_.cells.size() == 1 ? "" : "s",
                    waiting.size(), waiting.size() == 1 ? "" : "s", total > 0 ? ", about " + shown_time(total) : "",
                    all_known ? "" : "; how long training takes is unknown, and --quote predicts it"));
    std::vector<ResultTable> tables = {table};
    if (!all_run) tables.front().notes.emplace_back("cells whose note is an error cannot run: their trials would fail");
    add_quotes(summarize(file_, cells_, trials_.current()), tables);
    write(tables);
    return all_run ? kDone : kFailed;
  }

  struct TimeLeft {
    double seconds = 0;
    bool known = true;  // false: without training runs, whose speed nothing has measured
  };
  // How long the cell's trials that are left will take.
  TimeLeft time_left(const BenchCell& cell, const std::vector<const Trial*>& waiting) {
    constexpr double kStart = 1;  // s that a process takes before it trains
    std::vector<double> rates;
    for (const TrialResult& result : trials_.results()) {
      if (result.cell == cell.id && result.images_per_second > 0) rates.push_back(result.images_per_second);
    }
    const auto quote = std::find_if(quotes_.begin(), quotes_.end(), [&](const Quote& q) { return q.cell == cell.id; });
    if (rates.empty() && quote != quotes_.end() && quote->images_per_second > 0) {
      rates.push_back(quote->images_per_second);
    }
    TimeLeft left;
    for (const Trial* trial : waiting) {
      if (trial->cell != &cell || !needs(cell, trial->measure).fault.empty()) continue;
      if (trial->measure == Measure::Throughput) {
        const ThroughputRule& rule = *file_.throughput;
        left.seconds += kStart + rule.warmup_seconds + double(rule.windows) * rule.window_seconds;
      } else if (rates.empty() || !cell.peer.empty()) {
        left.known = false;
      } else {
        left.seconds += kStart + needs(cell, trial->measure).samples / median_of(rates);
      }
    }
    return left;
  }

  int measure() {
    check_kind_kept("--results", results_path_, OutputKind::Log);
    ResultsFile written(results_path_);
    trials_.take(written.trials());
    if (trials_.add_missing(written)) trials_.take(written.trials());
    std::vector<const Trial*> waiting = trials_.pending(again());
    for (const Trial* trial : waiting) hold_too_large(*trial);
    std::erase_if(waiting, [&](const Trial* trial) { return needs(*trial->cell, trial->measure).too_large; });
    bool all = tell_absent(waiting) == 0;
    std::erase_if(waiting, [&](const Trial* trial) { return !lacks(*trial->cell).empty(); });
    if (!waiting.empty()) check_machine(waiting);
    if (waiting.size() > 1) warn(fmt::format("{} trials; their logs are in {}", waiting.size(), folder().string()));
    const InterruptHandler interrupt("\narbalest: ending; the same command goes on with what is under way\n");
    const auto began = std::chrono::steady_clock::now();
    for (size_t i = 0; i < waiting.size(); ++i) {
      const TimedLook waits = tell_waiting(*waiting[i], i + 1, waiting.size());
      std::string outcome;
      const std::optional<TrialResult> result = measure(*waiting[i], interrupt.token(), outcome);
      if (InterruptHandler::requested()) {
        trials_.take(written.trials());  // for the answer so far
        return kInterrupted;
      }
      if (result) outcome = outcome_of(*result);
      const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      const double left = took / double(i + 1) * double(waiting.size() - i - 1);
      warn(fmt::format("{} of {}: {}: {}{}", i + 1, waiting.size(), waiting[i]->name(), outcome,
                       left < 60 ? "" : fmt::format("; about {} left", shown_time(left))));
      all = all && result;
      if (!result) continue;
      trials_.add_for_all(written, *result);
      std::error_code ignored;  // checkpoints left behind cost room alone
      std::filesystem::remove_all(folder_of(*waiting[i]) / "checkpoints", ignored);
    }
    trials_.take(written.trials());
    return all ? kDone : kFailed;
  }

  // The device of a cell that this machine lacks, in words; "": it lacks none. Nobody knows what another program finds,
  // and the hosts of a batch queue are other machines.
  std::string lacks(const BenchCell& cell) const {
    const bool elsewhere = hosts_in(cell.settings) > 1 || !options_.program.empty() || options_.gpu_memory > 0;
    if (!cell.peer.empty() || elsewhere) return "";
    const std::optional<PlanDevice> absent = absent_device(devices_of(cell));
    return absent ? to_string(*absent) + " is not in this machine" : "";
  }

  // Names the cells whose devices are not here, once for each device. They leave no result: another machine may have
  // one of theirs. Returns how many there are.
  size_t tell_absent(const std::vector<const Trial*>& waiting) const {
    std::map<std::string, std::vector<std::string>> names;
    size_t count = 0;
    for (const BenchCell& cell : cells_.cells) {
      const bool waits =
          std::any_of(waiting.begin(), waiting.end(), [&](const Trial* trial) { return trial->cell == &cell; });
      const std::string what = lacks(cell);
      if (what.empty() || !waits) continue;
      names[what].push_back(cell.name);
      ++count;
    }
    for (const auto& [what, cells] : names) {
      warn(fmt::format("{}: not measured here: {}", what, fmt::join(cells, "; ")));
    }
    return count;
  }

  // Says now and then how far a trial is that takes long.
  TimedLook tell_waiting(const Trial& trial, size_t place, size_t all) const {
    constexpr double kEach = 300;  // s
    const auto began = std::chrono::steady_clock::now();
    return look_each(std::chrono::duration<double>(kEach), [this, &trial, place, all, began] {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      warn(fmt::format("{} of {}: {}: under way for {}{}", place, all, trial.name(), shown_time(seconds),
                       trial.measure == Measure::Accuracy && trial.cell->peer.empty()
                           ? "; its log: " + (folder_of(trial) / "log.jsonl").string()
                           : ""));
    });
  }

  // Takes it for a result of this process alone that a trial does not fit: other devices may have more memory.
  void hold_too_large(const Trial& trial) {
    const CellNeeds& takes = needs(*trial.cell, trial.measure);
    if (!takes.too_large) return;
    TrialResult result = result_for(trial);
    result.error = takes.fault;
    result.too_large = true;
    trials_.hold(std::move(result));
    warn(fmt::format("{}: {}", trial.name(), takes.fault));
  }

  static std::string outcome_of(const TrialResult& result) {
    if (!result.error.empty()) return "failed: " + result.error;
    if (result.measure == Measure::Throughput) return fmt::format("{} images/s", shown(result.images_per_second));
    // The clock of the tables: from the first touch of data on.
    const CurvePoint& last = result.curve.back();
    return fmt::format("{:.4f} after {} s", last.value, shown(result.setup_seconds + last.seconds));
  }

  std::vector<PlanDevice> all_devices() const {
    std::set<std::string> seen;
    std::vector<PlanDevice> devices;
    for (const BenchCell& cell : cells_.cells) {
      for (const PlanDevice& device : devices_of(cell)) {
        if (seen.insert(to_string(device)).second) devices.push_back(device);
      }
    }
    return devices;
  }

  // Refuses to measure, or to take profiles, on this machine for cells of several.
  void check_one_machine() const {
    std::map<std::string, std::string> machines;  // with the name that --cell takes
    for (const BenchCell& cell : cells_.cells) {
      const std::string name = setting_of(cell.settings, "machine");
      if (!name.empty()) machines.emplace(name, shell_word("machine " + name));
    }
    if (machines.size() < 2) return;
    std::vector<std::string> words;
    for (const auto& [name, word] : machines) words.push_back("--cell " + word);
    throw GraphError(fmt::format("the cells are of {} machines, and this is one of them; expected {}", machines.size(),
                                 fmt::join(words, " or ")));
  }

  // Trials that have a result wait for another time if the machine does other work; those without one cannot.
  void check_machine(std::vector<const Trial*>& waiting) const {
    const MachineState state = look_at_machine(all_devices());
    if (state.faults.empty() || options_.anyway) return;
    const size_t left = std::erase_if(waiting, [&](const Trial* trial) {
      const TrialResult* result = trials_.result_of(*trial);
      return result && result->error.empty();
    });
    if (left > 0) {
      warn(fmt::format("{} disturbed trial{} as {}: {}", left, left == 1 ? " stays" : "s stay",
                       left == 1 ? "it is" : "they are", fmt::join(state.faults, "; ")));
    }
    if (!waiting.empty()) refuse(state);
  }
  void check_machine() const {
    const MachineState state = look_at_machine(all_devices());
    if (!state.faults.empty() && !options_.anyway) refuse(state);
  }
  [[noreturn]] static void refuse(const MachineState& state) {
    throw RunError(
        fmt::format("measurements would mislead: {}; --anyway measures all the same", fmt::join(state.faults, "; ")));
  }

  // As many hardware queues for all cells of the file as the one with the most learners needs, whichever are asked for.
  void give_queues() {
    constexpr int kUsual = 8;  // learners that give_learners_queues() takes "auto" for
    int learners = 1;
    std::string devices = "cpu:0";
    for (const BenchCell& cell : cells_.cells) {
      const std::string text = setting_of(cell.settings, "learners");
      learners = std::max(learners, text == "auto" ? kUsual : std::atoi(text.c_str()));
      if (device_count(cell.settings) > 1) devices = setting_of(cell.settings, "devices");
    }
    give_learners_queues(learners, devices);
  }

  std::optional<TrialResult> measure(const Trial& trial, const std::stop_token& stop, std::string& why) {
    const std::string& fault = needs(*trial.cell, trial.measure).fault;
    if (fault.empty()) return run_trial({file_, program(), folder_of(trial)}, trial, stop, why);
    TrialResult result = result_for(trial);
    result.error = fault;
    return result;
  }

  // Throws RunError if it is not there any more: what is built anew is another build, whose results are its own.
  std::string program() const {
    const std::string path = options_.program.empty() ? own_program() : options_.program;
    std::error_code unknown;
    if (std::filesystem::exists(path, unknown)) return path;
    throw RunError(fmt::format(
        "{}: the program is no longer there, or another one has taken its place; the same command goes on", path));
  }

  // The folder of logs, checkpoints and profiles: "lenet.results" next to "lenet.results.jsonl", and "lenet.runs" next
  // to results in a file "lenet".
  static std::filesystem::path folder_next_to(const std::string& results) {
    constexpr std::string_view kEnd = ".jsonl";
    return results.ends_with(kEnd) ? results.substr(0, results.size() - kEnd.size()) : results + ".runs";
  }
  std::filesystem::path folder() const { return folder_next_to(results_path_); }
  std::filesystem::path folder_of(const Trial& trial) const { return folder() / trial.key; }
  std::string quotes_path() const { return (folder() / "quotes.json").string(); }

  // Predicts each cell, from profiles that are kept or taken now, and keeps the quotes.
  int quote() {
    check_one_machine();
    check_machine();
    const InterruptHandler interrupt("\narbalest: ending; the same command goes on with what is missing\n");
    const auto run = [&](const std::string& cell, const std::vector<std::string>& words) -> std::string {
      warn(fmt::format("{}: some seconds of training on one device, for a profile", cell));
      const ChildEnd end = run_child(program(), words, interrupt.token());
      if (end.signal == 0 && end.status == kDone) return "";
      std::string line = "failed: arbalest";
      for (const std::string& word : words) line += " " + shell_word(word);
      warn(line);
      return why_failed(end);
    };
    Quoter quoter(identities_, (folder() / "profiles").string(), file_.links, run);
    std::vector<Quote> quotes;
    for (const BenchCell& cell : cells_.cells) {
      if (!cell.peer.empty()) continue;
      const bool trains = file_.accuracy.has_value();
      quotes.push_back(quoter.quote(cell, needs(cell, trains ? Measure::Accuracy : Measure::Throughput), trains));
      if (InterruptHandler::requested()) return kInterrupted;
    }
    make_folders(folder());
    write_quotes(quotes_path(), quotes);
    const int status = dry_run();
    return quoter.profile_failed() ? kFailed : status;
  }

  // The quotes that are kept, as far as they are of the cells as they are now.
  std::vector<Quote> current_quotes() {
    std::vector<Quote> quotes = read_quotes(quotes_path());
    const auto is_current = [&](const Quote& quote, const BenchCell& cell) {
      try {
        return quote.basis == basis_of(identities_, cell);
      } catch (const Error&) {
        return quote.basis.empty();  // the cell has a fault now as it had then
      }
    };
    std::erase_if(quotes, [&](const Quote& quote) {
      const auto cell = std::find_if(cells_.cells.begin(), cells_.cells.end(),
                                     [&](const BenchCell& each) { return each.id == quote.cell; });
      return cell == cells_.cells.end() || !is_current(quote, *cell);
    });
    return quotes;
  }

  // Predicted against measured, if there are predictions.
  void add_quotes(const std::vector<CellSummary>& summaries, std::vector<ResultTable>& tables) {
    if (quotes_.empty()) quotes_ = current_quotes();
    if (!quotes_.empty()) tables.push_back(quote_table(file_, summaries, quotes_));
  }

  BenchPage answer() {
    const std::vector<TrialResult> results = trials_.current();
    std::set<std::string> builds, devices, states;
    int64_t disturbed = 0;
    for (const TrialResult& result : results) {
      if (!result.identity.build.empty()) builds.insert(result.identity.build);
      devices.insert(result.identity.devices);
      if (!result.disturbed()) continue;
      ++disturbed;
      for (const auto& fault : result.state.at("faults")) states.insert(fault);
    }
    const std::vector<CellSummary> summaries = summarize(file_, cells_, results);
    std::vector<ResultTable> tables = tables_of(file_, summaries);
    add_quotes(summaries, tables);
    if (disturbed > 0) {
      tables.front().notes.push_back(
          fmt::format("{} of {} trials were measured while the machine did other work or slowed down; "
                      "--retry without --anyway runs them once more",
                      disturbed, results.size()));
    }
    const auto failed = std::count_if(results.begin(), results.end(), [](const TrialResult& result) {
      return !result.error.empty() && !result.too_large;
    });
    if (failed > 0) {
      tables.front().notes.push_back(
          fmt::format("{} trial{} failed; --retry runs them once more", failed, failed == 1 ? "" : "s"));
    }
    if (builds.size() > 1) tables.front().notes.push_back(fmt::format("results of {} builds", builds.size()));
    std::vector<BenchPlot> plots = bench_plots(tables);
    return {file_.title.empty() ? options_.file : file_.title,
            options_.file,
            read_text(options_.file),
            std::move(tables),
            std::move(plots),
            {{"build", fmt::format("{}", fmt::join(builds, ", "))},
             {"devices", fmt::format("{}", fmt::join(devices, "; "))},
             {"disturbed by", fmt::format("{}", fmt::join(states, "; "))}}};
  }

  void print() {
    const BenchPage page = answer();
    write(page.tables);
    if (!options_.output.empty()) write_page(options_.output, bench_page(page));
    if (!options_.svg.empty()) write_plots(page.plots);
    if (!options_.bundle.empty()) bundle(page);
  }

  void write_plots(const std::vector<BenchPlot>& plots) const {
    const std::filesystem::path folder = options_.svg;
    for (const BenchPlot& plot : plots) {
      const std::string path = (folder / plot.file).string();
      check_kind_kept("--svg", path, OutputKind::Picture);
      AtomicFile file(path);
      file.write(plot.svg);
      file.commit();
    }
    warn(fmt::format("{}: {} plots", options_.svg, plots.size()));
  }

  void bundle(const BenchPage& page) {
    BenchBundle bundle{name_without(options_.file, {".toml"}), {options_.file}, results_path_, {{folder(), ""}}, {}};
    if (!options_.collect.empty()) {  // a folder each: machines that are alike have runs of the same keys
      for (const std::filesystem::path& file : collected_files()) {
        bundle.runs.push_back({folder_next_to(file.string()), file.stem().string()});
      }
    }
    for (const BenchCell& cell : cells_.cells) {
      if (!cell.peer.empty()) continue;
      for (const std::string& file : identities_.files_of(cell)) {
        if (std::find(bundle.inputs.begin(), bundle.inputs.end(), file) == bundle.inputs.end()) {
          bundle.inputs.emplace_back(file);
        }
      }
    }
    const MachineState state = look_at_machine(all_devices());
    nlohmann::ordered_json here = {{"host", state.host}, {"cpu", state.cpu}};
    here.update(record_of(state));
    const nlohmann::ordered_json environment = {{"command", "bench"},
                                                {"set", options_.set},
                                                {"measured on", machines_of(trials_.current())},
                                                {"bundled on", here}};
    bundle.texts = {{"page.html", bench_page(page)},
                    {"tables.md", print_tables(page.tables, TableFormat::Markdown)},
                    {"tables.csv", print_tables(page.tables, TableFormat::Csv)},
                    {"environment.json", environment.dump(1) + "\n"}};
    for (const BenchPlot& plot : page.plots) bundle.texts.emplace_back("plots/" + plot.file, plot.svg);
    const std::set<std::string> logged = write_bundle(options_.bundle, bundle);
    tell_without_logs(logged);
  }

  // Names the runs whose logs are not in the bundle: they were collected before, or without their folders.
  void tell_without_logs(const std::set<std::string>& logged) const {
    std::vector<std::string> names;
    for (const Trial& trial : trials_.all()) {
      const TrialResult* result = trials_.result_of(trial);
      if (!result || !result->error.empty() || trial.measure != Measure::Accuracy || !trial.cell->peer.empty())
        continue;
      if (!logged.contains(result->key)) names.push_back(trial.name());
    }
    if (names.empty()) return;
    warn(
        fmt::format("{}: {} run{} without a log: {}; expected a folder next to each file of results, called as that "
                    "file without .jsonl",
                    options_.bundle, names.size(), names.size() == 1 ? "" : "s", fmt::join(names, "; ")));
  }

  void write(const std::vector<ResultTable>& tables) const {
    std::fputs(print_tables(tables, options_.format).c_str(), stdout);
  }

  const BenchOptions& options_;
  const BenchFile file_;
  BenchCells cells_;
  std::string results_path_;
  Identities identities_;
  BenchTrials trials_;
  std::map<std::pair<std::string, Measure>, CellNeeds> needs_;  // by a cell's id
  std::vector<Quote> quotes_;                                   // of the cells as they are
};

}  // namespace

int command_bench(const BenchOptions& options) {
  return Bench(options).run();
}

}  // namespace arbalest
