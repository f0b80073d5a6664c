// SPDX-License-Identifier: Apache-2.0

// `arbalest predict GRAPH FILES`: a trained model asked about photos of one's own.

#include <doctest/doctest.h>
#ifdef ARBALEST_ONNX
#include <onnx/onnx_pb.h>
#endif

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/io/image_files.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"

using namespace arbalest;
using namespace arbalest::test;

namespace predict_files_test {
namespace {

FileBytes photo(bool bright, uint64_t seed) {
  TestImage image = test_image(24, 20, 3, 10, seed);
  for (uint8_t& value : image.bytes) value = bright ? uint8_t(128 + value / 2) : uint8_t(value / 2);
  return encode_png(image);
}

// Photos that are bright or dark, and a model that was trained on them for a class each, or for two labels.
struct TrainedOnPhotos {
  TestFolder folder;
  std::string graph = folder / "g.onnxtxt", weights = folder / "w.safetensors";

  explicit TrainedOnPhotos(bool several_labels) {
    std::string table = "path,split,bright,dark\n";
    for (const std::string split : {"train", "test"}) {
      for (int i = 0; i < 32; ++i) {
        const bool bright = i % 2 == 0;
        const std::string name = fmt::format("{}/{}/{}.png", split, bright ? "bright" : "dark", i);
        folder.write(name, photo(bright, uint64_t(i)));
        table += fmt::format("{},{},{},{}\n", name, split, int(bright), int(!bright));
      }
    }
    folder.write("table.csv", table);
    const std::string source =
        several_labels ? "csv:" + (folder / "table.csv").string() + "?labels=bright,dark" : "folder:" + folder.string();
    std::ofstream(graph) << fmt::format(
        "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nphotos () => (float loss)\n{{\n"
        "image, label = arbalest.Prefetch <source = \"{}\", batch = 8> ()\n"
        "pixels = arbalest.ResizeCrop <size = [8]> (image)\n"
        "x = arbalest.Augment <mean = [0.5], std = [0.25]> (pixels)\n"
        "logits = arbalest.Linear <units = 2> (x)\n"
        "loss = arbalest.{}CrossEntropy (logits, label)\n"
        "trained = arbalest.Train <lr = 0.01, momentum = 0.9> (loss)\n"
        "report = arbalest.Validate <split = \"test\"> (trained, loss)\n}}\n",
        source, several_labels ? "Sigmoid" : "Softmax");
    SessionOptions options = on_cpus();
    options.length.epochs = 5;
    options.files.save = weights;
    run(load_graph(graph, builtin_ops()), options);
  }

  std::vector<std::string> lines(std::vector<std::string> words, int expected = kDone) const {
    std::vector<const char*> all = {"predict", graph.c_str(), "--weights", weights.c_str(), "--devices", "cpu:0"};
    for (const std::string& word : words) all.push_back(word.c_str());
    const Command command = parse(all);
    REQUIRE(options_if<PredictOptions>(command));
    const Redirected output(folder / "out");
    const int status = command_predict(options_of<PredictOptions>(command));
    CHECK(status == expected);
    return output.lines();
  }
};

}  // namespace

TEST_CASE("predict on files: a line each, in the order of the command line") {
  const TrainedOnPhotos trained(false);
  const std::string bright = trained.folder.write("mine/b.png", photo(true, 99)),
                    dark = trained.folder.write("mine/d.png", photo(false, 98));
  const auto lines = trained.lines({dark, bright, dark});
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].starts_with(dark + "  dark "));
  CHECK(lines[1].starts_with(bright + "  bright "));
  CHECK(lines[2] == lines[0]);

  const auto object = nlohmann::json::parse(trained.lines({"--format", "json", "--top", "2", bright}).at(0));
  CHECK(object.at("file") == bright);
  CHECK(object.at("label").is_null());
  CHECK(object.at("predictions").size() == 2);
  const auto table = trained.lines({"--format", "csv", bright});
  CHECK(table.at(0) == "sample,class_1,probability_1");
  CHECK(table.at(1).starts_with(bright + ",bright,"));
  CHECK(nlohmann::json::parse(trained.lines({"--format", "json", "--value", "logits", bright}).at(0))
            .at("value")
            .size() == 2);
  // For a split, files are named too, and their classes are known.
  CHECK(trained.lines({"--format", "csv"})
            .at(1)
            .starts_with((trained.folder / "test/bright/0.png,bright,bright,").string()));
}

