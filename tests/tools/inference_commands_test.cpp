// SPDX-License-Identifier: Apache-2.0

// The output of `arbalest evaluate` and `arbalest predict`.

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "graph/file/graph_file.h"
#include "io/formats/safetensors.h"
#include "io/open/open_source.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"

using namespace arbalest;
using namespace arbalest::test;

namespace inference_commands_test {
namespace {

struct Trained {
  TestFolder folder;
  std::string graph = folder / "tiny.onnxtxt", weights = folder / "tiny.safetensors";
  Validated last;

  Trained() {
    std::ofstream(graph) << write_graph_text(tiny({}));
    SessionOptions options = on_cpus();
    options.length.epochs = 2;
    options.files.save = weights;
    last = run(tiny({}), options).ends.at(0).last;
  }

  // The lines that the command prints.
  std::vector<std::string> lines(std::vector<const char*> words) const {
    words.insert(words.begin() + 1, graph.c_str());
    for (const char* more : {"--weights", weights.c_str(), "--devices", "cpu:0", "--threads", "2"})
      words.push_back(more);
    const Command command = parse(words);
    const Redirected output(folder / "out");
    int status = kFailed;
    if (const auto* evaluate = options_if<EvaluateOptions>(command)) status = command_evaluate(*evaluate);
    if (const auto* predict = options_if<PredictOptions>(command)) status = command_predict(*predict);
    CHECK(status == kDone);
    return output.lines();
  }
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

}  // namespace

TEST_CASE("evaluate prints what the last validation measured, and each class") {
  const Trained trained;
  std::string text;
  for (const std::string& line : trained.lines({"evaluate", "--json"})) text += line + "\n";
  const auto report = nlohmann::json::parse(text);
  const double accuracy = trained.last.metrics.at(0).second;
  CHECK(report.at("loss").get<double>() == doctest::Approx(trained.last.loss).epsilon(1e-12));
  CHECK(report.at("accuracy").get<double>() == accuracy);
  CHECK(report.at("samples") == 50);
  REQUIRE(report.at("confusion").size() == 10);
  int64_t right = 0, all = 0;
  for (size_t label = 0; label < 10; ++label) {
    const auto& row = report["confusion"][label];
    const auto& of_class = report["classes"][label];
    right += row[label].get<int64_t>();
    int64_t samples = 0;
    for (const auto& count : row) samples += count.get<int64_t>();
    all += samples;
    CHECK(of_class.at("samples") == samples);
    CHECK(of_class.at("recall").get<double>() == doctest::Approx(row[label].get<double>() / double(samples)));
  }
  CHECK(all == 50);
  CHECK(double(right) / 50 == doctest::Approx(accuracy));

  const auto lines = trained.lines({"evaluate"});
  const auto starts = [&](const std::string& with) {
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.starts_with(with); });
  };
  CHECK(starts(fmt::format("  loss      {:.6g}", trained.last.loss)));
  CHECK(starts(fmt::format("  accuracy  {:.6g}", accuracy)));
  CHECK(starts("mean"));
  CHECK(starts("taken for"));
  for (const std::string& line : lines) CHECK(line.size() < 120);
}

