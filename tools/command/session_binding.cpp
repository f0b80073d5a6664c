// SPDX-License-Identifier: Apache-2.0
#include "tools/command/session_binding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/number.h"
#include "executor/devices/nvtx.h"
#include "passes/program.h"
#include "tools/command/duration.h"

namespace arbalest {
namespace {

// Runs a parser and puts the option in front of its error.
template <typename Parse>
void named(const char* option, const Parse& parse) {
  try {
    parse();
  } catch (const GraphError& error) {
    throw GraphError(fmt::format("{}: {}", option, error.what()));
  }
}

// An option that is a word, which `set` parses into the field it stands for.
CLI::Option* add_word(CLI::App& command, const char* name, std::function<void(const std::string&)> set,
                      const char* description) {
  const auto parse = [name, set = std::move(set)](const std::string& word) { named(name, [&] { set(word); }); };
  return command.add_option_function<std::string>(name, parse, description);
}

CLI::Option* add_path(CLI::App& command, const char* name, std::string& path, const char* description) {
  return command.add_option(name, path, description)->type_name("FILE")->check(not_empty());
}

int32_t learners_of(const std::string& text) {
  if (text == "auto") return 0;
  const int32_t learners = read_number<int32_t>(text).value_or(0);
  constexpr WholeRange kRange = OptionRanges::kLearners;
  if (learners >= kRange.least && learners <= kRange.most) return learners;
  throw GraphError(fmt::format("--learners '{}': expected {}, or auto", text, to_string(kRange)));
}

// A time, or a number of iterations or epochs. Throws GraphError.
void set_interval(const std::string& text, CheckpointOptions& checkpoints) {
  const char* option = "--checkpoint-every";
  std::string_view unit = text;
  const auto number = take_number<double>(unit, std::chars_format::fixed);
  const bool counted = number && (unit == "it" || unit == "ep");
  const std::optional<double> seconds = counted || unit.empty() ? std::nullopt : seconds_of(text);
  if (!counted && !seconds) {
    throw GraphError(fmt::format("{} '{}': expected a time, iterations or epochs, as in 90s, 10m, 1h30m, 500it or 1ep",
                                 option, text));
  }
  const double count = seconds ? *seconds : *number;
  const double most =
      seconds ? OptionRanges::kCheckpointEverySeconds.most : double(OptionRanges::kCheckpointEvery.most);
  if (!(count > 0 && count <= most)) {
    throw GraphError(fmt::format("{} '{}': expected a number above 0, and no more than {:g}", option, text, most));
  }
  if (seconds) {
    checkpoints.seconds = *seconds;
    return;
  }
  if (*number != std::floor(*number)) throw GraphError(fmt::format("{} '{}': expected a whole number", option, text));
  (unit == "it" ? checkpoints.iterations : checkpoints.epochs) = int64_t(*number);
}

void bind_rules(CLI::App& command, ValidationRules& rules) {
  const auto add_targets = [&rules](const std::vector<std::string>& targets) {
    for (const std::string& target : targets) {
      named("--until", [&] { rules.targets.push_back(parse_target(target)); });
    }
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--until", add_targets, "end when a validation metric gets there: 'accuracy >= 0.94'; repeatable")
      ->type_name("TARGET")
      ->take_all()
      ->allow_extra_args(false);
  command
      .add_option("--metric", rules.metric,
                  "what the best is judged by, with :min or :max where no operator says which way is better; otherwise "
                  "the first that is no loss")
      ->type_name("NAME[:min|max]")
      ->check(not_empty());
  command.add_option("--patience", rules.patience, "end after this many validations without a new best; 0: never")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(OptionRanges::kPatience));
  command
      .add_option("--plateau", rules.plateau,
                  "lower the learning rate after this many validations without a new best; 0: never")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(OptionRanges::kPlateau));
  command.add_option("--plateau-factor", rules.plateau_factor, "what --plateau multiplies the rate with")
      ->capture_default_str()
      ->type_name("F")
      ->check(real(OptionRanges::kPlateauFactor));
}

void bind_files(CLI::App& command, FileOptions& files) {
  bind_weights(command, files, "start from these weights (safetensors)");
  command
      .add_option("--fresh", files.fresh,
                  "parameters that do not start from --weights, such as a head of another size; repeatable")
      ->type_name("PATTERN")
      ->take_all()
      ->allow_extra_args(false)
      ->check(not_empty());
  add_path(command, "--save", files.save, "write the weights here (safetensors)");
  add_path(command, "--save-best", files.save_best, "write the weights here whenever a validation is the best so far");
  add_path(command, "--trace", files.trace, "write a trace that Perfetto opens (.json.gz)");
}

}  // namespace