TEST_CASE("predict on files: several labels, each with its probability, also where the data is gone") {
  const TrainedOnPhotos trained(true);
  const std::string bright = trained.folder.write("mine.png", photo(true, 99));
  const auto lines = trained.lines({bright});
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].starts_with(bright + "  bright "));
  CHECK(contains(lines[0], "  dark "));
  CHECK(trained.lines({"--top", "1", bright}).at(0).find("dark") == std::string::npos);

  // In a table each label has its column.
  const auto table = trained.lines({"--format", "csv", bright});
  CHECK(table.at(0) == "sample,bright,dark");
  CHECK(table.at(1).starts_with(bright + ",0.9"));
  CHECK(trained.lines({"--format", "csv", "--top", "1", bright}).at(0) == "sample,class_1,probability_1");
  // The file's name without the folder from which the data set has it.
  CHECK(trained.lines({"--format", "csv"}).at(1).starts_with((trained.folder / "test/bright/0.png,").string()));
  std::filesystem::remove(trained.folder / "table.csv");
  CHECK(trained.lines({bright}) == lines);
}

TEST_CASE("predict on a split with several labels has what they are, where that is known") {
  const TrainedOnPhotos trained(true);
  const std::string first = (trained.folder / "test/bright/0.png").string(),
                    second = (trained.folder / "test/dark/1.png").string();
  trained.folder.write(
      "table.csv", "path,split,bright,dark\n" + first + ",test,1,0\n" + second + ",test,,1\n" + first + ",test,0,1\n");
  const auto table = trained.lines({"--format", "csv"});
  REQUIRE(table.size() == 4);
  CHECK(table[0] == "sample,bright,dark,label_bright,label_dark");
  CHECK(table[1].starts_with(first + ",0.9"));
  CHECK(table[1].ends_with(",1,0"));
  CHECK(table[2].ends_with(",,1"));
  CHECK(table[3].ends_with(",0,1"));
  const auto top = trained.lines({"--format", "csv", "--top", "1"});
  CHECK(top[0] == "sample,labels,class_1,probability_1");
  CHECK(top[1].starts_with(first + ",bright,bright,0."));
  CHECK(top[2].starts_with(second + ",dark,dark,0."));
  const auto object = nlohmann::json::parse(trained.lines({"--format", "json"}).at(1));
  CHECK(object.at("labels").at("bright").is_null());
  CHECK(object.at("labels").at("dark") == 1);
  const auto lines = trained.lines({});
  CHECK(lines[0].find("(is") == std::string::npos);
  CHECK(lines[1].find("(is") == std::string::npos);
  CHECK(lines[2].ends_with("  (is dark)"));
}

TEST_CASE("evaluate tells sensitivity and specificity of several labels, and the threshold where they are best") {
  const TrainedOnPhotos trained(true);
  const auto evaluated = [&](std::vector<const char*> more) {
    std::vector<const char*> words = {
        "evaluate", trained.graph.c_str(), "--weights", trained.weights.c_str(), "--devices", "cpu:0"};
    words.insert(words.end(), more.begin(), more.end());
    const Command command = parse(words);
    REQUIRE(options_if<EvaluateOptions>(command));
    const Redirected output(trained.folder / "out");
    CHECK(command_evaluate(options_of<EvaluateOptions>(command)) == kDone);
    std::string text;
    for (const std::string& line : output.lines()) text += line + "\n";
    return text;
  };
  const auto label = nlohmann::json::parse(evaluated({"--json"})).at("labels").at(0);
  CHECK(label.at("label") == "bright");
  CHECK(label.at("positive") == 16);
  CHECK(label.at("negative") == 16);
  CHECK(label.at("threshold") == 0.5);
  CHECK(label.at("sensitivity") == 1);
  CHECK(label.at("specificity") == 1);
  CHECK(label.at("best").at("sensitivity") == 1);
  // All of it is below so high a threshold.
  const std::string high = evaluated({"--threshold", "0.9999999"});
  CHECK(contains(high, "label   positive  negative  threshold  sensitivity  specificity  precision\n"));
  CHECK(contains(high, "bright        16        16     1.0000       0.0000       1.0000          -\n"));
  CHECK(fault({"evaluate", "g.onnxtxt", "--threshold", "1.5"}).find("--threshold") != std::string::npos);
}

