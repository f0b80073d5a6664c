#pragma once
// What the gradient of a batch norm with Relu is made of, in a device's memory.

#include <cstdint>

namespace arbalest::cuda {

// Where Relu lets the gradient pass: everywhere, where Y > 0, or where what Y was made of, X and the channel's numbers,
// is above 0.
enum class Mask : uint8_t { None, Y, X };

// What the gradient g of the normalised values is made of; dY2 is added where it is there.
template <typename T>
struct GradientOf {
  const T *dy, *dy2, *x, *y;
  const float *mean, *inv_std, *scale, *bias;  // by channel; the last with Mask::X
};

// Of two batch norms whose sum goes through Relu: g = dY + dY2 where Relu lets y pass, and what sums with both inputs
// are made of.
template <typename T>
struct PairGradientOf {
  const T *dy, *dy2, *y, *x, *x2;
  const float *mean, *mean2;  // by channel
};

}  // namespace arbalest::cuda