int64_t bytes_of(const char* option, const std::string& text) {
  const std::vector<std::pair<std::string, double>> units = {
      {"", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", double(int64_t{1} << 40)}};
  std::string_view unit = text;
  const auto number = take_number<double>(unit, std::chars_format::fixed);
  const auto known = std::find_if(units.begin(), units.end(), [&](const auto& each) { return each.first == unit; });
  if (!number || known == units.end()) {
    throw GraphError(fmt::format("{} '{}': expected a size, as in 6GiB, 900MiB or 6442450944 (bytes)", option, text));
  }
  constexpr WholeRange kRange = OptionRanges::kMemoryLimit;
  const double bytes = *number * known->second;
  if (!(bytes >= double(kRange.least) && bytes <= double(kRange.most))) {
    throw GraphError(fmt::format("{} '{}': expected 1 byte to 1024 TiB", option, text));
  }
  return int64_t(bytes);
}

// CLI11's own checks print limits of 300 digits and say nothing of what they expect of a word that is no number.
CLI::Validator whole(int64_t least, int64_t most) {
  return {[=](std::string& text) {
            const auto value = read_number<int64_t>(text);
            if (value && *value >= least && *value <= most) return std::string();
            return fmt::format("found '{}', expected {}", text, to_string(WholeRange{least, most}));
          },
          ""};
}

CLI::Validator whole(WholeRange range) {
  return whole(range.least, range.most);
}

CLI::Validator real(double least, double most) {
  return {[=](std::string& text) {
            const auto value = read_number<double>(text);
            if (value && *value >= least && *value <= most) return std::string();
            return fmt::format("found '{}', expected a number from {:g} to {:g}", text, least, most);
          },
          ""};
}

CLI::Validator real(RealRange range) {
  return real(range.least, range.most);
}

CLI::Validator duration(double least, double most) {
  return {[=](std::string& text) {
            const std::optional<double> seconds = seconds_of(text);
            if (!seconds || *seconds < least || *seconds > most) {
              return fmt::format("found '{}', expected a time from {:g} to {:g} seconds, as in {}", text, least, most,
                                 kTimes);
            }
            text = fmt::format("{}", *seconds);
            return std::string();
          },
          ""};
}

CLI::Validator duration(RealRange range) {
  return duration(range.least, range.most);
}

CLI::Validator not_empty() {  // a script's variable that is not set
  return {[](std::string& text) { return text.empty() ? std::string("found '', expected a name") : std::string(); },
          ""};
}

void bind_graph(CLI::App& command, GraphOptions& options) {
  SessionOptions& session = options.session;
  command.add_option("GRAPH", options.graph, "graph file (.onnxtxt or .onnx)")->type_name("");
  command.add_option("--devices", options.devices, "cpu:0-1, cuda:0, cuda:0,2-3 or auto")
      ->capture_default_str()
      ->type_name("LIST");
  add_word(
      command, "--precision",
      [&session](const std::string& word) { session.numerics.precision = parse_precision(word); },
      "fp32, tf32 or bf16 (master weights stay fp32)")
      ->default_str(std::string(name_of(session.numerics.precision)))
      ->type_name("P");
  command.add_option("--seed", session.numerics.seed, "of initialisers, order of data and augmentation")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(0));
  command.add_flag("--deterministic", session.numerics.deterministic,
                   "the same bits each time, with any number of threads");
  command.add_option("--set", options.set, "change a node's attribute; repeatable")
      ->type_name("NODE.ATTR=VALUE")
      ->take_all()
      ->allow_extra_args(false);
  const auto add_models = [&options](const std::vector<std::string>& models) {
    for (const std::string& text : models) {
      named("--model", [&] { options.models.push_back(parse_model_file(text)); });
    }
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--model", add_models, "the file (.onnx) of a model that the graph calls as model.NAME; repeatable")
      ->type_name("[NAME=]FILE")
      ->take_all()
      ->allow_extra_args(false);
  command.add_option("--threads", session.execution.threads, "host threads; 0: one a core")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(OptionRanges::kThreads));
}

void bind_memory(CLI::App& command, SessionOptions& session) {
  const char* name = "--memory-limit";
  command
      .add_option_function<std::string>(
          name, [&session, name](const std::string& text) { session.execution.memory_limit = bytes_of(name, text); },
          "of each device (6GiB, 900MiB or bytes): where a step would need more, values are computed again, not kept")
      ->type_name("SIZE");
}

void bind_passes(CLI::App& command, SessionOptions& session) {
  const auto add = [&session](const std::vector<std::string>& lists) {
    for (const std::string& list : lists) {
      for (size_t at = 0; at <= list.size();) {
        const size_t comma = std::min(list.find(',', at), list.size());
        const std::string name = list.substr(at, comma - at);
        named("--without", [&] { check_optional(name); });
        session.numerics.without.insert(name);
        at = comma + 1;
      }
    }
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--without", add,
          "leave out these passes, with commas between them, of those that make a step faster or smaller; repeatable")
      ->type_name("PASS")
      ->take_all()
      ->allow_extra_args(false);
}

void bind_strategy(CLI::App& command, SessionOptions& session) {
  add_word(
      command, "--strategy",
      [&session](const std::string& word) { session.learners.strategy = strategy_spec(word).name; },
      fmt::format("how learners agree: {}; otherwise the graph's", strategies_in_words()).c_str())
      ->type_name("NAME");
}

void bind_reading(CLI::App& command, SessionOptions& session, const char* description) {
  command.add_option("--skip-bad", session.execution.skip_bad, description)
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(OptionRanges::kSkipBad));
  command
      .add_option("--read-timeout", session.execution.read_timeout,
                  "how long a sample may be read before that ends the run, with its file; 0: for ever")
      ->capture_default_str()
      ->type_name("TIME")
      ->transform(duration(OptionRanges::kReadTimeout));
}