// Two samples of three places with two classes: scores as they are in the file, times 1.
TEST_CASE("evaluate counts the classes of places, along the axis that the loss names, and how far they overlap") {
  const TestFolder folder;
  const auto tensor = [](const char* name, DataType type, Shape shape, auto numbers) {
    std::vector<uint8_t> bytes(numbers.size() * sizeof numbers[0]);
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return NamedTensor{name, type, std::move(shape), std::move(bytes)};
  };
  const std::vector<uint8_t> mask = {0, 1, 1, 1, 255, 0};
  const std::vector<float> images = {3, 0, 2, 0, 1, 1, 0, 0, 0, 4, 9, 5};  // (2, classes, places)
  const std::vector<float> tokens = {3, 0, 0, 1, 2, 1, 0, 4, 0, 9, 0, 5};  // (2, places, classes)
  for (const bool image : {true, false}) {
    const Shape shape = image ? Shape{2, 2, 3} : Shape{2, 3, 2};
    const TensorFile file{
        {tensor("x", DataType::Float32, shape, image ? images : tokens), tensor("mask", DataType::Uint8, {2, 3}, mask)},
        {}};
    for (const char* split : {"train", "test"}) {
      write_safetensors(std::filesystem::path(folder / (std::string(split) + ".safetensors")), file);
    }
    const std::string graph = folder / "places.onnxtxt", weights = folder / "places.safetensors";
    std::ofstream(graph) << fmt::format(
        "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nplaces () => (float loss)\n{{\n"
        "x, mask = arbalest.Prefetch <source = \"tensors:{}\", batch = 2> ()\n"
        "scores = arbalest.LayerScale <axis = 1, initial = 1.0> (x)\n"
        "loss = arbalest.SoftmaxCrossEntropy <axis = {}, ignore_index = 255> (scores, mask)\n"
        "trained = arbalest.Train <lr = 0.0> (loss)\n"
        "report = arbalest.Validate <split = \"test\"> (trained, loss)\n}}\n",
        std::string(folder / ""), image ? 1 : -1);
    const Command training = parse({"run", graph.c_str(), "--devices", "cpu:0", "--save", weights.c_str()});
    REQUIRE(command_run(*options_if<RunOptions>(training)) == kDone);
    const Command command =
        parse({"evaluate", graph.c_str(), "--weights", weights.c_str(), "--devices", "cpu:0", "--json"});
    std::string text;
    {
      const Redirected output(folder / "out");
      REQUIRE(command_evaluate(*options_if<EvaluateOptions>(command)) == kDone);
      for (const std::string& line : output.lines()) text += line + "\n";
    }
    const auto report = nlohmann::json::parse(text);
    CHECK(report.at("confusion").dump() == "[[1,1],[1,2]]");
    CHECK(report.at("classes")[0].at("iou").get<double>() == doctest::Approx(1.0 / 3));
    CHECK(report.at("classes")[1].at("iou").get<double>() == doctest::Approx(0.5));
    CHECK(report.at("mean_iou").get<double>() == doctest::Approx(5.0 / 12));

    std::vector<std::string> table;
    {
      const Redirected output(folder / "out");
      const Command shown = parse({"evaluate", graph.c_str(), "--weights", weights.c_str(), "--devices", "cpu:0"});
      REQUIRE(command_evaluate(*options_if<EvaluateOptions>(shown)) == kDone);
      table = output.lines();
    }
    const auto has_line = [&](const std::string& part) {
      return std::any_of(table.begin(), table.end(), [&](const auto& line) { return line.find(part) != line.npos; });
    };
    CHECK(has_line("  places  "));
    CHECK(has_line("mean intersection over union 0.4167"));

    const std::string model = folder / "places.onnx";
    const Command exporting = parse({"export", graph.c_str(), model.c_str(), "--weights", weights.c_str(),
                                     "--probabilities", "--devices", "cpu:0"});
    REQUIRE(command_export(*options_if<ExportCommandOptions>(exporting)) == kDone);
    const Graph exported = load_graph(model, builtin_ops());
    const Node* softmax = exported.find_op("Softmax");
    REQUIRE(softmax != nullptr);
    CHECK(int_attribute(*softmax, "axis") == (image ? 1 : -1));
  }
}

TEST_CASE("predict prints a line a sample in the order of the split, as text, CSV or JSON") {
  const Trained trained;
  const auto csv = trained.lines({"predict", "--top", "2", "--format", "csv"});
  REQUIRE(csv.size() == 51);
  CHECK(csv[0] == "sample,label,class_1,probability_1,class_2,probability_2");
  const auto json = trained.lines({"predict", "--top", "2", "--format", "json"});
  const auto text = trained.lines({"predict", "--top", "2"});
  REQUIRE(json.size() == 50);
  REQUIRE(text.size() == 50);
  int right = 0;
  for (int64_t n = 0; n < 50; ++n) {
    const auto fields = split(csv[size_t(n) + 1], ',');
    const auto object = nlohmann::json::parse(json[size_t(n)]);
    REQUIRE(fields.size() == 6);
    CHECK(fields[0] == std::to_string(n));
    CHECK(object.at("sample") == n);
    CHECK(object.at("label") == fields[1]);
    CHECK(object.at("predictions")[0].at("class") == fields[2]);
    CHECK(object.at("predictions")[1].at("probability").get<double>() == doctest::Approx(std::stod(fields[5])));
    CHECK(std::stod(fields[3]) >= std::stod(fields[5]));
    CHECK(contains(text[size_t(n)], fmt::format("{:>7}  {} ", n, fields[2])));
    CHECK(contains(text[size_t(n)], "(is ") == (fields[1] != fields[2]));
    right += fields[1] == fields[2];
  }
  CHECK(double(right) / 50 == doctest::Approx(trained.last.metrics.at(0).second));

  const auto numbers = trained.lines({"predict", "--value", "logits", "--format", "csv"});
  REQUIRE(numbers.size() == 51);
  CHECK(split(numbers[0], ',').at(10) == "logits_9");
  const auto scores = split(numbers[1], ',');
  REQUIRE(scores.size() == 11);
  const auto best = std::max_element(scores.begin() + 1, scores.end(),
                                     [](const auto& a, const auto& b) { return std::stod(a) < std::stod(b); });
  CHECK(std::to_string(best - scores.begin() - 1) == split(csv[1], ',')[2]);
}

