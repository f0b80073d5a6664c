// SPDX-License-Identifier: Apache-2.0

// The command line: which lines parse, and the messages of errors.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/setting.h"
#include "executor/devices/nvtx.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tools/command/session_setup.h"
#include "tools/start/describe.h"

using namespace arbalest;
using namespace arbalest::test;

TEST_CASE("run takes all its options") {
  const Command command = parse({"run",
                                 "lenet.onnxtxt",
                                 "--devices",
                                 "cpu:0-1",
                                 "--learners",
                                 "2",
                                 "--precision",
                                 "bf16",
                                 "--seed=7",
                                 "--deterministic",
                                 "--epochs",
                                 "3",
                                 "--iterations",
                                 "100",
                                 "--until",
                                 "accuracy >= 0.94",
                                 "--until",
                                 "loss < 1",
                                 "--set",
                                 "train.lr=0.05",
                                 "--set",
                                 "h1/c1.weight.filters=2",
                                 "--model",
                                 "trunk=m.onnx",
                                 "--model",
                                 "n.onnx",
                                 "--weights",
                                 "a.safetensors",
                                 "--weights-map",
                                 "a.map",
                                 "--fresh",
                                 "fc.*",
                                 "--fresh",
                                 "head",
                                 "--save",
                                 "b.safetensors",
                                 "--trace",
                                 "t.json.gz",
                                 "--log",
                                 "l.jsonl",
                                 "--log-every",
                                 "10",
                                 "--sample-every",
                                 "250",
                                 "--threads",
                                 "4",
                                 "--recalibrate",
                                 "200"});
  const RunOptions* run = options_if<RunOptions>(command);
  REQUIRE(run != nullptr);
  CHECK(run->graph == "lenet.onnxtxt");
  CHECK(run->devices == "cpu:0-1");
  CHECK(run->session.learners.per_device == 2);
  CHECK(run->session.numerics.precision == Precision::Bf16);
  CHECK(run->session.numerics.seed == 7);
  CHECK(run->session.numerics.deterministic);
  CHECK(run->session.length.epochs == 3);
  CHECK(run->session.length.iterations == 100);
  REQUIRE(run->session.rules.targets.size() == 2);
  CHECK(run->session.rules.targets[1] == Target{"loss", Target::Op::Less, 1.0});
  CHECK(run->set == std::vector<std::string>{"train.lr=0.05", "h1/c1.weight.filters=2"});
  REQUIRE(run->models.size() == 2);
  CHECK(run->models[0].name == "trunk");
  CHECK(run->models[0].path == "m.onnx");
  CHECK(run->models[1].name == "");
  CHECK(run->models[1].path == "n.onnx");
  CHECK(run->session.files.weights == "a.safetensors");
  CHECK(run->session.files.weights_map == "a.map");
  CHECK(run->session.files.fresh == std::vector<std::string>{"fc.*", "head"});
  CHECK(run->session.files.save == "b.safetensors");
  CHECK(run->session.files.trace == "t.json.gz");
  CHECK(run->session.execution.sample_ms == 250);
  CHECK(run->log == "l.jsonl");
  CHECK(run->session.execution.report_every == 10);
  CHECK(run->session.execution.threads == 4);
  CHECK(run->session.rules.recalibrate == 200);
}

TEST_CASE("options may precede the graph and defaults hold") {
  const Command command = parse({"run", "--set", "train.lr=1", "g.onnxtxt"});
  const RunOptions* run = options_if<RunOptions>(command);
  REQUIRE(run != nullptr);
  CHECK(run->graph == "g.onnxtxt");
  CHECK(run->devices == "auto");
  CHECK(run->session.learners.per_device == 1);
  CHECK(run->session.numerics.precision == Precision::Fp32);
  CHECK_FALSE(run->session.length.epochs.has_value());
  CHECK_FALSE(run->session.numerics.deterministic);
  CHECK(run->session.rules.recalibrate == 0);
}

