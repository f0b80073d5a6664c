// SPDX-License-Identifier: Apache-2.0

// `arbalest init`: every template trains on what it says, and on data of other kinds, as it is written.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "base/process.h"
#include "base/shell_word.h"
#include "graph/graph.h"
#include "io/open/open_source.h"
#include "tests/executor/fixture.h"
#include "tests/io/image_files.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"
#include "tools/start/templates.h"

using namespace arbalest;
using namespace arbalest::test;

namespace init_test {
namespace {

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// An array as numpy.save() writes it.
template <typename T>
std::string npy(const std::string& descr, const std::string& shape, const std::vector<T>& values) {
  const std::string head = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  std::string bytes("\x93NUMPY\1\0", 8);
  bytes += char(head.size() & 255);
  bytes += char(head.size() >> 8);
  bytes += head;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return bytes;
}

// A folder to work in, with data of several kinds: photos in two classes, a table of them with two labels each, arrays.
struct Desk {
  TestFolder folder;

  Desk() {
    std::string table = "file,split,bright,dark\n";
    for (const std::string split : {"train", "test"}) {
      for (int i = 0; i < 8; ++i) {
        const std::string name = fmt::format("photos/{}/{}/{}.png", split, i % 2 ? "cat" : "dog", i);
        folder.write(name, encode_png(test_image(40, 36, 3, 5, uint64_t(i + 1))));
        table += fmt::format("{},{},{},{}\n", name, split, i % 2, i / 2 % 2);
      }
    }
    folder.write("table.csv", table);
    std::vector<int64_t> labels(24);
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = int64_t(i % 4);
    for (const std::string split : {"train", "test"}) {
      folder.write("bytes/" + split + "/x.npy", npy("|u1", "(24, 3, 28, 28)", std::vector<uint8_t>(24 * 3 * 784, 99)));
      folder.write("bytes/" + split + "/y.npy", npy("<i8", "(24,)", labels));
      folder.write("floats/" + split + "_image.npy", npy("<f4", "(24, 1, 28, 28)", std::vector<float>(24 * 784, 0.5f)));
      folder.write("floats/" + split + "_label.npy", npy("<i8", "(24,)", labels));
      std::vector<float> one_hot(24 * 4);
      for (size_t i = 0; i < labels.size(); ++i) one_hot[i * 4 + size_t(labels[i])] = 1;
      folder.write("hot/" + split + "/image.npy", npy("<f4", "(24, 1, 28, 28)", std::vector<float>(24 * 784, 0.5f)));
      folder.write("hot/" + split + "/label.npy", npy("<f4", "(24, 4)", one_hot));
      one_hot[1] = 1;
      folder.write("two/" + split + "/image.npy", npy("<f4", "(24, 1, 28, 28)", std::vector<float>(24 * 784, 0.5f)));
      folder.write("two/" + split + "/label.npy", npy("<f4", "(24, 4)", one_hot));
    }
    for (const std::string split : {"train", "test"}) {
      std::vector<float> rows(24 * 5);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = float(i % 7 + i / 5 % 4);
      folder.write("rows/" + split + "/features.npy", npy("<f4", "(24, 5)", rows));
      folder.write("rows/" + split + "/label.npy", npy("<i8", "(24,)", labels));
    }
    folder.write("last/train/image.npy", npy("|u1", "(2, 28, 28, 3)", std::vector<uint8_t>(2 * 3 * 784)));
    folder.write("last/train/label.npy", npy("<i8", "(2,)", std::vector<int64_t>{0, 1}));
    folder.write("grey/train/image.npy", npy("|u1", "(2, 28, 28)", std::vector<uint8_t>(2 * 784)));
    folder.write("grey/train/label.npy", npy("<i8", "(2,)", std::vector<int64_t>{0, 1}));
  }

  std::string path(const std::string& name) const { return folder / name; }

  std::string init(const std::string& name, std::vector<std::string> words) const {
    const std::string file = path(fmt::format("{}-{}.onnxtxt", name, ++made_));
    words.insert(words.begin(), {"init", name, file});
    std::vector<const char*> pointers;
    for (const std::string& word : words) pointers.push_back(word.c_str());
    const Command command = parse(pointers);
    REQUIRE(options_if<StartOptions>(command));
    const Redirected output(path("out")), errors(path("said"), stderr);
    CHECK(command_init(options_of<StartOptions>(command)) == kDone);
    return file;
  }
  std::string said() const { return content(path("said")); }  // by the latest init

