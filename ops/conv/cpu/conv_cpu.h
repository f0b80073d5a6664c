// SPDX-License-Identifier: Apache-2.0
#pragma once
// CPU kernels of convolution: ours for depthwise ones over three spatial axes, and for filter gradients of most other
// depthwise ones, else oneDNN if it has them, loops of ours for depthwise ones that it has not, plain loops elsewhere.

#include "graph/op.h"
#include "ops/nn/window.h"

namespace arbalest {

// X (N, C, …), W (K, C/g, …), Y (N, K, …) with one, two or three spatial axes; all channels-last in memory.
struct Convolution : SlidingWindow {
  int64_t batch, channels, filters, group;
  DataType x_type, w_type,
      y_type;  // of each in memory; gradients have the types of what they belong to or master_type()

  Convolution(const Node& node, const TensorType& x, const TensorType& w, const TensorType& y);
  int64_t group_channels() const { return channels / group; }
  int64_t group_filters() const { return filters / group; }
  // True if each group has one channel and one filter.
  bool is_depthwise() const { return group == channels && group == filters; }
  double flops() const;
};

std::unique_ptr<Kernel> conv_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> conv_grad_input_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> conv_grad_weight_cpu(const KernelRequest& request);

// Kernels of depthwise convolutions, vectorised over channels.
std::unique_ptr<Kernel> depthwise_conv(const Convolution& convolution, bool bias);
std::unique_ptr<Kernel> depthwise_conv_grad_input(const Convolution& convolution);
std::unique_ptr<Kernel> depthwise_conv_grad_weight(const Convolution& convolution);
// The same as depthwise_conv_grad_weight(), by rows of filters: for images with two spatial axes in float or bfloat16,
// and filters that are 3, 5 or 7 wide. Returns nullptr for others, and for an empty batch.
std::unique_ptr<Kernel> depthwise_filter_gradient(const Convolution& convolution);

#ifdef ARBALEST_ONEDNN
// Return nullptr if oneDNN has no kernel for the convolution, or a wrong or slow one. `deterministic`: the same bits
// with any number of threads.
std::unique_ptr<Kernel> onednn_conv(const Convolution& convolution, bool bias, bool deterministic);
std::unique_ptr<Kernel> onednn_conv_grad_input(const Convolution& convolution, bool deterministic);
std::unique_ptr<Kernel> onednn_conv_grad_weight(const Convolution& convolution, bool deterministic);
#endif

}  // namespace arbalest