TEST_CASE("a memory limit is a size, for all commands that plan memory") {
  const auto limit = [](const char* size) {
    return options_of<RunOptions>(parse({"run", "g", "--memory-limit", size})).session.execution.memory_limit;
  };
  CHECK(limit("6GiB") == int64_t{6} << 30);
  CHECK(limit("900MiB") == int64_t{900} << 20);
  CHECK(limit("1.5KiB") == 1536);
  CHECK(limit("2TiB") == int64_t{2} << 40);
  CHECK(limit("6442450944") == int64_t{6} << 30);
  CHECK(options_of<RunOptions>(parse({"run", "g"})).session.execution.memory_limit == 0);
  constexpr int64_t kGiB = 1 << 30;
  const auto given = [](const auto& options) { return options.session.execution.memory_limit; };
  CHECK(given(options_of<CheckOptions>(parse({"check", "g", "--memory-limit", "1GiB"}))) == kGiB);
  CHECK(given(options_of<PlanCommandOptions>(parse({"plan", "g", "--memory-limit", "1GiB"}))) == kGiB);
  CHECK(given(options_of<ProfileOptions>(parse({"profile", "g", "--memory-limit", "1GiB"}))) == kGiB);
  CHECK(given(options_of<ScalingOptions>(parse({"bench", "scaling", "g", "--memory-limit", "1GiB"}))) == kGiB);
  CHECK(given(options_of<TracingOptions>(parse({"bench", "tracing", "g", "--memory-limit", "1GiB"}))) == kGiB);
  for (const char* size : {"", "GiB", "6 GiB", "6GB", "six", "6GiB.", "1e3", "0x10"}) {
    CHECK(fault({"run", "g", "--memory-limit", size}) ==
          fmt::format("arbalest: --memory-limit '{}': expected a size, as in 6GiB, 900MiB or 6442450944 (bytes)\n",
                      size));
  }
  for (const char* size : {"0", "-1GiB", "nan", "0.5", "2000TiB", "99999999999999999999999"}) {
    CHECK(fault({"run", "g", "--memory-limit", size}) ==
          fmt::format("arbalest: --memory-limit '{}': expected 1 byte to 1024 TiB\n", size));
  }
}

TEST_CASE("--batch is short for Prefetch's attribute, after all --set") {
  const std::vector<std::string> both = {"train.lr=0.1", "prefetch.batch=32"};
  CHECK(options_of<RunOptions>(parse({"run", "g", "--batch", "32", "--set", "train.lr=0.1"})).set == both);
  CHECK(options_of<CheckOptions>(parse({"check", "g", "--batch", "32", "--set", "train.lr=0.1"})).set == both);
  CHECK(options_of<PlanCommandOptions>(parse({"plan", "g", "--batch", "32", "--set", "train.lr=0.1"})).set == both);
  CHECK(fault({"run", "g", "--batch", "0"}).find("--batch") != std::string::npos);
}

TEST_CASE("passes that may be left out are named, for all commands that make a program") {
  using Names = std::set<std::string>;
  const auto given = [](const auto& options) { return options.session.numerics.without; };
  const char *one = "fuse_relu", *list = "fuse_relu,keep_maxima";
  const Names both = {"fuse_relu", "keep_maxima"};
  CHECK(given(options_of<RunOptions>(parse({"run", "g"}))).empty());
  CHECK(given(options_of<RunOptions>(parse({"run", "g", "--without", one}))) == Names{"fuse_relu"});
  CHECK(given(options_of<RunOptions>(parse({"run", "g", "--without", list, "--without", one}))) == both);
  CHECK(given(options_of<CheckOptions>(parse({"check", "g", "--without", one, "--without", "keep_maxima"}))) == both);
  CHECK(given(options_of<PlanCommandOptions>(parse({"plan", "g", "--without", list}))) == both);
  CHECK(given(options_of<ProfileOptions>(parse({"profile", "g", "--without", list}))) == both);
  CHECK(given(options_of<ScalingOptions>(parse({"bench", "scaling", "g", "--without", list}))) == both);
  CHECK(given(options_of<TracingOptions>(parse({"bench", "tracing", "g", "--without", list}))) == both);
  CHECK(given(options_of<EvaluateOptions>(parse({"evaluate", "g", "--without", list}))) == both);
  CHECK(given(options_of<PredictOptions>(parse({"predict", "g", "--without", list}))) == both);
  const std::string known = "; those that may be left out are fuse_logarithms, fuse_norms, ";
  CHECK(fault({"run", "g", "--without", "fuse_rule"})
            .starts_with("arbalest: --without: there is no pass 'fuse_rule'" + known));
  CHECK(fault({"run", "g", "--without", "fuse_rule"}).ends_with("; did you mean 'fuse_relu'?\n"));
  CHECK(fault({"plan", "g", "--without", "fuse_relu,freeze"})
            .starts_with("arbalest: --without: the pass 'freeze' is needed" + known));
  CHECK(fault({"run", "g", "--without", "fuse_relu,"}).starts_with("arbalest: --without: there is no pass ''" + known));
  CHECK(fault({"run", "g", "--without", ""}).starts_with("arbalest: --without: there is no pass ''" + known));
}

