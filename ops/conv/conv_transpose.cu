// SPDX-License-Identifier: Apache-2.0

// arbalest.ConvTransposed on CUDA: Conv's gradient with respect to its input.

#include "ops/conv/conv_kernel.h"

namespace arbalest {

void register_conv_conv_transpose_cuda(OpRegistry& registry) {
  registry.find("arbalest.ConvTransposed")->cuda = conv_grad_input_cuda;
}

}  // namespace arbalest
