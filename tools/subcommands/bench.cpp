// SPDX-License-Identifier: Apache-2.0

// arbalest bench: measurements.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "base/files/atomic_file.h"
#include "base/number.h"
#include "base/shell_word.h"
#include "executor/plan/device_list.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/session_setup.h"
#include "tools/command/subcommand.h"
#include "tools/command/world_setup.h"
#include "tools/experiment/answer/table.h"
#include "tools/experiment/cells/settings.h"
#include "tools/experiment/cells/written_file.h"
#include "tools/measure/bench_scaling.h"
#include "tools/measure/bench_tracing.h"

namespace arbalest {
namespace {

// Reports errors of the graph or its data before the first cell, since all cells would meet them. Returns the batch.
int64_t check(const Graph& graph, SessionOptions session) {
  session.learners.devices.resize(1);
  return prepare(graph, session).program.training().batch;
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);  // a sweep takes minutes: results can be read as they come
}

// In a world, cells are of rank 0's own devices, which it measures alone, or of all devices.
void check_counts(const std::vector<int>& counts, const std::vector<PlanDevice>& pool) {
  const auto own = std::count_if(pool.begin(), pool.end(), [](const PlanDevice& device) { return device.rank == 0; });
  for (const int count : counts) {
    if (count <= own || size_t(count) == pool.size()) continue;
    throw GraphError(fmt::format(
        "--device-counts: found {}, expected at most {}, which rank 0 has, or {}, which all ranks have together", count,
        own, pool.size()));
  }
}

// Writes the bench file that stands for the command line, and says how it is run.
int write_bench(const ScalingOptions& options) {
  if (std::filesystem::exists(options.write)) {
    throw GraphError(fmt::format("--write {}: is there already; expected the name of a new file", options.write));
  }
  load_with_overrides(options);
  AtomicFile file(options.write);
  file.write(options.bench_text);
  file.commit();
  print(fmt::format("arbalest bench {}\n", shell_word(options.write)));
  return kDone;
}

int scaling(const ScalingOptions& options, const std::shared_ptr<Ranks>& ranks) {
  SessionOptions session = session_options(options);
  if (ranks) share_session(ranks, options.devices, session);
  const bool tells = !ranks || ranks->first();
  const std::optional<WarningsOfFirst> quiet(std::in_place, ranks.get());
  const std::vector<PlanDevice> pool = session.learners.devices;
  std::vector<int> counts = device_counts(options.device_counts, pool.size());
  if (ranks && options.device_counts.empty()) counts = {int(pool.size())};
  if (ranks) {
    // The cells are those of all ranks; each then compares what it trains.
    check_options_alike(*ranks, {{"--device-counts", fmt::format("{}", fmt::join(counts, ","))},
                                 {"--learners", fmt::format("{}", fmt::join(options.learners, ","))}});
    check_counts(counts, pool);
  }
  if (const size_t cells = counts.size() * options.learners.size(); !options.trace.empty() && cells > 1) {
    throw GraphError(
        fmt::format("--trace {}: found {} cells, expected one: --device-counts and --learners name one "
                    "number each",
                    options.trace, cells));
  }
  check_kind_kept("--trace", options.trace, OutputKind::Trace);
  const Graph graph = graph_to_measure(options);
  const int64_t batch = check(graph, session);
  WindowRule rule{options.windows, options.window_seconds, options.warmup_seconds};
  rule.settled = options.settled;

  ScalingTable table(
      {graph.name, std::string(name_of(session.numerics.precision)), pool.size(), options.price_per_hour});
  if (!options.json && tells) {
    print(fmt::format("{}: {}, batch {} per learner; images/s: median of {} windows of {} s\n", graph.name,
                      name_of(session.numerics.precision), batch, options.windows, options.window_seconds));
    print(table.heading());
  }
  const InterruptHandler interrupt;
  const Train traced = [&](const Graph& measured, SessionOptions with, RunObserver& observer, std::stop_token stop) {
    with.files.trace = options.trace;
    run_training(measured, with, observer, std::move(stop));
  };
  // Rank 0 decides when the windows are measured, and the others train along.
  const Train along = [&](const Graph& measured, const SessionOptions& cell, RunObserver&, const std::stop_token&) {
    run_training(measured, cell, no_observer(), interrupt.token());
  };
  const Train train = tells ? traced : along;
  for (const int devices : counts) {
    const bool together = ranks && size_t(devices) == pool.size();
    for (const int learners : options.learners) {
      session.learners.devices.assign(pool.begin(), pool.begin() + devices);
      session.learners.per_device = learners;
      session.ranks = together ? ranks : nullptr;
      if (tells || together) {
        const ScalingRow row = table.add(measure_cell(graph, session, rule, interrupt.token(), train));
        if (tells) print(options.json ? table.json(row) : table.line(row));
        if (together && row.cell.failure) std::rethrow_exception(row.cell.failure);  // on all ranks
      }
      if (on_any_rank(ranks.get(), InterruptHandler::requested())) return kInterrupted;
    }
  }
  return !tells || table.any_measured() ? kDone : kFailed;
}

}  // namespace