TEST_CASE("plan, check and trace") {
  const Command plan = parse({"plan", "g", "--after", "fuse", "--json", "--devices", "cuda:0-7"});
  REQUIRE(options_if<PlanCommandOptions>(plan));
  CHECK(options_of<PlanCommandOptions>(plan).after == "fuse");
  CHECK(options_of<PlanCommandOptions>(plan).json);
  CHECK(options_of<PlanCommandOptions>(plan).devices == "cuda:0-7");
  CHECK(options_if<CheckOptions>(parse({"check", "g"})));
  for (const char* count : {"--slowest", "--gaps", "--reasons"}) {
    check_parts(fault({"trace", "t.json.gz", count, "99999999999"}), {count, "found '99999999999', expected a whole"});
  }
  const Command trace = parse({"trace", "t.json.gz", "--slowest", "9"});
  REQUIRE(options_if<TraceOptions>(trace));
  CHECK(options_of<TraceOptions>(trace).file == "t.json.gz");
  CHECK(options_of<TraceOptions>(trace).slowest == 9);
  CHECK(options_of<TraceOptions>(trace).full);
  CHECK(!options_of<TraceOptions>(parse({"trace", "t", "--each"})).full);
  CHECK(options_of<TraceOptions>(parse({"trace", "t", "--json"})).json);
  const Command view = parse({"view", "a.gz", "b.gz", "-o", "page.html"});
  REQUIRE(options_if<ViewOptions>(view));
  CHECK(options_of<ViewOptions>(view).traces == std::vector<std::string>{"a.gz", "b.gz"});
  CHECK(options_of<ViewOptions>(view).file == "page.html");
  const Command what_if = parse({"trace", "t.json.gz", "--what-if", "learners-1", "--what-if", "step*0.5"});
  REQUIRE(options_if<TraceOptions>(what_if));
  REQUIRE(options_of<TraceOptions>(what_if).what_if.size() == 2);
  CHECK(options_of<TraceOptions>(what_if).what_if[0].kind == WhatIf::Kind::Learners);
  CHECK(options_of<TraceOptions>(what_if).what_if[1].pattern == "step");
}

TEST_CASE("help is everywhere and succeeds") {
  for (const std::vector<const char*>& words : {std::vector<const char*>{"--help"},
                                                {"run", "--help"},
                                                {"check", "-h"},
                                                {"plan", "--help"},
                                                {"trace", "--help"}}) {
    const Command command = parse(words);
    REQUIRE(options_if<Exit>(command));
    CHECK(options_of<Exit>(command).status == kDone);
    CHECK(options_of<Exit>(command).text.find("--help") != std::string::npos);
  }
  CHECK(options_of<Exit>(parse({"run", "--help"})).text.find("--until") != std::string::npos);
  CHECK(options_of<Exit>(parse({"run", "--help"})).text.find("Ctrl-C") != std::string::npos);
  CHECK(options_of<Exit>(parse({"--version"})).text.find("arbalest ") == 0);
}

