// SPDX-License-Identifier: Apache-2.0
#include "tools/command/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <climits>

#include "base/error.h"
#include "base/plain_message.h"
#include "base/shell_word.h"
#include "base/version.h"
#include "tools/command/commands.h"
#include "tools/command/session_binding.h"
#include "tools/start/unknown_option.h"

namespace arbalest {
namespace {

// Parses "1,2,4"; the result is ascending, in whatever order it was written.
std::vector<int> parse_counts(std::string_view option, std::string_view text) {
  const auto fail = [&](const std::string& what) {
    throw GraphError(fmt::format("{} '{}': {}; expected whole numbers from 1 to {} with commas between them", option,
                                 text, what, kMostReplicas));
  };
  std::vector<int> counts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view item = text.substr(at, comma - at);
    int count = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), count);
    if (error != std::errc{} || end != item.data() + item.size() || count < 1 || count > kMostReplicas) {
      fail(fmt::format("found '{}'", item));
    }
    if (std::find(counts.begin(), counts.end(), count) != counts.end()) fail(fmt::format("{} is named twice", count));
    counts.push_back(count);
    at = comma + 1;
  }
  std::sort(counts.begin(), counts.end());
  return counts;
}

constexpr const char* kModelsWeights =
    "the model's weights (safetensors), with what their run changed by --set; otherwise the graph's own";

// Declares options and positionals. Meanings beyond their types are checked by the code that uses them.
class CommandLine {
 public:
  CommandLine() : app_("Arbalest trains neural networks from graph files.", "arbalest") {
    app_.set_help_flag("-h,--help", "this text");
    app_.set_version_flag("--version", ARBALEST_VERSION);
    app_.allow_extras();
    app_.footer(
        "To begin: 'arbalest init lenet' writes a graph file, 'arbalest run lenet.onnxtxt' trains it. What a graph\n"
        "may have in it: 'arbalest ops' lists operators, 'arbalest sources' data sets.\n\n"
        "Exit status: 0 done, 1 the run failed or could not write its weights or its log where they were asked for,\n"
        "2 the command or the graph is wrong, 3 --until was not reached, 130 interrupted or out of time.\n"
        "'arbalest COMMAND --help' lists a command's options.");
    declare_start();
    declare_run();
    declare_resume();
    declare_evaluate();
    declare_predict();
    declare_export();
    declare_check();
    declare_plan();
    declare_trace();
    declare_view();
    declare_report();
    declare_profile();
    declare_bench();
    declare_tracing();
    declare_data();
    declare_descriptions();
  }

  // The help of a command, or of all.
  std::string help(const std::vector<std::string>& words) {
    const CLI::App* about = &app_;
    std::string before;
    for (const std::string& word : words) {
      const std::vector<const CLI::App*> inner = about->get_subcommands({});
      const auto found =
          std::find_if(inner.begin(), inner.end(), [&](const CLI::App* each) { return each->get_name() == word; });
      if (found == inner.end()) reject(*about, {word});
      before += (before.empty() ? "" : " ") + about->get_name();
      about = *found;
    }
    return about->help(before);
  }

  Command parse(int argc, const char* const* argv) {
    run_.command_line.assign(argv, argv + argc);
    // A command named after "help" would be parsed as one.
    if (argc > 1 && std::string_view(argv[1]) == "help") help_.assign(argv + 2, argv + argc);
    std::erase_if(help_, [](const std::string& word) { return word.starts_with('-'); });
    try {
      if (!help_.empty()) return Exit{kDone, help(help_)};
      app_.parse(argc, argv);
      return chosen();
    } catch (const CLI::CallForHelp&) {
      return Exit{kDone, app_.help()};  // the chosen subcommand's
    } catch (const CLI::CallForVersion&) {
      return Exit{kDone, fmt::format("arbalest {}\n", ARBALEST_VERSION)};
    } catch (const CLI::ArgumentMismatch& error) {
      // "--epochs: 1 required N missing", or "--epochs: At Most 1 required but received 2"
      const std::string what = error.what();
      const char* found = what.ends_with(" missing") ? "no value" : "more than one value";
      return wrong(fmt::format("{}: found {}, expected one", what.substr(0, what.find(':')), found));
    } catch (const CLI::ParseError& error) {
      return wrong(error.what());
    } catch (const GraphError& error) {
      return wrong(error.what());
    }
  }

