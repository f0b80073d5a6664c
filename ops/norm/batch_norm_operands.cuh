// SPDX-License-Identifier: Apache-2.0
#pragma once
// Operands of batch norms' kernels, from a call of an operator whose header names their places in `In` and `Out`.

#include <array>

#include "ops/norm/batch_norm.cuh"

namespace arbalest::cuda {

// The numbers of the channels of a norm in training. Without In::Scale the kernel reads neither scale nor bias.
template <typename In, typename Out>
class StatisticsOperands {
 public:
  explicit StatisticsOperands(const KernelRequest& request)
      : epsilon_(float(float_attribute(request.node, "epsilon"))),
        momentum_(float(float_attribute(request.node, "momentum"))),
        correction_(float(int_attribute(request.node, "correction"))) {
    for (size_t i = 0; i < has_.size(); ++i) has_[i] = request.has_output(i);
  }

  Statistics of(const KernelContext& c) const {
    const auto out = [&](size_t i) { return has_[i] ? output<float>(c, i) : nullptr; };
    const float *scale = nullptr, *bias = nullptr;
    if constexpr (requires { In::Scale; }) {
      scale = input<float>(c, In::Scale);
      bias = input<float>(c, In::Bias);
    }
    return {scale,
            bias,
            input<float>(c, In::Mean),
            input<float>(c, In::Variance),
            out(Out::NewMean),
            out(Out::NewVariance),
            out(Out::SavedMean),
            out(Out::SavedInvStd),
            epsilon_,
            momentum_,
            correction_};
  }

 private:
  float epsilon_, momentum_, correction_;
  std::array<bool, Out::SavedInvStd + 1> has_{};
};

// The operands of a gradient's sums. `two`: In::Second is added to dY.
template <typename In, typename T>
GradientOf<T> gradient_of(const KernelContext& c, const T* dy, Mask mask, bool two) {
  return {dy,
          two ? input<T>(c, In::Second) : nullptr,
          input<T>(c, In::X),
          mask == Mask::Y ? input<T>(c, In::Y) : nullptr,
          input<float>(c, In::SavedMean),
          input<float>(c, In::SavedInvStd),
          input<float>(c, In::Scale),
          mask == Mask::X ? input<float>(c, In::Bias) : nullptr};
}

}  // namespace arbalest::cuda