#ifdef ARBALEST_ONNX
TEST_CASE("an exported model has the names of its classes in its metadata") {
  const auto exported = [](const TrainedOnPhotos& trained, std::vector<const char*> more) {
    const std::string file = (trained.folder / "m.onnx").string();
    std::vector<const char*> words = {"export", trained.graph.c_str(), file.c_str(), "--weights",
                                      trained.weights.c_str()};
    words.insert(words.end(), more.begin(), more.end());
    const Command command = parse(words);
    REQUIRE(options_if<ExportCommandOptions>(command));
    const Redirected output(trained.folder / "out");
    CHECK(command_export(options_of<ExportCommandOptions>(command)) == kDone);
    onnx::ModelProto model;
    std::ifstream in(file, std::ios::binary);
    REQUIRE(model.ParseFromIstream(&in));
    std::map<std::string, std::string> entries;
    for (const auto& entry : model.metadata_props()) entries[entry.key()] = entry.value();
    return entries;
  };
  for (const bool several : {false, true}) {
    const TrainedOnPhotos trained(several);
    CHECK(exported(trained, {}).at("class_names") == R"(["bright","dark"])");
    const std::string names = trained.folder.write("names.txt", std::string("day\nnight\n"));
    CHECK(exported(trained, {"--class-names", names.c_str()}).at("class_names") == R"(["day","night"])");
    // A value that is no classes has no class names.
    CHECK(exported(trained, {"--value", "x"}).empty());
  }
}
#endif

TEST_CASE("labels have the names of a file where metrics of each are reported") {
  const TrainedOnPhotos trained(true);
  std::ifstream file(trained.graph);
  std::string text(std::istreambuf_iterator<char>(file), {});
  const auto replace = [&](const std::string& from, const std::string& to) {
    REQUIRE(contains(text, from));
    text.replace(text.find(from), from.size(), to);
  };
  replace("trained = ", "auc = arbalest.AUC (logits, label)\ntrained = ");
  replace("(trained, loss)", "(trained, loss, auc)");
  std::ofstream(trained.graph) << text;
  const std::string names = trained.folder / "names.txt";
  std::ofstream(names) << "day\nnight\n";
  const auto evaluated = [&] {
    const Command command = parse({"evaluate", trained.graph.c_str(), "--weights", trained.weights.c_str(), "--devices",
                                   "cpu:0", "--class-names", names.c_str()});
    const Redirected output(trained.folder / "out");
    const int status = command_evaluate(options_of<EvaluateOptions>(command));
    CHECK(status == kDone);
    return output.lines();
  };
  const auto lines = evaluated();
  const auto told = [&](const std::string& head) {
    return std::any_of(lines.begin(), lines.end(), [&](const auto& line) { return line.starts_with(head); });
  };
  CHECK(told("  auc/day "));
  CHECK(told("  auc/night "));
  CHECK_FALSE(told("  auc/bright "));
  std::ofstream(names) << "day\n";
  CHECK(contains(message_of<GraphError>(evaluated), "found 1 names, expected one for each of the 2 classes"));
  // Labels of a matrix, which names in a line each do not tell apart.
  replace("loss = arbalest.SigmoidCrossEntropy (logits, label)",
          "scores = Reshape <shape = [0, 2, 1]> (logits)\nlabels = Reshape <shape = [0, 2, 1]> (label)\n"
          "loss = arbalest.SigmoidCrossEntropy (scores, labels)");
  std::ofstream(trained.graph) << text;
  CHECK(contains(message_of<GraphError>(evaluated), "nor SigmoidCrossEntropy over a row of labels a sample"));
  CHECK(contains(message_of<GraphError>([&] { trained.lines({}); }),
                 "SigmoidCrossEntropy does not take one row of labels a sample"));
}