int command_bench_scaling(const ScalingOptions& options) {
  if (!options.write.empty()) return write_bench(options);
  give_learners_queues(*std::max_element(options.learners.begin(), options.learners.end()), options.devices);
  const std::shared_ptr<Ranks> ranks = join_world(options.world);
  tell_if_alone(ranks.get(), options.world);
  return run_as_rank(ranks.get(), [&] { return scaling(options, ranks); });
}

int command_bench_tracing(const TracingOptions& options) {
  const SessionOptions session = session_options(options);
  const Graph graph = graph_to_measure(options);
  const int64_t batch = check(graph, session);
  const WindowRule rule{options.windows, options.window_seconds, options.warmup_seconds};
  const int64_t sample_ms = session.execution.sample_ms;
  print(fmt::format("{}: {}, batch {} per learner; images/s, runs in turn: median of {} windows of {} s\n", graph.name,
                    name_of(session.numerics.precision), batch, options.windows, options.window_seconds));
  print(fmt::format("{:>5} {:>12} {:>12} {:>12}\n", "round", "untraced", "recorded", "and sampled"));
  const InterruptHandler interrupt;
  std::vector<TracingRound> rounds;
  for (int round = 0; round < options.rounds; ++round) {
    rounds.push_back(measure_tracing(graph, session, rule, round, sample_ms, interrupt.token()));
    print(tracing_line(round, rounds.back()));
  }
  print(tracing_report(rounds));
  return kDone;
}

namespace {

// Parses "1,2,4"; the result is ascending, in whatever order it was written.
std::vector<int> parse_counts(std::string_view option, std::string_view text) {
  constexpr WholeRange kRange = OptionRanges::kLearners;
  const auto fail = [&](const std::string& what) {
    throw GraphError(fmt::format("{} '{}': {}; expected whole numbers from {} to {} with commas between them", option,
                                 text, what, kRange.least, kRange.most));
  };
  std::vector<int> counts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view item = text.substr(at, comma - at);
    const int count = read_number<int>(item).value_or(0);
    if (count < kRange.least || count > kRange.most) fail(fmt::format("found '{}'", item));
    if (std::find(counts.begin(), counts.end(), count) != counts.end()) fail(fmt::format("{} is named twice", count));
    counts.push_back(count);
    at = comma + 1;
  }
  std::sort(counts.begin(), counts.end());
  return counts;
}

// The first devices of a list, as many as asked for each time.
std::vector<std::string> first_devices(const ScalingOptions& options) {
  const std::vector<PlanDevice> pool = parse_devices(options.devices, default_devices);
  std::vector<std::string> lists;
  for (const int count : device_counts(options.device_counts, pool.size())) {
    std::vector<std::string> names;
    for (int d = 0; d < count; ++d) names.push_back(to_string(pool[size_t(d)]));
    lists.push_back(fmt::format("{}", fmt::join(names, ",")));
  }
  return lists;
}