  // Checks the graph and trains it for so many iterations.
  void train(const std::string& graph, const std::string& save = "") const {
    CAPTURE(content(graph));
    const Redirected output(path("out")), errors(path("errors"), stderr);
    CHECK(command_check(options_of<CheckOptions>(parse({"check", graph.c_str(), "--devices", "cpu:0"}))) == kDone);
    std::vector<const char*> words = {"run", graph.c_str(), "--devices", "cpu:0", "--iterations", "2"};
    if (!save.empty()) words.insert(words.end(), {"--save", save.c_str()});
    CHECK(command_run(options_of<RunOptions>(parse(words))) == kDone);
  }

  std::string refusal(const std::string& name, std::vector<std::string> words) const {
    words.insert(words.begin(), {"init", name, path("refused.onnxtxt")});
    std::vector<const char*> pointers;
    for (const std::string& word : words) pointers.push_back(word.c_str());
    const std::string message =
        message_of<GraphError>([&] { command_init(options_of<StartOptions>(parse(pointers))); });
    CHECK(!std::filesystem::exists(path("refused.onnxtxt")));
    return message;
  }

 private:
  mutable int made_ = 0;
};

}  // namespace

TEST_CASE("init: no template wastes its first update on a rate of 0") {
  for (const Template& each : kTemplates) {
    CAPTURE(each.name);
    CHECK(std::string_view(each.text).find("warmup_from = 0.1,") != std::string_view::npos);
  }
}

TEST_CASE("init: the commands that it suggests are words of a shell") {
  const Desk desk;
  const std::string file = desk.path("it's [1].onnxtxt");
  const Command command = parse({"init", "lenet", file.c_str()});
  const Redirected output(desk.path("out"));
  CHECK(command_init(options_of<StartOptions>(command)) == kDone);
  const std::vector<std::string> lines = output.lines();
  const std::string folder = desk.folder.string();
  REQUIRE(lines.size() == 3);
  CHECK(lines[1] == "  arbalest check '" + folder + "/it'\\''s [1].onnxtxt'");
  CHECK(lines[2] == "  arbalest run '" + folder + "/it'\\''s [1].onnxtxt' --save '" + folder +
                        "/it'\\''s [1].safetensors' --log '" + folder + "/it'\\''s [1].jsonl'");
  CHECK(shell_word("a/b-c_1.onnxtxt") == "a/b-c_1.onnxtxt");
  CHECK(shell_word("folder:a?labels=b") == "'folder:a?labels=b'");
  CHECK(shell_word("") == "''");
}

TEST_CASE("init: lenet and cnn are whole as they are, and take photos, arrays and several labels") {
  const Desk desk;
  for (const char* name : {"lenet", "cnn"}) {
    CAPTURE(name);
    desk.train(desk.init(name, {"--data", "glyphs:?train=128&test=64"}));
    const std::string photos = desk.init(name, {"--data", "folder:" + desk.path("photos")});
    CHECK(content(photos).find("\n  pixels = arbalest.ResizeCrop") != std::string::npos);
    CHECK(content(photos).find("logits = arbalest.Linear <units = 2>") != std::string::npos);
    desk.train(photos);
    // Without classes=K these are counted; fields have their places.
    const std::string arrays = desk.init(name, {"--data", "npy:" + desk.path("bytes")});
    CHECK(content(arrays).find("logits = arbalest.Linear <units = 4>") != std::string::npos);
    if (std::string(name) == "cnn") CHECK(content(arrays).find("<pad = 3,") != std::string::npos);
    desk.train(arrays);
    desk.train(desk.init(name, {"--data", "npy:" + desk.path("floats")}));
    const std::string several = desk.init(name, {"--data", "csv:" + desk.path("table.csv") + "?labels=*"});
    CHECK(content(several).find("auc = arbalest.AUC (logits, label)") != std::string::npos);
    desk.train(several);
  }
  // As it stands, without options.
  const std::string text = content(desk.init("lenet", {}));
  CHECK(text == kTemplates.front().text);
}

TEST_CASE("init: labels that are one-hot are classes, other floats are several labels, and both are said") {
  const Desk desk;
  const std::string hot = desk.init("lenet", {"--data", "npy:" + desk.path("hot")});
  check_parts(desk.said(),
              {"'label' is one-hot, a single 1 among zeros in each sample, and taken as one of 4 classes"});
  check_parts(content(hot), {"logits = arbalest.Linear <units = 4>", "(one-hot), which becomes the number of its class",
                             "loss = arbalest.SoftmaxCrossEntropy (logits, class)", "Accuracy (logits, class)",
                             "# Data, as --data named it. 'arbalest sources'"});
  desk.train(hot);
  const std::string two = desk.init("lenet", {"--data", "npy:" + desk.path("two")});
  check_parts(desk.said(), {"'label' is taken as 4 labels of which several may hold; for one class a sample, give "});
  check_parts(content(two), {"arbalest.SigmoidCrossEntropy (logits, label)", "auc = arbalest.AUC (logits, label)"});
  desk.train(two);
  desk.init("lenet", {"--data", "npy:" + desk.path("bytes")});
  CHECK(desk.said().empty());
}

TEST_CASE("init: labels from 1 on are reported") {
  const Desk desk;
  desk.folder.write("one/train/image.npy", npy("|u1", "(3, 1, 28, 28)", std::vector<uint8_t>(3 * 784)));
  desk.folder.write("one/train/label.npy", npy("<i8", "(3,)", std::vector<int64_t>{1, 2, 1}));
  desk.init("lenet", {"--data", "npy:" + desk.path("one")});
  check_parts(desk.said(), {"labels are 1 to 2, and none is 0: classes are counted from 0, so that one has no sample"});
}

TEST_CASE("init: the batch for photos leaves out the fewest samples of an epoch") {
  const Desk desk;
  const auto batch = [&](int64_t photos) {
    const std::string name = fmt::format("many{}", photos);
    for (int64_t i = 0; i < photos; ++i) {
      desk.folder.write(fmt::format("{}/train/{}/{}.png", name, i % 2 ? "cat" : "dog", i), std::string("x"));
    }
    desk.folder.write(name + "/test/cat/0.png", std::string("x"));
    const std::string text = content(desk.init("photos", {"--data", "folder:" + desk.path(name)}));
    return std::stoi(text.substr(text.find("split = \"train\", batch = ") + 25));
  };
  CHECK(batch(10) == 10);
  CHECK(batch(33) == 32);
  CHECK(batch(36) == 18);
  CHECK(batch(96) == 32);
  CHECK(batch(100) == 25);
  CHECK(batch(47) == 23);
}

TEST_CASE("init: vectors takes arrays of them, under their own name") {
  const Desk desk;
  const std::string file = desk.init("vectors", {"--data", "npy:" + desk.path("rows")});
  check_parts(content(file),
              {"features, label = arbalest.Prefetch", "arbalest.BatchNorm (features)", "batch = 24>", "units = 4>"});
  desk.train(file);
  check_parts(desk.refusal("vectors", {}), {"init vectors: found no --data"});
  check_parts(desk.refusal("vectors", {"--data", "npy:" + desk.path("bytes")}), {"expected one vector of floats"});
  check_parts(desk.refusal("cnn", {"--data", "npy:" + desk.path("rows")}), {"'arbalest init vectors' takes vectors"});
}

TEST_CASE("init: photos takes files, and arrays in their own size") {
  const Desk desk;
  const std::string photos = desk.init("photos", {"--data", "folder:" + desk.path("photos")});
  CHECK(content(photos).find("batch = 8>") != std::string::npos);  // there are no more
  desk.train(photos);
  const std::string arrays = desk.init("photos", {"--data", "npy:" + desk.path("bytes")});
  desk.train(arrays);
  check_parts(content(arrays), {"# Photos in files: training sees a random part of each in this size",
                                "# Half of the images are mirrored; digits and text need flip = 0.\n  # Bytes"});
  CHECK(content(arrays).find("folder photos") == std::string::npos);
  const std::string grey = desk.init("photos", {"--data", "glyphs:?train=64&test=32"});
  check_parts(content(grey), {"flip = 0, mean"});
  CHECK(content(grey).find("mirror") == std::string::npos);
  desk.train(grey);
}

TEST_CASE("init: data with one split make a graph that is sound, without a validation") {
  const Desk desk;
  for (const char* name : {"cat", "dog"}) {
    desk.folder.write(fmt::format("single/{}/0.png", name), encode_png(test_image(40, 36, 3, 5, 1)));
  }
  const std::string file = desk.init("cnn", {"--data", "folder:" + desk.path("single")});
  check_parts(desk.said(), {"has no split test or validation: Validate is a comment in the graph"});
  check_parts(content(file), {"\n  # report = arbalest.Validate"});
  desk.train(file);
}

TEST_CASE("init: a split that is there and cannot be opened is an error, and no reason to leave it out") {
  register_source({.name = "half", .open = [](const SourceSpec& spec) {
                     if (spec.split == "test") throw GraphError("the test split is wrong");
                     return open_source("glyphs:?train=64&test=32", spec.split, spec.seed);
                   }});
  const Desk desk;
  CHECK(desk.refusal("cnn", {"--data", "half:"}) == "the test split is wrong");
}

TEST_CASE("init: whatever ends its check, warnings go where they went before") {
  static int opened = 0;
  register_source({.name = "odd", .open = [](const SourceSpec& spec) {
                     if (++opened > 2) throw std::runtime_error("no error of ours");
                     return open_source("glyphs:?train=64&test=32", spec.split, spec.seed);
                   }});
  const Desk desk;
  const MessageHandler mine = [](const std::string&) {};
  const MessageHandler before = set_warning_handler(mine);
  const std::string file = desk.path("odd.onnxtxt");
  const Command command = parse({"init", "cnn", file.c_str(), "--data", "odd:"});
  CHECK_THROWS_WITH(command_init(options_of<StartOptions>(command)), "no error of ours");
  CHECK((set_warning_handler(before) == mine));
  CHECK(!std::filesystem::exists(file));
}

#ifdef ARBALEST_ONNX
TEST_CASE("init: finetune cuts the old head off, and gives images of the model's size") {
  const Desk desk;
  const std::string before = desk.init("lenet", {"--data", "glyphs:?train=128&test=64"}),
                    weights = desk.path("w.safetensors"), model = desk.path("model.onnx");
  desk.train(before, weights);
  {
    const Redirected output(desk.path("out"));
    CHECK(command_export(options_of<ExportCommandOptions>(parse(
              {"export", before.c_str(), model.c_str(), "--weights", weights.c_str(), "--probabilities"}))) == kDone);
  }
  const std::string graph = desk.init("finetune", {"--model", model, "--data", "folder:" + desk.path("photos")});
  const std::string text = content(graph);
  CHECK(text.find("outputs = [\"hidden\"]") != std::string::npos);
  CHECK(text.find("size = [28, 28], channels = 1") != std::string::npos);
  CHECK(text.find("file = \"model.onnx\"") != std::string::npos);
  CHECK(text.find("logits = arbalest.Linear <units = 2>") != std::string::npos);
  desk.train(graph);
  const std::string arrays = desk.init("finetune", {"--model", model, "--data", "glyphs:?train=128&test=64"});
  check_parts(content(arrays), {"# Bytes become (pixel / 255 - mean) / std.\n", "flip = 0, mean = [0.5]"});
  desk.train(arrays);
  check_parts(desk.refusal("finetune", {"--model", model, "--data", "npy:" + desk.path("bytes")}),
              {"uint8[3,28,28]", "expected as many channels as the model takes, 1"});
  check_parts(desk.refusal("finetune", {"--model", model, "--data", "glyphs:?train=64&test=32&size=16"}),
              {"is not written, since 'arbalest check' would refuse it:\n"});
  check_parts(desk.refusal("finetune", {}), {"--model FILE.onnx"});
  check_parts(desk.refusal("lenet", {"--model", model}), {"init finetune"});
}
#endif

TEST_CASE("init: what does not fit is refused with what would, and nothing is overwritten") {
  const Desk desk;
  check_parts(desk.refusal("lenett", {}),
              {"unknown graph 'lenett'; did you mean 'lenet'?", "cnn", "photos", "finetune"});
  check_parts(desk.refusal("cnn", {"--data", "npy:" + desk.path("last")}),
              {"uint8[28,28,3]", "images.transpose(0, 3, 1, 2)"});
  check_parts(desk.refusal("cnn", {"--data", "npy:" + desk.path("grey")}), {"uint8[28,28]", "images[:, None]"});
  check_parts(desk.refusal("cnn", {"--data", desk.path("photos")}), {"did you mean 'folder:" + desk.path("photos")});
  check_parts(desk.refusal("cnn", {"--data", desk.path("bytes")}), {"did you mean 'npy:" + desk.path("bytes")});
  check_parts(desk.refusal("cnn", {"--data", desk.path("table.csv")}), {"did you mean 'csv:" + desk.path("table.csv")});
  const std::string mine = desk.folder.write("mine.onnxtxt", std::string("mine"));
  const std::string message = message_of<GraphError>([&] { write_start_graph({.name = "lenet", .file = mine}); });
  check_parts(message, {"mine.onnxtxt' is there already"});
  CHECK(content(mine) == "mine");
}

}  // namespace init_test
