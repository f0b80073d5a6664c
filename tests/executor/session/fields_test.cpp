// SPDX-License-Identifier: Apache-2.0

// Batches of other fields than an image and a label, and sources of the program's own.

#include <doctest/doctest.h>

#include <cmath>

#include "base/files/file.h"
#include "base/random.h"
#include "dsl/dsl.h"
#include "io/open/open_source.h"
#include "io/sources/memory_source.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace fields_test {
namespace {

// Points of the plane. `side` is on which side of a line a point lies, `ring` in which of three rings around the
// origin. `mask` closes the class of the rings that a point cannot have, by a number far below any logit.
struct Points {
  std::vector<float> points, mask;
  std::vector<int32_t> side, ring;

  explicit Points(int64_t count, uint64_t key) {
    for (int64_t i = 0; i < count; ++i) {
      const Random4 draw = philox(key, uint64_t(i), 0);
      const float x = 4 * uniform(draw.word[0]) - 2, y = 4 * uniform(draw.word[1]) - 2;
      const float radius = std::hypot(x, y);
      points.insert(points.end(), {x, y});
      side.push_back(x + y > 0);
      ring.push_back(radius < 0.9f ? 0 : radius < 1.6f ? 1 : 2);
      const int closed = (ring.back() + 1 + int(draw.word[2] % 2)) % 3;
      for (int c = 0; c < 3; ++c) mask.push_back(c == closed ? -1000.0f : 0.0f);
    }
  }

  std::unique_ptr<Source> source() const {
    return memory_source({field_array("points", {2}, points), field_array("side", {}, side, 2),
                          field_array("ring", {}, ring, 3), field_array("mask", {3}, mask)},
                         "points");
  }
};

// The same as a source of its own, which makes its samples as they are asked for.
class PointSource final : public Source {
 public:
  explicit PointSource(const SourceSpec& spec)
      : content_(spec.integer("size", 256, 1, 4096), spec.seed), name_(spec.label()) {}

  std::vector<Field> fields() const override { return content_.source()->fields(); }
  int64_t size() const override { return int64_t(content_.side.size()); }
  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    const std::unique_ptr<Source> source = content_.source();  // fill() may allocate
    source->fill(samples, fields);
  }
  std::string describe() const override { return name_; }

 private:
  Points content_;
  std::string name_;
};

Graph graph_of(const std::string& body, const std::string& initial = "") {
  return read_graph_text("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss) " +
                             initial + "\n{\n" + body + "}\n",
                         "net.onnxtxt", builtin_ops());
}

const std::string kTwoLabels =
    "hidden = arbalest.Linear <units = 32> (points)\n"
    "h = Relu (hidden)\n"
    "sides = arbalest.Linear <units = 2> (h)\n"
    "open = arbalest.Linear <units = 3> (h)\n"
    "rings = Add (open, mask)\n"
    "side_loss = arbalest.SoftmaxCrossEntropy (sides, side)\n"
    "ring_loss = arbalest.SoftmaxCrossEntropy (rings, ring)\n"
    "loss = Add (side_loss, ring_loss)\n"
    "right_side = arbalest.Accuracy (sides, side)\n"
    "right_ring = arbalest.Accuracy (rings, ring)\n"
    "trained = arbalest.Train <lr = 0.1, momentum = 0.9> (loss)\n"
    "report = arbalest.Validate <batch = 50> (trained, loss, right_side, right_ring)\n";

std::string two_labels(const std::string& source) {
  return "points, side, ring, mask = arbalest.Prefetch <source = \"" + source + "\", batch = 16> ()\n" + kTwoLabels;
}

SessionOptions with_sources(std::shared_ptr<const Source> training, std::shared_ptr<const Source> validation) {
  SessionOptions options = on_cpus();
  options.sources = {std::move(training), std::move(validation)};
  return options;
}

std::string refusal(const std::string& body, const SessionOptions& options) {
  return message_of([&] { prepare(graph_of(body), options); });
}

}  // namespace

