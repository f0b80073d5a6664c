// SPDX-License-Identifier: Apache-2.0

// Runs with less memory than keeping everything takes: they train the same bits, within the limit, or say why not.

#include <doctest/doctest.h>

#include <algorithm>

#include "base/files/file.h"
#include "executor/devices/device.h"
#include "executor/session/session.h"
#include "executor/training/checkpoint_folder.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace memory_limit_test {
namespace {

// Three stages as a residual network for small images has them, of a block each.
TinyNet residual() {
  TinyNet net = convolutional(160);
  net.layers = "h0 = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3]> (x)\n";
  for (int block = 0; block < 3; ++block) {
    const int stride = block == 0 ? 1 : 2;
    net.layers += fmt::format(
        "a{0} = arbalest.ConvBnRelu <filters = {2}, kernel_shape = [3, 3], strides = [{3}, {3}]> (h{0})\n"
        "b{0} = arbalest.ConvBnRelu <filters = {2}, kernel_shape = [3, 3], relu = 0> (a{0})\n"
        "p{0} = arbalest.ConvBnRelu <filters = {2}, kernel_shape = [1, 1], strides = [{3}, {3}], relu = 0> (h{0})\n"
        "s{0} = Add (b{0}, p{0})\nh{1} = Relu (s{0})\n",
        block, block + 1, 8 << block, stride);
  }
  net.layers += "h = GlobalAveragePool (h3)\n";
  return net;
}

// A dense block, whose batch norms read what Concat puts together part by part.
TinyNet dense() {
  TinyNet net = convolutional(160);
  net.layers = "h0 = arbalest.Conv <filters = 8, kernel_shape = [3, 3], bias = 0> (x)\n";
  for (int layer = 0; layer < 3; ++layer) {
    net.layers += fmt::format(
        "n{0} = arbalest.BatchNorm (h{0})\nr{0} = Relu (n{0})\n"
        "c{0} = arbalest.Conv <filters = 8, kernel_shape = [3, 3], bias = 0> (r{0})\nh{1} = Concat <axis = 1> (h{0}, "
        "c{0})\n",
        layer, layer + 1);
  }
  net.layers += "n = arbalest.BatchNorm (h3)\nr = Relu (n)\nh = GlobalAveragePool (r)\n";
  return net;
}

// Dropout, whole samples that leave a branch out, and pooling.
TinyNet dropping() {
  TinyNet net = convolutional(160);
  net.layers =
      "c = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (x)\n"
      "d = Dropout <ratio = 0.3, training_mode = 1> (c)\n"
      "e = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (d)\n"
      "f = arbalest.StochasticDepth <ratio = 0.2> (e)\n"
      "g = Add (f, d)\n"
      "k = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (g)\n"
      "i = arbalest.Conv <filters = 16, kernel_shape = [3, 3]> (k)\n"
      "j = Relu (i)\n"
      "p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (j)\n"
      "h = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (p)\n";
  return net;
}

// Rows of an image as tokens, through two blocks of what exporters make of a transformer's perceptron: layer norm,
// and Gelu spelt out.
TinyNet tokens() {
  TinyNet net = convolutional(160);
  net.train = "lr = 0.002, optimizer = \"adamw\"";
  net.layers =
      "root = Constant <value_float = 1.4142135> ()\none = Constant <value_float = 1.0> ()\n"
      "half = Constant <value_float = 0.5> ()\nt0 = Reshape <shape = [0, 16, 16]> (x)\n";
  for (int block = 0; block < 2; ++block) {
    net.layers += fmt::format(
        "n{0} = arbalest.LayerNorm (t{0})\nu{0} = arbalest.Linear <units = 64, axis = -1> (n{0})\n"
        "d{0} = Div (u{0}, root)\ne{0} = Erf (d{0})\np{0} = Add (e{0}, one)\nm{0} = Mul (u{0}, p{0})\n"
        "g{0} = Mul (m{0}, half)\nv{0} = arbalest.Linear <units = 16, axis = -1> (g{0})\n"
        "o{0} = Dropout <ratio = 0.1, training_mode = 1> (v{0})\nt{1} = Add (t{0}, o{0})\n",
        block, block + 1);
  }
  net.layers += "h = Flatten (t2)\n";
  return net;
}

struct Trained {
  std::vector<uint8_t> weights;
  std::vector<double> losses;  // of validations
  RunStarted started;
};

Trained trained(const TinyNet& net, SessionOptions options, int64_t limit) {
  const TestFolder folder;
  options.numerics.deterministic = true;
  options.length.epochs = 2;
  options.execution.memory_limit = limit;
  options.files.save = folder / "w.safetensors";
  const Recorder story = run(tiny(net), options);
  Trained result{read_file(options.files.save), {}, story.starts.at(0)};
  for (const Validated& validation : story.validations) result.losses.push_back(validation.loss);
  REQUIRE(!result.losses.empty());
  return result;
}

// The least that a run may be limited to; workspaces are known once kernels are made.
int64_t least_of(const TinyNet& net, SessionOptions options) {
  const TestFolder folder;
  options.length.epochs = 2;
  options.numerics.deterministic = true;          // some kernels need another workspace then
  options.files.save = folder / "w.safetensors";  // if what is validated is saved, a CPU's memory holds it, too
  options.execution.memory_limit = 1;
  std::stop_source stop;
  stop.request_stop();  // before anything is trained
  Recorder story;
  for (;;) {
    try {
      run_training(tiny(net), options, story, stop.get_token());
      return options.execution.memory_limit;
    } catch (const LimitTooLow& error) {
      REQUIRE(error.least > options.execution.memory_limit);
      options.execution.memory_limit = error.least;
    }
  }
}

// Returns how many values were computed again, at the most.
int64_t check_same_bits(const TinyNet& net, const SessionOptions& options) {
  const Trained all_kept = trained(net, options, 0);
  CHECK(all_kept.started.recomputation.limit == 0);
  const int64_t peak = all_kept.started.planned_peak_bytes, least = least_of(net, options);
  REQUIRE(least < peak);
  int64_t values = 0;
  for (const int64_t limit : {least, (least + peak) / 2}) {
    const Trained again = trained(net, options, limit);
    CHECK(again.weights == all_kept.weights);
    CHECK(again.losses == all_kept.losses);
    CHECK(again.started.planned_peak_bytes <= limit);
    CHECK(again.started.recomputation.limit == limit);
    CHECK(again.started.recomputation.values > 0);
    CHECK(again.started.recomputation.bytes > 0);
    CHECK(again.started.recomputation.work > 0);
    values = std::max(values, again.started.recomputation.values);
  }
  const Trained wide = trained(net, options, peak);
  CHECK(wide.started.recomputation.values == 0);
  CHECK(wide.started.planned_peak_bytes == peak);
  CHECK(wide.weights == all_kept.weights);
  return values;
}

}  // namespace

