// SPDX-License-Identifier: Apache-2.0

// Changes that a run makes to its graph's attributes are kept with its weights, and taken by commands that use these.

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "executor/weights/class_names.h"
#include "executor/weights/weights_file.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"

using namespace arbalest;
using namespace arbalest::test;

namespace trained_graph_test {
namespace {

struct Told {
  std::vector<std::string> out, errors;
};

class Runs {
 public:
  Runs() { write(tiny({})); }

  void write(const Graph& graph) const { std::ofstream(this->graph) << write_graph_text(graph); }

  void train(std::vector<const char*> more) const {
    std::vector<const char*> words = {"run",           graph.c_str(), "--epochs",  "2",      "--set",
                                      "train.lr=0.05", "--log",       log.c_str(), "--save", weights.c_str()};
    words.insert(words.end(), more.begin(), more.end());
    ask(words);
  }

  Told ask(std::vector<const char*> words) const {
    for (const char* word : {"--devices", "cpu:0", "--threads", "2"}) words.push_back(word);
    const Command command = parse(words);
    const Redirected out(folder / "out"), errors(folder / "errors", stderr);
    int status = kFailed;
    if (const auto* run = options_if<RunOptions>(command)) status = command_run(*run);
    if (const auto* evaluate = options_if<EvaluateOptions>(command)) status = command_evaluate(*evaluate);
    if (const auto* predict = options_if<PredictOptions>(command)) status = command_predict(*predict);
    if (const auto* exported = options_if<ExportCommandOptions>(command)) status = command_export(*exported);
    CHECK(status == kDone);
    return {out.lines(), errors.lines()};
  }