TEST_CASE("classes have the names of a file, which has one for each") {
  const Trained trained;
  const std::string names = trained.folder / "names.txt";
  std::ofstream(names) << "zero\none, or uno\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n";
  const auto csv = trained.lines({"predict", "--format", "csv", "--class-names", names.c_str()});
  CHECK(contains(csv[1], "0,zero,"));
  CHECK(contains(csv[2], "1,\"one, or uno\","));
  CHECK(contains(message_of<RunError>([&] {
                   trained.lines({"evaluate", "--class-names", "nowhere.txt"});
                 }),
                 "nowhere.txt: cannot be opened: No such file or directory"));
  std::ofstream(names) << "zero\none\n";
  CHECK(contains(message_of<GraphError>([&] {
                   trained.lines({"evaluate", "--class-names", names.c_str()});
                 }),
                 "found 2 names, expected one for each of the 10 classes"));
  std::ofstream(names) << "zero\none\nzero\n3\n4\n5\n6\n7\n8\n9\n";
  CHECK(contains(message_of<GraphError>([&] {
                   trained.lines({"predict", "--class-names", names.c_str()});
                 }),
                 "'zero' is there twice (lines 1 and 3)"));
  CHECK(contains(message_of<GraphError>([&] {
                   trained.lines({"predict", "--value", "hidden", "--top", "2"});
                 }),
                 "no loss compares the value 'hidden'; expected scores: logits"));
}

namespace {

// Digits whose classes have names, one of them in Latin-1; with `others`, not the same ones.
class NamedDigits final : public Source {
 public:
  explicit NamedDigits(const SourceSpec& spec)
      : digits_(open_source("glyphs:?train=96&test=50&size=16", spec.split, spec.seed)), others_(spec.find("others")) {}
  std::vector<Field> fields() const override { return digits_->fields(); }
  int64_t size() const override { return digits_->size(); }
  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    digits_->fill(samples, fields);
  }
  std::vector<std::string> class_names() const override {
    return {"zero", "one", others_ ? "due" : "two", "three", "four", "five", "six", "seven", "\xe9", "nine"};
  }
  std::string describe() const override { return "digits"; }

 private:
  const std::unique_ptr<Source> digits_;
  const bool others_;
};

}  // namespace