TEST_CASE("float vectors, two labels and a mask train from the program's arrays") {
  const Points training(512, 1), test(170, 2);
  SessionOptions options = with_sources(training.source(), test.source());
  options.length.epochs = 20;
  const Recorder story = run(graph_of(two_labels("memory:")), options);
  REQUIRE(story.validations.size() == 20);
  const auto& metrics = story.validations.back().metrics;
  CHECK(story.validations.back().samples == 170);
  CHECK(metrics.at(0).second > 0.95);
  CHECK(metrics.at(1).second > 0.9);
}

TEST_CASE("float fields follow the precision of what reads them, and go to every learner") {
  const Points training(512, 1), test(170, 2);
  SessionOptions options = with_sources(training.source(), test.source());
  options.numerics.precision = Precision::Bf16;
  options.learners.per_device = 2;
  options.length.epochs = 20;
  const Recorder story = run(graph_of(two_labels("memory:")), options);
  CHECK(story.validations.back().metrics.at(0).second > 0.93);
}

TEST_CASE("sources without samples, with fields, a time or class names that are none are refused") {
  class Odd final : public Source {
   public:
    Odd(std::string field, int64_t size, double time, std::vector<std::string> names = {})
        : field_(std::move(field)), size_(size), time_(time), names_(std::move(names)) {}
    std::vector<Field> fields() const override { return {{field_, DataType::Float32, {2}}}; }
    int64_t size() const override { return size_; }
    double microseconds_per_sample() const override { return time_; }
    std::string describe() const override { return "odd"; }
    std::vector<std::string> class_names() const override { return names_; }
    void fill(std::span<const SampleRef>, std::span<std::byte* const>) const override {}

   private:
    std::string field_;
    int64_t size_;
    double time_;
    std::vector<std::string> names_;
  };
  const auto found = [](std::string field, int64_t size, double time) {
    return message_of([&] { check_source(Odd(std::move(field), size, time)); });
  };
  CHECK(found("points", 1, 0) == "");
  check_parts(found("points", 0, 0), {"odd has 0 samples"});
  check_parts(found("1st", 1, 0), {"odd: field 1 is '1st float[2]'"});
  check_parts(found("points", 1, -1), {"odd takes -1 µs per sample"});
  check_parts(found("points", 1, std::nan("")), {"odd takes nan µs per sample"});
  check_parts(message_of([] {
                check_source(Odd("points", 1, 0, {"B\xe4r", "cat", "B\xf6r"}));
              }),
              {"odd: classes 0 and 2 are called 'B\\xe4r' and 'B\\xf6r', which is the same with bytes"});
  CHECK(message_of([] { check_source(Odd("points", 1, 0, {"B\xe4r", "B\xc3\xa4r"})); }) == "");
}

TEST_CASE("the mask is read: with the classes it closes, rings are recognised better than without") {
  const Points training(512, 1), test(170, 2);
  SessionOptions options = with_sources(training.source(), test.source());
  options.length.epochs = 1;
  std::string unmasked = two_labels("memory:");
  unmasked.replace(unmasked.find("Add (open, mask)"), 16, "Identity (open)");
  const double with = run(graph_of(two_labels("memory:")), options).validations.back().metrics.at(1).second;
  const double without = run(graph_of(unmasked), options).validations.back().metrics.at(1).second;
  CHECK(with > without + 0.1);
}

TEST_CASE("a batch without a label: the slot holds what the graph reads and nothing else") {
  const Points points(64, 3);
  // The class of a sample is its place in the batch.
  const std::string body =
      "points = arbalest.Prefetch <source = \"memory:\", batch = 4> ()\n"
      "logits = arbalest.Linear <units = 4> (points)\n"
      "loss = arbalest.SoftmaxCrossEntropy (logits, place)\n"
      "trained = arbalest.Train <lr = 0.1> (loss)\n";
  SessionOptions options = with_sources(
      memory_source({field_array("points", {2}, points.points), field_array("mask", {3}, points.mask)}), nullptr);
  options.length.epochs = 2;
  const Graph graph = graph_of(body, "<int32[4] place = {0, 1, 2, 3}>");
  const Prepared prepared = prepare(graph, options);
  const Loop& loop = prepared.program.training();
  CHECK(loop.fields == std::vector<ValueId>{loop.graph.find_value("points"), kNone});
  CHECK(batch_layout(loop, BatchOrigin::Host).bytes == 256 + 4 * 2 * 4);
  CHECK(run(graph, options).ends.at(0).iteration == 32);
}

