// SPDX-License-Identifier: Apache-2.0

// Samples that no loss can take: what a run says of them, and what it does not blame.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "executor/inference/inference.h"
#include "executor/run/data_faults.h"
#include "io/sources/memory_source.h"
#include "ops/builtin_ops.h"
#include "tests/executor/session/divergence_fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace data_faults_test {
namespace {

constexpr int64_t kSamples = 40;

struct Data {
  std::vector<float> x;
  std::vector<int32_t> label, marks;

  Data() {
    for (int64_t i = 0; i < kSamples; ++i) {
      for (int k = 0; k < 4; ++k) x.push_back(std::sin(float(i * 7 + k * 3)));
      label.push_back(int32_t(i % 3));
      for (int k = 0; k < 3; ++k) marks.push_back(int32_t((i + k) % 2));
    }
  }
  std::unique_ptr<Source> source() const {
    return memory_source({owned_array("x", {4}, x), owned_array("label", {}, label), owned_array("marks", {3}, marks)},
                         "points");
  }
};

// `loss` makes it of 'logits', 'label' and 'marks'.
Graph graph_of(const std::string& loss, const std::string& metrics = "loss") {
  return read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss)\n{\n"
      "x, label, marks = arbalest.Prefetch <source = \"memory:\", batch = 8> ()\n"
      "logits = arbalest.Linear <units = 3> (x)\n" +
          loss +
          "trained = arbalest.Train <lr = 0.01> (loss)\n"
          "report = arbalest.Validate <batch = 16> (trained, " +
          metrics + ")\n}\n",
      "net.onnxtxt", builtin_ops());
}

const std::string kClasses = "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n";
const std::string kMarks = "loss = arbalest.SigmoidCrossEntropy (logits, marks)\n";

SessionOptions options_of(const Data& training, const Data& test, int devices = 1) {
  SessionOptions options = on_cpus(devices);
  options.sources = {training.source(), test.source()};
  options.length.epochs = 2;
  return options;
}

void blames(const std::string& error, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) CHECK_MESSAGE(contains(error, part), part, " in ", error);
  CHECK_MESSAGE(!contains(error, "rate"), error);
}

}  // namespace

TEST_CASE("a label beyond the logits ends a run, which names sample, value and range") {
  Data bad;
  for (const size_t i : {11, 29}) bad.label[i] = 3;
  for (const int devices : {1, 2}) {
    blames(outcome(graph_of(kClasses), options_of(bad, Data(), devices)).error,
           {" finite", " of split 'train': 'label' is 3; ",
            "node 'loss' (arbalest.SoftmaxCrossEntropy) takes 0 to 2; 'ignore_index' "});
    blames(outcome(graph_of(kClasses), options_of(Data(), bad, devices)).error,
           {"the validation after iteration ", " (epoch 1) is not finite: sample 11 of split 'test': 'label' is 3; ",
            "2 labels are like that"});
  }
  bad.label[11] = -100;
  bad.label[29] = 0;
  const std::string accuracy = kClasses + "accuracy = arbalest.Accuracy (logits, label)\n";
  blames(outcome(graph_of(accuracy, "accuracy"), options_of(Data(), bad)).error,
         {"sample 11 of split 'test': 'label' is -100; node 'accuracy' (arbalest.Accuracy) takes 0 to 2"});
  const std::string area = kClasses + "auc = arbalest.AUC (logits, label)\n";
  blames(outcome(graph_of(area, "auc"), options_of(Data(), bad)).error, {"sample 11 of split 'test'"});
  bad = {};
  bad.marks[35] = 2;
  blames(outcome(graph_of(kMarks), options_of(bad, Data())).error,
         {"sample 11 of split 'train': 'marks' is 2 at [2]; ",
          "(arbalest.SigmoidCrossEntropy) takes 0 to 1, or -1 for one that is missing"});
}

