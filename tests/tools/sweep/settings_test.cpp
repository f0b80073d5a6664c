// SPDX-License-Identifier: Apache-2.0

// Settings of a sweep: where they may stand, and what is refused before anything is written.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "graph/file/graph_file.h"
#include "graph/file/onnx_file.h"
#include "ops/builtin_ops.h"
#include "tests/io/image_files.h"
#include "tests/tools/sweep/place.h"
#include "tools/sweep/trial_runs.h"

using namespace arbalest;
using namespace arbalest::test;

namespace sweep_test {

TEST_CASE("sweep: --set may stand in another order when it goes on, but for one setting") {
  Place place;
  const auto swept = [&](std::vector<std::string> sets) {
    std::vector<std::string> words = {"--vary", "seed=1..2", "--iterations", "1", "--resume"};
    for (std::string& set : sets) words.insert(words.end(), {"--set", std::move(set)});
    return place.sweep(words);
  };
  REQUIRE(swept({"train.ema=0.9", "prefetch.batch=8", "train.lr=0.1", "train.lr=0.2"}) == 0);
  CHECK(swept({"train.lr=0.1", "prefetch.batch=8", "train.lr=0.2", "train.ema=0.9"}) == 0);
  CHECK(place.record().results.size() == 2);
  CHECK(swept({"train.ema=0.9", "prefetch.batch=8", "train.lr=0.2", "train.lr=0.1"}) == 2);
  CHECK_MESSAGE(place.fault.find("the orders of options that state one setting differ") != std::string::npos,
                place.fault);
  CHECK(swept({"train.ema=0.9", "prefetch.batch=8", "train.lr=0.2"}) == 2);
  CHECK_MESSAGE(place.fault.find("(there --set=train.lr=0.1, here none)") != std::string::npos, place.fault);
}

TEST_CASE("sweep: lists vary as wholes") {
  Place place;
  std::string graph = kGraph;
  graph.replace(graph.find("schedule = \"cosine\""), 19, "schedule = \"multistep\"");
  std::ofstream(place.graph) << graph;
  CHECK_MESSAGE(place.sweep({"--vary", "train.milestones=[1,2],[2]", "--vary",
                             "loss.class_weights=[1,1,1,1,1,1,1,1,1,1],[9,1,1,1,1,1,1,1,1,1]", "--epochs", "3",
                             "--keep", "all"}) == 0,
                place.fault);
  CHECK(place.record().plan.trials.size() == 4);
  const std::string alone = (place.folder / "alone.safetensors").string();
  REQUIRE(place.run({"run", place.graph, "--deterministic", "--epochs", "3", "--save", alone, "--save-best", alone,
                     "--set", "train.milestones=[2]", "--set", "loss.class_weights=[9,1,1,1,1,1,1,1,1,1]"}) == 0);
  CHECK(tensors(trial_model(place.out, 3)) == tensors(alone));
  CHECK(tensors(trial_model(place.out, 1)) != tensors(alone));
  CHECK(tensors(trial_model(place.out, 2)) != tensors(alone));
}

TEST_CASE("sweep: the graph file says what varies, and the command line takes its place") {
  const auto trials = [](const std::string& metadata, const std::vector<std::string>& words) {
    Place place;
    std::string graph = kGraph;
    graph.insert(graph.find(">\n"), ", metadata_props: [\"author\": \"x\", " + metadata + "]");
    std::ofstream(place.graph) << graph;
    std::vector<std::string> all = words;
    all.emplace_back("--dry-run");
    if (place.sweep(all) != 0) return std::vector<std::string>{place.fault};
    std::vector<std::string> settings;
    for (const std::string& line : place.lines) {
      if (line.starts_with("  ")) settings.push_back(line.substr(line.find_first_not_of(" 0123456789")));
    }
    return settings;
  };
  const std::string both = "\"vary\": \"train.lr=0.1,0.2; seed=1..2\"";
  CHECK(trials(both, {}) == std::vector<std::string>{"train.lr 0.1, seed 1", "train.lr 0.1, seed 2",
                                                     "train.lr 0.2, seed 1", "train.lr 0.2, seed 2"});
  CHECK(trials("\"vary\": \"train.lr=0.1,0.2\", \"vary\": \"seed=1..2\"", {}) == trials(both, {}));
  CHECK(trials(both, {"--vary", "seed=7,8,9", "--vary", "hidden.units=8,16"}).size() == 12);
  CHECK(trials(both, {"--vary", "trained.lr=0.3,0.4"})[0] == "seed 1, trained.lr 0.3");  // another name of it
  CHECK(trials(both, {"--set", "trained.lr=0.5"}) == std::vector<std::string>{"seed 1", "seed 2"});
  CHECK(trials(both, {"--seed", "3"}) == std::vector<std::string>{"train.lr 0.1", "train.lr 0.2"});
  CHECK(trials(both, {"--find-lr"}).size() == 32);
  CHECK(trials("\"vary\": \"train.milestones=[1,2],[3]\"", {"--set", "train.schedule=multistep"}).size() == 2);
  const std::string wrong = trials("\"vary\": \"seed\"", {})[0];
  CHECK_MESSAGE(wrong.find("g.onnxtxt:1:") != wrong.npos, wrong);
  CHECK_MESSAGE(wrong.find("metadata \"vary\": --vary 'seed': expected NAME=VALUES") != wrong.npos, wrong);
  CHECK(trials("\"vary\": \"train.lr=[1\"", {})[0].find("expected a ']'") != std::string::npos);
  CHECK(trials("\"vary\": \"learnrs=1,2\"", {})[0].find("did you mean 'learners'?") != std::string::npos);
  // A binary model has it, too.
  Place place;
  const std::string model = (place.folder / "g.onnx").string();
  write_onnx(load_graph(place.graph, builtin_ops()), model, {.metadata = {{"vary", "train.lr=0.1,0.2; seed=1..2"}}});
  REQUIRE(place.run({"sweep", model, "--dry-run"}) == 0);
  CHECK(place.lines[0].starts_with("4 trials of g"));
  write_onnx(load_graph(place.graph, builtin_ops()), model, {.metadata = {{"vary", "seed"}}});
  CHECK(place.run({"sweep", model, "--dry-run"}) == 2);
  CHECK_MESSAGE(place.fault.starts_with(model + ": metadata \"vary\": --vary 'seed'"), place.fault);
}

// Photos of two kinds, and a graph that trains on them.
void write_photos(const Place& place) {
  for (const std::string split : {"train", "test"}) {
    for (int i = 0; i < 16; ++i) {
      TestImage image = test_image(24, 20, 3, 10, uint64_t(i));
      for (uint8_t& value : image.bytes) value = i % 2 == 0 ? uint8_t(128 + value / 2) : uint8_t(value / 2);
      place.folder.write(fmt::format("{}/{}/{}.png", split, i % 2 == 0 ? "bright" : "dark", i), encode_png(image));
    }
  }
  std::ofstream(place.graph) << fmt::format(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nphotos () => (float loss)\n{{\n"
      "image, label = arbalest.Prefetch <source = \"folder:{}\", batch = 8> ()\n"
      "pixels = arbalest.ResizeCrop <size = [8]> (image)\n"
      "x = arbalest.Augment <mean = [0.5], std = [0.25]> (pixels)\n"
      "logits = arbalest.Linear <units = 2> (x)\n"
      "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
      "trained = arbalest.Train <lr = 0.01, momentum = 0.9> (loss)\n"
      "report = arbalest.Validate <split = \"test\"> (trained, loss)\n}}\n",
      place.folder.string());
}

TEST_CASE("sweep: attributes of a function's call are told once each, and refused if no node takes them") {
  const auto refused = [](const std::vector<std::string>& words, const std::string& part) {
    Place place;
    std::string text = kGraph;
    const std::string layer = "arbalest.Linear <units = 32> (x)";
    text.replace(text.find(layer), layer.size(), "block.two <units = 32, unused = 1> (x)");
    std::ofstream(place.graph) << text << "<domain: \"block\", opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
                               << "two <units, unused> (x) => (y) {\n  a = arbalest.Linear <units = @units> (x)\n"
                               << "  y = arbalest.Linear <units = @units> (a)\n}\n";
    CHECK(place.sweep(words) == 2);
    CHECK_MESSAGE(place.fault.find(part) != place.fault.npos, place.fault);
    CHECK(!fs::exists(place.out));
  };
  refused({"--vary", "units=1,2"},
          "an attribute of the graph: hidden.units, hidden/a.units, logits.units, or an option");
  refused({"--vary", "unused=1,2"}, "expected NODE.ATTRIBUTE, or an option");
  refused({"--vary", "hidden.unused=1,2"},
          "--vary hidden.unused=1: no node of the call 'hidden' (block.two) takes its attribute 'unused'");
}

TEST_CASE("sweep: what cannot be is refused before anything is written") {
  const auto refused = [](const std::vector<std::string>& words, const std::string& part, int status = 2) {
    Place place;
    CHECK(place.sweep(words) == status);
    CHECK_MESSAGE(place.fault.find(part) != place.fault.npos, place.fault);
    CHECK(!fs::exists(place.out));
  };
  refused({"--vary", "learnrs=1,2"}, "did you mean 'learners'?");
  refused({"--vary", "lr=1,2"}, "expected NODE.ATTRIBUTE, or an attribute of the graph: train.lr, or an option");
  refused({"--vary", "train.rate=1,2"}, "has no attribute 'rate'");
  refused({"--vary", "epochs=1,two"}, "trial 2 (epochs two)");
  refused({"--vary", "learners=1,auto"}, "trial 2 (learners auto): --learners auto measures");
  refused({"--vary", "save=a,b"}, "trial-007/model.safetensors");
  refused({"--vary", "seed=1,2", "--samples", "2"}, "has 1 different combination besides seeds and folds");
  refused({"--vary", "seed=1,2", "--seed", "3"}, "not given already");
  refused({"--vary", "fold=1,2"}, "expected --folds K");
  refused({"--vary", "seed=1,2", "--until", "acuracy >= 0.8"}, "validation has no metric 'acuracy'");
  refused({"--vary", "seed=1,2", "--metric", "acc"}, "validation has no metric 'acc'");
  refused({"--vary", "seed=1,2", "--patience", "2", "--iterations", "3"}, "--patience needs a validation");
  refused({"--folds", "3", "--fold-by", "pateint"}, "by=pateint: expected a field");
  refused({"--vary", "hidden.units=8,0"}, "trial 2 (hidden.units 0)");
  refused({"--vary", "train.lr=-0.1,0.1"}, "trial 1 (train.lr -0.1)");
  refused({"--vary", "seed=1,2", "--devices", "cuda:99"}, "--devices cuda:99: is not there");
  refused({"--vary", "seed=1,2", "--set", "prefetch.source=\"mnist:nowhere\""}, "trial 1 (seed 1)", 1);
  refused({"--vary", "devices=cpu:0,cpu:1"}, "--vary devices");
  refused({"--vary", "train.lr=0.001,0.5", "--vary", "trained.lr=0.1"},
          "--vary train.lr and --vary trained.lr both change the attribute 'lr' of node 'trained'");
  refused({"--vary", "train.lr=1", "--set", "trained.lr=2"}, "--vary train.lr and --set trained.lr=2 both change");
  refused({"--find-lr", "--vary", "hidden.units=8,16", "--set", "hidden.units=4"},
          "--vary hidden.units and --set hidden.units=4 both change");
  refused({"--vary", "prefetch.source=glyphs:,shapes:", "--folds", "3"},
          "--vary prefetch.source and --folds both change");
  refused({"--vary", "batch=16,32"}, "an attribute of the graph: prefetch.batch");
  refused({"--vary", "epochs=1,2", "--search", "asha"}, "--vary epochs excludes it");
  refused({"--vary", "seed=1,2", "--search", "asha", "--epochs", "2", "--first-rung", "3"}, "rungs from epoch 3 to 2");
  refused({"--vary", "seed=1,2", "--search", "asha", "--epochs", "1"},
          "first after epoch 1, where their training ends");
  refused({}, "nothing varies");
  CHECK(fault({"sweep", "g.onnxtxt", "-o", "x", "--vary", "train.lr=1,2", "seed=1..3"})
            .find("unexpected argument 'seed=1..3'; each --vary takes one setting: --vary seed=1..3") !=
        std::string::npos);
  CHECK(fault({"sweep", "g.onnxtxt", "--vary", "seed=1,2"}).find("--output DIR is missing") != std::string::npos);
  const auto search = [](const char* how, const char* samples) {
    return fault({"sweep", "g.onnxtxt", "--vary", "seed=1,2", "-o", "x", "--search", how, "--samples", samples});
  };
  CHECK(search("grid", "1").find("--samples excludes it") != std::string::npos);
  CHECK(search("random", "0").find("needs --samples N") != std::string::npos);
  CHECK(search("best", "0").find("expected all, grid, random or asha") != std::string::npos);
  CHECK(search("ahsa", "0").find("did you mean 'asha'?") != std::string::npos);
  CHECK(fault({"sweep", "g.onnxtxt", "-o", "x", "--find-lr", "--search", "asha"})
            .find("--find-lr, which counts iterations, excludes it") != std::string::npos);
  CHECK(fault({"sweep", "g.onnxtxt", "--vary", "seed=1,2", "-o", "x", "--retry"}).find("--retry needs --resume") !=
        std::string::npos);
  CHECK(fault({"sweep", "g.onnxtxt", "--vary", "seed=1,2", "-o", "x", "--save", "y"}).find("--save:") !=
        std::string::npos);
  CHECK(fault({"sweep", "g.onnxtxt", "--vary", "seed=1,2", "-o", "x", "--keep", "some"}).find("--keep") !=
        std::string::npos);
}

}  // namespace sweep_test
