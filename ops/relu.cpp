// SPDX-License-Identifier: Apache-2.0
#include "ops/relu.h"

#include <utility>

#include "ops/cpu.h"

namespace arbalest {
namespace {

template <typename T>
void rectify(int64_t count, T* y) {
  parallel_for(count, 1, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = widen(y[i]) < 0 ? T(0) : y[i];
  });
}

class RectifiedKernel final : public Kernel {
 public:
  RectifiedKernel(std::unique_ptr<Kernel> kernel, const TensorType& y)
      : kernel_(std::move(kernel)), type_(y.dtype), count_(y.elements()) {}
  int64_t workspace_bytes() const override { return kernel_->workspace_bytes(); }
  std::string engine() const override { return kernel_->engine(); }
  void run(const KernelContext& context) const override {
    kernel_->run(context);
    dispatch_floating(type_, [&](auto t) { rectify(count_, output<decltype(t)>(context, 0)); });
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  DataType type_;
  int64_t count_;
};

}  // namespace

ValueId add_relu_gradient(GradContext& c, size_t bias) {
  const std::vector<ValueId> inputs = {c.output_gradient(0), c.output(0)};
  if (c.input(bias) == kNone || !c.needs_gradient(bias)) return c.add("arbalest.ReluGrad", "grad_relu", inputs, 1)[0];
  const auto rank = int64_t(c.type(c.input(bias)).shape.size());
  const std::vector<ValueId> made = c.add("arbalest.ReluGradSums", "grad_relu", inputs, 2, {{"rank", rank}});
  c.set_input_gradient(bias, made[1]);
  return made[0];
}

std::unique_ptr<Kernel> with_relu(std::unique_ptr<Kernel> kernel, const TensorType& y) {
  return std::make_unique<RectifiedKernel>(std::move(kernel), y);
}

}  // namespace arbalest