#ifdef ARBALEST_ONNX
TEST_CASE("a model of photos is exported where its data is gone") {
  for (const bool several_labels : {false, true}) {
    const TrainedOnPhotos trained(several_labels);
    for (const char* data : {"train", "test", "table.csv"}) std::filesystem::remove_all(trained.folder / data);
    const std::string exported = trained.folder / "out.onnx";
    const Command command =
        parse({"export", trained.graph.c_str(), exported.c_str(), "--weights", trained.weights.c_str()});
    const Redirected output(trained.folder / "out");
    CHECK(command_export(options_of<ExportCommandOptions>(command)) == kDone);
    CHECK(contains(output.lines().at(0), "x float[-1,3,8,8] to logits float[-1,2]"));
  }
}
#endif

TEST_CASE("predict on files: what cannot be read is said, and the others are reported") {
  const TrainedOnPhotos trained(false);
  const std::string bright = trained.folder.write("b.png", photo(true, 99)),
                    bad = trained.folder.write("bad.png", std::string("GIF89a, not really"));
  const Redirected errors(trained.folder / "errors", stderr);
  const std::string none = trained.folder / "none.png";
  const auto lines = trained.lines({bad, bright, none}, kFailed);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].starts_with(bright + "  bright "));
  REQUIRE(errors.lines().size() == 2);
  std::vector<std::string> told = errors.lines();
  std::sort(told.begin(), told.end());
  CHECK(contains(told[0], "skipped " + bad + ": "));
  CHECK(told[1].starts_with("arbalest: skipped " + none + ": cannot be opened: No such file or directory"));

  // A number of them that may be skipped is no failure; more are an error.
  CHECK(trained.lines({"--skip-bad", "2", bad, bright, none}) == lines);
  CHECK(trained.lines({bad, none}, kFailed).empty());

  const auto refused = [&](const std::string& file) { return message_of([&] { trained.lines({file}); }); };
  CHECK(contains(message_of([&] {
                   trained.lines({"--skip-bad", "1", bad, bright, none});
                 }),
                 "--skip-bad 1 is used up"));
  CHECK(contains(refused(trained.folder.string()), "found a folder, expected files"));
}

TEST_CASE("evaluate and predict leave out as many bad samples as the run might, unless they say otherwise") {
  const TrainedOnPhotos trained(false);
  trained.folder.write("test/dark/1.png", std::string("no photo"));
  const auto ask = [&](std::vector<std::string> words, int expected) {
    std::vector<const char*> all = {"--devices", "cpu:0", "--threads", "2"};
    for (const std::string& word : words) all.insert(all.end() - 4, word.c_str());
    const Command command = parse(all);
    const Redirected output(trained.folder / "out"), errors(trained.folder / "errors", stderr);
    int status = -1;
    if (const auto* run = options_if<RunOptions>(command)) status = command_run(*run);
    if (const auto* evaluate = options_if<EvaluateOptions>(command)) status = command_evaluate(*evaluate);
    if (const auto* predict = options_if<PredictOptions>(command)) status = command_predict(*predict);
    CHECK(status == expected);
    std::string told;
    for (const std::string& line : errors.lines()) told += line + "\n";
    return told;
  };
  ask({"run", trained.graph, "--epochs", "1", "--skip-bad", "3", "--seed", "7", "--save", trained.weights}, kDone);
  for (const char* command : {"evaluate", "predict"}) {
    const auto words = [&](std::vector<std::string> more) {
      more.insert(more.begin(), {command, trained.graph, "--weights", trained.weights});
      return more;
    };
    const std::string as = "arbalest: as in the run of " + trained.weights + ": ";
    CHECK(contains(ask(words({}), kDone), as + "--skip-bad 3 --seed 7\n"));
    CHECK(contains(ask(words({"--skip-bad", "2"}), kDone), as + "--seed 7\n"));
    CHECK_FALSE(contains(ask(words({"--skip-bad", "2", "--seed", "1"}), kDone), "as in the run"));
    CHECK(contains(message_of([&] { ask(words({"--skip-bad", "0"}), kFailed); }), "--skip-bad N goes on over"));
  }
}