void bind_weights(CLI::App& command, FileOptions& files, const char* description) {
  add_path(command, "--weights", files.weights, description);
  add_path(command, "--weights-map", files.weights_map,
           "rules from names in --weights to the graph's; a line each: PATTERN NAME");
}

void bind_batch(CLI::App& command, GraphOptions& options) {
  command
      .add_option_function<int64_t>(
          "--batch", [&options](int64_t batch) { options.set.push_back(fmt::format("prefetch.batch={}", batch)); },
          "samples per learner; short for --set prefetch.batch=N")
      ->type_name("N")
      ->check(whole(1));
}

void bind_plan(CLI::App& command, SessionOptions& session) {
  bind_passes(command, session);
  bind_strategy(command, session);
  bind_memory(command, session);
  command
      .add_option_function<std::string>(
          "--learners", [&session](const std::string& text) { session.learners.per_device = learners_of(text); },
          "replicas per device; auto: as many as pay, found while training")
      ->default_str("1")
      ->type_name("N|auto");
  command
      .add_option("--batch-total", session.learners.batch_total,
                  "samples of all learners' batches together; 0: not given")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(OptionRanges::kBatchTotal));
  command
      .add_option("--recalibrate", session.rules.recalibrate,
                  "before each validation, estimate batch norm's statistics with this many training batches")
      ->type_name("N")
      ->check(whole(OptionRanges::kRecalibrate));
  command.add_option("--epochs", session.length.epochs, "epochs to train for")
      ->type_name("N")
      ->check(whole(OptionRanges::kEpochs));
  command
      .add_option("--schedule-epochs", session.length.schedule_epochs,
                  "epochs that the learning rate's schedule spans, if this run is a part of them")
      ->type_name("N")
      ->check(whole(OptionRanges::kScheduleEpochs));
  command
      .add_option("--iterations", session.length.iterations, "end after this many iterations, whatever --epochs says")
      ->type_name("N")
      ->check(whole(OptionRanges::kIterations));
}

