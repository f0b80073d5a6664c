// SPDX-License-Identifier: Apache-2.0

// Recalibration: running statistics against averages in double precision, over batches that the test makes itself.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/random.h"
#include "executor/run/host_tasks.h"
#include "io/formats/safetensors.h"
#include "io/open/open_source.h"
#include "io/sources/data_order.h"
#include "tests/executor/fixture.h"
#include "tests/io/batch.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace recalibrate_test {
namespace {

constexpr int64_t kSide = 16, kPixels = kSide * kSide, kBatch = 8, kUnits = 5, kPad = 2;
constexpr uint64_t kSeed = 1;

// One batch norm sees images, whose augmentation is random, the other what the first one's batch statistics make of
// them. An epoch has 12 batches and 3 samples left over.
TinyNet normalised() {
  TinyNet net;
  net.source = "glyphs:?train=99&test=50&size=16";
  net.batch = kBatch;
  net.layers =
      "y = arbalest.Augment <pad = 2, flip = 1, mean = [0.2], std = [0.3]> (image)\n"
      "a = arbalest.BatchNorm (y)\n"
      "r = Relu (a)\n"
      "l = arbalest.Linear <units = 5> (r)\n"
      "b = arbalest.BatchNorm (l)\n"
      "h = Relu (b)\n";
  net.train = "lr = 0.05, momentum = 0.5";
  return net;
}

using Numbers = std::vector<double>;

Numbers numbers(const TensorFile& file, const std::string& name) {
  const NamedTensor* tensor = file.find(name);
  REQUIRE(tensor != nullptr);
  std::vector<float> floats(tensor->bytes.size() / sizeof(float));
  std::memcpy(floats.data(), tensor->bytes.data(), tensor->bytes.size());
  return {floats.begin(), floats.end()};
}

// A batch's mean and biased variance of each channel.
struct Moments {
  Numbers mean, variance;
};

Moments moments_of(const Numbers& x, size_t channels) {
  const double rows = double(x.size() / channels);
  Moments m{Numbers(channels, 0), Numbers(channels, 0)};
  for (size_t i = 0; i < x.size(); ++i) m.mean[i % channels] += x[i] / rows;
  for (size_t i = 0; i < x.size(); ++i) m.variance[i % channels] += std::pow(x[i] - m.mean[i % channels], 2) / rows;
  return m;
}

// The moments with which the two batch norms normalise.
struct Norms {
  Moments a, b;
};

// The network of a file's weights; images are rows of normalised pixels.
class Network {
 public:
  explicit Network(const TensorFile& file) : file_(file) {}

  // The moments of a batch, as training sees it.
  Norms moments(const Numbers& x) const {
    Norms norms{moments_of(x, 1), {}};
    norms.b = moments_of(linear("l", normalise("a", norms.a, x), kPixels), kUnits);
    return norms;
  }

  Numbers logits(const Norms& norms, const Numbers& x) const {
    const Numbers l = linear("l", normalise("a", norms.a, x), kPixels);
    return linear("logits", normalise("b", norms.b, l), kUnits);
  }

 private:
  // With Relu.
  Numbers normalise(const std::string& layer, const Moments& m, Numbers x) const {
    const Numbers scale = numbers(file_, layer + ".weight"), bias = numbers(file_, layer + ".bias");
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t c = i % scale.size();
      x[i] = std::max(0.0, (x[i] - m.mean[c]) / std::sqrt(m.variance[c] + 1e-5) * scale[c] + bias[c]);
    }
    return x;
  }

  Numbers linear(const std::string& layer, const Numbers& x, size_t features) const {
    const Numbers weight = numbers(file_, layer + ".weight"), bias = numbers(file_, layer + ".bias");
    Numbers y;
    for (size_t row = 0; row < x.size() / features; ++row) {
      for (size_t unit = 0; unit < bias.size(); ++unit) {
        double sum = bias[unit];
        for (size_t f = 0; f < features; ++f) sum += weight[unit * features + f] * x[row * features + f];
        y.push_back(sum);
      }
    }
    return y;
  }

  const TensorFile& file_;
};

// Normalised pixels of a sample, moved by (top, left) and mirrored; zeros beyond the image.
void append_image(const Source& source, int64_t sample, int64_t top, int64_t left, bool mirrored, Numbers& x,
                  int32_t& label) {
  const auto [image, labels] = image_batch(source, {sample});
  label = labels[0];
  for (int64_t row = 0; row < kSide; ++row) {
    for (int64_t column = 0; column < kSide; ++column) {
      const int64_t h = row + top, w = left + (mirrored ? kSide - 1 - column : column);
      const bool inside = h >= 0 && h < kSide && w >= 0 && w < kSide;
      x.push_back(inside ? (image[size_t(h * kSide + w)] / 255.0 - 0.2) / 0.3 : 0);
    }
  }
}

