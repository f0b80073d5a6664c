#pragma once
// CPU kernels of convolution: oneDNN where it has them, plain loops elsewhere.

#include "graph/op.h"
#include "ops/nn/window.h"

namespace arbalest {

// X (N, C, H, W), W (K, C/g, R, S), Y (N, K, P, Q); all channels-last in memory.
struct Convolution {
  int64_t batch, channels, height, width, filters, out_height, out_width, group;
  Window window;
  DataType x_type, w_type,
      y_type;  // of each in memory; gradients have the types of what they belong to or master_type()

  Convolution(const Node& node, const TensorType& x, const TensorType& w, const TensorType& y);
  int64_t group_channels() const { return channels / group; }
  int64_t group_filters() const { return filters / group; }
  double flops() const;
};

std::unique_ptr<Kernel> conv_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> conv_grad_input_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> conv_grad_weight_cpu(const KernelRequest& request);

#ifdef ARBALEST_ONEDNN
// nullptr where oneDNN has no kernel for it.
std::unique_ptr<Kernel> onednn_conv(const Convolution& convolution, bool bias);
std::unique_ptr<Kernel> onednn_conv_grad_input(const Convolution& convolution);
std::unique_ptr<Kernel> onednn_conv_grad_weight(const Convolution& convolution);
#endif

}  // namespace arbalest
