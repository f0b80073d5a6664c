// SPDX-License-Identifier: Apache-2.0
#pragma once
// Local response normalisation, Y = X · (bias + alpha / size · Σ X²)^−beta with the sum over neighbouring channels, and
// its gradient, element by element, on every device.

#include <cmath>

#include "base/host_device.h"
#include "graph/kernel.h"

namespace arbalest {

// W: the type that arithmetic is in.
template <typename W>
struct ChannelWindows {
  int64_t channels = 0, step = 1;   // neighbouring channels lie `step` elements apart
  int64_t before = 0, after = 0;    // channels of a window before and after its own
  W scale = 0, beta = 0, bias = 0;  // scale: alpha / size

  ARBALEST_HOST_DEVICE int64_t channel_of(int64_t i) const { return i / step % channels; }

  // Σ of f(j) over the elements j at up to `down` channels below that of element i, and up to `up` above.
  template <typename F>
  ARBALEST_HOST_DEVICE W sum(int64_t i, int64_t down, int64_t up, const F& f) const {
    const int64_t channel = channel_of(i), first = channel < down ? -channel : -down;
    const int64_t last = channel + up < channels ? up : channels - 1 - channel;
    W total = 0;
    for (int64_t k = first; k <= last; ++k) total += f(i + k * step);
    return total;
  }
  // The base of the power: bias + scale · Σ X² over the window of element i. x(j): element j of X.
  template <typename F>
  ARBALEST_HOST_DEVICE W base(int64_t i, const F& x) const {
    return bias + scale * sum(i, before, after, [&](int64_t j) { return x(j) * x(j); });
  }
  template <typename F>
  ARBALEST_HOST_DEVICE W normalized(int64_t i, const F& x) const {
    return x(i) * std::pow(base(i, x), -beta);
  }
  // Gradient that element i's window sends to each of its elements, without the factors −2 · scale · beta and that
  // element itself.
  template <typename D, typename F>
  ARBALEST_HOST_DEVICE W term(int64_t i, const D& dy, const F& x) const {
    return dy(i) * x(i) * std::pow(base(i, x), -beta - 1);
  }
  // Gradient of element i. term(j): the result of term() for element j. A window that reaches `after` channels up
  // holds element i if its own channel is up to `after` below.
  template <typename D, typename F, typename Term>
  ARBALEST_HOST_DEVICE W gradient(int64_t i, const D& dy, const F& x, const Term& term) const {
    return dy(i) * std::pow(base(i, x), -beta) - 2 * scale * beta * x(i) * sum(i, after, before, term);
  }
};

template <typename W>
ChannelWindows<W> channel_windows(const KernelRequest& request);
extern template ChannelWindows<float> channel_windows<float>(const KernelRequest& request);
extern template ChannelWindows<double> channel_windows<double>(const KernelRequest& request);

}  // namespace arbalest
