// SPDX-License-Identifier: Apache-2.0

// Tests metrics from a graph to an observer's events: AUC over devices, training's accuracy, and metrics of one's own.

#include "executor/session/metrics.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "executor/session/monitor.h"
#include "io/formats/safetensors.h"
#include "io/open/open_source.h"
#include "ops/builtin_ops.h"
#include "ops/cpu.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace metrics_test {
namespace {

// A linear model of 10 classes that does not learn, so that every validation sees the first weights.
struct Net {
  std::string metrics = "loss, auc, accuracy";
  std::string nodes = "auc = arbalest.AUC (logits, label)\naccuracy = arbalest.Accuracy (logits, label)\n";
  std::string validate = "batch = 16";
  int64_t tested = 50;
  std::string trained = "loss";
};

Graph graph_of(const Net& net) {
  return read_graph_text(
      fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1, \"measures\" : 1]>\n"
                  "still () => (float loss)\n{{\n"
                  "image, label = arbalest.Prefetch <source = \"glyphs:?train=96&test={}&size=16\", batch = 8> ()\n"
                  "x = arbalest.Augment <mean = [0.2], std = [0.3]> (image)\n"
                  "logits = arbalest.Linear <units = 10> (x)\n"
                  "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n{}"
                  "trained = arbalest.Train <lr = 0.0> ({})\n"
                  "report = arbalest.Validate <{}> (trained, {})\n}}\n",
                  net.tested, net.nodes, net.trained, net.validate, net.metrics),
      "still.onnxtxt", builtin_ops());
}

double find(const Metrics& metrics, const std::string& name) {
  for (const auto& [each, value] : metrics) {
    if (each == name) return value;
  }
  FAIL("no metric ", name);
  return 0;
}

std::vector<double> elements(const TensorFile& file, const std::string& name) {
  const NamedTensor* tensor = file.find(name);
  REQUIRE(tensor != nullptr);
  std::vector<float> floats(tensor->bytes.size() / sizeof(float));
  std::memcpy(floats.data(), tensor->bytes.data(), tensor->bytes.size());
  return {floats.begin(), floats.end()};
}

// Results of the saved weights for the split's samples, in double: (samples, 10) probabilities, and the labels.
struct Scored {
  std::vector<std::vector<double>> probability;
  std::vector<int32_t> label;
};

Scored scored(const std::string& weights, const std::string& split, int64_t tested) {
  const TensorFile file = read_safetensors(weights);
  const std::vector<double> w = elements(file, "logits.weight"), b = elements(file, "logits.bias");
  const auto source = open_source(fmt::format("glyphs:?train=96&test={}&size=16", tested), split, 1);
  constexpr size_t kPixels = 16 * 16;
  REQUIRE(w.size() == 10 * kPixels);
  Scored result;
  for (int64_t n = 0; n < source->size(); ++n) {
    const SampleRef sample{n, 0, 0};
    std::vector<uint8_t> image(kPixels);
    int32_t label = 0;
    std::byte* const fields[] = {reinterpret_cast<std::byte*>(image.data()), reinterpret_cast<std::byte*>(&label)};
    source->fill({&sample, 1}, fields);
    std::vector<double> probability(10);
    double sum = 0;
    for (size_t k = 0; k < 10; ++k) {
      double logit = b[k];
      for (size_t p = 0; p < kPixels; ++p) logit += w[k * kPixels + p] * (image[p] / 255.0 - 0.2) / 0.3;
      sum += probability[k] = std::exp(logit);
    }
    for (double& p : probability) p /= sum;
    result.probability.push_back(std::move(probability));
    result.label.push_back(label);
  }
  return result;
}

