// SPDX-License-Identifier: Apache-2.0

// CUDA side of MaxPool and its gradient: which of the kernels in max_pool.cuh run.

#include "ops/nn/max_pool.cuh"

#include "ops/nn/max_pool.h"

namespace arbalest {

using namespace cuda;

namespace {

SlidingWindow sliding_window(const Node& node, const TensorType& x, const TensorType& y) {
  return {pixels_of(x.shape), pixels_of(y.shape), window_of(node, x.shape)};
}

// Describes a window whose extents along depth are 1.
Pool make_pool(const SlidingWindow& sliding, const TensorType& x) {
  const Window& window = sliding.window;
  return {.images = x.shape[0],
          .channels = int(x.shape[1]),
          .height = int(sliding.in[1]),
          .width = int(sliding.in[2]),
          .out_height = int(sliding.out[1]),
          .out_width = int(sliding.out[2]),
          .kernel_height = int(window.kernel[1]),
          .kernel_width = int(window.kernel[2]),
          .stride_height = int(window.stride[1]),
          .stride_width = int(window.stride[2]),
          .dilation_height = int(window.dilation[1]),
          .dilation_width = int(window.dilation[2]),
          .pad_top = int(window.pad_begin[1]),
          .pad_left = int(window.pad_begin[2])};
}

std::unique_ptr<Kernel> plain_max_pool(const KernelRequest& request) {
  using Out = MaxPoolOutput;
  const DeviceWindow window(sliding_window(request.node, request.inputs[0], request.outputs[Out::Y]));
  const int64_t count = request.outputs[Out::Y].elements();
  const int channels = int(request.inputs[0].shape[1]), multiprocessors = multiprocessors_of(request);
  const bool indexed = request.has_output(Out::Indices),
             columns_first = int_attribute(request.node, "storage_order") != 0;
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      const IndexOrder order{columns_first, indexed ? output<int64_t>(c, Out::Indices) : nullptr};
      plain_max_pool_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
          window, count, channels, order, input<T>(c, 0), output<T>(c, Out::Y));
      check_launch("max_pool");
    });
  });
}

std::unique_ptr<Kernel> plain_max_pool_gradient(const KernelRequest& request) {
  using In = MaxPoolGradInput;
  const DeviceWindow window(sliding_window(request.node, request.inputs[In::X], request.inputs[In::Y]));
  const int64_t count = request.outputs[0].elements();
  const int channels = int(request.inputs[In::X].shape[1]), multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[In::X].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      plain_max_pool_gradient_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
          window, count, channels, input<T>(c, In::dY), input<T>(c, In::X), input<T>(c, In::Y), output<T>(c, 0));
      check_launch("max_pool gradient");
    });
  });
}

// function(std::integral_constant): K of find_maxima().
template <typename Function>
void with_taps(const Pool& pool, Function function) {
  const bool square = pool.kernel_height == pool.kernel_width && pool.dilation_height == 1 && pool.dilation_width == 1;
  if (square && pool.kernel_height == 2) return function(std::integral_constant<int, 2>{});
  if (square && pool.kernel_height == 3) return function(std::integral_constant<int, 3>{});
  function(std::integral_constant<int, 0>{});
}

// function(std::integral_constant): elements of a pack.
template <typename T, typename Function>
void with_packs(const Pool& pool, bool all_aligned, Function function) {
  constexpr int kWide = 16 / sizeof(T);
  if (pool.channels % kWide == 0 && all_aligned) return function(std::integral_constant<int, kWide>{});
  if (pool.channels % 2 == 0 && all_aligned) return function(std::integral_constant<int, 2>{});
  function(std::integral_constant<int, 1>{});
}

// Calls function(std::integral_constant K, std::integral_constant S) if there is a max_pool_cells_gradient_kernel<K, S>
// for the window. Returns whether there is.
template <typename Function>
bool with_cells(const Pool& pool, Function function) {
  const auto is = [&](int kernel, int stride) {
    return pool.kernel_height == kernel && pool.kernel_width == kernel && pool.stride_height == stride &&
           pool.stride_width == stride && pool.dilation_height == 1 && pool.dilation_width == 1;
  };
  using Two = std::integral_constant<int, 2>;
  using Three = std::integral_constant<int, 3>;
  if (is(2, 2)) return function(Two{}, Two{}), true;
  if (is(3, 2)) return function(Three{}, Two{}), true;
  return false;
}

