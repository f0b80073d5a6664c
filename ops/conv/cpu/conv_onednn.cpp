// SPDX-License-Identifier: Apache-2.0

// Convolution through oneDNN, over two spatial axes, or three if the first one has more than a pixel or a tap. Images
// stay channels-last; filters are brought to oneDNN's blocked layout in the workspace.

#include <optional>

#include "ops/conv/cpu/conv_cpu.h"
#include "ops/names.h"
#include "ops/onednn/onednn.h"

namespace arbalest {
namespace {

using onednn::Arguments;
using onednn::OnednnKernel;
using onednn::Operand;
using onednn::Part;

// The first spatial axis that oneDNN gets: images without depth have two.
size_t first_axis(const Convolution& conv) {
  const Window& window = conv.window;
  const bool flat = conv.in[0] == 1 && window.kernel[0] == 1 && window.pad_begin[0] + window.pad_end[0] == 0;
  return flat ? 1 : 0;
}

onednn::Dims with_axes(const Convolution& conv, onednn::Dims shape, const Pixels& extents) {
  shape.insert(shape.end(), extents.begin() + first_axis(conv), extents.end());
  return shape;
}

onednn::Dims filter_dims(const Convolution& conv) {
  const onednn::Dims grouped = {conv.group, conv.group_filters(), conv.group_channels()};
  return with_axes(conv, conv.group == 1 ? onednn::Dims{conv.filters, conv.channels} : grouped, conv.window.kernel);
}

onednn::Desc image_desc(const Convolution& conv, int64_t channels, const Pixels& pixels, DataType type) {
  return onednn::channels_last_desc(with_axes(conv, {conv.batch, channels}, pixels), 1, type);
}

// Images in our layout, filters in any; no bias.
onednn::ConvDescs descs_of(const Convolution& conv) {
  onednn::ConvDescs descs;
  descs.src = image_desc(conv, conv.channels, conv.in, conv.x_type);
  descs.weights = onednn::any_layout(filter_dims(conv), conv.w_type);
  descs.dst = image_desc(conv, conv.filters, conv.out, conv.y_type);
  for (size_t axis = first_axis(conv); axis < 3; ++axis) {
    const Window& window = conv.window;
    descs.strides.push_back(window.stride[axis]);
    descs.dilations.push_back(window.dilation[axis] - 1);
    descs.pad_begin.push_back(window.pad_begin[axis]);
    // The padding that windows reach, which may be less than the attribute asks for.
    descs.pad_end.push_back((conv.out[axis] - 1) * window.stride[axis] + window.span(int(axis)) - conv.in[axis] -
                            window.pad_begin[axis]);
  }
  return descs;
}

onednn::Desc our_filters(const Convolution& conv, DataType type) {
  return onednn::channels_last_desc(filter_dims(conv), conv.group == 1 ? 1 : 2, type);
}

bool possible(const Convolution& conv) {
  // Ours take a tenth of the time: 1.2 ms and 15 ms for 64 channels of 2048 voxels in a batch of 4.
  if (first_axis(conv) == 0 && conv.is_depthwise()) return false;
  return onednn::supported(conv.x_type) && conv.batch * conv.channels * pixel_count(conv.out) > 0;
}

// Whether oneDNN 2.6 is right about the gradient of filters. It is not if the depth is padded in front by more than a
// stride of several voxels, or by more than there is. In bfloat16 strides make it read beyond the images.
bool right_about_filters(const Convolution& conv) {
  const auto& [kernel, stride, dilation, pad_begin, pad_end] = conv.window;
  const bool deep = first_axis(conv) == 0;
  if (deep && pad_begin[0] > (stride[0] == 1 ? conv.in[0] : stride[0])) return false;
  if (conv.x_type != DataType::Bfloat16) return true;
  return deep ? stride == Pixels{1, 1, 1} : stride[2] <= conv.in[2];
}

// The most pieces of a batch. Gradients of filters are memory for each piece, and a sum of them all.
constexpr int64_t kMostPieces = 16, kMostSummed = 8;

// The samples that primitives are made for: all, or pieces that the batch alone decides on.
std::vector<Part> convolution_parts(const Convolution& conv, bool divides, int64_t most = kMostPieces) {
  return onednn::divided(conv.batch, divides ? 1 : conv.batch, most);
}

// One for each part: make(descriptions) of its samples, with filters in the layout that the first part likes best.
// Throws dnnl::error if oneDNN has no such primitive.
template <typename Make, typename FiltersOf>
auto primitives_for(const Convolution& conv, const std::vector<Part>& parts, bool divides, const onednn::Desc& bias,
                    const Make& make, const FiltersOf& filters_of) {
  std::optional<onednn::OneThread> one;
  if (divides) one.emplace();
  std::vector<decltype(make(onednn::ConvDescs()))> primitives;
  for (const Part& part : parts) {
    Convolution of_part = conv;
    of_part.batch = part.count;
    onednn::ConvDescs descs = descs_of(of_part);
    descs.bias = bias;
    if (!primitives.empty()) descs.weights = filters_of(primitives.front());
    primitives.push_back(make(descs));
  }
  return primitives;
}

template <typename Primitive>
void add_convolution(OnednnKernel& kernel, bool divides,
                     std::vector<std::pair<typename Primitive::primitive_desc, Arguments>> pieces) {
  if (divides) return kernel.add_pieces<Primitive>(std::move(pieces));
  kernel.add<Primitive>(pieces.front().first, std::move(pieces.front().second));
}

}  // namespace

std::unique_ptr<Kernel> onednn_conv(const Convolution& conv, bool bias, bool deterministic) try {
  using In = ConvInput;
  if (!possible(conv)) return nullptr;
  const onednn::ThreadChoice threads(conv.flops(), deterministic);
  using Primitive = dnnl::convolution_forward;
  const std::vector<Part> parts = convolution_parts(conv, threads.divides);
  const onednn::Desc bias_desc = bias ? onednn::vector_desc(conv.filters, DataType::Float32) : onednn::Desc();
  const auto descs = primitives_for(conv, parts, threads.divides, bias_desc, onednn::make_convolution,
                                    [](const Primitive::primitive_desc& desc) { return desc.weights_desc(); });
  if (onednn::is_reference(descs.front())) return nullptr;
  auto kernel = std::make_unique<OnednnKernel>(threads.alone);
  const onednn::ConvDescs whole = descs_of(conv);
  const Operand x = kernel->input(In::X, whole.src), y = kernel->output(0, whole.dst);
  const Operand filters =
      kernel->arranged(kernel->input(In::W, our_filters(conv, conv.w_type)), descs.front().weights_desc());
  std::vector<std::pair<Primitive::primitive_desc, Arguments>> pieces;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [first, count] = parts[i];
    Arguments arguments = {
        {DNNL_ARG_SRC, x.part(0, first, count)}, {DNNL_ARG_WEIGHTS, filters}, {DNNL_ARG_DST, y.part(0, first, count)}};
    if (bias) arguments.emplace_back(DNNL_ARG_BIAS, kernel->input(In::B, bias_desc));
    pieces.emplace_back(descs[i], std::move(arguments));
  }
  add_convolution<Primitive>(*kernel, threads.divides, std::move(pieces));
  return kernel;
} catch (const dnnl::error&) {
  return nullptr;
}