TEST_CASE("values that are computed again are the same bits, whatever computes them") {
  for (const TinyNet& net : {residual(), dense(), dropping(), tokens()}) {
    INFO(net.layers);
    CHECK(check_same_bits(net, on_cpus()) >= 3);
    SessionOptions lowered = on_cpus();
    lowered.numerics.precision = Precision::Bf16;
    CHECK(check_same_bits(net, lowered) >= 3);
  }
}

TEST_CASE("on a GPU values that are computed again are the same bits") {
  if (cuda_device_count() == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  int64_t values = 0;  // of a single net there may be one: its workspaces need the memory anyway
  for (const TinyNet& net : {residual(), dense(), dropping(), tokens()}) {
    for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
      SessionOptions options = on_cpus();
      options.learners.devices = {{PlanDevice::Kind::Cuda, 0}};
      options.numerics.precision = precision;
      INFO(net.layers, name_of(precision));
      values = std::max(values, check_same_bits(net, options));
    }
  }
  CHECK(values >= 3);
}

TEST_CASE("a limit holds for each device, with all of its learners, strategies and what else they remember") {
  for (const char* strategy : {"sma", "ssgd", "local", "papa", "diloco"}) {
    for (const auto& [devices, learners] : {std::pair{1, 3}, {2, 2}}) {
      TinyNet net = residual();
      net.batch = 8;
      net.train = "lr = 0.02, momentum = 0.9, accumulate = 2, ema = 0.9";
      net.synchronize = fmt::format("strategy = \"{}\"", strategy);
      net.validate = "batch = 16, recalibrate = 2";
      INFO(std::string(strategy), ", ", devices, " devices, ", learners, " learners each");
      CHECK(check_same_bits(net, on_cpus(devices, learners)) >= 3);
    }
  }
  TinyNet net = dropping();
  net.validate = "batch = 16";
  SessionOptions skipping = on_cpus(1, 2);
  skipping.divergence.then = OnDivergence::Skip;
  CHECK(check_same_bits(net, skipping) >= 3);
}