// Y, and with `kept` the taps of the maxima.
std::unique_ptr<Kernel> windows_maxima(const KernelRequest& request, bool kept) {
  using Out = MaxPoolTapsOutput;
  const Pool pool =
      make_pool(sliding_window(request.node, request.inputs[0], request.outputs[Out::Y]), request.inputs[0]);
  const bool small = is_small(request.inputs[0].bytes());
  const int64_t count = request.outputs[Out::Y].elements();
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      const T* x = input<T>(c, 0);
      T* y = output<T>(c, Out::Y);
      uint8_t* taps = kept ? output<uint8_t>(c, Out::Taps) : nullptr;
      with_packs<T>(pool, aligned(x) && aligned(y) && aligned(taps), [&](auto pack) {
        with_taps(pool, [&](auto taps_of) {
          const dim3 blocks = blocks_for(count / pack.value, multiprocessors);
          launch_dependent(max_pool_kernel<taps_of.value, pack.value, T>,
                           Launch{blocks, kThreads, 0, stream_of(c), small}, pool, x, y, taps);
        });
      });
      check_launch("max_pool");
    });
  });
}

std::unique_ptr<Kernel> max_pool(const KernelRequest& request) {
  if (request.inputs[0].shape.size() > 4 || request.has_output(MaxPoolOutput::Indices)) return plain_max_pool(request);
  return windows_maxima(request, false);
}

std::unique_ptr<Kernel> max_pool_taps(const KernelRequest& request) {
  return windows_maxima(request, true);
}

std::unique_ptr<Kernel> max_pool_gradient(const KernelRequest& request) {
  using In = MaxPoolGradInput;
  if (request.inputs[In::X].shape.size() > 4) return plain_max_pool_gradient(request);
  const Pool pool =
      make_pool(sliding_window(request.node, request.inputs[In::X], request.inputs[In::Y]), request.inputs[In::X]);
  const bool small = is_small(request.inputs[In::X].bytes());
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[In::X].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      const T *dy = input<T>(c, In::dY), *x = input<T>(c, In::X), *y = input<T>(c, In::Y);
      T* dx = output<T>(c, 0);
      with_packs<T>(pool, aligned(dy) && aligned(x) && aligned(y) && aligned(dx), [&](auto pack) {
        const dim3 blocks = blocks_for(count / pack.value, multiprocessors);
        launch_dependent(max_pool_gradient_kernel<pack.value, T>, Launch{blocks, kThreads, 0, stream_of(c), small},
                         pool, dy, x, y, dx);
      });
      check_launch("max_pool gradient");
    });
  });
}

std::unique_ptr<Kernel> max_pool_taps_gradient(const KernelRequest& request) {
  using In = MaxPoolTapsGradInput;
  const Pool pool =
      make_pool(sliding_window(request.node, request.outputs[0], request.inputs[In::dY]), request.outputs[0]);
  const bool small = is_small(request.outputs[0].bytes());
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[In::dY].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      const T* dy = input<T>(c, In::dY);
      const uint8_t* taps = input<uint8_t>(c, In::Taps);
      T* dx = output<T>(c, 0);
      with_packs<T>(pool, aligned(dy) && aligned(taps) && aligned(dx), [&](auto pack) {
        const auto launch = [&](int64_t threads) {
          return Launch{blocks_for(threads, multiprocessors), kThreads, 0, stream_of(c), small};
        };
        const bool by_cells = with_cells(pool, [&](auto k, auto stride) {
          const PoolCells cells(pool, stride.value);
          launch_dependent(max_pool_cells_gradient_kernel<k.value, stride.value, pack.value, T>,
                           launch(pool.images * cells.rows * cells.columns * (pool.channels / pack.value)), pool, cells,
                           dy, taps, dx);
        });
        if (!by_cells) {
          launch_dependent(max_pool_taps_gradient_kernel<pack.value, T>, launch(count / pack.value), pool, dy, taps,
                           dx);
        }
      });
      check_launch("max_pool gradient");
    });
  });
}

}  // namespace

void register_nn_max_pool_cuda(OpRegistry& registry) {
  registry.find("MaxPool")->cuda = max_pool;
  registry.find("arbalest.MaxPoolGrad")->cuda = max_pool_gradient;
  registry.find("arbalest.MaxPoolTaps")->cuda = max_pool_taps;
  registry.find("arbalest.MaxPoolTapsGrad")->cuda = max_pool_taps_gradient;
}

}  // namespace arbalest