std::unique_ptr<Kernel> onednn_conv_grad_input(const Convolution& conv, bool deterministic) try {
  if (!possible(conv)) return nullptr;
  const onednn::ThreadChoice threads(conv.flops(), deterministic);
  using Primitive = dnnl::convolution_backward_data;
  const std::vector<Part> parts = convolution_parts(conv, threads.divides);
  const auto descs = primitives_for(conv, parts, threads.divides, {}, onednn::make_convolution_backward_data,
                                    [](const Primitive::primitive_desc& desc) { return desc.weights_desc(); });
  if (onednn::is_reference(descs.front())) return nullptr;
  auto kernel = std::make_unique<OnednnKernel>(threads.alone);
  const onednn::ConvDescs whole = descs_of(conv);
  const Operand dy = kernel->input(ConvGradInputInput::dY, whole.dst), dx = kernel->output(0, whole.src);
  const Operand filters = kernel->arranged(kernel->input(ConvGradInputInput::W, our_filters(conv, conv.w_type)),
                                           descs.front().weights_desc());
  std::vector<std::pair<Primitive::primitive_desc, Arguments>> pieces;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [first, count] = parts[i];
    pieces.emplace_back(descs[i], Arguments{{DNNL_ARG_DIFF_DST, dy.part(0, first, count)},
                                            {DNNL_ARG_WEIGHTS, filters},
                                            {DNNL_ARG_DIFF_SRC, dx.part(0, first, count)}});
  }
  add_convolution<Primitive>(*kernel, threads.divides, std::move(pieces));
  return kernel;
} catch (const dnnl::error&) {
  return nullptr;
}

// The gradients that pieces give are added in their order.
std::unique_ptr<Kernel> onednn_conv_grad_weight(const Convolution& conv, bool deterministic) try {
  if (!possible(conv) || !right_about_filters(conv)) return nullptr;
  const onednn::ThreadChoice threads(conv.flops(), deterministic);
  using Primitive = dnnl::convolution_backward_weights;
  const onednn::Desc forward_weights = onednn::any_layout(filter_dims(conv), conv.x_type);
  const auto make = [&](const onednn::ConvDescs& descs) {
    return onednn::make_convolution_backward_weights(descs, forward_weights);
  };
  const std::vector<Part> parts = convolution_parts(conv, threads.divides, kMostSummed);
  const auto descs = primitives_for(conv, parts, threads.divides, {}, make,
                                    [](const Primitive::primitive_desc& desc) { return desc.diff_weights_desc(); });
  if (onednn::is_reference(descs.front())) return nullptr;
  auto kernel = std::make_unique<OnednnKernel>(threads.alone);
  const onednn::ConvDescs whole = descs_of(conv);
  const Operand x = kernel->input(ConvGradWeightInput::X, whole.src),
                dy = kernel->input(ConvGradWeightInput::dY, whole.dst);
  const Operand gradient = kernel->output(0, our_filters(conv, conv.w_type));
  const Operand written = kernel->before(gradient, descs.front().diff_weights_desc());
  std::vector<Operand> gradients;
  std::vector<std::pair<Primitive::primitive_desc, Arguments>> pieces;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [first, count] = parts[i];
    gradients.push_back(parts.size() == 1 ? written : kernel->reserve(written.desc));
    pieces.emplace_back(descs[i], Arguments{{DNNL_ARG_SRC, x.part(0, first, count)},
                                            {DNNL_ARG_DIFF_DST, dy.part(0, first, count)},
                                            {DNNL_ARG_DIFF_WEIGHTS, gradients.back()}});
  }
  add_convolution<Primitive>(*kernel, threads.divides, std::move(pieces));
  if (parts.size() > 1) kernel->sum(gradients, written);
  kernel->finish(written, gradient);
  return kernel;
} catch (const dnnl::error&) {
  return nullptr;
}

}  // namespace arbalest