void bind_changes(CLI::App& command, std::vector<std::string>& changes) {
  command
      .add_option("--change", changes,
                  "from the checkpoint on, another number of the learning rate's schedule: train.lr=0.01; repeatable")
      ->type_name("NODE.ATTR=VALUE")
      ->take_all()
      ->allow_extra_args(false);
}

void bind_checkpoints(CLI::App& command, SessionOptions& session) {
  CheckpointOptions& checkpoints = session.checkpoints;
  command
      .add_option("--checkpoint", checkpoints.folder,
                  "write into this folder, now and then, all that the run is, to go on from after it was ended")
      ->type_name("DIR")
      ->check(not_empty());
  command
      .add_option_function<std::string>(
          "--checkpoint-every", [&checkpoints](const std::string& text) { set_interval(text, checkpoints); },
          "time, iterations (it) or epochs (ep) from one checkpoint to the next: 10m, 1h30m, 500it, 1ep")
      ->default_str("10m")
      ->type_name("INTERVAL");
  command
      .add_option("--checkpoint-keep", checkpoints.keep,
                  "checkpoints to keep: the newest, and besides that of the best validation")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(OptionRanges::kCheckpointKeep));
  command.add_flag("--resume", checkpoints.resume,
                   "go on from the newest checkpoint in --checkpoint's folder; start afresh where there is none");
  bind_changes(command, checkpoints.changes);
  command
      .add_option("--time-limit", session.length.seconds, "end after this time as Ctrl-C does: 90s, 1m30s, 2h or 1d")
      ->type_name("TIME")
      ->transform(duration(OptionRanges::kTimeLimit));
}

void bind_divergence(CLI::App& command, DivergenceOptions& divergence) {
  add_word(
      command, "--on-nan", [&divergence](const std::string& word) { divergence.then = parse_on_divergence(word); },
      "where the loss is not finite: stop; rollback to the newest checkpoint with a lower learning rate; or skip such "
      "updates")
      ->default_str("stop")
      ->type_name("HOW");
  command
      .add_option("--nan-rate-factor", divergence.rate_factor,
                  "what --on-nan rollback multiplies the learning rate with, each time")
      ->capture_default_str()
      ->type_name("F")
      ->check(real(OptionRanges::kNanRateFactor));
  command
      .add_option("--nan-rollbacks", divergence.most_rollbacks,
                  "how often --on-nan rollback goes back; where the loss diverges once more the run ends")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(OptionRanges::kNanRollbacks));
  command.add_flag("--find-nan", divergence.find,
                   "name the node that makes the first value that is not finite; the run rests after each iteration, "
                   "which is slow");
}

void bind_run(CLI::App& command, SessionOptions& session) {
  bind_rules(command, session.rules);
  add_word(
      command, "--scale-lr",
      [&session](const std::string& word) { session.learners.rate_scaling = parse_rate_scaling(word); },
      "the learning rate by the learners: none, linear or sqrt")
      ->default_str("none")
      ->type_name("HOW");
  bind_files(command, session.files);
  bind_reading(command, session,
               "go on over so many samples that cannot be read: in training the next one takes their place, in "
               "validation they are left out");
  command
      .add_option("--device-timeout", session.execution.device_timeout,
                  "time after which a task of a GPU, or a collective, that could have started and has not ended, "
                  "or a call of the driver that has not returned, ends the run; a rank of several that stands still "
                  "so long is lost")
      ->capture_default_str()
      ->type_name("TIME")
      ->transform(duration(OptionRanges::kDeviceTimeout));
  command.add_flag_callback(
      "--nvtx",
      [&session] {
        if (!has_nvtx()) throw GraphError("--nvtx: this build has no NVTX, which comes with CUDA");
        session.execution.nvtx = true;
      },
      "ranges of tasks and nodes for NVIDIA's Nsight");
  command
      .add_option("--sample-every", session.execution.sample_ms,
                  "with --trace: between samples of what devices and process use; 0: none")
      ->capture_default_str()
      ->type_name("MS")
      ->check(whole(OptionRanges::kSampleEvery));
  command
      .add_option("--log-every", session.execution.report_every,
                  "iterations between progress events; 0: by the length of an epoch")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(OptionRanges::kLogEvery));
}