 private:
  CLI::App* declare(const std::string& name, const std::string& description) {
    return declare(app_, name, description);
  }

  static CLI::App* declare(CLI::App& parent, const std::string& name, const std::string& description) {
    CLI::App* command = parent.add_subcommand(name, description);
    command->allow_extras();
    return command;
  }

  void declare_start() {
    init_command_ = declare("init", "write a commented graph file to start from");
    init_command_->add_option("NAME", start_.name, "lenet, cnn, photos or finetune")->type_name("");
    init_command_->add_option("FILE", start_.file, "the graph file, which is not there yet; otherwise NAME.onnxtxt")
        ->type_name("")
        ->check(not_empty());
    init_command_
        ->add_option("--data", start_.data,
                     "a source: what its images and labels need is written into the graph; see 'arbalest sources'")
        ->type_name("SOURCE")
        ->check(not_empty());
    init_command_->add_option("--classes", start_.classes, "how many there are; otherwise as --data says")
        ->type_name("K")
        ->check(whole(1, INT_MAX));
    init_command_->add_option("--model", start_.model, "finetune: the model that was trained elsewhere (.onnx)")
        ->type_name("FILE")
        ->check(not_empty());
    init_command_->footer(describe_templates());
  }

  void declare_run() {
    run_command_ = declare("run", "train as the graph says");
    bind_graph(*run_command_, run_);
    bind_plan(*run_command_, run_.session);
    bind_run(*run_command_, run_.session);
    bind_checkpoints(*run_command_, run_.session);
    bind_divergence(*run_command_, run_.session.divergence);
    run_command_->add_option("--log", run_.log, "write events as JSON lines, for arbalest report")
        ->type_name("FILE")
        ->check(not_empty());
    run_command_->add_option("--tensorboard", run_.tensorboard, "write events into this folder, for TensorBoard")
        ->type_name("DIR")
        ->check(not_empty());
    run_command_->footer(
        "Ctrl-C ends the run after the batches already read, without a validation that is under way, and saves: to\n"
        "--save's file, otherwise to GRAPH.interrupted.safetensors in the working directory, or\n"
        "GRAPH.interrupted-1.safetensors and so on where there is one. A second one stops at once, without saving.\n"
        "With --checkpoint it ends with a checkpoint instead, and leaves a validation that is under way to the run\n"
        "that goes on. That one needs the same command line and --resume, or 'arbalest resume DIR'. SIGTERM, SIGHUP,\n"
        "SIGUSR1, SIGUSR2 and SIGXCPU do as Ctrl-C does.");
  }

  void declare_resume() {
    resume_command_ = declare("resume", "go on with a run from its newest checkpoint");
    resume_command_->add_option("DIR", resume_.folder, "the run's --checkpoint")->type_name("")->check(not_empty());
    bind_changes(*resume_command_, resume_.changes);
    resume_command_->footer(
        "The command line is the run's, as are the folder that it is carried out in, its log and its event files. "
        "What\n"
        "the run trains is what it would have trained without being ended, with --deterministic to the last bit.");
  }

  template <typename Options>
  CLI::App* declare_inference(const char* name, const char* description, Options& options) {
    CLI::App* command = declare(name, description);
    bind_graph(*command, options);
    bind_passes(*command, options.session);
    bind_weights(*command, options.session.files, kModelsWeights);
    bind_reading(*command, options.session,
                 "go on over so many samples that cannot be read, which are left out; otherwise as many as the run of "
                 "--weights might");
    command->add_option("--split", options.split, "of the source; otherwise the one that the graph validates with")
        ->type_name("NAME")
        ->check(not_empty());
    command
        ->add_option("--class-names", options.class_names,
                     "names of the classes, a line each; otherwise the source's, or those that --weights has")
        ->type_name("FILE")
        ->check(not_empty());
    return command;
  }