// The bench file that asks what the command line does. Throws GraphError for an option that such a file has none for.
std::string bench_text(const CLI::App& app, const ScalingOptions& options) {
  const std::set<std::string> read = {"GRAPH",   "--write", "--devices", "--device-counts",  "--learners",
                                      "--batch", "--set",   "--windows", "--window-seconds", "--warmup-seconds"};
  WrittenBench bench{options.graph, {}, {}};
  bench.rule.windows = options.windows;
  bench.rule.window_seconds = options.window_seconds;
  bench.rule.warmup_seconds = options.warmup_seconds;
  bench.settings.push_back({"devices", first_devices(options)});
  bench.settings.push_back({"learners", {}});
  for (const int count : options.learners) bench.settings.back().values.push_back(std::to_string(count));
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || read.contains(name)) continue;
    const std::string setting = setting_stated_by(name);
    if (setting.empty() || option->count() > 1) {
      throw GraphError(fmt::format("--write {}: a bench file has no setting for {}{}", options.write, name,
                                   setting.empty() ? "" : ", given twice"));
    }
    bench.settings.push_back({setting, {option->get_expected_max() == 0 ? "true" : option->results().front()}});
  }
  for (const std::string& change : options.set) {
    const size_t equals = change.find('=');
    if (equals == change.npos) throw GraphError(fmt::format("--set {}: expected NODE.ATTRIBUTE=VALUE", change));
    const std::string name = change.substr(0, equals), known = setting_stated_by(name);
    bench.settings.push_back({known.empty() ? name : known, {change.substr(equals + 1)}});
  }
  return text_of(bench, options.write);
}

void declare_scaling(Subcommands& commands, CLI::App& bench) {
  const auto command = commands.add<ScalingOptions>("scaling", "training throughput over devices and learners",
                                                    command_bench_scaling, &bench);
  CLI::App& app = command.app;
  ScalingOptions& options = command.options;
  const auto device_counts = std::make_shared<std::optional<std::string>>();
  const auto learner_counts = std::make_shared<std::string>("1");
  bind_graph(app, options);
  bind_batch(app, options);
  bind_passes(app, options.session);
  bind_strategy(app, options.session);
  bind_memory(app, options.session);
  bind_world(app, options.world);
  const auto option = [&app](const char* name, auto& value, const char* type, const char* description) {
    return app.add_option(name, value, description)->type_name(type);
  };
  option("--device-counts", *device_counts, "LIST",
         "how many of the devices to measure on: 1,2,4; default: powers of two and all of them, with several processes "
         "all of them alone");
  option("--learners", *learner_counts, "LIST", "replicas per device: 1,2,4")->capture_default_str();
  option("--windows", options.windows, "N", "measurements of each cell; their median is its throughput")
      ->capture_default_str()
      ->check(whole(1, 1000));
  option("--window-seconds", options.window_seconds, "TIME", "how long a window is at least")
      ->capture_default_str()
      ->transform(duration(1e-3, 1e6));
  option("--warmup-seconds", options.warmup_seconds, "TIME", "before the first window; at least 10 iterations")
      ->capture_default_str()
      ->transform(duration(0, 1e6));
  option("--settled", options.settled, "X",
         "the warm-up goes on until the rates of two windows differ by this share at most, as in 0.02")
      ->check(real(0, 1));
  option("--report-every", options.session.execution.report_every, "N",
         "iterations between timestamps: fewer where one takes seconds")
      ->capture_default_str()
      ->check(whole(1));
  option("--price-per-hour", options.price_per_hour, "X",
         "of all devices together; adds images per unit of money, a cell paying for the devices that it uses")
      ->check(real(1e-6, 1e9));
  option("--trace", options.trace, "FILE", "write a trace of the only cell (.json.gz)")->check(not_empty());
  app.add_flag("--json", options.json, "one JSON object a line and cell");
  option("--write", options.write, "FILE.toml",
         "write the experiment that 'arbalest bench FILE.toml' takes; run nothing")
      ->check(not_empty());
  app.footer(
      "Validation is left out, and the learning rate is 1e-6 unless --set says otherwise: noise could make a loss "
      "diverge.\nA cell that fails says why and the others go on; the exit status is 1 where all "
      "failed.\nSpeed-up is against the first cell, efficiency against one device with as many learners. All cells "
      "have as many "
      "hardware queues as the most learners on all devices get; CUDA_DEVICE_MAX_CONNECTIONS says otherwise.");
  command.check = [&app, &options, device_counts, learner_counts] {
    if (*device_counts) options.device_counts = parse_counts("--device-counts", **device_counts);
    options.learners = parse_counts("--learners", *learner_counts);
    if (!options.write.empty()) options.bench_text = bench_text(app, options);
  };
}