// One class against the rest, pair by pair; NaN if there are no pairs.
double area(const Scored& of, size_t k) {
  double won = 0, pairs = 0;
  for (size_t p = 0; p < of.label.size(); ++p) {
    for (size_t n = 0; n < of.label.size(); ++n) {
      if (of.label[p] != int32_t(k) || of.label[n] == int32_t(k)) continue;
      const double x = of.probability[p][k], y = of.probability[n][k];
      won += x > y ? 1 : x == y ? 0.5 : 0;
      pairs += 1;
    }
  }
  return pairs > 0 ? won / pairs : std::nan("");
}

}  // namespace

TEST_CASE("AUC is that of all samples, whatever the devices and the last batch's padding") {
  const TestFolder folder;
  for (const int64_t tested : {1, 16, 47, 50}) {
    std::vector<double> first;
    for (int devices = 1; devices <= 3; ++devices) {
      SessionOptions options = on_cpus(devices);
      options.length.epochs = 2;
      options.files.save = folder / "weights.safetensors";
      const Recorder story = run(graph_of({.tested = tested}), options);
      INFO(tested, " samples on ", devices, " devices");
      REQUIRE(story.validations.size() == 2);
      const Scored of = scored(options.files.save, "test", tested);
      double sum = 0, defined = 0;
      for (const Validated& validation : story.validations) {
        CHECK(validation.samples == tested);
        REQUIRE(validation.metrics.size() == 2);
        REQUIRE(validation.parts.size() == 10);
        sum = defined = 0;
        for (size_t k = 0; k < 10; ++k) {
          const double expected = area(of, k), value = find(validation.parts, fmt::format("auc/{}", k));
          if (!std::isnan(expected)) sum += expected, defined += 1;
          CHECK(std::isnan(value) == std::isnan(expected));
          if (!std::isnan(expected)) CHECK(std::abs(value - expected) < 1e-9);
        }
        const double auc = find(validation.metrics, "auc");
        if (tested == 1) CHECK(std::isnan(auc));
        if (tested > 1) CHECK(std::abs(auc - sum / defined) < 1e-9);
      }
    }
  }
}

TEST_CASE("rows that a metric keeps are planned memory of every device") {
  const SessionOptions options = on_cpus(2);
  const Prepared prepared = prepare(graph_of({}), options);
  const Plan plan = make_plan(prepared.program, prepared.request);
  REQUIRE(plan.handles.find(LoopRole::Validate)->replicas.size() == 2);
  // 50 samples in batches of 16: two batches each, of ten scores and a label.
  for (const Replica& replica : plan.handles.find(LoopRole::Validate)->replicas) {
    REQUIRE(replica.rows.size() == 1);
    CHECK(plan.buffers[replica.rows[0]].bytes == 32 * 11 * 4);
  }
  CHECK(contains(print_plan(plan), "float[32,11] auc.rows"));
  const Loop& loop = *prepared.program.find(LoopRole::Validate);
  REQUIRE(loop.metrics.size() == 3);
  CHECK(loop.metrics[1].rows != kNone);
  CHECK(loop.graph.values[loop.arenas.tally].type.shape == Shape{3});  // samples, loss, accuracy
}

TEST_CASE("a validation may list AUC alone; the loss is measured with it") {
  const Recorder story = run(graph_of({.metrics = "auc"}), on_cpus());
  REQUIRE(story.validations.size() == 1);
  CHECK(story.validations[0].loss > 0);
  CHECK(story.validations[0].metrics.size() == 1);
  const Recorder without = run(graph_of({.metrics = "accuracy"}), on_cpus());
  CHECK(std::isnan(without.validations.at(0).loss));
}

TEST_CASE("AUC decides in bfloat16 and by its parts, too") {
  SessionOptions options = on_cpus(2);
  options.numerics.precision = Precision::Bf16;
  options.length.epochs = 50;
  options.rules.targets = {parse_target("auc > 0.01"), parse_target("auc/0 >= 0")};
  options.rules.metric = "auc";
  const Recorder story = run(graph_of({}), options);
  CHECK(story.ends.at(0).reason == RunEnd::Until);
  CHECK(story.ends[0].best_metric == "auc");
  CHECK(std::isfinite(find(story.ends[0].best, "auc")));
}