TEST_CASE("a run that starts from weights of other classes says so at its start") {
  const TrainedOnPhotos trained(false);
  const auto told = [&] {
    const Command command = parse({"run", trained.graph.c_str(), "--weights", trained.weights.c_str(), "--epochs", "1",
                                   "--devices", "cpu:0", "--threads", "2"});
    const Redirected errors(trained.folder / "errors", stderr);
    CHECK(command_run(options_of<RunOptions>(command)) == kDone);
    std::string text;
    for (const std::string& line : errors.lines()) text += line + "\n";
    return text;
  };
  CHECK_FALSE(contains(told(), "other classes"));
  for (const char* split : {"train", "test"}) {
    std::filesystem::rename(trained.folder / split / "bright", trained.folder / split / "lit");
  }
  CHECK(contains(told(), "was trained on other classes: class 0 was 'bright', and is 'dark'"));
}

TEST_CASE("predict on files: the data set is not opened, and what makes no sense is refused") {
  const TrainedOnPhotos trained(false);
  const std::string bright = trained.folder.write("b.png", photo(true, 99));
  const auto lines = trained.lines({bright});
  // A folder whose listing fails: opening it would say so.
  std::filesystem::remove_all(trained.folder / "train");
  trained.folder.write("train/empty/nothing.txt", std::string("no image"));
  CHECK(trained.lines({bright}) == lines);

  const Command split = parse({"predict", "g.onnxtxt", "b.png", "--split", "test"});
  REQUIRE(options_if<Exit>(split));
  CHECK(contains(options_of<Exit>(split).text, "--split chooses samples of the graph's source"));
  for (const char* value : {"label", "loss"}) {
    CHECK_THROWS_WITH_AS(trained.lines({bright, "--value", value}),
                         fmt::format("--value {}: it is made of 'label', which files do not have", value).c_str(),
                         GraphError);
  }
  CHECK(trained.lines({bright, "--value", "logits"}).size() == 1);
}

TEST_CASE("predict: weights that were not trained are reported") {
  const TrainedOnPhotos trained(false);
  const std::string bright = trained.folder.write("b.png", photo(true, 99));
  const Command command = parse({"predict", trained.graph.c_str(), bright.c_str(), "--devices", "cpu:0"});
  REQUIRE(options_if<PredictOptions>(command));
  const Redirected output(trained.folder / "out"), errors(trained.folder / "errors", stderr);
  CHECK(command_predict(options_of<PredictOptions>(command)) == kDone);
  REQUIRE(errors.lines().size() == 1);
  CHECK(contains(errors.lines()[0], "no --weights FILE: the weights are those that the graph starts from"));
}

TEST_CASE("predict on files: what reads pixels of one size gets files scaled and cut to it") {
  const TestFolder folder;
  const TestImage grey = test_image(28, 28, 1, 10, 5), wide = test_image(112, 56, 3, 10, 6);
  const std::string digit = folder.write("digit.png", encode_png(grey)),
                    photo = folder.write("wide.png", encode_png(wide)), graph = folder / "g.onnxtxt";
  std::ofstream(graph)
      << "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\ndigits () => (float loss)\n{\n"
         "image, label = arbalest.Prefetch <source = \"glyphs:?train=64&test=64\", batch = 8, cache = \"device\"> ()\n"
         "x = arbalest.Augment <mean = [0.5], std = [0.25]> (image)\n"
         "logits = arbalest.Linear <units = 10> (x)\n"
         "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
         "trained = arbalest.Train <lr = 0.01> (loss)\n"
         "report = arbalest.Validate <split = \"test\"> (trained, loss)\n}\n";
  const auto lines = [&](std::vector<const char*> words) {
    words.insert(words.begin(), {"predict", graph.c_str(), "--devices", "cpu:0"});
    const Command command = parse(words);
    REQUIRE(options_if<PredictOptions>(command));
    const Redirected output(folder / "out"), errors(folder / "errors", stderr);
    CHECK(command_predict(options_of<PredictOptions>(command)) == kDone);
    return output.lines();
  };
  CHECK(lines({digit.c_str(), photo.c_str(), digit.c_str()}).size() == 3);
  std::string expected = digit;
  for (const uint8_t value : grey.bytes) expected += fmt::format(" {}", value);
  CHECK(lines({digit.c_str(), "--value", "image"}) == std::vector<std::string>{expected});
  CHECK(lines({photo.c_str(), "--value", "image"}).size() == 1);
}

}  // namespace predict_files_test
