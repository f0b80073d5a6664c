// SPDX-License-Identifier: Apache-2.0

// Nets that no list names: random ones compute the same with all passes and without the optional ones, on both kinds of
// device. They are of convolutions, norms, activations, moves, pools, products and reductions.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <set>

#include "graph/file/graph_file.h"
#include "graph/verify/check_sound.h"
#include "ops/builtin_ops.h"
#include "passes/pipeline.h"
#include "tests/part.h"
#include "tests/passes/program_numbers.h"

using namespace arbalest;
using namespace arbalest::test;

namespace random_nets_test {
namespace {

// Text of a net, by seed. Activations are smooth where `smooth`: rounding then moves no element over an edge.
class RandomNet {
 public:
  RandomNet(uint32_t seed, bool smooth) : random_(seed), smooth_(smooth) {
    images_.push_back({"x", {4, 8, 8}, false});
    const size_t steps = 3 + below(12);
    for (size_t i = 0; i < steps; ++i) {
      if (!tokens_.empty() && below(2) == 0) {
        token_step();
      } else {
        image_step();
      }
    }
  }

  std::string text() {
    std::string ends;
    int heads = 0;
    const auto head = [&](const Made& made) {
      const std::string logits = heads == 0 ? "h0" : fmt::format("p{}", heads);
      ends += fmt::format("{} = arbalest.Linear <units = 3> ({})\n", logits, made.name);
      if (heads > 0) {
        ends += fmt::format("h{} = Add (h{}, {})\n", heads, heads - 1, logits);
      }
      ++heads;
    };
    for (const Made& made : images_) {
      if (!made.read) head(made);
    }
    for (const Made& made : tokens_) {
      if (!made.read) head(made);
    }
    return fmt::format(
        "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nnet () => (float loss)\n{{\n"
        "image, label = arbalest.Prefetch <source = \"synthetic:\", batch = 4, fields = [\"image uint8[4,8,8]\", "
        "\"label int32[]\"]> ()\n"
        "x = arbalest.Augment <pad = 1, flip = 1, mean = [0.5, 0.4, 0.5, 0.4], std = [0.3, 0.25, 0.3, 0.2]> (image)\n"
        "{}{}logits = Tanh (h{})\nloss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
        "trained = arbalest.Train <lr = 0.1, momentum = 0.9, weight_decay = 0.001> (loss)\n"
        "report = arbalest.Validate <batch = 4> (trained, loss)\n}}\n",
        body_, ends, heads - 1);
  }

 private:
  struct Made {
    std::string name;
    std::vector<int64_t> shape;  // without the samples' axis: channels, height, width; or tokens, features
    bool read;
  };
  using Values = std::vector<Made>;

  size_t below(size_t count) { return size_t(random_() % count); }
  // A value made lately, which is marked as read.
  Made take(Values& values) {
    Made& made = values[values.size() - 1 - below(std::min<size_t>(values.size(), 4))];
    made.read = true;
    return made;
  }
  // Another value of that shape; the same one if there is none.
  std::string partner(Values& values, const Made& made) {
    std::vector<Made*> fitting;
    for (Made& other : values) {
      if (other.shape == made.shape) fitting.push_back(&other);
    }
    Made& other = *fitting[below(fitting.size())];
    other.read = true;
    return other.name;
  }
  std::string line(const std::string& call) {
    const std::string name = fmt::format("v{}", made_++);
    body_ += fmt::format("{} = {}\n", name, call);
    return name;
  }
  void keep(Values& values, const std::string& call, std::vector<int64_t> shape) {
    values.push_back({line(call), std::move(shape), false});
  }