  void declare_evaluate() {
    evaluate_command_ = declare_inference("evaluate", "measure a trained model on a split", evaluate_);
    evaluate_command_
        ->add_option("--value", evaluate_.value,
                     "the scores that classes are counted by, where several losses compare some; otherwise the first's")
        ->type_name("NAME")
        ->check(not_empty());
    evaluate_command_
        ->add_option("--threshold", evaluate_.threshold,
                     "the probability above which one of several labels a sample counts as predicted")
        ->capture_default_str()
        ->type_name("P")
        ->check(real(0, 1));
    evaluate_command_->add_flag("--json", evaluate_.json,
                                "as JSON; above 1000 classes [class, taken for, samples] in place of a table");
    evaluate_command_->footer(
        "Measures what the graph's Validate lists and, for a model with one class a sample, precision, recall and F1 "
        "of\n"
        "each class and which classes are taken for which; for one with several labels, sensitivity and specificity "
        "of\n"
        "each, at --threshold and where their sum is greatest. Nothing is trained, and no file changes.");
  }

  void declare_predict() {
    predict_command_ =
        declare_inference("predict", "print what a trained model makes of a split or of files", predict_);
    predict_command_->add_option("FILES", predict_.files, "image files to look at, instead of a split")->type_name("");
    predict_command_
        ->add_option("--top", predict_.top,
                     "classes to print a sample, the most probable first; otherwise one, or all labels of several")
        ->type_name("N")
        ->check(whole(1, INT_MAX));
    predict_command_
        ->add_option("--value", predict_.value,
                     "print the numbers of this value of the graph instead of classes, or with --top the classes whose "
                     "scores it is")
        ->type_name("NAME")
        ->check(not_empty());
    const auto set_format = [this](const std::string& word) {
      using Format = PredictOptions::Format;
      const std::vector<std::string> known = {"lines", "json", "csv"};
      if (std::find(known.begin(), known.end(), word) == known.end()) {
        throw GraphError(
            fmt::format("--format: found '{}', expected lines, json or csv{}", word, did_you_mean(word, known)));
      }
      predict_.format = word == "csv" ? Format::Csv : word == "json" ? Format::Json : Format::Lines;
    };
    predict_command_->add_option_function<std::string>("--format", set_format, "lines, json (an object a line) or csv")
        ->default_str("lines")
        ->type_name("HOW");
  }

  void declare_export() {
    export_command_ = declare("export", "write a trained model as .onnx, for other programs to run");
    bind_graph(*export_command_, export_);
    export_command_->add_option("FILE", export_.file, "the model to write (.onnx)")->type_name("");
    bind_weights(*export_command_, export_.session.files, kModelsWeights);
    ExportOptions& exported = export_.exported;
    export_command_
        ->add_option(
            "--value", exported.value,
            "the output; otherwise the scores that the first SoftmaxCrossEntropy takes, or SigmoidCrossEntropy")
        ->type_name("NAME")
        ->check(not_empty());
    export_command_
        ->add_option("--class-names", export_.class_names,
                     "names of the classes, a line each, for the file's metadata; otherwise those that --weights has")
        ->type_name("FILE")
        ->check(not_empty());
    export_command_->add_flag("--probabilities", exported.probabilities,
                              "the output's softmax, or sigmoid where SigmoidCrossEntropy takes it");
    export_command_->add_flag("--preprocessing", exported.preprocessing,
                              "take images as they are stored (uint8), not as Augment makes them");
    export_command_->add_flag("--fold-batch-norm", exported.fold_batch_norm, "into the convolutions before");
    export_command_->add_flag("--external-data", export_.written.external_data,
                              "weights in a second file, FILE.data, as they are for models above 2 GiB");
    export_command_->footer(
        "The model has ONNX's own operators of opset 18 (20 where it has Gelu) and takes any number of samples at "
        "once.");
  }