TEST_CASE("outputs take fields by name, in any order and number, and by position otherwise") {
  const Points points(64, 3);
  const SessionOptions options = with_sources(points.source(), points.source());
  const auto fields = [&](const std::string& outputs) {
    const Graph graph =
        prepare(graph_of(outputs + " = arbalest.Prefetch <source = \"memory:\", batch = 16> ()\n" + kTwoLabels),
                options)
            .graph;
    const Node& prefetch = *graph.find_op("arbalest.Prefetch");
    return fields_of_outputs(graph, prefetch, fields_of(prefetch));
  };
  CHECK(fields("points, side, ring, mask") == std::vector<int>{0, 1, 2, 3});
  CHECK(fields("mask, ring, side, points") == std::vector<int>{3, 2, 1, 0});
  const std::string renamed =
      "x, , ring = arbalest.Prefetch <source = \"memory:\", batch = 16> ()\n"
      "logits = arbalest.Linear <units = 3> (x)\n"
      "loss = arbalest.SoftmaxCrossEntropy (logits, ring)\n"
      "trained = arbalest.Train <lr = 0.1> (loss)\n";
  const Prepared prepared = prepare(graph_of(renamed), options);
  const Loop& loop = prepared.program.training();
  CHECK(loop.fields == std::vector<ValueId>{loop.graph.find_value("x"), kNone, loop.graph.find_value("ring"), kNone});
}

TEST_CASE("outputs that do not fit name the fields of the source") {
  const Points points(64, 3);
  const SessionOptions options = with_sources(points.source(), points.source());
  const std::string known = "points float[2], side int32[] of 2 classes, ring int32[] of 3 classes, mask float[3]";
  const auto found = [&](const std::string& outputs) {
    return refusal(outputs + " = arbalest.Prefetch <source = \"memory:\", batch = 16> ()\n" + kTwoLabels, options);
  };
  check_parts(found("points, side, ring, mask, more"),
              {"net.onnxtxt:4:", "5 outputs (points, side, ring, mask, more) for 4 fields", known});
  const std::string twice =
      "side, x = arbalest.Prefetch <source = \"memory:\", batch = 16> ()\n"
      "logits = arbalest.Linear <units = 2> (x)\n"
      "loss = arbalest.SoftmaxCrossEntropy (logits, side)\n"
      "trained = arbalest.Train <lr = 0.1> (loss)\n";
  check_parts(refusal(twice, options), {"'side' and 'x'", "field 'side'", known});
}

TEST_CASE("splits have the same fields, and logits as many classes as the label that they are held against") {
  const Points points(64, 3);
  const auto other = std::shared_ptr<const Source>(memory_source({field_array("points", {2}, points.points)}));
  check_parts(refusal(two_labels("memory:"), with_sources(points.source(), other)),
              {"the training split has the fields points float[2], side", "the validation split points float[2]"});
  std::string narrow = two_labels("memory:");
  narrow.replace(narrow.find("<units = 2>"), 11, "<units = 3>");  // wide enough for both
  CHECK(refusal(narrow, with_sources(points.source(), points.source())) == "");
  narrow.replace(narrow.find("(rings, ring)"), 13, "(sides, ring)");
  narrow.replace(narrow.find("<units = 3>"), 11, "<units = 2>");
  check_parts(refusal(narrow, with_sources(points.source(), points.source())),
              {"'ring_loss'", "2 logits for 3 classes of field 'ring'"});
}