  std::string unary() {
    const std::vector<std::string> smooth = {"Sigmoid", "Tanh",     "Softplus", "Gelu", "Erf",
                                             "Neg",     "Softsign", "Elu",      "Mish"};
    const std::vector<std::string> edged = {
        "Relu", "Abs", "HardSwish", "LeakyRelu", "Clip <min = 0.0, max = 1.0>", "HardSigmoid"};
    const bool any = !smooth_ && below(2) == 0;
    return any ? edged[below(edged.size())] : smooth[below(smooth.size())];
  }
  std::string binary() { return std::vector<std::string>{"Add", "Mul", "Sub"}[below(3)]; }

  void image_step() {
    const Made from = take(images_);
    const std::string& a = from.name;
    const int64_t channels = from.shape[0], height = from.shape[1], width = from.shape[2];
    switch (below(16)) {
      case 0:
      case 1: {  // a convolution, of groups now and then
        const int64_t groups = channels % 2 == 0 ? std::vector<int64_t>{1, 2, channels}[below(3)] : 1;
        const int64_t filters = groups == 1 ? 2 + 2 * int64_t(below(3)) : channels;
        const int64_t size = below(2) == 0 ? 1 : 3;
        return keep(images_,
                    fmt::format("arbalest.Conv <filters = {}, kernel_shape = [{}, {}], group = {}, bias = {}> ({})",
                                filters, size, size, groups, below(2), a),
                    {filters, height, width});
      }
      case 2: return keep(images_, fmt::format("arbalest.BatchNorm ({})", a), from.shape);
      case 3:
        return keep(images_, fmt::format("{} ({})", unary(), line(fmt::format("arbalest.BatchNorm ({})", a))),
                    from.shape);
      case 4: return keep(images_, fmt::format("{} ({}, {})", binary(), a, partner(images_, from)), from.shape);
      case 5: {  // scaled by channel
        const std::string mean = line(fmt::format("GlobalAveragePool ({})", a));
        const std::string wide = line(fmt::format(
            "arbalest.Conv <filters = {}, kernel_shape = [1, 1], pads = [0, 0, 0, 0]> ({})", channels, mean));
        return keep(images_, fmt::format("Mul ({}, {})", a, line(fmt::format("Sigmoid ({})", wide))), from.shape);
      }
      case 6: {
        if (height < 4 || width < 4) break;
        const bool most = !smooth_ && below(2) == 0;
        return keep(
            images_,
            fmt::format("{} <kernel_shape = [2, 2], strides = [2, 2]> ({})", most ? "MaxPool" : "AveragePool", a),
            {channels, height / 2, width / 2});
      }
      case 7: {  // joined with one of the same height and width
        Values fitting;
        std::copy_if(images_.begin(), images_.end(), std::back_inserter(fitting), [&](const Made& made) {
          return made.shape[1] == height && made.shape[2] == width && made.shape[0] + channels <= 16;
        });
        if (fitting.empty()) break;
        const Made other = fitting[below(fitting.size())];
        for (Made& made : images_) made.read |= made.name == other.name;
        return keep(images_, fmt::format("Concat <axis = 1> ({}, {})", a, other.name),
                    {channels + other.shape[0], height, width});
      }
      case 8: {
        if (channels < 4) break;
        const int64_t first = int64_t(below(2));
        return keep(images_, fmt::format("Slice <starts = [{}], ends = [{}], axes = [1]> ({})", first, channels - 1, a),
                    {channels - 1 - first, height, width});
      }
      case 9: {  // channels shuffled
        if (channels % 2 != 0) break;
        const std::string apart =
            line(fmt::format("Reshape <shape = [0, 2, {}, {}, {}]> ({})", channels / 2, height, width, a));
        const std::string turned = line(fmt::format("Transpose <perm = [0, 2, 1, 3, 4]> ({})", apart));
        return keep(images_, fmt::format("Reshape <shape = [0, {}, {}, {}]> ({})", channels, height, width, turned),
                    from.shape);
      }
      case 10:
      case 11: {  // as tokens
        const std::string turned = line(fmt::format("Transpose <perm = [0, 2, 3, 1]> ({})", a));
        return keep(tokens_, fmt::format("Reshape <shape = [0, {}, {}]> ({})", height * width, channels, turned),
                    {height * width, channels});
      }
      case 12: {
        if (height * width > 64) break;
        return keep(images_, fmt::format("Pad <pads = [0, 0, 1, 0, 0, 0, 0, 1]> ({})", a),
                    {channels, height + 1, width + 1});
      }
      default: break;
    }
    keep(images_, fmt::format("{} ({})", unary(), a), from.shape);
  }