  void declare_check() {
    check_command_ = declare("check",
                             "verify, infer shapes, look at labels, count parameters, work and memory, note what is "
                             "probably not meant; run nothing");
    bind_graph(*check_command_, check_);
    bind_plan(*check_command_, check_.session);
    check_command_->add_flag("--json", check_.json, "as JSON");
  }

  void declare_plan() {
    plan_command_ = declare("plan", "print the plan, or the graph after a pass");
    bind_graph(*plan_command_, plan_);
    bind_plan(*plan_command_, plan_.session);
    plan_command_->add_option("--after", plan_.after, "print the graph as this pass leaves it")
        ->type_name("PASS")
        ->check(not_empty());
    plan_command_->add_flag("--json", plan_.json, "as JSON");
  }

  void declare_trace() {
    trace_command_ = declare("trace", "summarise a trace");
    trace_command_->add_option("FILE", trace_.file, "trace written by run --trace")->type_name("");
    const auto count = [&](const char* name, int& value, const char* description) {
      trace_command_->add_option(name, value, description)
          ->capture_default_str()
          ->type_name("N")
          ->check(whole(0, INT_MAX));
    };
    trace_command_->add_flag("--full", trace_.full, "all lanes' causes, slowest instances, gaps, overlaps");
    trace_command_->add_flag("--json", trace_.json, "as JSON, what pays included");
    trace_command_->add_flag("--each", trace_.each, "every lane and task by itself, not all learners' together");
    count("--slowest", trace_.slowest, "task instances to list");
    count("--gaps", trace_.gaps, "gaps to list");
    count("--reasons", trace_.reasons, "causes of idleness to list a lane");
    trace_command_->add_option("--what-if", what_if_, "predict the time per iteration after a change; repeatable")
        ->type_name("CHANGE")
        ->take_all()
        ->allow_extra_args(false);
    trace_command_->footer(
        "A CHANGE is prefetch.depth=N (batches read ahead), source*F (reading takes F times as long), learners-N\n"
        "(learners fewer on each device) or PATTERN*F: the layer of that name takes F times as long, forward and\n"
        "backward ('conv1*0.5'), or where there is none, tasks whose names contain the pattern, or else nodes\n"
        "('grad_weight*0.5'); in it, * stands for anything, as in 'cuda:*/update*0.5'. Each is predicted by itself, "
        "from\n"
        "a simulation of the trace's plan with the measured durations. --slowest, --gaps and --reasons imply --full.");
  }

  void declare_view() {
    view_command_ = declare("view", "show traces: one HTML file, which opens without a network");
    view_command_
        ->add_option("TRACE", view_.traces, "traces written by run --trace; of several, the page shows what changed")
        ->type_name("")
        ->check(not_empty());
    view_command_->add_option("-o,--output", view_.file, "the page; otherwise TRACE.html, or of two A-B.html, here")
        ->type_name("FILE")
        ->check(not_empty());
  }

  void declare_report() {
    report_command_ = declare("report", "show runs: one HTML file, which opens without a network");
    report_command_->add_option("LOG", report_.logs, "logs written by run --log; several runs are compared")
        ->type_name("")
        ->check(not_empty());
    report_command_
        ->add_option("-o,--output", report_.file,
                     "the page, or the plot; otherwise LOG's name with .report.html, or .svg, here")
        ->type_name("FILE")
        ->check(not_empty());
    report_command_
        ->add_option_function<std::string>(
            "--plot",
            [this](const std::string& kind) {
              if (kind == "scaling")
                report_.plot = ReportOptions::Plot::Scaling;
              else if (kind == "accuracy")
                report_.plot = ReportOptions::Plot::Accuracy;
              else
                throw GraphError(fmt::format("--plot '{}': expected scaling or accuracy", kind));
            },
            "a picture (SVG) instead: accuracy over seconds, or scaling, of files of bench scaling --json")
        ->type_name("KIND");
  }