TEST_CASE("the options by which messages name settings are options of a command") {
  std::string help;
  for (const char* command : {"run", "export", "evaluate", "plan", "trace"}) {
    help += options_of<Exit>(parse({command, "--help"})).text;
  }
  for (int i = 0; i < kSettings; ++i) {
    const std::string name = name_option(SettingKey(i), "");
    std::string option = name.substr(name.find("--"));
    option = option.substr(0, option.find(' '));  // without the value
    const auto ends = [&](size_t at) { return help[at + option.size()] == ' ' || help[at + option.size()] == '\n'; };
    size_t at = help.find(option);
    while (at != help.npos && !ends(at)) at = help.find(option, at + 1);
    CHECK_MESSAGE(at != help.npos, "'", name, "' is an option of no command");
  }
}

TEST_CASE("operators are described by name") {
  CHECK(options_of<OpsOptions>(parse({"ops"})).name.empty());
  CHECK(options_of<OpsOptions>(parse({"ops", "Relu"})).name == "Relu");
  CHECK(describe_operators("Conv").starts_with("Conv: a convolution (cross-correlation) with explicit filters\n"));
  CHECK(describe_operators("arbalest.Conv").starts_with("arbalest.Conv: "));
  CHECK(describe_operators("Train").find("\n  accumulate            int = 1 ") != std::string::npos);
  CHECK(describe_operators("").find("\narbalest.Train ") != std::string::npos);
  std::string all = describe_operators("");
  const std::string stop = "StopGradient";
  all.erase(all.find(stop), stop.size());
  CHECK(all.find("Grad") == std::string::npos);  // those that passes make
  CHECK_THROWS_WITH_AS(describe_operators("arbalest.Trian"),
                       "unknown operator 'arbalest.Trian'; did you mean 'arbalest.Train'?; 'arbalest ops' lists them",
                       GraphError);
}