TEST_CASE("training reports the accuracy that validation lists, without a kernel of its own") {
  SessionOptions options = on_cpus(1, 2);
  options.execution.report_every = 4;
  const Net on_training{.metrics = "loss, accuracy", .validate = "batch = 16, split = \"train\""};
  const Graph graph = graph_of(on_training);
  const Prepared prepared = prepare(graph, options);
  const Graph& step = prepared.program.training().graph;
  CHECK(std::none_of(step.nodes.begin(), step.nodes.end(), [](const Node& n) { return n.op->name == "Accuracy"; }));

  const Recorder story = run(graph, options);
  REQUIRE(story.epochs.size() == 1);
  REQUIRE(story.reports.size() == 2);
  double mean = 0;
  for (const RunProgress& report : story.reports) {
    REQUIRE(report.metrics.size() == 1);
    mean += find(report.metrics, "accuracy") * (report.iteration == 4 ? 4.0 : 2.0) / 6;
  }
  // The weights never change, and an epoch is all of the 96 samples.
  CHECK(find(story.epochs[0].metrics, "accuracy") == find(story.validations.at(0).metrics, "accuracy"));
  CHECK(mean == doctest::Approx(find(story.epochs[0].metrics, "accuracy")));
  CHECK(story.epochs[0].loss == doctest::Approx(story.validations[0].loss).epsilon(1e-5));

  // Training does not report metrics that validation does not list, or that it computes in another way.
  CHECK(run(graph_of({.metrics = "loss"}), options).epochs.at(0).metrics.empty());
  const Net top5{.metrics = "loss, accuracy", .nodes = "accuracy = arbalest.Accuracy <top_k = 5> (logits, label)\n"};
  CHECK(run(graph_of(top5), options).epochs.at(0).metrics.empty());
}

TEST_CASE("what is better is what the operator declares, not what its name says") {
  const Net names{.metrics = "cost, error_free, double_cost",
                  .nodes =
                      "error_free = arbalest.Accuracy (logits, label)\n"
                      "cost = Identity (loss)\n"
                      "double_cost = Add (cost, loss)\n"};
  Recorder story;
  const Prepared prepared = prepare(graph_of(names), on_cpus());
  const std::vector<MeasuredMetric> metrics = measured_metrics(*prepared.program.find(LoopRole::Validate), {});
  REQUIRE(metrics.size() == 3);
  CHECK(metrics[0].better == MetricSpec::Better::Lower);
  CHECK(metrics[1].better == MetricSpec::Better::Higher);
  CHECK(metrics[2].better == MetricSpec::Better::Lower);
  const auto best = [&](const std::string& metric, double first, double second) {
    Monitor monitor(prepared.program, {.targets = {}, .metric = metric}, story);
    monitor.validated({1, 1, 8, 1}, {50, {first, first, first}});
    return monitor.validated({2, 2, 16, 2}, {50, {second, second, second}}).best;
  };
  CHECK(best("error_free", 0.1, 0.2));
  CHECK_FALSE(best("error_free", 0.2, 0.1));
  CHECK(best("cost", 0.2, 0.1));
  CHECK_FALSE(best("cost", 0.1, 0.2));
  CHECK(best("double_cost", 0.2, 0.1));
}

namespace {

// "composed" is made of ONNX's operators, which say nothing of metrics.
const Net kComposed{.metrics = "loss, composed, accuracy",
                    .nodes =
                        "composed = ReduceMean <keepdims = 0> (logits)\n"
                        "accuracy = arbalest.Accuracy (logits, label)\n"};

}  // namespace