// A batch of training's, with recalibration's draws.
Numbers recalibration_batch(const Source& source, int64_t epoch, int64_t number) {
  const DataOrder order(kSeed, source.size(), true);
  std::vector<int64_t> samples(kBatch);
  order.batch(uint64_t(epoch), number, samples);
  Numbers x;
  for (int64_t i = 0; i < kBatch; ++i) {
    const Random4 draw = philox(random_key(kSeed, hash_name("y")), uint64_t(kDrawsOfRecalibration | epoch),
                                uint64_t(number * kBatch + i));
    int32_t label = 0;
    append_image(source, samples[size_t(i)], int64_t(below(draw.word[0], 2 * kPad + 1)) - kPad,
                 int64_t(below(draw.word[1], 2 * kPad + 1)) - kPad, (draw.word[2] & 1) != 0, x, label);
  }
  return x;
}

// Means, over `batches` batches of the epoch after the file's and on, of the batches' means and unbiased variances.
Norms averages(const TensorFile& file, int64_t batches, const std::string& spec = normalised().source) {
  const auto source = open_source(spec, "train", kSeed);
  const Network network(file);
  const int64_t in_epoch = source->size() / kBatch, epoch = std::stoll(file.metadata.at("epoch"));
  Norms sum{{{0}, {0}}, {Numbers(kUnits, 0), Numbers(kUnits, 0)}};
  const auto add = [&](Moments& to, const Moments& from, double rows) {
    for (size_t c = 0; c < to.mean.size(); ++c) {
      to.mean[c] += from.mean[c] / double(batches);
      to.variance[c] += from.variance[c] * rows / (rows - 1) / double(batches);
    }
  };
  for (int64_t i = 0; i < batches; ++i) {
    const Norms one = network.moments(recalibration_batch(*source, epoch + i / in_epoch, i % in_epoch));
    add(sum.a, one.a, double(kBatch * kPixels));
    add(sum.b, one.b, double(kBatch));
  }
  return sum;
}

double greatest_error(const Numbers& found, const Numbers& expected) {
  REQUIRE(found.size() == expected.size());
  double error = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    error = std::max(error, std::abs(found[i] - expected[i]) / std::max(1.0, std::abs(expected[i])));
  }
  return error;
}

Norms norms_of(const TensorFile& file) {
  const auto of = [&](const std::string& layer) {
    return Moments{numbers(file, layer + ".running_mean"), numbers(file, layer + ".running_var")};
  };
  return {of("a"), of("b")};
}

double greatest_error(const Norms& found, const Norms& expected) {
  return std::max({greatest_error(found.a.mean, expected.a.mean), greatest_error(found.a.variance, expected.a.variance),
                   greatest_error(found.b.mean, expected.b.mean),
                   greatest_error(found.b.variance, expected.b.variance)});
}

double validation_loss(const TensorFile& file) {
  const auto source = open_source(normalised().source, "test", kSeed);
  double loss = 0;
  for (int64_t sample = 0; sample < source->size(); ++sample) {
    Numbers x;
    int32_t label = 0;
    append_image(*source, sample, 0, 0, false, x, label);
    const Numbers logits = Network(file).logits(norms_of(file), x);
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit);
    loss += (std::log(sum) - logits[size_t(label)]) / double(source->size());
  }
  return loss;
}

bool is_statistic(const NamedTensor& tensor) {
  return tensor.name.find(".running_") != tensor.name.npos;
}

bool same_weights(const TensorFile& one, const TensorFile& other) {
  if (one.tensors.size() != other.tensors.size()) return false;
  return std::equal(one.tensors.begin(), one.tensors.end(), other.tensors.begin(), [](const auto& a, const auto& b) {
    return a.name == b.name && (is_statistic(a) || a.bytes == b.bytes);
  });
}

bool same_bits(const TensorFile& one, const TensorFile& other) {
  if (one.tensors.size() != other.tensors.size()) return false;
  return std::equal(one.tensors.begin(), one.tensors.end(), other.tensors.begin(),
                    [](const auto& a, const auto& b) { return a.name == b.name && a.bytes == b.bytes; });
}

SessionOptions for_epochs(int64_t epochs, int devices = 1, int learners = 1) {
  SessionOptions options = on_cpus(devices, learners);
  options.numerics.deterministic = true;
  options.length.epochs = epochs;
  return options;
}

struct Saved {
  TensorFile file;
  Recorder story;
};

Saved saved(const TinyNet& net, SessionOptions options) {
  const TestFolder folder;
  options.files.save = folder / "weights.safetensors";
  Saved saved;
  saved.story = run(tiny(net), options);
  saved.file = read_safetensors(options.files.save);
  return saved;
}

}  // namespace