// Losses read int32, and other whole numbers by a cast.
TEST_CASE("a label is named as its field, and counts once, whatever its type") {
  const auto check = [](auto type, int64_t bad, const std::string& number) {
    using Label = decltype(type);
    const Data data;
    const std::vector<Label> good(data.label.begin(), data.label.end());
    std::vector<Label> with_bad = good;
    with_bad[11] = Label(bad);
    const auto source = [&](const std::vector<Label>& labels) {
      return memory_source(
          {owned_array("x", {4}, data.x), owned_array("label", {}, labels), owned_array("marks", {3}, data.marks)},
          "points");
    };
    SessionOptions options = options_of(data, data);
    options.sources = {source(with_bad), source(good)};
    const std::string both = kClasses + "accuracy = arbalest.Accuracy (logits, label)\n";
    const std::string error = outcome(graph_of(both, "loss, accuracy"), options).error;
    blames(error, {"sample 11 of split 'train': 'label' is " + number + "; ", "takes 0 to 2"});
    CHECK_MESSAGE(!contains(error, "are like that"), error);
  };
  check(uint8_t{}, 7, "7");
  check(int64_t{}, 3, "3");
  check(int64_t{}, (int64_t{1} << 32) + 1, "4.29497e+09");
}

TEST_CASE("a label of one of several places is named with its place") {
  Data bad;
  bad.marks[35] = 7;
  const std::string places =
      "row = Unsqueeze <axes = [2]> (logits)\nother = Neg (row)\npairs = Concat <axis = 2> (row, other)\n"
      "turned = Transpose <perm = [0, 2, 1]> (pairs)\n";
  for (const std::string loss : {"loss = arbalest.SoftmaxCrossEntropy <axis = -1> (pairs, marks)\n",
                                 "loss = arbalest.SoftmaxCrossEntropy <axis = 1> (turned, marks)\n"}) {
    blames(outcome(graph_of(places + loss), options_of(bad, Data())).error,
           {"sample 11 of split 'train': 'marks' is 7 at [2]; ", "(arbalest.SoftmaxCrossEntropy) takes 0 to 1"});
  }
}

TEST_CASE("labels that are counted from 1 are reported at the start of a run, and where they are beyond the logits") {
  Data data;
  for (int32_t& label : data.label) label = 1 + label % 2;
  const std::string one = "labels are 1 to 2, and none is 0: classes are counted from 0, so that one has no sample";
  const RunOutcome ended = outcome(graph_of(kClasses), options_of(data, data));
  CHECK(ended.error == "");
  CHECK(contains(ended.story.starts.at(0).note, one));
  data.label[39] = 0;
  CHECK_FALSE(contains(outcome(graph_of(kClasses), options_of(data, data)).story.starts.at(0).note, "counted from"));
  data = {};
  for (int32_t& label : data.label) label += 1;
  blames(outcome(graph_of(kClasses), options_of(data, data)).error,
         {"'label' is 3; ", "; labels are 1 to 3, and none is 0: "});
}

TEST_CASE("labels that are all missing, or all ignored, are reported at the start of a run") {
  const auto note_of = [](const std::string& loss, const Data& data) {
    const RunOutcome ended = outcome(graph_of(loss), options_of(data, data));
    CHECK(ended.error == "");
    return ended.story.starts.at(0).note;
  };
  const std::string many = "loss = arbalest.SigmoidCrossEntropy (logits, marks)\n";
  const std::string ignoring = "loss = arbalest.SoftmaxCrossEntropy <ignore_index = [9]> (logits, label)\n";
  Data data;
  CHECK_FALSE(contains(note_of(many, data), "all labels"));
  for (int32_t& mark : data.marks) mark = -1;
  for (int32_t& label : data.label) label = 9;
  CHECK(contains(note_of(many, data),
                 "all labels 'marks' are missing, so that node 'loss' "
                 "(arbalest.SigmoidCrossEntropy) compares nothing"));
  CHECK(contains(note_of(ignoring, data), "all labels 'label' are 9, which is ignored, so that node 'loss'"));
  data.marks.back() = 1;
  CHECK_FALSE(contains(note_of(many, data), "all labels"));
}

TEST_CASE("a metric that is listed twice is refused") {
  CHECK(contains(outcome(graph_of(kClasses, "loss, loss"), options_of(Data(), Data())).error,
                 "lists the metric 'loss' twice"));
}

TEST_CASE("a label that nodes compute is named as they make it") {
  Data data;
  for (int32_t& label : data.label) label += 2;  // 2 to 4
  const std::string less =
      "two = Constant <value_ints = [2]> ()\ntwo_of_int32 = Cast <to = 6> (two)\n"
      "from_zero = Sub (label, two_of_int32)\nloss = arbalest.SoftmaxCrossEntropy (logits, from_zero)\n";
  CHECK(outcome(graph_of(less), options_of(data, data)).error == "");
  data.label[17] = 1;
  blames(outcome(graph_of(less), options_of(data, Data())).error,
         {"sample 17 of split 'train': 'from_zero' is -1; ", "takes 0 to 2"});
}