TEST_CASE("classes have the names of the source, else those that are kept with the weights") {
  register_source({.name = "digits", .options = {"others"}, .open = [](const SourceSpec& spec) {
                     return std::make_unique<NamedDigits>(spec);
                   }});
  const Trained trained;
  const auto predicted = [&](const std::string& source) {
    return trained.lines({"predict", "--format", "csv", "--set", source.c_str()}).at(1);
  };
  const std::string glyphs = "prefetch.source=glyphs:?train=96&test=50&size=16";
  CHECK(predicted(glyphs).starts_with("0,0,"));
  CHECK(predicted("prefetch.source=digits:").starts_with("0,zero,"));
  std::string text;
  for (const std::string& line : trained.lines({"evaluate", "--json", "--set", "prefetch.source=digits:"}))
    text += line;
  CHECK(nlohmann::json::parse(text).at("classes")[7].at("class") == "seven");

  SessionOptions options = on_cpus();
  options.files.save = trained.weights;
  const Recorder named = run(tiny({.source = "digits:"}), options);
  CHECK(named.starts.at(0).classes == 10);
  CHECK(named.starts.at(0).class_names.at(9) == "nine");
  CHECK(predicted(glyphs).starts_with("0,zero,"));
  // Parts of metrics are of classes too.
  std::string measured = write_graph_text(tiny({}));
  const auto replace = [&](const std::string& from, const std::string& to) {
    REQUIRE(contains(measured, from));
    measured.replace(measured.find(from), from.size(), to);
  };
  replace("loss, accuracy)", "loss, accuracy, auc)");
  replace("trained = ", "auc = arbalest.AUC (logits, label)\ntrained = ");
  std::ofstream(trained.graph) << measured;
  const auto lines = trained.lines({"evaluate", "--set", "prefetch.source=digits:"});
  CHECK(std::any_of(lines.begin(), lines.end(), [](const auto& line) { return line.starts_with("  auc/three  0."); }));
  CHECK(std::none_of(lines.begin(), lines.end(), [](const auto& line) { return contains(line, "auc/3"); }));

  const Redirected errors(trained.folder / "errors", stderr);
  predicted("prefetch.source=digits:");
  CHECK(errors.lines().empty());
  predicted("prefetch.source=digits:?others=1");
  REQUIRE(errors.lines().size() == 1);
  CHECK(contains(errors.lines()[0], "was trained on other classes than digits has: class 2 was 'two', and is 'due'"));

  // Predictions have the model's names, and what is true is found by its name: 'due' is none of the model's classes.
  bool unknown = false;
  for (const std::string& line :
       trained.lines({"predict", "--format", "csv", "--set", "prefetch.source=digits:?others=1"})) {
    CHECK_FALSE(contains(line, "due"));
    unknown = unknown || contains(line, ",,");
  }
  CHECK(unknown);
  const std::string refused = message_of<GraphError>([&] {
    trained.lines({"evaluate", "--set", "prefetch.source=digits:?others=1"});
  });
  CHECK(contains(refused, "the model's classes are 'zero', 'one', 'two'"));
  CHECK(contains(refused, "and those of digits are 'zero', 'one', 'due'"));
}

TEST_CASE("evaluate and predict refuse what they do not know") {
  CHECK(contains(fault({"predict", "g.onnxtxt", "--format", "jsn"}),
                 "found 'jsn', expected lines, json or csv; did you mean 'json'?"));
  CHECK(contains(fault({"predict", "g.onnxtxt", "--top", "0"}), "expected a whole number from 1"));
  CHECK(contains(fault({"evaluate"}), "GRAPH is missing"));
  CHECK(contains(fault({"evaluate", "g.onnxtxt", "--epochs", "1"}), "unknown option '--epochs'"));
}

TEST_CASE("average writes the mean of models, and says what each is worth") {
  const Trained trained;
  const std::string more = trained.folder / "more.safetensors", out = trained.folder / "mean.safetensors";
  SessionOptions options = on_cpus();
  options.numerics.seed = 7;
  options.files.weights = trained.weights;
  options.files.save = more;
  run(tiny({}), options);
  const auto averaged = [&](std::vector<const char*> words) {
    words.insert(words.begin(), {"average", trained.graph.c_str()});
    for (const char* word : {"--devices", "cpu:0", "--threads", "2"}) words.push_back(word);
    const Command command = parse(words);
    if (const auto* refused = options_if<Exit>(command)) throw GraphError(refused->text);
    const Redirected output(trained.folder / "out");
    const int status = command_average(*options_if<AverageOptions>(command));
    CHECK(status == kDone);
    return output.lines();
  };
  const auto lines = averaged({trained.weights.c_str(), more.c_str(), "-o", out.c_str()});
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].starts_with(trained.weights + "  accuracy 0."));
  CHECK(lines[1].starts_with(more));
  CHECK(lines[2].starts_with("mean of 2 "));
  CHECK(lines[2].ends_with(": " + out));
  CHECK(std::filesystem::exists(out));
  CHECK(averaged({trained.weights.c_str(), more.c_str(), "-o", out.c_str(), "--greedy"}).size() == 4);
  const auto refusal = [&](std::vector<const char*> words) { return message_of([&] { averaged(std::move(words)); }); };
  CHECK(contains(refusal({trained.weights.c_str(), "-o", out.c_str()}), "average takes two models or more; found 1"));
  CHECK(contains(refusal({trained.weights.c_str(), more.c_str()}), "--output"));
  CHECK(contains(refusal({trained.weights.c_str(), more.c_str(), "-o", more.c_str()}), "more.safetensors"));
}

}  // namespace inference_commands_test
