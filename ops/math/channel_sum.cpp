// ChannelSum: the gradient of a bias, added to each channel (axis 1).

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

// Rows are summed in parts of fixed size, so that the result does not depend on the number of threads.
constexpr int64_t kRowsPerPart = 256;

template <typename T>
void sum_channels(const Rows& size, double scale, const T* x, Wide<T>* sum, Wide<T>* partial) {
  using W = Wide<T>;
  const int64_t channels = size.channels, parts = (size.rows + kRowsPerPart - 1) / kRowsPerPart;
  parallel_for(parts, kRowsPerPart * channels, [=](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      W* to = partial + part * channels;
      std::fill(to, to + channels, W(0));
      const int64_t last = std::min(size.rows, (part + 1) * kRowsPerPart);
      for (int64_t row = part * kRowsPerPart; row < last; ++row) {
        const T* from = x + row * channels;
        for (int64_t c = 0; c < channels; ++c) to[c] += widen(from[c]);
      }
    }
  });
  for (int64_t c = 0; c < channels; ++c) {
    double total = 0;
    for (int64_t part = 0; part < parts; ++part) total += partial[part * channels + c];
    sum[c] = W(scale * total);
  }
}

std::unique_ptr<Kernel> channel_sum_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const Rows size = rows_of(request.inputs[0]);
  const double scale = float_attribute(request.node, "scale");
  const int64_t parts = (size.rows + kRowsPerPart - 1) / kRowsPerPart;
  return make_kernel(
      [size, scale](const KernelContext& context) {
        sum_channels<T>(size, scale, input<T>(context, 0), output<Wide<T>>(context, 0),
                        static_cast<Wide<T>*>(context.workspace));
      },
      parts * size.channels * int64_t(sizeof(Wide<T>)));
}

void infer_channel_sum(InferContext& context) {
  const TensorType& x = floating_input(context, 0, {2, 3, 4, 5});
  const int64_t rank = int_attribute(context.node(), "rank");
  if (rank != 1 && rank != 2) context.fail(fmt::format("attribute 'rank' is {}; expected 1 or 2", rank));
  context.set_output(0, {master_type(x.dtype), rank == 1 ? Shape{x.shape[1]} : Shape{1, x.shape[1]}});
}

std::vector<Sample> samples() {
  std::vector<Sample> samples;
  for (const Shape& shape : {Shape{1, 1}, Shape{64, 10}, Shape{1000, 3}, Shape{1, 5, 1, 1}, Shape{3, 13, 5, 7},
                             Shape{2, 6, 9}, Shape{2, 3, 4, 2, 5}, Shape{32, 16, 24, 24}}) {
    samples.push_back({.name = to_string(shape), .inputs = {{{DataType::Float32, shape}}}, .tolerance = 1e-5});
  }
  samples.push_back({.name = "large mean", .inputs = {{{DataType::Float32, {16, 8, 16, 16}}, 99, 101}}});
  samples.push_back({.name = "scaled, rank 2",
                     .inputs = {{{DataType::Float32, {9, 7}}}},
                     .attributes = {{"scale", 0.5}, {"rank", int64_t{2}}}});
  return samples;
}

}  // namespace

void register_math_channel_sum(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "ChannelSum",
                .doc = "the sum over all axes but the channels (axis 1), times `scale`",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "S"}},
                .attributes = {float_spec("scale", 1.0, "factor of the sum"),
                               int_spec("rank", 1, "1: the output is (C); 2: it is (1, C)")},
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_channel_sum,
                .cost =
                    [](const Graph& graph, const Node& node) {
                      return Cost{double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
                    },
                .samples = samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return channel_sum_cpu(r, t); })});
}

}  // namespace arbalest