TEST_CASE("neither going back nor skipping helps against a label that is none") {
  const TestFolder folder;
  Data bad;
  bad.label[20] = 7;
  SessionOptions options = options_of(bad, Data());
  options.divergence.then = OnDivergence::Skip;
  blames(outcome(graph_of(kClasses), options).error, {"updates have been skipped", "sample 20", "'label' is 7"});
  options.divergence.then = OnDivergence::Rollback;
  options.checkpoints.folder = folder / "c";
  options.checkpoints.iterations = 1;
  const RunOutcome back = outcome(graph_of(kClasses), options);
  blames(back.error, {"sample 20 of split 'train': 'label' is 7"});
  CHECK(back.story.rollbacks.empty());
  options = options_of(bad, Data());
  options.divergence.find = true;
  blames(outcome(graph_of(kClasses), options).error, {"sample 20 of split 'train': 'label' is 7"});
}

TEST_CASE("labels that are ignored are no fault, and other ones are") {
  Data data;
  for (size_t i = 0; i < size_t(kSamples); i += 4) data.label[i] = -100;
  const std::string ignoring =
      "loss = arbalest.SoftmaxCrossEntropy <ignore_index = -100> (logits, label)\n"
      "accuracy = arbalest.Accuracy <ignore_index = -100> (logits, label)\n"
      "auc = arbalest.AUC <ignore_index = -100> (logits, label)\nf1 = arbalest.F1 <ignore_index = -100> (logits, "
      "label)\n";
  const RunOutcome ended = outcome(graph_of(ignoring, "loss, accuracy, auc, f1"), options_of(data, data));
  CHECK(ended.error == "");
  REQUIRE(ended.story.validations.size() == 2);
  for (const auto& [name, value] : ended.story.validations[1].metrics) CHECK_MESSAGE(std::isfinite(value), name);
  data.label[5] = -1;
  blames(outcome(graph_of(ignoring), options_of(data, Data())).error,
         {"sample 5 of split 'train': 'label' is -1; ", "takes 0 to 2, or -100, which is ignored"});
}

TEST_CASE("a number of the data that is none is reported with its field and sample") {
  Data bad;
  bad.x[4 * 13 + 2] = std::numeric_limits<float>::quiet_NaN();
  blames(outcome(graph_of(kClasses), options_of(bad, Data())).error,
         {" finite", "field 'x' of sample 13 of split 'train' holds nan at element 2 of 4"});
  SessionOptions options = options_of(bad, Data());
  options.divergence.find = true;
  blames(outcome(graph_of(kClasses), options).error,
         {"field 'x' of sample 13 of split 'train' holds nan", "reads 'x'"});
  bad.x[4 * 13 + 2] = -std::numeric_limits<float>::infinity();
  blames(outcome(graph_of(kClasses), options_of(Data(), bad)).error,
         {"the validation after iteration 5 (epoch 1) is not finite: field 'x' of sample 13 of split 'test' holds "
          "an infinity at element 2"});
}

TEST_CASE("a pass over a split ends with an error for a label that is none") {
  Data bad;
  bad.label[31] = 3;
  const auto evaluated = [&](const Graph& graph, const Data& data) {
    Inference inference(graph, options_of(Data(), data), {});
    return inference.run();
  };
  const std::string accuracy = kClasses + "accuracy = arbalest.Accuracy (logits, label)\n";
  blames(message_of([&] { evaluated(graph_of(accuracy, "loss, accuracy"), bad); }),
         {"sample 31 of split 'test': 'label' is 3"});
  CHECK(std::isfinite(evaluated(graph_of(accuracy, "loss, accuracy"), Data()).loss));
}

TEST_CASE("numbers that overflow before any update are not blamed on the rate") {
  Data data;
  for (float& x : data.x) x *= 1e30f;
  const std::string error = outcome(graph_of("squares = Mul (logits, logits)\n"
                                             "loss = arbalest.SoftmaxCrossEntropy (squares, label)\n"),
                                    options_of(data, data))
                                .error;
  CHECK_MESSAGE(contains(error, "before any update, so that the learning rate has no part in it"), error);
}

