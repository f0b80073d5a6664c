// SPDX-License-Identifier: Apache-2.0

// Training on image files: host nodes prepare them while batches are read.

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "executor/inference/inference.h"
#include "executor/inference/predictor.h"
#include "executor/session/reading.h"
#include "io/formats/safetensors.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/io/image_files.h"
#include "tests/io/test_folder.h"
#include "tests/tools/redirected.h"

using namespace arbalest;
using namespace arbalest::test;

namespace photos_test {
namespace {

// Two classes of photos, one bright above and one bright below, of several sizes and formats.
void write_photos(const TestFolder& folder, const std::string& split, int each, uint64_t seed) {
  for (const bool above : {false, true}) {
    for (int i = 0; i < each; ++i) {
      TestImage image = test_image(20 + i % 7, 24 + i % 5, 3, 20, seed + uint64_t(i));
      for (int y = 0; y < image.height; ++y) {
        for (int x = 0; x < image.width * 3; ++x) {
          uint8_t& value = image.bytes[size_t(y * image.width * 3 + x)];
          if ((y < image.height / 2) == above) value = uint8_t(std::min(255, value / 2 + 128));
        }
      }
      const std::string name = fmt::format("{}/{}/{}.", split, above ? "above" : "below", i);
      i % 2 == 0 ? folder.write(name + "png", encode_png(image)) : folder.write(name + "jpg", encode_jpeg(image));
    }
  }
}

Graph photos(const TestFolder& folder, const std::string& prepare, const std::string& prefetch = "") {
  return read_graph_text(
      fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
                  "photos () => (float loss)\n{{\n"
                  "image, label = arbalest.Prefetch <source = \"folder:{}\", batch = 8{}> ()\n"
                  "pixels = arbalest.{} (image)\n"
                  "x = arbalest.Augment <mean = [0.5], std = [0.25]> (pixels)\n"
                  "logits = arbalest.Linear <units = 2> (x)\n"
                  "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
                  "accuracy = arbalest.Accuracy (logits, label)\n"
                  "trained = arbalest.Train <lr = 0.01, momentum = 0.9> (loss)\n"
                  "report = arbalest.Validate <split = \"test\", batch = 6> (trained, loss, accuracy)\n"
                  "}}\n",
                  folder.string(), prefetch, prepare),
      "photos.onnxtxt", builtin_ops());
}

struct Photos {
  TestFolder folder;
  Photos() {
    write_photos(folder, "train", 24, 1);
    write_photos(folder, "test", 10, 1000);
  }
  Graph graph(const std::string& prepare, const std::string& prefetch = "") const {
    return photos(folder, prepare, prefetch);
  }
};

constexpr const char* kRandom = "RandomResizedCrop <size = [12, 10], area = [0.5, 1.0]>";
constexpr const char* kFixed = "ResizeCrop <size = [12, 10]>";

std::vector<std::byte> trained_weights(const Photos& photos, Graph graph, SessionOptions options) {
  options.length.epochs = 4;
  options.files.save = photos.folder / "w.safetensors";
  run(std::move(graph), options);
  const SafetensorsReader file(options.files.save);
  std::vector<std::byte> all;
  for (const SafetensorsReader::Entry& entry : file.entries()) {
    std::vector<std::byte> bytes(size_t(element_count(entry.shape)) * size_of(entry.dtype));
    file.read(entry, entry.dtype, bytes);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

struct Skips : Recorder {
  void skipped(const SampleSkipped& event) override { skips.push_back(event); }
  std::vector<SampleSkipped> skips;
};

Skips run_skipping(Graph graph, int64_t most) {
  SessionOptions options = on_cpus();
  options.execution.skip_bad = most;
  options.length.epochs = 3;
  Skips recorder;
  run_training(std::move(graph), options, recorder);
  return recorder;
}

}  // namespace

TEST_CASE("photos: what a session passes over is reported, of each split") {
  const Photos photos;
  for (const char* name : {"a.heic", "b.heic", "notes.txt"})
    photos.folder.write(std::string("train/above/") + name, std::string("x"));
  photos.folder.write("test/below/c.avif", std::string("x"));
  const std::string source = "arbalest: source 'folder:" + photos.folder.string();
  const Redirected errors(photos.folder / "errors", stderr);
  prepare(photos.graph(kFixed), on_cpus());
  CHECK(errors.lines() == std::vector<std::string>{source + " train': 3 files were passed over: 2 .heic, 1 .txt",
                                                   source + " test': 1 file was passed over: 1 .avif"});
}

TEST_CASE("photos: training from files of a folder, prepared at random") {
  const Photos photos;
  SessionOptions options = on_cpus();
  options.length.epochs = 12;
  const Recorder recorder = run(photos.graph(kRandom), options);
  CHECK(recorder.ends.at(0).best.at(0).second >= 0.95);
  CHECK(recorder.reports.front().input.decode > 0);
  CHECK(recorder.reports.front().input.read > 0);
  CHECK(recorder.ends.at(0).input.decode > 0);
}

TEST_CASE("a run says whether it waited for its input" * doctest::test_suite("alone")) {
  TinyNet slow;  // by far, whatever else the machine does meanwhile
  slow.source = "synthetic:?shape=1x16x16&classes=10&size=256&test=16&delay=16000";
  slow.depth = 1;  // batches that are read side by side may be late once for all
  const Recorder waited = run(tiny(slow), on_cpus());
  CHECK(waited.ends.at(0).input.bound());
  CHECK(waited.ends.at(0).input.decode == 0);
  SessionOptions brief = on_cpus();
  brief.length.iterations = 3;  // all of which may be late because reading begins with them
  CHECK_FALSE(run(tiny(slow), brief).ends.at(0).input.bound());
  const Recorder fed = run(tiny(convolutional()), on_cpus());
  CHECK(fed.ends.at(0).input.late < 0.5);

  TinyNet slower = slow;
  slower.source = "synthetic:?shape=1x16x16&classes=10&size=256&test=16&delay=30000";
  SessionOptions few = on_cpus();
  few.execution.threads = 1;
  few.length.iterations = 6;       // the first batch cannot but be late and counts for nothing
  few.execution.report_every = 6;  // reports wait for the only thread, and slots for reports
  CHECK(run(tiny(slower), few).ends.at(0).input.bound());
}

TEST_CASE("photos: the same seed gives the same pixels, whatever the threads") {
  const Photos photos;
  SessionOptions options = on_cpus();
  options.execution.threads = 1;
  const auto one = trained_weights(photos, photos.graph(kRandom), options);
  options.execution.threads = 3;
  CHECK(trained_weights(photos, photos.graph(kRandom), options) == one);
  options.numerics.seed = 2;
  CHECK(trained_weights(photos, photos.graph(kRandom), options) != one);
}

TEST_CASE("photos: what is kept in the host's memory is what was prepared") {
  const Photos photos;
  const auto read = trained_weights(photos, photos.graph(kFixed), on_cpus(2, 2));
  CHECK(trained_weights(photos, photos.graph(kFixed, ", cache = \"host\""), on_cpus(2, 2)) == read);

  SessionOptions options = on_cpus();
  options.length.epochs = 3;
  const Recorder recorder = run(photos.graph(kFixed, ", cache = \"host\""), options);
  CHECK(recorder.reports.front().input.decode > 0);
  CHECK(recorder.reports.back().input.decode == 0);  // in the third epoch no file is decoded

  const std::string message = message_of([&] { prepare(photos.graph(kRandom, ", cache = \"host\""), on_cpus()); });
  CHECK(contains(message, "node 'pixels' (arbalest.RandomResizedCrop): it prepares a sample anew in each epoch"));
}

TEST_CASE("photos: what stays on the devices is what was prepared") {
  const Photos photos;
  const Graph device = photos.graph(kFixed, ", cache = \"device\"");
  CHECK(trained_weights(photos, device, on_cpus(2, 2)) == trained_weights(photos, photos.graph(kFixed), on_cpus(2, 2)));
  const Recorder recorder = run(device, on_cpus());
  CHECK(recorder.reports.front().input.decode == 0);  // that was before

  const std::string message = message_of([&] { prepare(photos.graph(kRandom, ", cache = \"device\""), on_cpus()); });
  CHECK(contains(message, "node 'pixels' (arbalest.RandomResizedCrop): it prepares a sample anew in each epoch"));
}

TEST_CASE("photos: files that cannot be read are skipped where samples stay on the devices, as they are elsewhere") {
  const Photos photos;
  const std::string bad = photos.folder.write("train/above/0.png", std::string("\x89PNG\r\n\x1a\nnot quite"));
  const Graph device = photos.graph(kFixed, ", cache = \"device\"");
  const std::string message = message_of([&] { run_skipping(device, 0); });
  CHECK(message.starts_with(bad + ": "));
  CHECK(contains(message, "(sample 0 of folder:" + photos.folder.string() + " train); --skip-bad N goes on over"));

  photos.folder.write("train/above/1.jpg", std::string("nor this"));  // its place is taken by the one after next
  photos.folder.write("test/above/4.png", std::string("a test that is left out"));
  photos.folder.write("test/below/9.jpg", std::string("and another, before padding"));
  CHECK(contains(message_of([&] { run_skipping(device, 3); }), "--skip-bad 3 is used up"));
  const Skips kept = run_skipping(device, 4), read = run_skipping(photos.graph(kFixed), 4);
  std::set<std::string> places, expected;
  for (const SampleSkipped& skip : kept.skips) places.insert(skip.place);
  for (const SampleSkipped& skip : read.skips) expected.insert(skip.place);
  CHECK(places.size() == 4);
  CHECK(places == expected);
  REQUIRE(kept.validations.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(kept.epochs[i].loss == read.epochs[i].loss);
    CHECK(kept.validations[i].left_out == 2);
    CHECK(kept.validations[i].loss == read.validations[i].loss);
    CHECK(kept.validations[i].metrics == read.validations[i].metrics);
  }
}

TEST_CASE("photos: a sample is prepared by its position, not by its batch") {
  const Photos photos;
  const Prepared prepared = prepare(photos.graph(kRandom), on_cpus());
  const std::shared_ptr<const SampleReader> reader = make_reader(prepared, prepared.program.training(), 7);
  const int64_t bytes = reader->stride(2);
  CHECK(bytes == 12 * 10 * 3);
  const auto pixels = [&](std::vector<SampleRef> samples) {
    std::vector<std::byte> made(samples.size() * size_t(bytes));
    std::vector<std::byte*> fields = {nullptr, nullptr, made.data()};
    reader->read(samples, fields);
    return made;
  };
  const auto both = pixels({{3, 1, 5}, {4, 1, 6}});
  const auto second = pixels({{4, 1, 6}});
  CHECK(std::equal(second.begin(), second.end(), both.begin() + bytes));
  CHECK(pixels({{4, 1, 7}}) != second);
  CHECK(pixels({{4, 2, 6}}) != second);

  const std::shared_ptr<const SampleReader> validation =
      make_reader(prepared, *prepared.program.find(LoopRole::Validate), 7);
  const auto middle = [&](SampleRef sample) {
    std::vector<SampleRef> samples = {sample};
    std::vector<std::byte> made(static_cast<size_t>(bytes));
    std::vector<std::byte*> fields = {nullptr, nullptr, made.data()};
    validation->read(samples, fields);
    return made;
  };
  CHECK(middle({4, 2, 6}) == middle({4, 0, 1}));
}

TEST_CASE("photos: files that cannot be read end the run, or are skipped") {
  const Photos photos;
  const std::string bad = photos.folder.write("train/above/0.png", std::string("\x89PNG\r\n\x1a\nnot quite"));
  std::string message = message_of([&] { run_skipping(photos.graph(kFixed), 0); });
  CHECK(message.starts_with(bad + ": "));  // the file and the reason, before anything else
  CHECK(contains(message, "(sample 0 of folder:" + photos.folder.string() + " train); --skip-bad N goes on over"));

  const Skips skipping = run_skipping(photos.graph(kFixed), 1);
  REQUIRE(skipping.skips.size() == 1);
  CHECK(skipping.skips[0].place == bad);
  CHECK(skipping.ends.at(0).reason == RunEnd::Complete);

  photos.folder.write("test/below/2.png", std::string());
  message = message_of([&] { run_skipping(photos.graph(kFixed), 1); });
  CHECK(contains(message, "--skip-bad 1 is used up"));
  std::set<std::string> places;
  for (const SampleSkipped& skip : run_skipping(photos.graph(kFixed), 5).skips) places.insert(skip.place);
  CHECK(places == std::set<std::string>{bad, photos.folder / "test/below/2.png"});
}

TEST_CASE("photos: files of a table that are missing are skipped too, and the message says how") {
  const Photos photos;
  std::string table = "path,label,split\n";
  for (const char* split : {"train", "test"}) {
    for (int i = 0; i < 10; ++i) {
      for (const char* name : {"above", "below"}) {
        table += fmt::format("{0}/{1}/{2}.{3},{1},{0}\n", split, name, i, i % 2 ? "jpg" : "png");
      }
    }
  }
  const std::string file = photos.folder.write("t.csv", table);
  std::filesystem::remove(photos.folder / "train/above/3.jpg");
  std::filesystem::remove(photos.folder / "test/below/3.jpg");
  Graph graph = photos.graph(kFixed);
  graph.find_op("arbalest.Prefetch")->attributes.set("source", "csv:" + file);
  const std::string message = message_of([&] { run_skipping(graph, 0); });
  CHECK(contains(message, "1 of 20 files cannot be used"));
  CHECK(contains(message, "; --skip-bad N goes on over up to N samples"));
  const Skips skipping = run_skipping(graph, 2);
  CHECK(skipping.skips.size() == 2);
  CHECK(skipping.validations.at(0).samples == 19);
}

TEST_CASE("photos: logits that no class of the data asks for are reported") {
  const Photos photos;
  Graph graph = photos.graph(kFixed);
  CHECK(prepare(graph, on_cpus()).notes.empty());
  graph.find_op("arbalest.Linear")->attributes.set("units", int64_t{5});
  CHECK(contains(prepare(graph, on_cpus()).notes.at(0), "5 logits for 2 classes of 'folder:"));
  graph.find_op("arbalest.Linear")->attributes.set("units", int64_t{1});
  CHECK(contains(message_of([&] { prepare(graph, on_cpus()); }), "1 logits for 2 classes of field 'label'"));
}

TEST_CASE("photos: attributes of Augment that do nothing are refused") {
  const Photos photos;
  const auto refused = [&](const char* name, Attribute value) {
    Graph graph = photos.graph(kFixed);
    graph.find_op("arbalest.Augment")->attributes.set(name, std::move(value));
    return message_of([&] { prepare(std::move(graph), on_cpus()); });
  };
  CHECK(contains(refused("ratio", std::vector<double>{0.5, 2}), "attribute 'ratio' does nothing without 'area'"));
  CHECK(contains(refused("erase_area", std::vector<double>{0.1, 0.2}), "'erase_area' does nothing without 'erase'"));
}

TEST_CASE("photos: a sample that cannot be read is left out of validation, as if the split had not had it") {
  const Photos photos;
  for (const bool fixed : {true, false}) {
    for (const std::string file : {"test/above/4.png", "test/below/9.jpg"}) {  // within a batch, and before padding
      const std::filesystem::path path = photos.folder / file, aside = photos.folder / "aside";
      const Graph graph = photos.graph(fixed ? kFixed : kRandom);
      SessionOptions options = on_cpus(2);
      options.execution.skip_bad = 1;
      const auto validated = [&] { return run(graph, options).validations.at(0); };
      std::filesystem::copy_file(path, aside);
      std::filesystem::remove(path);
      const Validated without = validated();
      photos.folder.write(file, std::string("not a photo"));
      const Validated skipped = validated();
      std::filesystem::rename(aside, path);
      CHECK(without.samples == 19);
      CHECK(without.left_out == 0);
      CHECK(skipped.samples == 19);
      CHECK(skipped.left_out == 1);
      CHECK(skipped.loss == doctest::Approx(without.loss).epsilon(1e-6));
      CHECK(skipped.metrics == without.metrics);
    }
  }
}

TEST_CASE("photos: a pass hands out the samples that can be read, each under its number") {
  const Photos photos;
  const auto logits = [&] {
    SessionOptions options = on_cpus(2);
    options.execution.skip_bad = 7;
    Inference inference(photos.graph(kFixed), options, {.outputs = {"logits"}});
    std::map<int64_t, std::pair<float, float>> all;
    const Validated measured = inference.run([&](const InferredBatch& batch) {
      for (size_t row = 0; row < batch.rows.size(); ++row) {
        const auto* values = reinterpret_cast<const float*>(batch.values[0]) + 2 * row;
        all[batch.rows[row]] = {values[0], values[1]};
      }
      // Rows behind those that are left repeat them in turn.
      for (size_t row = batch.rows.size(); row < size_t(batch.samples) && !batch.rows.empty(); ++row) {
        const auto* values = reinterpret_cast<const float*>(batch.values[0]) + 2 * row;
        CHECK(values[0] == doctest::Approx(values[-2 * int64_t(batch.rows.size())]).epsilon(1e-5));
      }
    });
    CHECK(measured.samples == int64_t(all.size()));
    CHECK(measured.left_out == 20 - measured.samples);
    return all;
  };
  auto expected = logits();
  REQUIRE(expected.size() == 20);
  for (const int i : {0, 1, 2, 3, 4, 5}) {  // the whole of the first batch
    photos.folder.write(fmt::format("test/above/{}.{}", i, i % 2 ? "jpg" : "png"), std::string("not a photo"));
    expected.erase(i);
  }
  photos.folder.write("test/below/4.png", std::string());
  expected.erase(14);
  CHECK(logits() == expected);
}

TEST_CASE("photos: padding after a skipped sample leaves nothing in the cache") {
  const Photos photos;  // 20 to validate, in batches of 6: the last one has four samples of padding
  photos.folder.write("test/below/9.jpg", std::string("\xff\xd8\xff not quite"));
  const Graph graph = photos.graph(kFixed, ", cache = \"host\"");
  const auto losses = [&](Graph each) {
    SessionOptions options = on_cpus();
    options.execution.skip_bad = 1;
    options.length.epochs = 3;
    std::vector<double> all;
    for (const Validated& validation : run(std::move(each), options).validations) all.push_back(validation.loss);
    return all;
  };
  CHECK(losses(graph) == losses(photos.graph(kFixed)));
}

TEST_CASE("photos: what a graph has wrong is said before anything is read") {
  const Photos photos;
  const auto refused = [&](const std::string& prepare) {
    return message_of([&] { arbalest::prepare(photos.graph(prepare), on_cpus()); });
  };
  CHECK(contains(refused("RandomResizedCrop <size = [0, 4]>"), "attribute 'size' is [0, 4]; expected [height, width]"));
  CHECK(contains(refused("RandomResizedCrop <size = [8], channels = 2>"), "attribute 'channels' is 2; expected 1"));
  CHECK(contains(refused("RandomResizedCrop <size = [8], area = [0.5, 1.5]>"), "attribute 'area' is [0.5, 1.5]"));
  CHECK(contains(refused("ResizeCrop <size = [8], fit = \"stretch\", random = 1>"), "nothing is cut off"));
  CHECK(contains(refused("ResizeCrop <size = [8], fit = \"zoom\">"), "fit"));
  for (const char* op : {"ResizeCrop", "RandomResizedCrop"}) {
    const std::string cut = std::string(op) + " <size = [9, 8], resize = ";
    CHECK(contains(refused(cut + "7>"), "attribute 'resize' is 7, and no 9 by 8 can be cut out"));
    CHECK(!contains(refused(cut + "8>"), "attribute"));
  }
  CHECK(contains(refused("Augment"), "is string[8], files as they are stored"));
}

TEST_CASE("photos: evaluation reads them as the last validation did, a predictor takes them prepared") {
  const Photos photos;
  SessionOptions options = on_cpus();
  options.length.epochs = 2;
  options.files.save = photos.folder / "w.safetensors";
  const Recorder recorder = run(photos.graph(kRandom), options);
  SessionOptions reading = on_cpus();
  reading.files.weights = options.files.save;
  Inference inference(photos.graph(kRandom), reading, {});
  const Validated again = inference.run();
  CHECK(again.loss == recorder.validations.back().loss);
  CHECK(again.metrics == recorder.validations.back().metrics);

  Predictor predictor(photos.graph(kRandom), reading);
  CHECK(to_string(predictor.fields()) == "pixels uint8[3,12,10]");
  const std::vector<uint8_t> grey(12 * 10 * 3, 128);
  const FieldArray request[] = {field_array("pixels", {3, 12, 10}, grey)};
  CHECK(predictor.predict(request).size() == 2);
}

}  // namespace photos_test
