// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/few/conv_small.h"

#include <optional>

#include "ops/conv/few/conv_small.cuh"
#include "ops/conv/few/conv_small_filter_gradient.cuh"
#include "ops/conv/few/conv_thin.h"
#include "ops/cuda/partial_sums.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

constexpr int kMostChannels = 64, kMostTaps = 7, kMostWidth = 64;

SmallWindow forward_window(const ConvolutionProblem& p) {
  const auto at = [](const auto& values, size_t i) { return int(values[i]); };
  SmallWindow w;
  w.images = at(p.x, 0), w.channels = at(p.x, 1), w.height = at(p.x, 2), w.width = at(p.x, 3);
  w.made = at(p.y, 1), w.out_height = at(p.y, 2), w.out_width = at(p.y, 3);
  w.taps_high = at(p.w, 2), w.taps_wide = at(p.w, 3);
  w.stride_high = at(p.stride, 0), w.stride_wide = at(p.stride, 1);
  w.step_high = at(p.dilation, 0), w.step_wide = at(p.dilation, 1);
  w.pad_top = at(p.pad_begin, 0), w.pad_left = at(p.pad_begin, 1);
  return w;
}

// dX as a convolution of dY, of stride 1.
SmallWindow backward_window(const ConvolutionProblem& p) {
  SmallWindow w = forward_window(p);
  std::swap(w.channels, w.made);
  std::swap(w.height, w.out_height);
  std::swap(w.width, w.out_width);
  w.pad_top = (w.taps_high - 1) * w.step_high - w.pad_top;
  w.pad_left = (w.taps_wide - 1) * w.step_wide - w.pad_left;
  return w;
}

// So many rows of a tile that each multiprocessor has one, and at least one row.
int rows_for(const SmallWindow& window, int blocks) {
  const int bands = std::clamp(blocks / std::max(window.images, 1), 1, window.out_height);
  return (window.out_height + bands - 1) / bands;
}

// The largest form of at most so many rows that shared memory holds; nothing: even one row is too large.
template <typename Form, typename Make>
std::optional<Form> largest(int rows, Make make) {
  for (; rows > 0; rows /= 2) {
    const Form form = make(rows);
    if (form.shared_bytes() <= DeviceModel::kLargeBlock) return form;
  }
  return std::nullopt;
}

std::optional<SmallForm> form_of(const ConvolutionProblem& problem, int multiprocessors) {
  const bool reversed = problem.kind == Kind::GradInput;
  const SmallWindow window = reversed ? backward_window(problem) : forward_window(problem);
  const int pitch = window.channels == 1 ? 1 : (window.channels + 1) / 2 * 2;
  return largest<SmallForm>(rows_for(window, multiprocessors), [&](int rows) {
    SmallForm form;
    form.window = window;
    form.tiling = SmallTiling(window, rows, pitch);
    form.columns = (window.made + 7) / 8;
    if (form.columns > 4) form.columns = (form.columns + 1) / 2 * 2;
    form.steps = (window.taps() * pitch + 15) / 16;
    form.splits = form.steps >= 64 ? 8 : form.steps >= 32 ? 4 : form.steps >= 8 ? 2 : 1;
    form.reversed = reversed;
    form.relu = problem.relu;
    return form;
  });
}

std::optional<SmallGradientForm> gradient_form_of(const ConvolutionProblem& problem, int multiprocessors) {
  const SmallWindow window = forward_window(problem);
  SmallGradientForm form;
  form.window = window;
  form.unfolded = window.channels < 8;
  form.groups_per_tap = form.unfolded ? 0 : (window.channels + 7) / 8;
  form.groups = form.unfolded ? (window.taps() * window.channels + 7) / 8 : window.taps() * form.groups_per_tap;
  const int pairs = (form.groups + 1) / 2;
  form.blocks_across = (pairs + 2 * kSmallWarps - 1) / (2 * kSmallWarps);
  form.pairs_per_block = (pairs + form.blocks_across - 1) / form.blocks_across;
  form.warps_across = 1;
  while (form.warps_across * 2 < form.pairs_per_block) form.warps_across *= 2;
  const int blocks = std::max(1, multiprocessors / form.blocks_across);
  // Rows of eight pixels lie in different banks.
  const int wide = form.groups_per_tap * 8;
  const int pitch = form.unfolded ? window.channels : wide % 16 == 0 ? wide + 8 : wide;
  return largest<SmallGradientForm>(rows_for(window, blocks), [&](int rows) {
    form.tiling = SmallTiling(window, rows, pitch);
    form.tiles_per_block = (form.tiling.tiles + blocks - 1) / blocks;
    form.blocks = (form.tiling.tiles + form.tiles_per_block - 1) / form.tiles_per_block;
    return form;
  });
}

template <typename Kernel>
void allow(Kernel kernel, int bytes) {
  allow_shared(kernel, bytes);
}