void declare_tracing(Subcommands& commands, CLI::App& bench) {
  const auto command =
      commands.add<TracingOptions>("tracing", "what a trace costs in throughput", command_bench_tracing, &bench);
  CLI::App& app = command.app;
  TracingOptions& options = command.options;
  bind_graph(app, options);
  bind_batch(app, options);
  bind_passes(app, options.session);
  bind_strategy(app, options.session);
  bind_memory(app, options.session);
  const auto option = [&app](const char* name, auto& value, const char* type, const char* description) {
    return app.add_option(name, value, description)->capture_default_str()->type_name(type);
  };
  option("--learners", options.session.learners.per_device, "N", "replicas per device")
      ->check(whole(OptionRanges::kLearners));
  option("--rounds", options.rounds, "N", "of three runs each: untraced, recorded, recorded and sampled")
      ->check(whole(1, 1000));
  option("--windows", options.windows, "N", "measurements of each run; their median is its throughput")
      ->check(whole(1, 1000));
  option("--window-seconds", options.window_seconds, "TIME", "how long a window is at least")
      ->transform(duration(1e-3, 1e6));
  option("--warmup-seconds", options.warmup_seconds, "TIME", "before the first window; at least 10 iterations")
      ->transform(duration(0, 1e6));
  option("--sample-every", options.session.execution.sample_ms, "MS", "between samples of devices and process")
      ->check(whole(1, OptionRanges::kSampleEvery.most));
  option("--report-every", options.session.execution.report_every, "N",
         "iterations between timestamps: fewer where one takes seconds")
      ->check(whole(1));
  app.footer(
      "Validation is left out, and the learning rate is 1e-6 unless --set says otherwise. The three runs of a round\n"
      "follow each other, in another order each round, and costs are those within rounds: what drifts on a machine\n"
      "is in all of them. Writing the file is no part of it.");
}

void add_format(CLI::App& app, TableFormat& format) {
  app.add_option_function<std::string>(
         "--format",
         [&format](const std::string& name) {
           if (name != "text" && name != "markdown" && name != "csv") {
             throw GraphError(fmt::format("--format '{}': expected text, markdown or csv", name));
           }
           format = name == "text" ? TableFormat::Text : name == "csv" ? TableFormat::Csv : TableFormat::Markdown;
         },
         "of the tables: text, markdown or csv")
      ->default_str("text")
      ->type_name("NAME");
}

void declare_compare(Subcommands& commands, CLI::App& bench) {
  const auto command =
      commands.add<BenchCompareOptions>("compare", "results before and after a change", command_bench_compare, &bench);
  CLI::App& app = command.app;
  BenchCompareOptions& options = command.options;
  app.add_option("FILES", options.files, "results of 'arbalest bench FILE': those before the change, those after it")
      ->type_name("")
      ->check(not_empty());
  app.add_option("--threshold", options.threshold, "share by which a cell may be worse, as in 0.05")
      ->type_name("X")
      ->capture_default_str()
      ->check(real(0, 1));
  app.add_option("--target", options.targets, "the time until the metric met it is compared too; may be repeated")
      ->type_name("X")
      ->allow_extra_args(false);
  add_format(app, options.format);
  app.footer(
      "A row is worse if the whole interval of its ratio lies below 1 - threshold.\n"
      "Exit status: 0 nothing is surely worse, 1 something is or is missing, 2 a file has no results, or no row has "
      "the "
      "five repetitions on both sides that a verdict takes.");
  command.check = [&options] {
    if (options.files.size() == 2) return;
    throw GraphError(
        fmt::format("bench compare: found {} files, expected two: before and after", options.files.size()));
  };
}