TEST_CASE("which way is better is never guessed where something needs the best") {
  const auto refusal = [&](auto ask, const std::string& validate = "batch = 16") {
    Net net = kComposed;
    net.validate = validate;
    SessionOptions options = on_cpus();
    ask(options);
    return message_of([&] { run(graph_of(net), options); });
  };
  const std::string unknown =
      "nothing states whether 'composed' is better lower or higher; expected --metric composed:min or --metric "
      "composed:max, or the same in the graph, Validate <directions = [\"composed:min\"]>";
  CHECK(refusal([](auto& options) { options.files.save_best = "best.safetensors"; }) == "--save-best: " + unknown);
  CHECK(refusal([](auto& options) { options.rules.patience = 2; }) == "--patience: " + unknown);
  CHECK(refusal([](auto& options) { options.rules.plateau = 2; }) == "--plateau: " + unknown);
  CHECK(refusal([](auto& options) { options.rules.metric = "composed"; }) == "--metric composed: " + unknown);
  for (const char* stated : {"composed:min", "composed:max", "accuracy", "accuracy:max", "loss:min"}) {
    INFO(std::string(stated));
    CHECK(refusal([&](auto& options) {
            options.rules.metric = stated;
            options.rules.patience = 2;
          }) == "");
  }
  CHECK(refusal([](auto& options) { options.rules.patience = 2; }, "directions = [\"composed:min\"]") == "");
  // A stated direction cannot contradict an operator, or Train.
  CHECK(refusal([](auto& options) { options.rules.metric = "accuracy:min"; }) ==
        "--metric 'accuracy:min': 'accuracy' is better when higher");
  CHECK(refusal([](auto& options) { options.rules.metric = "loss:max"; }) ==
        "--metric 'loss:max': 'loss' is better when lower");
  CHECK(contains(refusal([](auto&) {}, "directions = [\"accuracy:min\"]"),
                 "attribute 'directions' has 'accuracy:min', and 'accuracy' is better when higher"));
  CHECK(contains(refusal([](auto&) {}, "directions = [\"composed\"]"),
                 "attribute 'directions' has 'composed'; expected NAME:min or NAME:max of a metric"));
  CHECK(contains(refusal([](auto&) {}, "directions = [\"compose:min\"]"), "did you mean 'composed'?"));
}

TEST_CASE("a run that needs no best tells none of a metric whose direction nothing states") {
  const Recorder story = run(graph_of(kComposed), on_cpus());
  CHECK(story.starts.at(0).best_metric == "composed");
  CHECK(story.starts[0].better == "");
  CHECK(story.ends.at(0).best_epoch == 0);
  REQUIRE(story.ends[0].best.size() == 1);
  CHECK(story.ends[0].best[0].first == "accuracy");

  SessionOptions options = on_cpus();
  options.rules.metric = "composed:min";
  const Recorder stated = run(graph_of(kComposed), options);
  CHECK(stated.starts.at(0).better == "lower");
  CHECK(stated.ends.at(0).best_epoch == 1);
  CHECK(stated.ends[0].best_metric == "composed");
}

TEST_CASE("the best of a composed loss is its least value, where it is stated or Train minimises it") {
  Net total = kComposed;
  total.nodes += "total = Mul (loss, loss)\nmixed = Add (loss, composed)\n";
  total.trained = "total";
  total.metrics = "total, composed, mixed";
  total.validate = "directions = [\"composed:min\"]";
  const Prepared prepared = prepare(graph_of(total), on_cpus());
  const std::vector<MeasuredMetric> metrics = measured_metrics(*prepared.program.find(LoopRole::Validate), {});
  REQUIRE(metrics.size() == 3);
  CHECK(metrics[0].better == MetricSpec::Better::Lower);
  CHECK(metrics[1].better == MetricSpec::Better::Lower);
  CHECK_FALSE(metrics[2].better);  // a sum of which a part is unknown
  Recorder story;
  for (const char* metric : {"", "total", "composed"}) {
    Monitor monitor(prepared.program, {.targets = {}, .metric = metric}, story);
    CHECK(monitor.validated({1, 1, 8, 1}, {50, {0.1376, 0.1376, 0}}).best);
    CHECK(monitor.validated({2, 2, 16, 2}, {50, {0.0755, 0.0755, 0}}).best);
    CHECK_FALSE(monitor.validated({3, 3, 24, 3}, {50, {0.1, 0.1, 0}}).best);
    CHECK(monitor.finish({3, 3, 24, 3}, 1, RunEnd::Complete).best_value == 0.0755);
  }
}