void bind_inference(CLI::App& command, GraphOptions& options, std::string& split, std::string& class_names) {
  bind_graph(command, options);
  bind_passes(command, options.session);
  bind_weights(command, options.session.files, kModelsWeights);
  bind_reading(command, options.session,
               "go on over so many samples that cannot be read, which are left out; otherwise as many as the run of "
               "--weights might");
  command.add_option("--split", split, "of the source; otherwise the one that the graph validates with")
      ->type_name("NAME")
      ->check(not_empty());
  command
      .add_option("--class-names", class_names,
                  "names of the classes, a line each; otherwise the source's, or those that --weights has")
      ->type_name("FILE")
      ->check(not_empty());
}

void bind_on_lost(CLI::App& command, SessionOptions& session) {
  add_word(
      command, "--on-lost", [&session](const std::string& word) { session.on_lost = parse_on_lost(word); },
      "where a process of several is lost: end; or continue with the learners that are left, which needs the strategy "
      "sma or local")
      ->default_str("end")
      ->type_name("HOW");
}

void bind_world(CLI::App& command, WorldOptions& world) {
  command.add_option("--rank", world.rank, "of this process among those that work together; a launcher's otherwise")
      ->type_name("N");
  command
      .add_option("--world-size", world.size,
                  "how many processes work together; 1: this one alone, whatever started it")
      ->type_name("N");
  command.add_option("--rendezvous", world.rendezvous, "where rank 0 waits for the others")
      ->type_name("HOST:PORT")
      ->check(not_empty());
  command
      .add_option("--secret-file", world.secret_file,
                  "holds the secret that the processes share; otherwise the variable ARBALEST_SECRET")
      ->type_name("FILE")
      ->check(not_empty());
  command
      .add_option("--rendezvous-timeout", world.patience, "seconds after which a process that has not come is missing")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(real(0.1, 86400));
  command
      .add_option("--lost-after", world.silence,
                  "time without a sign of life after which a process that others work with is lost; a network that is "
                  "gone for less holds them up")
      ->capture_default_str()
      ->type_name("TIME")
      ->transform(duration(0.5, 86400));
  add_word(
      command, "--collectives", [&world](const std::string& word) { world.collectives = parse_collectives(word); },
      "library by which arrays of CPU devices travel between processes: gloo; or mpi, for networks that MPI knows and "
      "TCP does not use well, if mpirun started them")
      ->default_str("gloo")
      ->type_name("LIBRARY");
}

void bind_training(CLI::App& command, GraphOptions& options) {
  bind_graph(command, options);
  bind_batch(command, options);
  bind_plan(command, options.session);
  bind_run(command, options.session);
  bind_checkpoints(command, options.session);
  bind_divergence(command, options.session.divergence);
}

std::vector<OptionValue> option_values(const CLI::App& command) {
  std::vector<OptionValue> values;
  for (const CLI::Option* option : command.get_options()) {
    if (option == command.get_help_ptr()) continue;
    const auto& names = option->get_lnames();
    OptionValue value = {.name = names.empty() ? option->get_name() : names.front(), .words = option->results()};
    if (value.words.empty() && !option->get_default_str().empty()) value.words = {option->get_default_str()};
    value.flag = option->get_expected_max() == 0;
    value.repeatable = option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace arbalest