  void token_step() {
    const Made from = take(tokens_);
    const std::string& a = from.name;
    const int64_t tokens = from.shape[0], features = from.shape[1];
    switch (below(14)) {
      case 0:
      case 1: {
        const int64_t units = 4 + 2 * int64_t(below(4));
        return keep(tokens_, fmt::format("arbalest.Linear <units = {}, axis = -1> ({})", units, a), {tokens, units});
      }
      case 2: return keep(tokens_, fmt::format("arbalest.LayerNorm ({})", a), from.shape);
      case 3: return keep(tokens_, fmt::format("Softmax <axis = -1> ({})", a), from.shape);
      case 4: return keep(tokens_, fmt::format("{} ({}, {})", binary(), a, partner(tokens_, from)), from.shape);
      case 5: {  // rows less their means
        const std::string mean = line(fmt::format("ReduceMean <axes = [{}]> ({})", below(2) == 0 ? 1 : 2, a));
        return keep(tokens_, fmt::format("{} ({}, {})", binary(), a, mean), from.shape);
      }
      case 6: {  // turned round by some tokens
        const int64_t shift = 1 + int64_t(below(size_t(tokens - 1)));
        const std::string head = line(fmt::format("Slice <starts = [0], ends = [{}], axes = [1]> ({})", shift, a));
        const std::string tail =
            line(fmt::format("Slice <starts = [{}], ends = [{}], axes = [1]> ({})", shift, tokens, a));
        return keep(tokens_, fmt::format("Concat <axis = 1> ({}, {})", tail, head), from.shape);
      }
      case 7: {  // tokens mixed
        const std::string turned = line(fmt::format("Transpose <perm = [0, 2, 1]> ({})", a));
        const std::string mixed = line(fmt::format("arbalest.Linear <units = {}, axis = -1> ({})", tokens, turned));
        return keep(tokens_, fmt::format("Transpose <perm = [0, 2, 1]> ({})", mixed), from.shape);
      }
      case 8: {  // attention of one head
        const std::string scores = line(fmt::format(
            "MatMul ({}, {})", a, line(fmt::format("Transpose <perm = [0, 2, 1]> ({})", partner(tokens_, from)))));
        return keep(tokens_, fmt::format("MatMul ({}, {})", line(fmt::format("Softmax <axis = -1> ({})", scores)), a),
                    from.shape);
      }
      case 9: {  // back to an image
        const std::string turned = line(fmt::format("Transpose <perm = [0, 2, 1]> ({})", a));
        return keep(images_, fmt::format("Reshape <shape = [0, {}, {}, 1]> ({})", features, tokens, turned),
                    {features, tokens, 1});
      }
      case 10: {
        const std::string half = line("Constant <value_float = 0.5> ()");
        return keep(tokens_, fmt::format("{} ({}, {})", binary(), a, half), from.shape);
      }
      default: return keep(tokens_, fmt::format("{} ({})", unary(), a), from.shape);
    }
  }

  std::mt19937 random_;
  const bool smooth_;
  Values images_, tokens_;
  std::string body_;
  int made_ = 0;
};

Program program_of(const std::string& text, bool plain, bool bf16) {
  ProgramOptions options{.bf16 = bf16, .fused_kernels = bf16, .generated_kernels = true, .aside = true, .alone = true};
  if (plain) {
    const std::vector<std::string> optional = pass_names(true);
    options.without = {optional.begin(), optional.end()};
  }
  Graph graph = read_graph_text(text, "net.onnxtxt", builtin_ops());
  verify(graph);
  Program program = make_program(graph, options);
  for (const Loop& loop : program.loops) check_sound(loop.graph);
  return program;
}

bool has_region(const Program& program) {
  const Graph& graph = program.training().graph;
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const Node& node) { return node.op->name == "Region"; });
}