TEST_CASE("a run goes on from a checkpoint with another limit") {
  const TinyNet net = dropping();
  SessionOptions options = on_cpus();
  const Trained whole = trained(net, options, 0);
  const int64_t least = least_of(net, options);
  for (const auto& [before, after] : {std::pair<int64_t, int64_t>{0, least}, {least, 0}, {least + least / 50, least}}) {
    const TestFolder folder;
    options = on_cpus();
    options.numerics.deterministic = true;
    options.length.epochs = 2;
    options.checkpoints.folder = (folder / "checkpoints").string();
    options.checkpoints.iterations = 3;
    options.execution.memory_limit = before;
    struct Stopping : Recorder {
      std::stop_source stop;
      void progress(const RunProgress& event) override {
        if (event.iteration >= 3) stop.request_stop();
      }
    } stopping;
    options.execution.report_every = 1;
    run_training(tiny(net), options, stopping, stopping.stop.get_token());
    REQUIRE(stopping.ends.size() == 1);
    options.checkpoints.resume = true;
    options.checkpoints.from = newest_checkpoint(options.checkpoints.folder);
    REQUIRE(options.checkpoints.from);
    options.execution.memory_limit = after;
    options.files.save = folder / "w.safetensors";
    const Recorder story = run(tiny(net), options);
    CHECK(story.starts.at(0).resumed_iteration > 0);
    CHECK((story.starts[0].recomputation.values > 0) == (after > 0));
    CHECK(read_file(options.files.save) == whole.weights);
  }
}

TEST_CASE("a number of learners that the limit has no room for is not tried") {
  TinyNet net = residual();
  net.source = "synthetic:?shape=1x16x16&classes=10&size=2400&test=100";
  net.batch = 16;
  net.train = "lr = 0.0001";
  SessionOptions options = on_cpus();
  options.learners.per_device = 2;
  const int64_t two = least_of(net, options);
  options.learners.per_device = 4;
  const int64_t four = least_of(net, options);
  REQUIRE(four > two);
  options.learners.per_device = 0;
  options.learners.tuning = {.threshold = -1,
                             .warmup_seconds = 0,
                             .warmup_reports = 2,
                             .window_seconds = 0,
                             .steadiness = 0,
                             .most_windows = 1,
                             .most_learners = 8};  // always more, soon
  options.execution.report_every = 1;
  options.length.epochs = 3;
  options.execution.memory_limit = (two + four) / 2;
  const Recorder story = run(tiny(net), options);
  REQUIRE(story.ends.size() == 1);
  CHECK(story.ends[0].learners == 2);
  REQUIRE(!story.tunings.empty());
  const Tuned& last = story.tunings.back();
  CHECK(last.learners == 4);
  CHECK(last.next == 2);
  CHECK(last.images_per_second == 0);
  INFO(last.reason);
  CHECK(last.reason.starts_with("4 learners: a memory limit of "));
  CHECK(last.reason.ends_with("% more work: back to 2"));
}

TEST_CASE("a limit that cannot be met says what the least is, and what takes it") {
  TinyNet net = residual();
  net.validate = "batch = 8";
  SessionOptions options = on_cpus(1, 2);
  options.execution.memory_limit = 100 << 10;
  const std::string refusal = message_of([&] { prepare(tiny(net), options); });
  INFO(refusal);
  CHECK(refusal.starts_with("a memory limit of 100 KiB is too low: cpu:0 needs at least "));
  for (const char* part : {", workspace apart, where ", " are computed again in each step, about ",
                           "; what takes it:\n", "  activations of 2 learners", "  weights of 2 learners",
                           "  gradients of 2 learners", "  optimiser slots of 2 learners",
                           "  validation, at the same time as training", "  batches, averages and other state"}) {
    CHECK(contains(refusal, part));
  }
  Graph graph = tiny(net);
  graph.find_op("arbalest.Prefetch")->attributes.set("cache", std::string("device"));
  CHECK(
      contains(message_of([&] { prepare(graph, options); }), "  samples that stay on the device (cache = \"device\""));
}

}  // namespace memory_limit_test