  // The JSON that `evaluate --json` prints, and its lines on the error stream.
  std::pair<nlohmann::json, std::vector<std::string>> evaluated(std::vector<const char*> more) const {
    std::vector<const char*> words = {"evaluate", graph.c_str(), "--weights", weights.c_str(), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Told told = ask(words);
    std::string text;
    for (const std::string& line : told.out) text += line;
    return {nlohmann::json::parse(text), told.errors};
  }

  TestFolder folder;
  std::string graph = folder / "tiny.onnxtxt", weights = folder / "tiny.safetensors", log = folder / "log";
};

// The value of the last validation in the run's log.
double validated_loss(const Runs& runs) {
  std::ifstream log(runs.log);
  double loss = -1;
  for (std::string line; std::getline(log, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event.at("event") == "validation") loss = event.at("loss");
  }
  return loss;
}

}  // namespace

TEST_CASE("a change to a function's call is kept with the weights, and taken over") {
  const Runs runs;
  std::ofstream(runs.graph) << R"(<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1, "block" : 1]>
tiny () => (float loss)
{
  image, label = arbalest.Prefetch <source = "glyphs:?train=96&test=50&size=16", batch = 8> ()
  x = arbalest.Augment (image)
  h = block.dense <units = 16> (x)
  logits = arbalest.Linear <units = 10> (h)
  loss = arbalest.SoftmaxCrossEntropy (logits, label)
  accuracy = arbalest.Accuracy (logits, label)
  trained = arbalest.Train <lr = 0.1> (loss)
  report = arbalest.Validate <batch = 16> (trained, loss, accuracy)
}
<domain: "block", opset_import: ["" : 17, "arbalest" : 1]>
dense <units> (x) => (y) { a = arbalest.Linear <units = @units> (x) y = Relu (a) }
)";
  runs.train({"--set", "h.units=12"});
  CHECK(WeightsFile(runs.weights).overrides() == std::vector<std::string>{"train.lr=0.05", "h.units=12"});
  const auto [measured, told] = runs.evaluated({});
  CHECK(measured.at("loss").get<double>() == doctest::Approx(validated_loss(runs)).epsilon(1e-9));
  REQUIRE(told.size() == 1);
  CHECK(told[0] == "arbalest: as in the run of " + runs.weights + ": h/a.units is 12");
}

TEST_CASE("evaluate, predict and export take over what the run changed, and tell what differs") {
  const Runs runs;
  const std::string best = runs.folder / "best.safetensors";
  runs.train({"--set", "augment.mean=[0.7]", "--save-best", best.c_str()});
  for (const std::string& file : {runs.weights, best}) {
    CHECK(WeightsFile(file).overrides() == std::vector<std::string>{"train.lr=0.05", "augment.mean=[0.7]"});
    CHECK(WeightsFile(file).graph_name() == "tiny");
  }
  const double loss = validated_loss(runs);

  const auto [forgotten, told] = runs.evaluated({});
  CHECK(forgotten.at("loss").get<double>() == doctest::Approx(loss).epsilon(1e-9));
  REQUIRE(told.size() == 1);
  CHECK(told[0] == "arbalest: as in the run of " + runs.weights + ": augment.mean is [0.7]");

  const auto [given, silent] = runs.evaluated({"--set", "x.mean=0.7"});
  CHECK(given.at("loss") == forgotten.at("loss"));
  CHECK(silent.empty());

  const auto [other, difference] = runs.evaluated({"--set", "augment.mean=[0.1]", "--set", "validate.batch=10"});
  CHECK(other.at("loss").get<double>() != doctest::Approx(loss).epsilon(1e-3));
  REQUIRE(difference.size() == 1);
  CHECK(difference[0] == "arbalest: not as in the run of " + runs.weights + ": augment.mean is [0.1] and was [0.7]");

  const auto [changed, unchanged_in_run] = runs.evaluated({"--set", "augment.std=[0.9]"});
  REQUIRE(unchanged_in_run.size() == 2);
  CHECK(contains(unchanged_in_run[1], ": augment.std is [0.9] and was [0.3]"));

  const auto numbers = [&](std::vector<const char*> more) {
    std::vector<const char*> words = {"predict", runs.graph.c_str(), "--weights", runs.weights.c_str(), "--value",
                                      "logits"};
    words.insert(words.end(), more.begin(), more.end());
    return runs.ask(words);
  };
  const Told predicted = numbers({});
  CHECK(predicted.out == numbers({"--set", "augment.mean=[0.7]"}).out);
  CHECK(predicted.out != numbers({"--set", "augment.mean=[0.2]"}).out);
  CHECK(predicted.errors.size() == 1);

  const auto exported = [&](std::vector<const char*> more) {
    const std::string file = runs.folder / "tiny.onnx";
    std::vector<const char*> words = {"export",    runs.graph.c_str(),   file.c_str(),
                                      "--weights", runs.weights.c_str(), "--preprocessing"};
    words.insert(words.end(), more.begin(), more.end());
    runs.ask(words);
    return read_whole_file(file);
  };
  const std::string model = exported({});
  CHECK(model == exported({"--set", "augment.mean=[0.7]"}));
  CHECK(model != exported({"--set", "augment.mean=[0.2]"}));
}

TEST_CASE("the data of the run is the default, and other data is no difference worth a word") {
  const Runs runs;
  runs.train({"--set", "prefetch.source=glyphs:?train=96&test=40&size=16", "--set", "logits.units=12"});
  const auto [own, told] = runs.evaluated({});
  CHECK(own.at("samples") == 40);
  CHECK(own.at("loss").get<double>() == doctest::Approx(validated_loss(runs)).epsilon(1e-9));
  REQUIRE(told.size() == 1);
  CHECK(contains(told[0], "prefetch.source is \"glyphs:?train=96&test=40&size=16\""));
  CHECK(contains(told[0], "logits.units is 12"));
  const auto [elsewhere, taken] = runs.evaluated({"--set", "prefetch.source=glyphs:?train=96&test=30&size=16"});
  CHECK(elsewhere.at("samples") == 30);
  REQUIRE(taken.size() == 1);
  CHECK_FALSE(contains(taken[0], "source"));
}

TEST_CASE("weights of another graph, or of no command line, leave the graph as it is") {
  const Runs runs;
  runs.train({"--set", "augment.mean=[0.7]"});
  std::string text = write_graph_text(tiny({}));
  text.replace(text.find("tiny"), 4, "other");
  std::ofstream(runs.graph) << text;
  const auto [other, told] = runs.evaluated({});
  REQUIRE(told.size() == 1);
  CHECK(contains(told[0],
                 "was trained by the graph 'tiny' with --set train.lr=0.05 --set 'augment.mean=[0.7]', which the "
                 "graph 'other' does not take over"));
  const auto [given, still] = runs.evaluated({"--set", "augment.mean=[0.7]"});
  CHECK(given.at("loss").get<double>() == doctest::Approx(validated_loss(runs)).epsilon(1e-9));
  CHECK(other.at("loss") != given.at("loss"));

  // A graph that has changed since: differences are reported.
  runs.write(tiny({}));
  runs.train({"--set", "x.mean=[0.7]"});
  std::string renamed = write_graph_text(tiny({}));
  for (const auto& [from, to] : {std::pair{"x = arbalest.Augment", "pixels = arbalest.Augment"},
                                 std::pair{"units = 16> (x)", "units = 16> (pixels)"}}) {
    REQUIRE(contains(renamed, from));
    renamed.replace(renamed.find(from), std::string(from).size(), to);
  }
  std::ofstream(runs.graph) << renamed;
  const auto [without, unfit] = runs.evaluated({});
  REQUIRE(unfit.size() == 1);
  CHECK(contains(unfit[0],
                 "its run had a change that does not fit the graph: --set x.mean=[0.7]: the graph has no node "
                 "'x'"));

  SessionOptions options = on_cpus();
  options.files.save = runs.weights;
  run(tiny({}), options);
  CHECK_FALSE(WeightsFile(runs.weights).overrides());
  runs.write(tiny({}));
  CHECK(runs.evaluated({"--set", "augment.mean=[0.5]"}).second.empty());
}

TEST_CASE("entries of other programs, and hostile ones, are no changes") {
  for (const char* entry : {"", "no JSON", "{}", "[1]", "\"train.lr=1\"", "[[\"a\"]]"}) {
    CHECK_FALSE(overrides_in({{"set", entry}}));
  }
  CHECK(overrides_in({{"set", "[]"}}) == std::vector<std::string>{});
}

namespace {

// Two heads, of which Validate measures the second's accuracy.
constexpr const char* kTwoHeads =
    "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
    "twins () => (float loss)\n{\n"
    "image, label = arbalest.Prefetch <source = \"glyphs:?train=96&test=50&size=16\", batch = 8> ()\n"
    "x = arbalest.Augment <mean = [0.2], std = [0.3]> (image)\n"
    "first = arbalest.Linear <units = 10> (x)\n"
    "second = arbalest.Linear <units = 12> (x)\n"
    "first_loss = arbalest.SoftmaxCrossEntropy (first, label)\n"
    "second_loss = arbalest.SoftmaxCrossEntropy (second, label)\n"
    "loss = Add (first_loss, second_loss)\n"
    "right = arbalest.Accuracy (second, label)\n"
    "trained = arbalest.Train <lr = 0.02> (loss)\n"
    "report = arbalest.Validate <batch = 16> (trained, loss, right)\n}\n";

}  // namespace

TEST_CASE("of two heads the first is taken, which is said, and --value takes the other") {
  const Runs runs;
  std::ofstream(runs.graph) << kTwoHeads;
  runs.train({});
  const auto accuracy_of = [](const nlohmann::json& report) {
    double right = 0;
    for (size_t c = 0; c < report.at("confusion").size(); ++c) right += report["confusion"][c][c].get<double>();
    return right / report.at("samples").get<double>();
  };
  const auto [first, told] = runs.evaluated({});
  CHECK(first.at("scores") == "first");
  CHECK(first.at("confusion").size() == 10);
  CHECK(told.empty());
  const auto [second, silent] = runs.evaluated({"--value", "second"});
  CHECK(second.at("scores") == "second");
  CHECK(second.at("confusion").size() == 12);
  CHECK(accuracy_of(second) == doctest::Approx(second.at("right").get<double>()));
  CHECK(second.at("right") == first.at("right"));
  const auto lines = runs.ask({"evaluate", runs.graph.c_str(), "--weights", runs.weights.c_str()}).out;
  const std::string title =
      fmt::format("classes by 'first', accuracy {:.6g}; --value NAME counts those of 'second'", accuracy_of(first));
  CHECK(std::find(lines.begin(), lines.end(), title) != lines.end());
  CHECK(message_of([&] {
          runs.evaluated({"--value", "x"});
        }) == "no loss compares the value 'x'; expected scores: first or second");

  const auto predicted = [&](std::vector<const char*> more) {
    std::vector<const char*> words = {"predict", runs.graph.c_str(), "--weights", runs.weights.c_str(), "--format",
                                      "json"};
    words.insert(words.end(), more.begin(), more.end());
    return runs.ask(words);
  };
  const Told unasked = predicted({}), asked = predicted({"--value", "second", "--top", "1"});
  REQUIRE(unasked.errors.size() == 1);
  CHECK(contains(unasked.errors[0], "classes are those of 'first'; --value NAME --top N prints those of 'second'"));
  CHECK(asked.errors.empty());
  const Told scores = predicted({"--value", "second"});
  for (size_t n = 0; n < 50; ++n) {
    const auto numbers = nlohmann::json::parse(scores.out.at(n)).at("value").get<std::vector<double>>();
    const auto most = std::max_element(numbers.begin(), numbers.end()) - numbers.begin();
    const auto prediction = nlohmann::json::parse(asked.out.at(n));
    CHECK(prediction.at("predictions")[0].at("class") == std::to_string(most));
    CHECK(prediction.at("label") == nlohmann::json::parse(unasked.out.at(n)).at("label"));
  }

  const std::string model = runs.folder / "m.onnx";
  const Told exported = runs.ask({"export", runs.graph.c_str(), model.c_str(), "--weights", runs.weights.c_str()});
  REQUIRE(exported.errors.size() == 1);
  CHECK(contains(exported.errors[0], "the output is 'first'; --value exports 'second'"));
  CHECK(contains(exported.out.at(0), " to first "));
}

TEST_CASE("of very many classes evaluate counts what there was, not all pairs") {
  const Runs runs;
  TinyNet net;
  net.source = "synthetic:?shape=1x16x16&classes=2000&size=16&test=12";
  net.validate = "batch = 250";
  std::string text = write_graph_text(tiny(net));
  text.replace(text.find("units = 10"), 10, "units = 2000");
  std::ofstream(runs.graph) << text;
  runs.train({});
  const auto [report, told] = runs.evaluated({});
  CHECK_FALSE(report.contains("confusion"));
  CHECK(report.at("classes").size() == 2000);
  int64_t samples = 0;
  for (const auto& cell : report.at("confusion_cells")) samples += cell.at(2).get<int64_t>();
  CHECK(samples == 12);
}

TEST_CASE("a run says what its best is judged by, and its log has it") {
  const Runs runs;
  const auto began = [&](std::vector<const char*> more) {
    std::vector<const char*> words = {"run", runs.graph.c_str(), "--epochs", "1", "--log", runs.log.c_str()};
    words.insert(words.end(), more.begin(), more.end());
    const Told told = runs.ask(words);
    std::ifstream log(runs.log);
    std::string line, last;
    std::getline(log, line);
    for (std::string each; std::getline(log, each);) last = each;
    return std::tuple(told.errors.at(1), nlohmann::json::parse(line), nlohmann::json::parse(last));
  };
  const auto [line, start, end] = began({});
  CHECK(line == "best is judged by accuracy, higher is better");
  CHECK(start.at("best_metric") == "accuracy");
  CHECK(start.at("better") == "higher");
  CHECK(end.at("best_metric") == "accuracy");
  CHECK(end.at("best_value") == end.at("best").at("accuracy"));
  CHECK(std::get<0>(began({"--metric", "loss"})) == "best is judged by loss, lower is better");

  std::string text = write_graph_text(tiny({}));
  const std::string accuracy = "accuracy = arbalest.Accuracy (logits, label)";
  REQUIRE(contains(text, accuracy));
  text.replace(text.find(accuracy), accuracy.size(), "accuracy = ReduceMean <keepdims = 0> (logits)");
  std::ofstream(runs.graph) << text;
  const auto [unknown, unjudged, ended] = began({});
  CHECK(
      unknown ==
      "no validation is shown as the best: --metric accuracy:min or accuracy:max states which way accuracy is better");
  CHECK(unjudged.at("better").is_null());
  CHECK_FALSE(ended.contains("best_metric"));
  CHECK(std::get<0>(began({"--metric", "accuracy:min"})) == "best is judged by accuracy, lower is better");
}

}  // namespace trained_graph_test