  void declare_profile() {
    profile_command_ = declare("profile", "measure where the time of a training step goes, node by node");
    bind_graph(*profile_command_, profile_);
    bind_passes(*profile_command_, profile_.session);
    bind_memory(*profile_command_, profile_.session);
    profile_command_->add_option("--batch", profile_.batch, "samples per learner; short for --set prefetch.batch=N")
        ->type_name("N")
        ->check(whole(1));
    profile_command_->add_option("--seconds", profile_.seconds, "of training that throughput is measured over")
        ->capture_default_str()
        ->type_name("TIME")
        ->transform(duration(1e-3, 1e6));
    profile_command_->add_option("--slowest", profile_.slowest, "nodes to list, those furthest from their limit first")
        ->capture_default_str()
        ->type_name("N")
        ->check(whole(0, INT_MAX));
    profile_command_->add_flag("--layers", profile_.layers, "list every layer too");
    profile_command_->add_flag("--json", profile_.json, "every node, as JSON");
    profile_command_->footer(
        "Trains for a while without validation, with a learning rate of 1e-6 unless --set says otherwise, then times\n"
        "each node of a learner's step in its order, while nothing else runs. The limit of a node is the longer of "
        "the\n"
        "times that its bytes (each operand once) and its operations take at the rates that a Relu and a product of\n"
        "large matrices reach: a node whose operands still lie in a cache takes less, and is above 100 % of it.\n"
        "What is taken of a GPU's memory, CUDA's context apart, is what was planned, what libraries and the code of\n"
        "kernels had taken before anything was allocated, recorded steps, and what other processes took meanwhile.");
  }

  void declare_bench() {
    bench_command_ = declare("bench", "measure throughput");
    scaling_command_ = declare(*bench_command_, "scaling", "training throughput over devices and learners");
    bind_graph(*scaling_command_, scaling_);
    bind_passes(*scaling_command_, scaling_.session);
    bind_strategy(*scaling_command_, scaling_.session);
    bind_memory(*scaling_command_, scaling_.session);
    const auto option = [&](const char* name, auto& value, const char* type, const char* description) {
      return scaling_command_->add_option(name, value, description)->type_name(type);
    };
    option("--device-counts", device_counts_, "LIST",
           "how many of the devices to measure on: 1,2,4; default: powers of two and all of them");
    option("--learners", learner_counts_, "LIST", "replicas per device: 1,2,4")->capture_default_str();
    option("--batch", scaling_.batch, "N", "samples per learner; short for --set prefetch.batch=N")->check(whole(1));
    option("--windows", scaling_.windows, "N", "measurements of each cell; their median is its throughput")
        ->capture_default_str()
        ->check(whole(1, 1000));
    option("--window-seconds", scaling_.window_seconds, "TIME", "how long a window is at least")
        ->capture_default_str()
        ->transform(duration(1e-3, 1e6));
    option("--warmup-seconds", scaling_.warmup_seconds, "TIME", "before the first window; at least 10 iterations")
        ->capture_default_str()
        ->transform(duration(0, 1e6));
    option("--report-every", scaling_.session.execution.report_every, "N",
           "iterations between timestamps: fewer where one takes seconds")
        ->capture_default_str()
        ->check(whole(1));
    option("--price-per-hour", scaling_.price_per_hour, "X",
           "of all devices together; adds images per unit of money, a cell paying for the devices that it uses")
        ->check(real(1e-6, 1e9));
    scaling_command_->add_flag("--json", scaling_.json, "one JSON object a line and cell");
    scaling_command_->footer(
        "Validation is left out, and the learning rate is 1e-6 unless --set says otherwise: noise could make a loss "
        "diverge.\nA cell that fails says why and the others go on; the exit status is 1 where all "
        "failed.\nSpeed-up is against the first cell, efficiency against one device with as many learners. All cells "
        "have as many "
        "hardware queues as the most learners on all devices get; CUDA_DEVICE_MAX_CONNECTIONS says otherwise.");
  }