TEST_CASE("numbers that are not scaled are named as the probable cause, unless the graph scales them") {
  Data data;
  for (float& x : data.x) x *= 65535;
  const auto error_of = [&](const std::string& first) {
    const std::string text =
        "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss)\n{\n"
        "x, label, marks = arbalest.Prefetch <source = \"memory:\", batch = 8> ()\n" +
        first + "hidden = arbalest.Linear <units = 3> (flat)\nlarge = Exp (hidden)\nlogits = Mul (large, large)\n" +
        kClasses + "trained = arbalest.Train <lr = 1000> (loss)\n}\n";
    return outcome(read_graph_text(text, "net.onnxtxt", builtin_ops()), options_of(data, data)).error;
  };
  const std::string raw = error_of("flat = Flatten (x)\n");
  CHECK_MESSAGE(contains(raw,
                         "before any update, so that the learning rate has no part in it; --find-nan names the value; "
                         "the probable cause: field 'x' of split 'train' has numbers from -65"),
                raw);
  CHECK_MESSAGE(contains(raw, ", and node 'hidden' (arbalest.Linear) takes them as they are; scale them"), raw);
  const std::string scaled = error_of("hundred = Constant <value_float = 65535.0> ()\nflat = Div (x, hundred)\n");
  CHECK_MESSAGE(contains(scaled, "try a lower learning rate"), scaled);
  CHECK_MESSAGE(!contains(scaled, "cause"), scaled);
}

TEST_CASE("where updates are skipped, each sample's label is looked at once, however many reports tell of it") {
  // Counts batches that are read outside of training's order.
  class Counting final : public Source {
   public:
    explicit Counting(std::unique_ptr<Source> source) : source_(std::move(source)) {}
    int64_t size() const override { return source_->size(); }
    std::vector<Field> fields() const override { return source_->fields(); }
    void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
      const bool unordered =
          samples.size() > 1 &&
          std::all_of(samples.begin(), samples.end(), [](const SampleRef& sample) { return sample.position == 0; });
      looked += unordered ? 1 : 0;
      source_->fill(samples, fields);
    }
    std::string describe() const override { return source_->describe(); }
    mutable std::atomic<int> looked{0};

   private:
    const std::unique_ptr<Source> source_;
  };
  Data data;
  for (float& x : data.x) x *= 1e30f;
  const auto source = std::make_shared<Counting>(data.source());
  SessionOptions options = options_of(data, data);
  options.sources.training = source;
  options.length.epochs = 40;
  options.execution.report_every = 1;
  options.divergence.then = OnDivergence::Skip;
  std::string text =
      write_graph_text(graph_of("squares = Mul (logits, logits)\n"
                                "loss = arbalest.SoftmaxCrossEntropy (squares, label)\n"));
  const size_t validate = text.find("  report = ");
  text.erase(validate, text.find('\n', validate) + 1 - validate);
  const RunOutcome run = outcome(read_graph_text(text, "net.onnxtxt", builtin_ops()), options);
  CHECK_MESSAGE(contains(run.error, "100"), run.error);
  CHECK(run.story.reports.size() >= 100);
  CHECK(source->looked <= kSamples / 8 + 2);  // and the last report's, for the error
  CHECK(source->looked >= kSamples / 8);
}

TEST_CASE("labels are counted without memory for classes that none has") {
  Data data;
  for (int32_t& label : data.label) label = 1 + label % 2;
  const std::string many =
      "wide = arbalest.Linear <units = 100000000000> (logits)\nloss = arbalest.SoftmaxCrossEntropy (wide, label)\n";
  const Prepared prepared = prepare(graph_of(many), options_of(data, data));
  CHECK(look_at_data(prepared.program.training(), *prepared.training, "train", LookFor::LabelsAndNumbers).note.empty());
  const std::string few =
      "wide = arbalest.Linear <units = 3> (logits)\nloss = arbalest.SoftmaxCrossEntropy (wide, label)\n";
  const Prepared three = prepare(graph_of(few), options_of(data, data));
  CHECK(contains(look_at_data(three.program.training(), *three.training, "train", LookFor::Counting).note,
                 "labels are 1 to 2"));
}

}  // namespace data_faults_test