TEST_CASE("a checkpoint's best that was judged the other way is given up, one judged alike stays") {
  const Prepared prepared = prepare(graph_of(kComposed), on_cpus());
  Recorder story;
  const auto goes_on = [&](const char* metric, std::optional<MetricSpec::Better> before) {
    Monitor monitor(prepared.program, {.targets = {}, .metric = metric}, story);
    MonitorState state = monitor.state();
    state.has_best = true;
    state.best_value = 0.5;
    state.best_iteration = 7;
    state.better = before;
    monitor.restore(state);
    CHECK(monitor.state().better == monitor.better());
    return monitor.best_iteration() == 7;
  };
  using Better = MetricSpec::Better;
  CHECK(goes_on("composed:min", Better::Lower));
  CHECK_FALSE(goes_on("composed:min", Better::Higher));
  CHECK_FALSE(goes_on("composed:min", std::nullopt));  // a version that guessed
  CHECK(goes_on("composed:max", std::nullopt));
  CHECK(goes_on("accuracy", std::nullopt));
  CHECK(goes_on("loss", std::nullopt));
  CHECK_FALSE(goes_on("", std::nullopt));
}

TEST_CASE("targets that no value of the metric meets are refused") {
  const auto refusal = [](const std::string& target) {
    SessionOptions options = on_cpus();
    options.rules.targets = {parse_target(target)};
    return message_of([&] { run(graph_of({}), options); });
  };
  CHECK(refusal("accuracy >= 94") == "--until 'accuracy >= 94' cannot be reached: 'accuracy' is 0 to 1; 94 % is 0.94");
  CHECK(refusal("auc > 1") == "--until 'auc > 1' cannot be reached: 'auc' is 0 to 1");
  CHECK(refusal("auc/3 < 0") == "--until 'auc/3 < 0' cannot be reached: 'auc/3' is 0 to 1");
  CHECK(refusal("loss < 0") == "--until 'loss < 0' cannot be reached: 'loss' is never below 0");
  CHECK(refusal("acc >= 0.5") ==
        "--until 'acc >= 0.5': validation has no metric 'acc'; expected loss or auc or accuracy; "
        "did you mean 'auc'?");
  CHECK(refusal("accuracy >= 0") == "");
}