template <int Columns>
void launch(const SmallForm& form, int multiprocessors, cudaStream_t stream, const __nv_bfloat16* x,
            const __nv_bfloat16* w, const float* bias, __nv_bfloat16* y) {
  const auto kernel = [&] {
    const bool pairs = form.tiling.pitch % 2 == 0;
    if (form.reversed) {
      return pairs ? small_convolution_kernel<Columns, true, true> : small_convolution_kernel<Columns, false, true>;
    }
    return pairs ? small_convolution_kernel<Columns, true, false> : small_convolution_kernel<Columns, false, false>;
  }();
  const int shared = form.shared_bytes(), blocks = std::min(form.tiling.tiles, multiprocessors * 2);
  allow(kernel, shared);
  launch_dependent(kernel, unsigned(blocks), kThreads, size_t(shared), stream, form, form.filter_pitch(), x, w, bias,
                   y);
  check_launch("convolution of small images");
}

template <int M>
void launch_gradient(const SmallGradientForm& form, cudaStream_t stream, const __nv_bfloat16* x,
                     const __nv_bfloat16* dy, float* partials) {
  const auto kernel = form.unfolded ? small_filter_gradient_kernel<M, true> : small_filter_gradient_kernel<M, false>;
  const int shared = form.shared_bytes();
  allow(kernel, shared);
  launch_dependent(kernel, dim3(unsigned(form.blocks), unsigned(form.blocks_across)), kThreads, size_t(shared), stream,
                   form, x, dy, partials);
  check_launch("filter gradient of a convolution of small images");
}

void run_gradient(const SmallGradientForm& form, cudaStream_t stream, const __nv_bfloat16* x, const __nv_bfloat16* dy,
                  float* dw, float* partials) {
  float* const first = form.blocks == 1 ? dw : partials;
  switch (form.filters_wide()) {
    case 16: launch_gradient<1>(form, stream, x, dy, first); break;
    case 32: launch_gradient<2>(form, stream, x, dy, first); break;
    default: launch_gradient<4>(form, stream, x, dy, first);
  }
  if (form.blocks == 1) return;
  const int64_t count = form.partial_count();
  if (count % 4 == 0) return sum_partials(stream, form.blocks, int(count), partials, dw);
  column_totals(stream, count, form.blocks, partials, 1.0f, {dw, nullptr}, 1);
}

bool takes_small(const DeviceModel& device, const ConvolutionProblem& p) {
  if (!device.has_large_blocks() || kThinEngine.accepts(device, p)) return false;
  const DataType made = p.kind == Kind::GradWeight ? DataType::Float32 : DataType::Bfloat16;
  const auto few = [](int64_t extent, int64_t most) { return extent >= 1 && extent <= most; };
  constexpr int64_t kFar = 256;  // pixels, of a step or of padding
  const auto near = [&](const std::vector<int64_t>& values) {
    return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v >= -kFar && v <= kFar; });
  };
  if (!near(p.stride) || !near(p.dilation) || !near(p.pad_begin) || !near(p.pad_end)) return false;
  const bool fits = p.type == DataType::Bfloat16 && p.output_type == made && p.x.size() == 4 && p.w[1] == p.x[1] &&
                    few(p.x[0], 1 << 20) && few(p.x[1], kMostChannels) && few(p.y[1], kMostChannels) &&
                    few(p.w[2], kMostTaps) && few(p.w[3], kMostTaps) && p.w[2] * p.w[3] > 1 &&
                    few(p.x[2], kMostWidth) && few(p.x[3], kMostWidth) && few(p.y[2], kMostWidth) &&
                    few(p.y[3], kMostWidth) && (p.kind != Kind::GradInput || all_are(p.stride, 1));
  if (!fits) return false;
  const int multiprocessors = device.multiprocessors;
  return p.kind == Kind::GradWeight ? gradient_form_of(p, multiprocessors).has_value()
                                    : form_of(p, multiprocessors).has_value();
}

int64_t small_workspace(const ConvolutionProblem& problem, int multiprocessors) {
  if (problem.kind != Kind::GradWeight) return 0;
  const SmallGradientForm form = *gradient_form_of(problem, multiprocessors);
  return form.blocks * form.partial_count() * int64_t(sizeof(float));
}

void run_small(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  const auto *first = static_cast<const __nv_bfloat16*>(call.a), *second = static_cast<const __nv_bfloat16*>(call.b);
  if (problem.kind == Kind::GradWeight) {
    return run_gradient(*gradient_form_of(problem, call.multiprocessors), call.stream, first, second,
                        static_cast<float*>(call.result), static_cast<float*>(call.workspace));
  }
  const SmallForm form = *form_of(problem, call.multiprocessors);
  auto* y = static_cast<__nv_bfloat16*>(call.result);
  const auto run = [&](auto columns) {
    launch<decltype(columns)::value>(form, call.multiprocessors, call.stream, first, second, call.bias, y);
  };
  switch (form.columns) {
    case 1: return run(std::integral_constant<int, 1>{});
    case 2: return run(std::integral_constant<int, 2>{});
    case 3: return run(std::integral_constant<int, 3>{});
    case 4: return run(std::integral_constant<int, 4>{});
    case 6: return run(std::integral_constant<int, 6>{});
    default: return run(std::integral_constant<int, 8>{});
  }
}

}  // namespace

constexpr ConvolutionEngine kSmallEngine = {
    .name = "small",
    .revision = "small 4",
    .adds = ConvolutionEngine::Adds::BiasAndRelu,
    .takes_few = true,
    .accepts = takes_small,
    .is_faster = [](const DeviceModel&, const ConvolutionProblem&) { return false; },
    .workspace = small_workspace,
    .run = run_small};

}  // namespace arbalest