  void declare_tracing() {
    tracing_command_ = declare(*bench_command_, "tracing", "what a trace costs in throughput");
    bind_graph(*tracing_command_, tracing_);
    bind_passes(*tracing_command_, tracing_.session);
    bind_strategy(*tracing_command_, tracing_.session);
    bind_memory(*tracing_command_, tracing_.session);
    const auto option = [&](const char* name, auto& value, const char* type, const char* description) {
      return tracing_command_->add_option(name, value, description)->capture_default_str()->type_name(type);
    };
    option("--learners", tracing_.session.learners.per_device, "N", "replicas per device")
        ->check(whole(1, kMostReplicas));
    tracing_command_->add_option("--batch", tracing_.batch, "samples per learner; short for --set prefetch.batch=N")
        ->type_name("N")
        ->check(whole(1));
    option("--rounds", tracing_.rounds, "N", "of three runs each: untraced, recorded, recorded and sampled")
        ->check(whole(1, 1000));
    option("--windows", tracing_.windows, "N", "measurements of each run; their median is its throughput")
        ->check(whole(1, 1000));
    option("--window-seconds", tracing_.window_seconds, "TIME", "how long a window is at least")
        ->transform(duration(1e-3, 1e6));
    option("--warmup-seconds", tracing_.warmup_seconds, "TIME", "before the first window; at least 10 iterations")
        ->transform(duration(0, 1e6));
    option("--sample-every", tracing_.session.execution.sample_ms, "MS", "between samples of devices and process")
        ->check(whole(1, 3'600'000));
    option("--report-every", tracing_.session.execution.report_every, "N",
           "iterations between timestamps: fewer where one takes seconds")
        ->check(whole(1));
    tracing_command_->footer(
        "Validation is left out, and the learning rate is 1e-6 unless --set says otherwise. The three runs of a round\n"
        "follow each other, in another order each round, and costs are those within rounds: what drifts on a machine\n"
        "is in all of them. Writing the file is no part of it.");
  }

  void declare_data() {
    data_command_ = declare("data", "look at a data set, or pack it");
    bind_data(*data_command_, data_);
    pack_command_ = declare(*data_command_, "pack", "write photos into tar archives, which the source tar: reads");
    bind_pack(*pack_command_, pack_);
  }

  void declare_descriptions() {
    ops_command_ = declare("ops", "list operators, or describe one");
    ops_command_
        ->add_option("OPERATOR", ops_.name,
                     "as a graph file has it (Relu, arbalest.Train) or another framework (Conv2d), or a word to find")
        ->type_name("")
        ->check(not_empty());
    sources_command_ = declare("sources", "list kinds of data sets, or describe one with its options");
    sources_command_->add_option("NAME", sources_.name, "as it begins: csv")->type_name("")->check(not_empty());
    help_command_ = declare("help", "what --help says, of a command or of all");
    help_command_->add_option("COMMAND", help_, "such as run")->type_name("");
  }