TEST_CASE("an operator from outside is a metric by what it declares") {
  const auto infer = [](InferContext& context) { context.set_output(0, {DataType::Float32, {}}); };
  register_operator({.domain = "measures",
                     .name = "Misses",
                     .doc = "the fraction of samples whose label's logit is not the greatest",
                     .inputs = {{.name = "logits"}, {.name = "label"}},
                     .outputs = {{.name = "fraction"}},
                     .infer = infer,
                     .metric = MetricSpec{.better = MetricSpec::Better::Lower, .least = 0, .most = 1},
                     .cpu = [](const KernelRequest& request) {
                       const int64_t batch = request.inputs[0].shape[0], classes = request.inputs[0].shape[1];
                       return make_kernel([=](const KernelContext& context) {
                         const int64_t valid = valid_samples(context, batch);
                         int64_t wrong = 0;
                         for (int64_t n = 0; n < valid; ++n) {
                           const float* row = input<float>(context, 0) + n * classes;
                           wrong += std::max_element(row, row + classes) - row != input<int32_t>(context, 1)[n];
                         }
                         *output<float>(context, 0) = valid > 0 ? float(wrong) / float(valid) : 0.0f;
                       });
                     }});
  register_operator(
      {.domain = "measures",
       .name = "MedianLogit",
       .doc = "how many samples there are, and the median of the first class's logit",
       .inputs = {{.name = "logits"}},
       .outputs = {{.name = "rows"}},
       .infer =
           [](InferContext& context) {
             context.set_output(0, {DataType::Float32, {context.input(0).shape[0], 1}});
           },
       .metric = MetricSpec{.keeps = MetricSpec::Keeps::Rows,
                            .parts = [](const Node&,
                                        const std::vector<TensorType>&) { return std::vector<std::string>{"median"}; },
                            .finish =
                                [](const Node&, const std::vector<TensorType>&, const MetricRows& rows) {
                                  std::vector<float> all(rows.values.begin(), rows.values.end());
                                  std::sort(all.begin(), all.end());
                                  return std::vector<double>{double(all.size()), double(all[all.size() / 2])};
                                }},
       .cpu =
           [](const KernelRequest& request) {
             const int64_t batch = request.inputs[0].shape[0], classes = request.inputs[0].shape[1];
             return make_kernel([=](const KernelContext& context) {
               for (int64_t n = 0; n < batch; ++n) {
                 output<float>(context, 0)[n] = input<float>(context, 0)[n * classes];
               }
             });
           }});
  const Net net{.metrics = "misses, accuracy, median",
                .nodes =
                    "misses = measures.Misses (logits, label)\n"
                    "accuracy = arbalest.Accuracy (logits, label)\n"
                    "median = measures.MedianLogit (logits)\n"};
  std::vector<double> medians;
  for (const int devices : {1, 2}) {
    const Recorder story = run(graph_of(net), on_cpus(devices));
    const Validated& validation = story.validations.at(0);
    CHECK(find(validation.metrics, "misses") == doctest::Approx(1 - find(validation.metrics, "accuracy")));
    CHECK(find(validation.metrics, "median") == 50);
    medians.push_back(find(validation.parts, "median/median"));
    CHECK(story.ends.at(0).best_metric == "misses");
  }
  CHECK(medians[0] == medians[1]);
  CHECK(std::isfinite(medians[0]));
}

// A fraction of k of n rounded to float is less than k / n for 47 of 50, among others, and targets were missed by it.
TEST_CASE("a share of samples is a count that is divided once, whatever the batches and the devices") {
  const Net net{.metrics = "accuracy, error, percent, recall",
                .nodes =
                    "one = Constant <value = float {1}> ()\nhundred = Constant <value = float {100}> ()\n"
                    "accuracy = arbalest.Accuracy <top_k = 3> (logits, label)\n"
                    "first = arbalest.Accuracy (logits, label)\n"
                    "wrong = Sub (one, first)\nerror = Identity (wrong)\npercent = Mul (first, hundred)\n"
                    "recall = arbalest.Recall <average = \"weighted\"> (logits, label)\n",
                .validate = "batch = 50, directions = [\"error:min\", \"percent:max\"]",
                .tested = 0};
  for (const int64_t tested : {7, 50, 97}) {
    std::optional<Metrics> first;
    for (const int64_t batch : {1, 3, 7, 50}) {
      for (const int devices : {1, 2}) {
        Net each = net;
        each.tested = tested;
        each.validate = fmt::format("batch = {}, directions = [\"error:min\", \"percent:max\"]", batch);
        INFO(tested, " samples in batches of ", batch, " on ", devices, " devices");
        const Metrics found = run(graph_of(each), on_cpus(devices)).validations.at(0).metrics;
        const auto samples = double(tested);
        const double right = std::round(find(found, "recall") * samples);
        CHECK(find(found, "recall") == right / samples);
        CHECK(find(found, "error") == (samples - right) / samples);
        CHECK(find(found, "percent") == 100 * right / samples);
        CHECK(find(found, "accuracy") == std::round(find(found, "accuracy") * samples) / samples);
        if (!first) first = found;
        CHECK(found == *first);
      }
    }
  }
}

}  // namespace metrics_test