TEST_CASE("a scheme of the program's own is opened from graph files, as any other") {
  register_source(
      {.name = "points", .options = {"size"}, .splits = {"train", "held out"}, .open = [](const SourceSpec& spec) {
         return std::make_unique<PointSource>(spec);
       }});
  std::string text = two_labels("points:?size=128");
  text.replace(text.find("<batch = 50>"), 12, "<batch = 50, split = \"held out\">");
  SessionOptions options = on_cpus();
  options.length.epochs = 2;
  TestFolder folder;
  options.files.save = folder / "scheme.safetensors";
  const Recorder story = run(graph_of(text), options);
  CHECK(story.validations.back().samples == 128);
  // The same samples from arrays give the same weights.
  const Points same(128, options.numerics.seed);
  options.sources = {same.source(), same.source()};
  options.files.save = folder / "arrays.safetensors";
  run(graph_of(two_labels("memory:")), options);
  CHECK(read_file(folder / "scheme.safetensors") == read_file(folder / "arrays.safetensors"));

  check_parts(refusal(two_labels("points:"), on_cpus()), {"unknown split 'test'", "expected train or held out"});
  check_parts(refusal(two_labels("points:?size=0"), on_cpus()), {"option 'size' is '0'", "from 1 to 4096"});
  check_parts(refusal(two_labels("points:?sice=9"), on_cpus()), {"unknown option 'sice'", "did you mean 'size'"});
  const auto again = [](SourceScheme scheme) { return message_of([&] { register_source(std::move(scheme)); }); };
  const auto open = [](const SourceSpec&) { return std::unique_ptr<Source>(); };
  check_parts(again({.name = "points", .open = open}), {"the scheme 'points' of a source is taken"});
  check_parts(again({.name = "mnist", .open = open}), {"the scheme 'mnist' of a source is taken"});
  check_parts(again({.name = "a:b", .open = open}), {"'a:b'", "letters, digits"});
  check_parts(again({.name = "closed"}), {"'closed'", "no function to open it"});
  register_source({.name = "nothing", .open = open});
  check_parts(refusal(two_labels("nothing:"), on_cpus()), {"the scheme 'nothing' opened nothing"});
}

TEST_CASE("a source that the program passes takes the place of the graph's") {
  TestFolder folder;
  SessionOptions options = on_cpus();
  options.files.save = folder / "named.safetensors";
  const TinyNet net;
  run(tiny(net), options);
  TinyNet absent = net;
  absent.source = "mnist:no/such/folder";
  options.sources = {open_source(net.source, "train", options.numerics.seed),
                     open_source(net.source, "test", options.numerics.seed)};
  options.files.save = folder / "passed.safetensors";
  run(tiny(absent), options);
  CHECK(read_file(folder / "named.safetensors") == read_file(folder / "passed.safetensors"));
  check_parts(refusal(two_labels("memory:"), on_cpus()), {"'memory:'", "none was passed for split 'train'"});
  const Points points(64, 3);
  check_parts(refusal(two_labels("memory:"), with_sources(points.source(), nullptr)),
              {"'memory:'", "none was passed for split 'test'"});
}

TEST_CASE("fields by name in the DSL") {
  const Points points(64, 3);
  Model model("rings");
  const Batch batch = prefetch(model, {.batch = 8}, {"ring", "points"});
  const Tensor loss = softmax_cross_entropy(linear(batch["points"], {.units = 3}), batch["ring"]);
  train(loss, {.lr = 0.1});
  SessionOptions options = with_sources(points.source(), nullptr);
  CHECK(run(model.graph(), options).ends.at(0).iteration == 8);
  check_parts(message_of([&] { batch["rings"]; }), {"no field 'rings'", "ring, points", "did you mean 'ring'"});
  Model wrong("wrong");
  const Batch asked = prefetch(wrong, {.batch = 8}, {"points", "label"});
  train(softmax_cross_entropy(linear(asked["points"], {.units = 3}), asked["label"]), {.lr = 0.1});
  check_parts(message_of([&] { prepare(wrong.graph(), options); }), {"output 'label' is no field", "points float[2]"});
}

}  // namespace fields_test