  // The chosen command. Words that CLI11 could not place come back as leftovers; they become errors that name the
  // nearest valid word.
  Command chosen() {
    const auto parsed = app_.get_subcommands();
    if (parsed.empty()) {
      const auto rest = app_.remaining();
      if (rest.empty()) return Exit{kWrong, app_.help()};
      reject(app_, rest);
    }
    CLI::App* command = parsed.front();
    if (const auto rest = command->remaining(); !rest.empty()) {
      if (command == resume_command_) reject_changes(rest);
      reject(*command, rest);
    }
    if (const auto inner = command->get_subcommands(); !inner.empty()) {
      command = inner.front();
      if (const auto rest = command->remaining(); !rest.empty()) reject(*command, rest);
    }
    if (const auto rest = app_.remaining(); !rest.empty()) reject(*command, rest);
    if (command == trace_command_) {
      require(trace_.file, "FILE", *command);
      for (const std::string& change : what_if_) trace_.what_if.push_back(parse_what_if(change));
      for (const char* list : {"--slowest", "--gaps", "--reasons"}) trace_.full |= trace_command_->count(list) > 0;
      return trace_;
    }
    if (command == view_command_) {
      if (view_.traces.empty()) require("", "TRACE", *command);
      return view_;
    }
    if (command == report_command_) {
      if (report_.logs.empty()) require("", "LOG", *command);
      return report_;
    }
    evaluate_.skip_bad_given = evaluate_command_->count("--skip-bad") > 0;
    predict_.skip_bad_given = predict_command_->count("--skip-bad") > 0;
    if (command == evaluate_command_) return checked(evaluate_, *command);
    if (command == predict_command_) {
      if (!predict_.files.empty() && !predict_.split.empty()) {
        throw GraphError("--split chooses samples of the graph's source, and FILES are looked at instead of it");
      }
      return checked(predict_, *command);
    }
    if (command == export_command_) {
      require(export_.file, "FILE", *command);
      return checked(export_, *command);
    }
    if (command == resume_command_) {
      require(resume_.folder, "DIR", *command);
      return resume_;
    }
    if (command == ops_command_) return ops_;
    if (command == sources_command_) return sources_;
    if (command == help_command_) return Exit{kDone, CommandLine().help({})};
    if (command == init_command_) return start_;
    if (command == data_command_) {
      require(data_.source, "SOURCE", *command);
      return data_;
    }
    if (command == pack_command_) {
      require(pack_.pack.source, "SOURCE", *command);
      require(pack_.pack.folder, "DIR", *command);
      if (pack_.quality && pack_.pack.shorter_side == 0) throw GraphError("--quality needs --shorter-side");
      pack_.pack.quality = pack_.quality.value_or(pack_.pack.quality);
      return pack_;
    }
    if (command == check_command_) return checked(check_, *command);
    if (command == plan_command_) return checked(plan_, *command);
    if (command == profile_command_) return checked(profile_, *command);
    if (command == bench_command_) return Exit{kWrong, app_.help()};  // bench's, with what it measures
    if (command == tracing_command_) return checked(tracing_, *command);
    if (command == scaling_command_) {
      if (device_counts_) scaling_.device_counts = parse_counts("--device-counts", *device_counts_);
      scaling_.learners = parse_counts("--learners", learner_counts_);
      return checked(scaling_, *command);
    }
    run_.given = values_of(*command);
    if (run_.session.checkpoints.folder.empty()) {
      for (const char* option : {"--resume", "--checkpoint-every", "--checkpoint-keep"}) {
        if (command->count(option) > 0) throw GraphError(fmt::format("{} needs --checkpoint DIR", option));
      }
      if (run_.session.divergence.then == OnDivergence::Rollback) {
        throw GraphError("--on-nan rollback needs --checkpoint DIR");
      }
    }
    if (!run_.session.checkpoints.changes.empty() && !run_.session.checkpoints.resume) {
      throw GraphError("--change needs --resume; a run that starts takes --set");
    }
    const DivergenceOptions& divergence = run_.session.divergence;
    if (divergence.then != OnDivergence::Rollback) {
      for (const char* option : {"--nan-rate-factor", "--nan-rollbacks"}) {
        if (command->count(option) > 0) throw GraphError(fmt::format("{} needs --on-nan rollback", option));
      }
    }
    return checked(run_, *command);
  }

