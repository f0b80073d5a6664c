// SPDX-License-Identifier: Apache-2.0
#pragma once
// CPU kernels of batch normalisation.

#include "graph/op.h"

namespace arbalest {

std::unique_ptr<Kernel> batch_norm_training_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> batch_norm_again_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> batch_norm_grad_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> batch_norm_inference_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> batch_norm_inference_grad_cpu(const KernelRequest& request);

// Over parts, and the statistics that they share.
std::unique_ptr<Kernel> channel_statistics_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> batch_norm_parts_training_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> batch_norm_parts_again_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> batch_norm_parts_inference_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> batch_norm_parts_grad_cpu(const KernelRequest& request);

}  // namespace arbalest