TEST_CASE("an operator is found under another framework's name, by a word, and with its layer") {
  const auto about = [](const char* name, const char* part) {
    const std::string text = describe_operators(name);
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  for (const char* name : {"Dense", "nn.Linear", "keras.layers.Dense", "linear", "arbalest.Dense"}) {
    about(name, "' is called arbalest.Linear here.\narbalest.Linear: ");
  }
  about("Conv2d", "'Conv2d' is called arbalest.Conv here.");
  about("BatchNorm2d", "'BatchNorm2d' is called arbalest.BatchNorm here.");
  about("torch.nn.CrossEntropyLoss", "is called arbalest.SoftmaxCrossEntropy here.");
  about("DataLoader", "is called arbalest.Prefetch here.");
  about("Conv", "\nsee also arbalest.Conv: ");
  about("Gemm", "\nsee also arbalest.Linear: ");
  about("BatchNormalization", "\nsee also arbalest.BatchNorm: ");
  // The default padding, which differs from other frameworks.
  about("arbalest.Conv", "so that the image keeps its size at stride 1. PyTorch and Keras pad nothing unless told to");
  about("Conv", "default: none");
  const std::string pools = describe_operators("pool");
  CHECK(pools.find("MaxPool ") != std::string::npos);
  CHECK(pools.find("GlobalAveragePool ") != std::string::npos);
  CHECK(pools.find("Relu ") == std::string::npos);
}

TEST_CASE("help, sources and init are commands") {
  const auto help = [](const std::vector<const char*>& words) {
    const Command command = parse(words);
    REQUIRE(options_if<Exit>(command));
    CHECK(options_of<Exit>(command).status == kDone);
    return options_of<Exit>(command).text;
  };
  CHECK(help({"help"}) == help({"--help"}));
  CHECK(help({"help", "run"}) == help({"run", "--help"}));
  CHECK(help({"help", "bench", "scaling"}) == help({"bench", "scaling", "--help"}));
  CHECK(fault({"help", "rnu"}).find("did you mean 'run'?") != std::string::npos);
  CHECK(options_of<SourcesOptions>(parse({"sources", "csv"})).name == "csv");
  const auto init = options_of<StartOptions>(
      parse({"init", "finetune", "g.onnxtxt", "--data", "folder:d", "--classes", "3", "--model", "m.onnx"}));
  CHECK(init.name == "finetune");
  CHECK(init.file == "g.onnxtxt");
  CHECK(init.data == "folder:d");
  CHECK(init.classes == 3);
  CHECK(init.model == "m.onnx");
}

TEST_CASE("other tools' words are answered with what is meant") {
  const auto says = [](const std::vector<const char*>& words, const char* part) {
    const std::string text = fault(words);
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  says({"train", "g"}, "unknown command 'train'; did you mean 'run'?");
  says({"fit", "g"}, "did you mean 'run'?");
  says({"test", "g"}, "did you mean 'evaluate'?");
  says({"convert", "g"}, "did you mean 'export'?");
  says({"lenet.onnxtxt"}, "to train it: arbalest run lenet.onnxtxt");
  says({"my [1] graph.onnxtxt"}, "to train it: arbalest run 'my [1] graph.onnxtxt'");
  says({"datasets"}, "did you mean 'sources'?");
  says({"run", "g", "--lr", "0.1"}, "unknown option '--lr'; it is an attribute of the graph: --set train.lr=0.1");
  says({"run", "g", "--learning-rate=0.1"}, "--set train.lr=0.1");
  says({"run", "g", "--batch-size", "32"}, "--set prefetch.batch=32");
  says({"run", "g", "--weight-decay", "1e-4"}, "--set train.weight_decay=1e-4");
  says({"run", "g", "--momentum"}, "--set train.momentum=VALUE");
  says({"evaluate", "g", "--data", "folder:d"}, "--set prefetch.source=folder:d");
  says({"run", "g", "--gpus", "2"}, "did you mean '--devices'?");
  says({"run", "g", "--max-epochs", "2"}, "did you mean '--epochs'?");
  says({"run", "g", "--output", "w"}, "did you mean '--save'?");
  says({"run", "g", "--amp"}, "did you mean '--precision'?");
  says({"evaluate", "g", "--top", "3"}, "unknown option '--top'; 'arbalest predict' has it");
  says({"trace", "t", "--lr", "1"}, "unknown option '--lr'\n");  // no graph, no attribute
}

TEST_CASE("faults name what was found and the nearest valid word") {
  for (const char* option : {"--save", "--save-best", "--weights", "--trace", "--log", "--metric"}) {
    CHECK(fault({"run", "g", option, ""}) == fmt::format("arbalest: {}: found '', expected a name\n", option));
  }
  CHECK(fault({"run", "g", "--precision", "fp8"}).starts_with("arbalest: --precision: unknown precision 'fp8'"));
  CHECK(fault({"run", "g", "--strategy", "ring"}).starts_with("arbalest: --strategy: unknown strategy 'ring'"));
  const auto says = [](const std::vector<const char*>& words, const char* part) {
    const std::string text = fault(words);
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  says({"tarce", "g"}, "unknown command 'tarce'; did you mean 'trace'?");
  says({"\x1b[2J"}, "unknown command '\\x1b[2J'");
  if (!has_nvtx()) says({"run", "g", "--nvtx"}, "--nvtx: this build has no NVTX");
  says({"report", "l.jsonl", "--plot", "loss"}, "--plot 'loss': expected scaling or accuracy");
  says({"--epochs", "3", "run", "g"}, "option '--epochs' stands before the command; expected arbalest run … --epochs");
  says({"--threshold", "0.1", "bench", "compare", "a", "b"},
       "option '--threshold' stands before the command; expected arbalest bench compare … --threshold");
  says({"sweep", "g", "--vary", "-o", "x"}, "--vary: found the option '-o', expected a value");
  says({"run", "g", "--save", "--log", "x"}, "--save: found the option '--log', expected a value");
  says({"run", "g", "--epoch", "3"}, "unknown option '--epoch'; did you mean '--epochs'?");
  says({"run", "g", "--epoch=3"}, "unknown option '--epoch'; did you mean '--epochs'?");
  says({"run", "--hlep"}, "did you mean '--help'?");
  says({"--verison"}, "did you mean '--version'?");
  says({"trace", "t", "--save", "x"}, "unknown option '--save'");
  says({"run", "g", "h"}, "unexpected argument 'h'");
  says({"run"}, "GRAPH is missing");
  says({"run", "g.onnxtxt", "--epochs"}, "--epochs: found no value, expected one");
  says({"run", "g.onnxtxt", "--epochs", "1", "--epochs", "2"}, "--epochs: found more than one value, expected one");
  says({"run", "g.onnxtxt", "--set"}, "--set: found no value, expected one");
  says({"run", "g", "--fresh", "fc.*"}, "--fresh needs --weights");
  says({"evaluate", "g", "--weights-map", "m"}, "--weights-map needs --weights");
  says({"run", "g", "--model", "net="}, "--model: found 'net=', expected NAME=FILE or FILE");
  says({"trace"}, "FILE is missing");
  says({"view"}, "TRACE is missing");
  says({"trace", "t", "--what-if", "prefech.depth=1"}, "did you mean 'prefetch.depth'?");
  says({"run", "g", "--epochs", "zero"}, "zero");
  says({"run", "g", "--epochs", "0"}, "--epochs");
  says({"run", "g", "--learners", "0"}, "--learners");
  says({"run", "g", "--recalibrate", "-3"}, "--recalibrate: found '-3', expected a whole number from 0 to 1000000");
  says({"run", "g", "--recalibrate", "1.5"}, "--recalibrate: found '1.5', expected a whole number from 0 to 1000000");
  says({"run", "g", "--seed", "abc"}, "--seed: found 'abc', expected a whole number from 0 to 2^63 - 1");
  says({"run", "g", "--seed", "18446744073709551615"},
       "--seed: found '18446744073709551615', expected a whole number from 0 to 2^63 - 1");
  says({"run", "g", "--read-timeout", "2000000"},
       "--read-timeout: found '2000000', expected a time from 0 to 1e+06 seconds");
  says({"run", "g", "--device-timeout", "0"},
       "--device-timeout: found '0', expected a time from 0.001 to 1e+06 seconds, as in 90, 90s");
  says({"run", "g", "--precision", "bf61"}, "did you mean 'bf16'?");
  says({"run", "g", "--until", "accuracy"}, "found no comparison");
  says({"run", "g", "--set", "lr=1"}, "NODE.ATTRIBUTE=VALUE");
  says({"run", "g", "--set", "train.=1"}, "NODE.ATTRIBUTE=VALUE");
  says({"run", "g", "--save"}, "--save");
  says({}, "run");
}

TEST_CASE("learners that the driver has too few queues for get more, unless the environment says otherwise") {
  constexpr const char* kName = "CUDA_DEVICE_MAX_CONNECTIONS";
  const auto queues = [&](int learners, const char* devices = "cuda:0") {
    give_learners_queues(learners, devices);
    const char* found = std::getenv(kName);
    return std::string(found != nullptr ? found : "");
  };
  const char* const before = std::getenv(kName);
  const std::string kept = before != nullptr ? before : "";
  unsetenv(kName);
  CHECK(queues(0) == "");  // auto
  CHECK(queues(8) == "");
  CHECK(queues(12) == "12");
  CHECK(queues(16) == "12");  // what the environment says stays
  for (const auto& [learners, devices, expected] :
       {std::tuple(64, "cuda:0", "32"), std::tuple(4, "cuda:0-1", ""), std::tuple(8, "auto", ""),
        std::tuple(5, "cuda:0-1", "10"), std::tuple(8, "cuda:0,cuda:2", "16"), std::tuple(0, "cuda:0-7", "16"),
        std::tuple(24, "cuda:0-1", "32")}) {
    INFO(learners, " on ", std::string(devices));
    unsetenv(kName);
    CHECK(queues(learners, devices) == expected);
  }
  kept.empty() ? unsetenv(kName) : setenv(kName, kept.c_str(), 1);
}