  static std::vector<OptionValue> values_of(const CLI::App& command) {
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

  template <typename Options>
  static Options checked(Options options, const CLI::App& command) {
    require(options.graph, "GRAPH", command);
    const FileOptions& files = options.session.files;
    if (files.weights.empty() && !files.weights_map.empty()) throw GraphError("--weights-map needs --weights");
    if (files.weights.empty() && !files.fresh.empty()) throw GraphError("--fresh needs --weights");
    for (const std::string& text : options.set) {
      const size_t equals = text.find('='), dot = text.substr(0, equals).rfind('.');
      if (equals != text.npos && dot != text.npos && dot > 0 && dot + 1 < equals) continue;
      throw GraphError(fmt::format("--set '{}': expected NODE.ATTRIBUTE=VALUE, as in train.lr=0.05", text));
    }
    return options;
  }

  static void require(const std::string& value, const char* what, const CLI::App& command) {
    if (!value.empty()) return;
    const bool nested = command.get_parent()->get_parent() != nullptr;
    const std::string name = (nested ? command.get_parent()->get_name() + " " : "") + command.get_name();
    throw GraphError(fmt::format("{0}: {1} is missing; 'arbalest {0} --help' says more", name, what));
  }

  static CommandOptions options_of(const CLI::App& command) {
    CommandOptions found{command.get_name(), {}};
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& word : option->get_lnames()) found.options.push_back("--" + word);
    }
    return found;
  }

  [[noreturn]] static void reject(const CLI::App& command, const std::vector<std::string>& rest) {
    const auto is_option = [](const std::string& word) { return word.size() > 1 && word[0] == '-'; };
    const auto option = std::find_if(rest.begin(), rest.end(), is_option);
    if (option != rest.end()) {
      const CLI::App* root = &command;
      while (root->get_parent() != nullptr) root = root->get_parent();
      std::vector<CommandOptions> others;
      for (const CLI::App* other : root->get_subcommands({})) others.push_back(options_of(*other));
      const std::string next = option + 1 != rest.end() ? option[1] : "";
      throw GraphError(unknown_option(*option, next, options_of(command), others));
    }
    std::vector<std::string> commands;
    for (const CLI::App* candidate : command.get_subcommands({})) commands.push_back(candidate->get_name());
    if (commands.empty()) throw GraphError(fmt::format("unexpected argument '{}'", rest.front()));
    if (rest.front().ends_with(".onnxtxt")) {
      throw GraphError(
          fmt::format("'{}' is no command; to train it: arbalest run {}", rest.front(), shell_word(rest.front())));
    }
    throw GraphError(fmt::format("unknown command '{}'{}", rest.front(), did_you_mean(rest.front(), commands)));
  }

  // Options of run, which resume has none of.
  void reject_changes(const std::vector<std::string>& rest) const {
    for (const std::string& word : rest) {
      const std::string name = word.substr(0, word.find('='));
      if (!name.starts_with("--") || run_command_->get_option_no_throw(name) == nullptr) continue;
      const bool of_folder = name == "--checkpoint" || name == "--resume";
      throw GraphError(
          fmt::format("resume takes no {}: it repeats the run's own command line{}", name,
                      of_folder ? "" : "; to change that, give 'arbalest run' the whole of it, with --resume"));
    }
  }

  static Exit wrong(const std::string& message) { return {kWrong, shown_message(message)}; }

  CLI::App app_;
  CLI::App *run_command_ = nullptr, *check_command_ = nullptr, *plan_command_ = nullptr, *trace_command_ = nullptr,
           *view_command_ = nullptr, *report_command_ = nullptr, *bench_command_ = nullptr, *scaling_command_ = nullptr,
           *tracing_command_ = nullptr, *ops_command_ = nullptr, *evaluate_command_ = nullptr,
           *predict_command_ = nullptr, *export_command_ = nullptr, *data_command_ = nullptr, *pack_command_ = nullptr,
           *profile_command_ = nullptr, *resume_command_ = nullptr, *init_command_ = nullptr,
           *sources_command_ = nullptr, *help_command_ = nullptr;
  RunOptions run_;
  ResumeOptions resume_;
  CheckOptions check_;
  PlanCommandOptions plan_;
  TraceOptions trace_;
  ViewOptions view_;
  ReportOptions report_;
  ScalingOptions scaling_;
  TracingOptions tracing_;
  ProfileOptions profile_;
  DataOptions data_;
  PackCommandOptions pack_;
  OpsOptions ops_;
  SourcesOptions sources_;
  StartOptions start_;
  std::vector<std::string> help_;
  EvaluateOptions evaluate_;
  PredictOptions predict_;
  ExportCommandOptions export_;
  std::optional<std::string> device_counts_;
  std::string learner_counts_ = "1";
  std::vector<std::string> what_if_;
};

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  return CommandLine().parse(argc, argv);
}

}  // namespace arbalest