// Refuses what is neither a bench file's name nor a subcommand.
void refuse_other_name(const CLI::App& app, const std::string& file) {
  std::error_code unknown;
  if (file.ends_with(".toml")) return;
  if (!std::filesystem::is_regular_file(file, unknown)) reject(app, {file});
  throw GraphError(
      fmt::format("bench {}: the file's name has to end in .toml; expected FILE.toml, an experiment", file));
}

CLI::App& declare_file(Subcommands& commands) {
  const auto command = commands.add<BenchOptions>("bench", "measure what an experiment's file asks for", command_bench);
  CLI::App& app = command.app;
  BenchOptions& options = command.options;
  const auto text = [&app](const char* name, auto& value, const char* type, const char* description) {
    return app.add_option(name, value, description)->type_name(type)->check(not_empty());
  };
  text("FILE", options.file, "", "the experiment (.toml); docs/bench.md says what may be in it");
  text("--results", options.results, "FILE",
       "where each finished trial is kept, a JSON line each; otherwise FILE's name with .results.jsonl, here");
  text("--set", options.set, "NAME=VALUE",
       "a setting in place of the file's, as in learners=[1, 2] or throughput.repetitions=3; repeatable")
      ->take_all()
      ->allow_extra_args(false);
  text("--cell", options.cells, "ID",
       "the cells whose names have these parts, as in 'batch 32, devices cuda:0', or this one by its id or how that "
       "begins; repeatable")
      ->take_all()
      ->allow_extra_args(false);
  app.add_flag("--dry-run", options.dry_run, "list cells, their memory and what they will take; run nothing");
  app.add_flag("--quote", options.quote,
               "predict what each cell does, from profiles of one device that take seconds each; measure nothing");
  app.add_option_function<std::string>(
         "--gpu-memory", [&options](const std::string& size) { options.gpu_memory = bytes_of("--gpu-memory", size); },
         "of each GPU (80GiB), for cells whose GPUs are not in this machine")
      ->type_name("SIZE");
  text("--slurm", options.slurm, "DIR", "write a script into this folder that measures each cell in a batch queue");
  text("--collect", options.collect, "DIR", "take over the results that such a script's jobs have left, and show them");
  text("--program", options.program, "FILE",
       "the arbalest to measure, if it is not this one; another content of the file is another build");
  app.add_flag("--anyway", options.anyway, "measure although the machine does other work");
  app.add_flag(
      "--retry", options.retry,
      "run trials that failed once more, and without --anyway those that other work or a slow clock disturbed");
  add_format(app, options.format);
  text("-o,--output", options.output, "FILE", "write a page with tables and plots, too: one HTML file");
  text("--svg", options.svg, "DIR", "write the page's plots into this folder, too: a file (.svg) each");
  text("--bundle", options.bundle, "FILE.tar",
       "write an archive to publish, too: the file, its graphs, results, logs, tables, page, plots and environment");
  app.footer(
      "The same command goes on with what is missing, whenever it was ended. Each trial is a process of its own.\n"
      "Exit status: 0 all is measured, 1 a trial failed, 2 the file is wrong, 130 interrupted.");
  command.refuse = [&app, &options](const std::vector<std::string>&) {
    if (!options.file.empty()) refuse_other_name(app, options.file);
  };
  command.check = [&app, &options] {
    if (options.file.empty()) {
      throw GraphError(
          "bench: found no file, expected FILE.toml, scaling, tracing or compare; 'arbalest bench --help' says more");
    }
    refuse_other_name(app, options.file);
    if (options.gpu_memory > 0 && !options.dry_run && !options.quote) {
      throw GraphError("bench: --gpu-memory stands for GPUs that are not here; expected --dry-run or --quote with it");
    }
  };
  return app;
}

}  // namespace

void declare_bench(Subcommands& commands) {
  CLI::App& bench = declare_file(commands);
  declare_scaling(commands, bench);
  declare_tracing(commands, bench);
  declare_compare(commands, bench);
}

}  // namespace arbalest