TEST_CASE("statistics become averages over N batches before each validation; weights stay") {
  struct Layout {
    std::string kind;
    int devices, learners;
  };
  for (const Layout& layout : {Layout{"none", 1, 1}, {"none", 2, 2}, {"sma", 2, 2}, {"ssgd", 1, 3}, {"local", 3, 1}}) {
    SessionOptions options = for_epochs(2, layout.devices, layout.learners);
    options.learners.strategy = layout.kind;
    const Saved plain = saved(normalised(), options);
    const int64_t sharers = layout.kind == "none" ? 1 : layout.devices;
    for (const int64_t batches : {1, 7, 29}) {
      INFO(layout.kind, " on ", layout.devices, " devices with ", layout.learners, " learners, ", batches);
      options.rules.recalibrate = batches;
      const Saved found = saved(normalised(), options);
      CHECK(same_weights(found.file, plain.file));
      CHECK(found.file.metadata == plain.file.metadata);
      const Norms expected = averages(plain.file, (batches + sharers - 1) / sharers * sharers);
      CHECK(greatest_error(norms_of(found.file), expected) < 1e-5);
      CHECK(greatest_error(norms_of(plain.file), expected) > 1e-2);

      REQUIRE(plain.story.validations.size() == 2);
      REQUIRE(found.story.validations.size() == 2);
      for (size_t v = 0; v < 2; ++v) {
        CHECK(found.story.validations[v].samples == 50);
        CHECK(std::abs(found.story.validations[v].loss - plain.story.validations[v].loss) > 1e-4);
      }
      CHECK(found.story.validations[1].loss == doctest::Approx(validation_loss(found.file)).epsilon(1e-5));
      CHECK(found.story.epochs.at(1).loss == plain.story.epochs.at(1).loss);  // training sees nothing of it
    }
  }
}

TEST_CASE("recalibration counts batches, whatever an update is made of, also in bfloat16") {
  TinyNet net = normalised();
  net.train += ", accumulate = 3";
  net.validate = "batch = 16, recalibrate = 5";
  const Saved found = saved(net, for_epochs(1));
  CHECK(greatest_error(norms_of(found.file), averages(found.file, 5)) < 1e-5);
  SessionOptions options = for_epochs(1);
  options.numerics.precision = Precision::Bf16;
  const Saved lowered = saved(net, options);
  CHECK(greatest_error(norms_of(lowered.file), averages(lowered.file, 5)) < 1e-2);
}

TEST_CASE("where validation ends the run, what it saw is saved, and so is the best") {
  const TestFolder folder;
  for (const bool by_target : {true, false}) {
    for (const auto& [devices, learners] : {std::pair{1, 1}, {2, 2}}) {
      TinyNet net = normalised();
      net.source = "glyphs:?train=384&test=50&size=16";
      SessionOptions options = for_epochs(100000, devices, learners);
      options.files.save_best = folder / "best.safetensors";
      options.rules.recalibrate = 6;
      if (by_target) options.rules.targets = {parse_target("loss < 2.1")};
      if (!by_target) options.rules.patience = 2;
      INFO((by_target ? "--until" : "--patience"), " with ", devices * learners, " learners");
      const Saved found = saved(net, options);
      CHECK(found.story.ends.at(0).reason == (by_target ? RunEnd::Until : RunEnd::Patience));
      CHECK(greatest_error(norms_of(found.file), averages(found.file, 6, net.source)) < 1e-5);
      const TensorFile best = read_safetensors(options.files.save_best);
      CHECK(greatest_error(norms_of(best), averages(best, 6, net.source)) < 1e-5);
    }
  }
}

TEST_CASE("a run that ends between validations is saved with the statistics of training") {
  SessionOptions options = for_epochs(2);
  options.length.iterations = 18;  // of 12 an epoch
  const Saved plain = saved(normalised(), options);
  options.rules.recalibrate = 4;
  const Saved found = saved(normalised(), options);
  CHECK(found.story.validations.size() == 1);
  CHECK(same_bits(found.file, plain.file));
}

TEST_CASE("recalibration tells how far it is, and an interrupt does not wait for its end") {
  class Interrupting final : public Recorder {
   public:
    void validating(const ValidationProgress& event) override {
      Recorder::validating(event);
      stop.request_stop();
    }
    std::stop_source stop;
  };
  const TestFolder folder;
  SessionOptions options = for_epochs(1);
  options.rules.recalibrate = 1'000'000;
  options.files.save = folder / "weights.safetensors";
  Interrupting story;
  const RunFinished end = run_training(tiny(normalised()), options, story, story.stop.get_token());
  REQUIRE(!story.validating_shares.empty());
  CHECK(story.validating_shares[0].recalibrates);
  CHECK(story.validating_shares[0].epoch == 1);
  CHECK(story.validating_shares[0].share < 0.1);
  CHECK(end.reason == RunEnd::Interrupted);
  CHECK(end.iteration == 12);
  CHECK(story.validations.empty());
  CHECK(read_safetensors(options.files.save).metadata.at("iteration") == "12");
}

TEST_CASE("recalibration needs validation, batch norm and a number of batches") {
  const auto refusal = [](const TinyNet& net, int64_t batches) {
    SessionOptions options = for_epochs(1);
    options.rules.recalibrate = batches;
    return message_of([&] { run(tiny(net), options); });
  };
  CHECK(contains(refusal({}, 4), "attribute 'recalibrate' is 4, and the graph has no batch norm"));
  TinyNet net = normalised();
  net.validate = "";
  CHECK(contains(refusal(net, 4), "--recalibrate needs a graph that validates"));
  net.validate = "batch = 16, recalibrate = -1";
  CHECK(contains(refusal(net, 0), "attribute 'recalibrate' is -1"));
}

}  // namespace recalibrate_test
