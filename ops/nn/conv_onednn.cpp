// Convolution over one or two spatial axes through oneDNN. Images stay channels-last; filters are brought to oneDNN's
// blocked layout in the workspace.

#include "ops/nn/conv_cpu.h"
#include "ops/onednn/onednn.h"

namespace arbalest {
namespace {

using onednn::OnednnKernel;
using onednn::Operand;

onednn::Dims filter_dims(const Convolution& conv) {
  const int64_t height = conv.window.kernel[1], width = conv.window.kernel[2];
  if (conv.group == 1) return {conv.filters, conv.channels, height, width};
  return {conv.group, conv.group_filters(), conv.group_channels(), height, width};
}

// Images in our layout, filters in any; no bias.
onednn::ConvDescs descs_of(const Convolution& conv) {
  onednn::ConvDescs descs;
  descs.src = onednn::image_desc({conv.batch, conv.channels, conv.in[1], conv.in[2]}, conv.x_type);
  descs.weights = onednn::any_layout(filter_dims(conv), conv.w_type);
  descs.dst = onednn::image_desc({conv.batch, conv.filters, conv.out[1], conv.out[2]}, conv.y_type);
  for (int axis = 1; axis < 3; ++axis) {
    const Window& window = conv.window;
    descs.strides.push_back(window.stride[axis]);
    descs.dilations.push_back(window.dilation[axis] - 1);
    descs.pad_begin.push_back(window.pad_begin[axis]);
    // What the windows reach, which may be less than the padding asked for.
    descs.pad_end.push_back((conv.out[axis] - 1) * window.stride[axis] + window.span(axis) - conv.in[axis] -
                            window.pad_begin[axis]);
  }
  return descs;
}

onednn::Desc our_filters(const Convolution& conv, DataType type) {
  return onednn::filter_desc(conv.filters, conv.group_channels(), conv.window.kernel[1], conv.window.kernel[2],
                             conv.group, type);
}

bool possible(const Convolution& conv) {
  const bool flat =
      conv.in[0] == 1 && conv.window.kernel[0] == 1 && conv.window.pad_begin[0] + conv.window.pad_end[0] == 0;
  return flat && onednn::supported(conv.x_type) && conv.batch * conv.channels * pixel_count(conv.out) > 0;
}

}  // namespace

std::unique_ptr<Kernel> onednn_conv(const Convolution& conv, bool bias) try {
  if (!possible(conv)) return nullptr;
  onednn::ConvDescs descs = descs_of(conv);
  if (bias) descs.bias = onednn::vector_desc(conv.filters, DataType::Float32);
  const auto desc = onednn::make_convolution(descs);
  if (onednn::is_reference(desc)) return nullptr;
  auto kernel = std::make_unique<OnednnKernel>();
  const Operand filters = kernel->arranged(kernel->input(1, our_filters(conv, conv.w_type)), desc.weights_desc());
  std::vector<std::pair<int, Operand>> arguments = {{DNNL_ARG_SRC, kernel->input(0, descs.src)},
                                                    {DNNL_ARG_WEIGHTS, filters},
                                                    {DNNL_ARG_DST, kernel->output(0, descs.dst)}};
  if (bias) arguments.emplace_back(DNNL_ARG_BIAS, kernel->input(2, descs.bias));
  kernel->add<dnnl::convolution_forward>(desc, std::move(arguments));
  return kernel;
} catch (const dnnl::error&) {
  return nullptr;
}

std::unique_ptr<Kernel> onednn_conv_grad_input(const Convolution& conv) try {
  if (!possible(conv)) return nullptr;
  const onednn::ConvDescs descs = descs_of(conv);
  const auto desc = onednn::make_convolution_backward_data(descs);
  if (onednn::is_reference(desc)) return nullptr;
  auto kernel = std::make_unique<OnednnKernel>();
  const Operand filters = kernel->arranged(kernel->input(1, our_filters(conv, conv.w_type)), desc.weights_desc());
  kernel->add<dnnl::convolution_backward_data>(desc, {{DNNL_ARG_DIFF_DST, kernel->input(0, descs.dst)},
                                                      {DNNL_ARG_WEIGHTS, filters},
                                                      {DNNL_ARG_DIFF_SRC, kernel->output(0, descs.src)}});
  return kernel;
} catch (const dnnl::error&) {
  return nullptr;
}

std::unique_ptr<Kernel> onednn_conv_grad_weight(const Convolution& conv) try {
  if (!possible(conv)) return nullptr;
  onednn::ConvDescs descs = descs_of(conv);
  const onednn::Desc forward_weights = onednn::any_layout(filter_dims(conv), conv.x_type);
  const auto desc = onednn::make_convolution_backward_weights(descs, forward_weights);
  if (onednn::is_reference(desc)) return nullptr;
  auto kernel = std::make_unique<OnednnKernel>();
  const Operand gradient = kernel->output(0, our_filters(conv, conv.w_type));
  const Operand written = kernel->before(gradient, desc.diff_weights_desc());
  kernel->add<dnnl::convolution_backward_weights>(desc, {{DNNL_ARG_SRC, kernel->input(0, descs.src)},
                                                         {DNNL_ARG_DIFF_DST, kernel->input(1, descs.dst)},
                                                         {DNNL_ARG_DIFF_WEIGHTS, written}});
  kernel->finish(written, gradient);
  return kernel;
} catch (const dnnl::error&) {
  return nullptr;
}

}  // namespace arbalest