constexpr uint32_t kNets = 1000;

// A random net, and what it computes in double as it stands.
struct Net {
  Net(uint32_t seed, bool smooth) : text(RandomNet(seed, smooth).text()) {
    expected = numbers(program_of(text, true, false), *make_cpu_device(), DataType::Float64);
  }

  static Numbers numbers(const Program& program, TestDevice& device, DataType floats) {
    StepScalars scalars;
    scalars.seed = 3;
    return numbers_of(program, scalars, device, floats);
  }

  std::string text;
  Numbers expected;
};

// Calls check(net) for each of so many nets that is of this part; it returns the program with all passes. Returns how
// many those are.
template <typename Check>
int for_each_net(bool smooth, Check check, uint32_t every = 1) {
  Part part;
  int nets = 0, regions = 0;
  for (uint32_t seed = 1; seed <= kNets; seed += every) {
    if (!part.has_next()) continue;
    const Net net(seed, smooth);
    INFO("net ", seed, ":\n", net.text);
    regions += has_region(check(net));
    ++nets;
  }
  CHECK(regions > nets / 2);
  return nets;
}

void check_same(TestDevice& device, DataType floats, double rounding) {
  for_each_net(floats == DataType::Float32, [&](const Net& net) {
    Program fused = program_of(net.text, false, false);
    CHECK(difference(net.expected, Net::numbers(fused, device, floats), rounding) == "");
    return fused;
  });
}

// The mean over all that is stored of the distance from what is expected, as a share of its norm.
double error_of(const Numbers& expected, const Numbers& found) {
  double sum = 0;
  for (const auto& [name, values] : expected) {
    const std::vector<double>& others = found.at(name);
    double norm = 1e-6, apart = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      norm += values[i] * values[i];
      apart += (values[i] - others[i]) * (values[i] - others[i]);
    }
    sum += std::min(1.0, std::sqrt(apart / norm));
  }
  return sum / double(expected.size());
}

// The passes of bfloat16 are not further from doubles than without the optional ones: on average, and by more than
// chance in no net. Rounding grows from layer to layer, and in the second step.
void check_as_exact(TestDevice& device, uint32_t every = 1) {
  constexpr double kMore = 8, kAnyway = 0.05, kMoreOnAverage = 1.2;
  constexpr int kEnough = 100;  // nets: the average of 25 was 1.34
  double fused_errors = 0, plain_errors = 0;
  const auto check = [&](const Net& net) {
    Program fused = program_of(net.text, false, true);
    const Program plain = program_of(net.text, true, true);
    const double found = error_of(net.expected, Net::numbers(fused, device, DataType::Float32));
    const double usual = error_of(net.expected, Net::numbers(plain, device, DataType::Float32));
    CHECK(found <= kAnyway + kMore * usual);
    fused_errors += found;
    plain_errors += usual;
    return fused;
  };
  if (for_each_net(true, check, every) >= kEnough) CHECK(fused_errors <= kMoreOnAverage * plain_errors);
}

}  // namespace

TEST_CASE("random nets compute the same with all passes, in double") {
  check_same(*make_cpu_device(), DataType::Float64, 1e-8);
}

TEST_CASE("random nets are as exact in bfloat16 with all passes as without") {
  check_as_exact(*make_cpu_device(), 4);
}

TEST_CASE("random nets compute the same with all passes on CUDA") {
  std::string why_not;
  const auto device = make_cuda_device(why_not);
  if (!device) {
    MESSAGE("SKIP: " << why_not);
    return;
  }
  check_same(*device, DataType::Float32, 1e-3);
  check_as_exact(*device);
}

}  // namespace random_nets_test
