// SPDX-License-Identifier: Apache-2.0
#pragma once
// Operators whose kernels come from several engines choose from a table of them: the first row that takes the problem
// has it. Rows that take only some problems stand before those that take all. Convolutions have a table of their own
// (ops/cuda/convolution_engine.h), as their engines are timed against each other.

#include <memory>
#include <string>
#include <utility>

#include "graph/kernel.h"

namespace arbalest {

// A row of the table.
template <typename Problem>
struct KernelEngine {
  using Make = std::unique_ptr<Kernel> (*)(const KernelRequest& request, const Problem& problem);
  const char* name;  // as `profile` shows it, unless the kernel says more
  Make make;         // returns nullptr if the engine does not take the problem
};

// A kernel with the name of its engine.
class EngineKernel final : public Kernel {
 public:
  EngineKernel(const char* engine, std::unique_ptr<Kernel> kernel) : engine_(engine), kernel_(std::move(kernel)) {}
  int64_t workspace_bytes() const override { return kernel_->workspace_bytes(); }
  void run(const KernelContext& context) const override { kernel_->run(context); }
  std::string engine() const override {
    const std::string more = kernel_->engine();
    return more.empty() ? engine_ : more;
  }

 private:
  const char* engine_;
  std::unique_ptr<Kernel> kernel_;
};

// The kernel of the first engine that takes the problem; nullptr if none does.
template <typename Problem, size_t count>
std::unique_ptr<Kernel> first_kernel(const KernelEngine<Problem> (&engines)[count], const KernelRequest& request,
                                     const Problem& problem) {
  for (const KernelEngine<Problem>& engine : engines) {
    if (auto kernel = engine.make(request, problem)) {
      return std::make_unique<EngineKernel>(engine.name, std::move(kernel));
    }
  }
  return nullptr;
}

}  // namespace arbalest
