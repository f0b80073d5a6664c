// SPDX-License-Identifier: Apache-2.0

// Convolutions by kernels of ours for Hopper GPUs. Compiled only with CUDA.

#include <doctest/doctest.h>

#include "ops/conv/grouped/conv_direct.h"
#include "ops/conv/hopper/conv_folded.h"
#include "ops/conv/hopper/conv_halo.h"
#include "ops/conv/hopper/conv_pointwise.h"
#include "ops/cuda/tensor_map.h"
#include "ops/norm/gradient_of.h"
#include "ops/norm/statistics_chunks.h"
#include "tests/ops/lowered_tensor.h"

using namespace arbalest;

namespace conv_tile_cuda_test {
namespace {

using Kind = ConvolutionProblem::Kind;

ConvolutionProblem problem_of(Kind kind, const Shape& x, int64_t filters, const Shape& taps, int64_t pad = 0) {
  ConvolutionProblem problem;
  problem.kind = kind;
  problem.type = DataType::Bfloat16;
  problem.output_type = kind == Kind::GradWeight ? DataType::Float32 : DataType::Bfloat16;
  problem.x = x;
  problem.w = {filters, x[1], taps[0], taps[1]};
  problem.y = {x[0], filters, x[2] - taps[0] + 1 + 2 * pad, x[3] - taps[1] + 1 + 2 * pad};
  problem.stride = problem.dilation = {1, 1};
  problem.pad_begin = problem.pad_end = {pad, pad};
  return problem;
}

bool has_hopper() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 && has_hopper_kernels(CudaContext(0).model))
    return true;
  MESSAGE("SKIP: no GPU of compute capability 9.0, or no build for it (-Dgpu_arch=sm_90a)");
  return false;
}

ConvolutionCall call(const DeviceBuffer& a, const DeviceBuffer& b, void* result) {
  return {.multiprocessors = 132, .a = a.data(), .b = b.data(), .result = result};
}

struct Operands {
  test::LoweredTensor a, b;
  std::vector<float> expected;

  explicit Operands(const ConvolutionProblem& problem, float mean = 0)
      : a(test::lowered_noise(problem.kind == Kind::GradInput ? problem.y : problem.x, 1, mean)),
        b(test::lowered_noise(problem.kind == Kind::GradWeight ? problem.y : problem.w, 2)) {
    ConvolutionProblem exact = problem;
    exact.type = exact.output_type = DataType::Float32;
    const DeviceBuffer result = test::room_for(problem.output_shape());
    kPlainLoopsEngine.run(exact, call(a.exact, b.exact, result.data()));
    expected = test::content(result, problem.output_shape());
  }
};

// Means and sums of squared deviations of each chunk and channel, of `values` (N,C,H,W) in channels-last order.
std::vector<float> statistics_of(const std::vector<float>& values, const Shape& image, int64_t chunk_pixels) {
  const int64_t channels = image[1], pixels = int64_t(values.size()) / channels;
  std::vector<float> partials;
  for (int64_t begin = 0; begin < pixels; begin += chunk_pixels) {
    const int64_t end = std::min(begin + chunk_pixels, pixels);
    for (int64_t c = 0; c < channels; ++c) {
      double mean = 0, squares = 0;
      for (int64_t p = begin; p < end; ++p) mean += double(values[size_t(p * channels + c)]) / double(end - begin);
      for (int64_t p = begin; p < end; ++p) squares += std::pow(double(values[size_t(p * channels + c)]) - mean, 2);
      partials.push_back(float(mean));
      partials.push_back(float(squares));
    }
  }
  return partials;
}

// Statistics of all chunks merged as if they were one.
std::vector<float> merged_statistics(const std::vector<float>& partials, const Shape& image, int64_t chunk_pixels) {
  const int64_t channels = image[1], pixels = element_count(image) / channels;
  std::vector<float> merged;
  for (int64_t c = 0; c < channels; ++c) {
    double count = 0, mean = 0, squares = 0;
    for (int64_t chunk = 0; chunk * chunk_pixels < pixels; ++chunk) {
      const double more = double(std::min(pixels, (chunk + 1) * chunk_pixels) - chunk * chunk_pixels);
      const float* const partial = &partials[size_t((chunk * channels + c) * 2)];
      const double away = double(partial[0]) - mean;
      squares += double(partial[1]) + away * away * count * more / (count + more);
      mean += away * more / (count + more);
      count += more;
    }
    merged.push_back(float(mean));
    merged.push_back(float(squares));
  }
  return merged;
}

// run(result, partials), twice.
template <typename Run>
void check_statistics(const ConvolutionProblem& problem, const Operands& operands, int64_t chunk_pixels, Run run,
                      bool in_order = true) {
  const Shape image = problem.output_shape();
  const Shape of_partials = {pixel_chunks(image, chunk_pixels).chunks, image[1], 2};
  std::vector<float> results[2], partials[2];
  for (int i = 0; i < 2; ++i) {
    const DeviceBuffer result = test::room_for(image), sums = test::room_for(of_partials);
    run(result.data(), sums.data());
    results[i] = test::content(result, image, DataType::Bfloat16);
    partials[i] = test::content(sums, of_partials);
  }
  CHECK(results[0] == results[1]);
  CHECK(partials[0] == partials[1]);
  CHECK(test::worst_share(results[0], operands.expected, 1) < 1);
  const int64_t pixels = element_count(image) / image[1];
  if (in_order) {
    CHECK(test::worst_share(partials[0], statistics_of(results[0], image, chunk_pixels), chunk_pixels) < 1);
  }
  CHECK(test::worst_share(merged_statistics(partials[0], image, chunk_pixels), statistics_of(results[0], image, pixels),
                          pixels) < 1);
}

// Checks the gradient g, and the sums of g and of g · (x − mean) by chunk. A batch norm's Relu has masked g; the result
// stays unmasked if the mask follows from X alone. The expected values follow from the result that the kernel stores
// without Relu and second gradient. Calls run(from, mask, two, result, partials) twice for each form.
template <typename Run>
void check_gradient_sums(const ConvolutionProblem& problem, const Operands& operands, int64_t chunk_pixels, Run run,
                         bool in_order = true) {
  const Shape image = problem.output_shape();
  const int64_t channels = image[1], pixels = element_count(image) / channels;
  const Shape of_partials = {pixel_chunks(image, chunk_pixels).chunks, channels, 2};
  const test::LoweredTensor x = test::lowered_noise(image, 3), y = test::lowered_noise(image, 4);
  const test::LoweredTensor second = test::lowered_noise(image, 5);
  const std::vector<float> exact_x = test::content(x.exact, image), exact_y = test::content(y.exact, image);
  const std::vector<float> exact_second = test::content(second.exact, image);
  std::vector<float> of_channels[4];  // mean, 1 / deviation, scale, bias: numbers whose products are exact
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t c = 0; c < channels; ++c) of_channels[i].push_back(float((c * 5 + i * 3) % 7 - 2) / (i == 3 ? 64 : 8));
  }
  const DeviceBuffer mean = test::on_device(of_channels[0]), inv_std = test::on_device(of_channels[1]);
  const DeviceBuffer scale = test::on_device(of_channels[2]), bias = test::on_device(of_channels[3]);
  using T = __nv_bfloat16;
  const auto floats = [](const DeviceBuffer& buffer) { return static_cast<const float*>(buffer.data()); };
  const cuda::GradientOf<T> from = {nullptr,
                                    static_cast<const T*>(second.lowered.data()),
                                    static_cast<const T*>(x.lowered.data()),
                                    static_cast<const T*>(y.lowered.data()),
                                    floats(mean),
                                    floats(inv_std),
                                    floats(scale),
                                    floats(bias)};
  std::vector<float> plain;
  for (const cuda::Mask mask : {cuda::Mask::None, cuda::Mask::Y, cuda::Mask::X}) {
    for (const bool two : {false, true}) {
      CAPTURE(int(mask));
      CAPTURE(two);
      std::vector<float> results[2], partials[2];
      for (int i = 0; i < 2; ++i) {
        const DeviceBuffer result = test::room_for(image), sums = test::room_for(of_partials);
        run(from, mask, two, result.data(), sums.data());
        results[i] = test::content(result, image, DataType::Bfloat16);
        partials[i] = test::content(sums, of_partials);
      }
      CHECK(results[0] == results[1]);
      CHECK(partials[0] == partials[1]);
      if (plain.empty()) {
        plain = results[0];
        CHECK(test::worst_share(plain, operands.expected, 1) < 1);
      }
      std::vector<float> expected;
      std::vector<double> sums(partials[0].size()), sizes(sums.size());  // sizes: of the terms
      const int64_t sum_pixels = in_order ? chunk_pixels : pixels;
      for (int64_t p = 0; p < pixels; ++p) {
        for (int64_t c = 0; c < channels; ++c) {
          const size_t at = size_t(p * channels + c), channel = size_t(c);
          const float centred = exact_x[at] - of_channels[0][channel];
          float g = plain[at] + (two ? exact_second[at] : 0);
          if (mask == cuda::Mask::Y && !(exact_y[at] > 0)) g = 0;
          const float gain = of_channels[2][channel] * of_channels[1][channel];
          if (mask == cuda::Mask::X && !(centred * gain + of_channels[3][channel] > 0)) g = 0;
          expected.push_back(mask == cuda::Mask::X && !two ? plain[at] : g);
          const double terms[] = {double(g), double(g) * double(centred)};
          for (size_t i = 0; i < 2; ++i) {
            sums[size_t((p / sum_pixels * channels + c) * 2) + i] += terms[i];
            sizes[size_t((p / sum_pixels * channels + c) * 2) + i] += std::abs(terms[i]);
          }
        }
      }
      CHECK(test::worst_share(results[0], expected, 1) < 1);
      double worst = 0;
      for (size_t i = 0; i < (in_order ? sums.size() : size_t(channels) * 2); ++i) {
        double found = partials[0][i];
        for (size_t j = i + size_t(channels) * 2; !in_order && j < sums.size(); j += size_t(channels) * 2) {
          found += double(partials[0][j]);
        }
        const double share = std::abs(found - sums[i]) / (1e-5 * sizes[i] + 1e-6);
        worst = share <= worst ? worst : share;  // NaN too
      }
      CHECK(worst < 1);
    }
  }
}

// Checks that the gradient sums for two batch norms are those for each of them alone.
void check_pair_sums(const ConvolutionProblem& problem, const Operands& operands, int64_t chunk_pixels) {
  using T = __nv_bfloat16;
  const Shape image = problem.output_shape(), of_partials = {pixel_chunks(image, chunk_pixels).chunks, image[1], 2};
  const test::LoweredTensor x = test::lowered_noise(image, 3), x2 = test::lowered_noise(image, 4);
  const test::LoweredTensor y = test::lowered_noise(image, 5), second = test::lowered_noise(image, 6);
  const DeviceBuffer mean = test::noise({image[1]}, 7), mean2 = test::noise({image[1]}, 8);
  const auto tensor = [](const test::LoweredTensor& of) { return static_cast<const T*>(of.lowered.data()); };
  const auto floats = [](const DeviceBuffer& of) { return static_cast<const float*>(of.data()); };
  std::vector<float> g;
  const auto sums_of = [&](const test::LoweredTensor& input, const DeviceBuffer& its_mean) {
    const cuda::GradientOf<T> from = {nullptr,          tensor(second), tensor(input), tensor(y),
                                      floats(its_mean), nullptr,        nullptr,       nullptr};
    const DeviceBuffer result = test::room_for(image), sums = test::room_for(of_partials);
    kPointwiseStatistics.gradient_sums(problem, chunk_pixels,
                                       call(operands.a.lowered, operands.b.lowered, result.data()), from, cuda::Mask::Y,
                                       true, sums.data());
    g = test::content(result, image, DataType::Bfloat16);
    return test::content(sums, of_partials);
  };
  const std::vector<float> first = sums_of(x, mean), other = sums_of(x2, mean2);
  std::vector<std::vector<float>> found[2];
  for (std::vector<std::vector<float>>& each : found) {
    const DeviceBuffer result = test::room_for(image), sums = test::room_for(of_partials);
    const DeviceBuffer sums2 = test::room_for(of_partials);
    const cuda::PairGradientOf<T> from = {nullptr,    tensor(second), tensor(y),    tensor(x),
                                          tensor(x2), floats(mean),   floats(mean2)};
    kPointwiseStatistics.pair_gradient_sums(problem, chunk_pixels,
                                            call(operands.a.lowered, operands.b.lowered, result.data()), from,
                                            sums.data(), sums2.data());
    each = {test::content(result, image, DataType::Bfloat16), test::content(sums, of_partials),
            test::content(sums2, of_partials)};
  }
  CHECK(found[0] == found[1]);
  CHECK(found[0][0] == g);
  CHECK(test::worst_share(found[0][1], first, chunk_pixels) < 1);
  CHECK(test::worst_share(found[0][2], other, chunk_pixels) < 1);
}

}  // namespace

TEST_CASE("CUDA: pointwise convolutions and their statistics agree with plain loops, with the same bits each time") {
  if (!has_hopper()) return;
  struct Extents {
    Shape x;
    int64_t filters;
  };
  // One tile and many, the last of which are full or not, and as many in each chunk or not. Filters that stay in shared
  // memory and that do not, channels that tiles do not divide.
  for (const Extents& e : {Extents{{1, 8, 1, 1}, 8}, Extents{{3, 64, 14, 14}, 64}, Extents{{2, 64, 56, 56}, 256},
                           Extents{{2, 256, 28, 28}, 64}, Extents{{4, 64, 24, 24}, 72}, Extents{{3, 520, 9, 7}, 200},
                           Extents{{2, 72, 31, 30}, 136}}) {
    for (const Kind kind : {Kind::Forward, Kind::GradInput}) {
      for (const int64_t tiles : {1, 3}) {
        CAPTURE(to_string(e.x));
        CAPTURE(int(kind));
        CAPTURE(tiles);
        const ConvolutionProblem problem = problem_of(kind, e.x, e.filters, {1, 1});
        REQUIRE(is_pointwise(problem));
        const Operands operands(problem);
        const int64_t chunk_pixels = tiles * kPointwiseTilePixels;
        const int64_t pixels = e.x[0] * e.x[2] * e.x[3];
        const bool in_order = tiles == 1 || pixels % kPointwiseTilePixels != 0;  // else chunks take turns
        check_statistics(
            problem, operands, chunk_pixels,
            [&](void* result, void* partials) {
              kPointwiseStatistics.statistics(problem, chunk_pixels,
                                              call(operands.a.lowered, operands.b.lowered, result), partials);
            },
            in_order);
        if (kind == Kind::Forward) continue;
        check_gradient_sums(
            problem, operands, chunk_pixels,
            [&](const auto& from, cuda::Mask mask, bool two, void* result, void* partials) {
              kPointwiseStatistics.gradient_sums(problem, chunk_pixels,
                                                 call(operands.a.lowered, operands.b.lowered, result), from, mask, two,
                                                 partials);
            },
            in_order);
        check_pair_sums(problem, operands, chunk_pixels);
      }
    }
  }
}

TEST_CASE(
    "CUDA: convolutions of 3 x 3, their statistics and sums agree with plain loops, with the same bits each time") {
  if (!has_hopper()) return;
  struct Extents {
    Shape x;
    int64_t filters;
  };
  // Tiles of rows, of parts of rows, of images and of several images, the last of which are not there. Filters that
  // stay in shared memory and that do not; channels and pairs of tiles that do not divide; more tiles than processors.
  for (const Extents& e : {Extents{{1, 8, 1, 1}, 8}, Extents{{2, 64, 56, 56}, 64}, Extents{{3, 128, 28, 28}, 128},
                           Extents{{5, 64, 14, 14}, 256}, Extents{{7, 128, 7, 7}, 136}, Extents{{45, 8, 5, 6}, 72},
                           Extents{{3, 72, 9, 6}, 200}, Extents{{1, 16, 8, 224}, 64}, Extents{{2, 8, 3, 131}, 8},
                           Extents{{33, 64, 28, 28}, 64}, Extents{{33, 72, 28, 28}, 136}, Extents{{267, 8, 7, 7}, 72},
                           Extents{{268, 8, 5, 6}, 72}}) {
    for (const Kind kind : {Kind::Forward, Kind::GradInput}) {
      CAPTURE(to_string(e.x));
      CAPTURE(int(kind));
      ConvolutionProblem problem = problem_of(kind, e.x, e.filters, {3, 3}, 1);
      REQUIRE(is_halo(problem));
      const Operands operands(problem);
      const Shape image = problem.output_shape();
      const HaloTile tile = halo_tile(image, 132);
      const int64_t bands = 2 * tile.pixels() * (image[3] / tile.width);  // whole rows
      for (const int64_t chunk_pixels : {halo_chunk_pixels(image, 132), bands}) {
        const bool in_order = chunk_pixels % (bands / 2) == 0;
        check_statistics(
            problem, operands, chunk_pixels,
            [&](void* result, void* partials) {
              kHaloStatistics.statistics(problem, chunk_pixels, call(operands.a.lowered, operands.b.lowered, result),
                                         partials);
            },
            in_order);
        if (kind == Kind::Forward) continue;
        check_gradient_sums(
            problem, operands, chunk_pixels,
            [&](const auto& from, cuda::Mask mask, bool two, void* result, void* partials) {
              kHaloStatistics.gradient_sums(problem, chunk_pixels, call(operands.a.lowered, operands.b.lowered, result),
                                            from, mask, two, partials);
            },
            in_order);
      }
      const std::vector<float> numbers = test::noise_values({image[1]}, 6);
      const DeviceBuffer bias = test::on_device(numbers);
      for (const bool relu : {false, true}) {
        for (const bool with_bias : {false, true}) {
          if (kind == Kind::GradInput && (relu || with_bias)) continue;
          problem.relu = relu;
          if (kind == Kind::Forward) problem.kind = with_bias ? Kind::ForwardBias : Kind::Forward;
          const DeviceBuffer result = test::room_for(image);
          ConvolutionCall with = call(operands.a.lowered, operands.b.lowered, result.data());
          if (with_bias) with.bias = static_cast<const float*>(bias.data());
          kHaloEngine.run(problem, with);
          std::vector<float> expected = operands.expected;
          for (size_t i = 0; i < expected.size(); ++i) {
            if (with_bias) expected[i] += numbers[i % numbers.size()];
            if (relu) expected[i] = std::max(expected[i], 0.0f);
          }
          CHECK(test::worst_share(test::content(result, image, DataType::Bfloat16), expected, 1) < 1);
        }
      }
    }
  }
}

TEST_CASE("CUDA: means far from zero cost statistics of pointwise convolutions no digits") {
  if (!has_hopper()) return;
  const ConvolutionProblem problem = problem_of(Kind::Forward, {4, 64, 24, 24}, 128, {1, 1});
  const Operands operands(problem, 15);
  constexpr int64_t kChunkPixels = 6 * kPointwiseTilePixels;
  check_statistics(
      problem, operands, kChunkPixels,
      [&](void* result, void* partials) {
        kPointwiseStatistics.statistics(problem, kChunkPixels, call(operands.a.lowered, operands.b.lowered, result),
                                        partials);
      },
      false);
}

TEST_CASE("CUDA: convolutions of folded images and their filters' gradients agree with plain loops") {
  if (!has_hopper()) return;
  // Rows of one tile, whose width 16 divides or not, and of two; more filters than a block takes.
  for (const Shape& x : {Shape{2, 16, 19, 115}, Shape{3, 16, 9, 78}, Shape{1, 16, 12, 203}, Shape{40, 16, 40, 67}}) {
    for (const int64_t filters : {64, 24, 136}) {
      CAPTURE(to_string(x));
      CAPTURE(filters);
      const ConvolutionProblem forward = problem_of(Kind::Forward, x, filters, {4, 4});
      REQUIRE(is_folded_row(forward));
      const Operands operands(forward);
      for (const int64_t tiles : {1, 7}) {
        const int64_t chunk_pixels = tiles * row_tile_pixels(forward.y[3]);
        check_statistics(forward, operands, chunk_pixels, [&](void* result, void* partials) {
          run_folded_statistics(forward, chunk_pixels, call(operands.a.lowered, operands.b.lowered, result), partials);
        });
      }
      const ConvolutionProblem gradient = problem_of(Kind::GradWeight, x, filters, {4, 4});
      REQUIRE(is_folded_row(gradient));
      const Operands of_gradient(gradient);
      for (const int processors : {8, 132}) {  // longer sums lose digits in the matrix units
        std::vector<float> results[2];
        for (std::vector<float>& result : results) {
          const DeviceBuffer found = test::room_for(gradient.w);
          const DeviceBuffer workspace(kFoldedGradientEngine.workspace(gradient, processors));
          ConvolutionCall with = call(of_gradient.a.lowered, of_gradient.b.lowered, found.data());
          with.multiprocessors = processors;
          with.workspace = workspace.data();
          kFoldedGradientEngine.run(gradient, with);
          result = test::content(found, gradient.w);
        }
        CHECK(results[0] == results[1]);
        CHECK(test::worst_share(results[0], of_gradient.expected, gradient.y[0] * gradient.y[2] * gradient.y[3]) < 1);
      }
    }
  }
}

TEST_CASE("which convolutions are pointwise, which are of 3 x 3, and which rows of taps follow each other in memory") {
  const auto refused = [](ConvolutionProblem problem, auto accepts, auto change) {
    REQUIRE(accepts(problem));
    change(problem);
    return !accepts(problem);
  };
  const auto pointwise = [&](auto change) {
    return refused(problem_of(Kind::Forward, {2, 16, 8, 8}, 24, {1, 1}), is_pointwise, change);
  };
  CHECK(pointwise([](ConvolutionProblem& p) { p.stride = {2, 2}; }));
  CHECK(pointwise([](ConvolutionProblem& p) { p.pad_end = {1, 0}; }));
  CHECK(pointwise([](ConvolutionProblem& p) { p.w[1] = 8; }));  // groups
  CHECK(pointwise([](ConvolutionProblem& p) { p.w[0] = p.y[1] = 20; }));
  CHECK(pointwise([](ConvolutionProblem& p) { p.kind = Kind::GradWeight; }));
  CHECK(pointwise([](ConvolutionProblem& p) { p.kind = Kind::ForwardBias; }));
  CHECK(pointwise([](ConvolutionProblem& p) { p.type = p.output_type = DataType::Float32; }));
  const auto halo = [&](auto change) {
    return refused(problem_of(Kind::Forward, {2, 16, 8, 8}, 24, {3, 3}, 1), is_halo, change);
  };
  CHECK(halo([](ConvolutionProblem& p) { p.stride = {2, 2}; }));
  CHECK(halo([](ConvolutionProblem& p) { p.dilation = {2, 2}; }));
  CHECK(halo([](ConvolutionProblem& p) { p.pad_end = {1, 0}; }));
  CHECK(halo([](ConvolutionProblem& p) { p.w = {24, 16, 3, 1}; }));
  CHECK(halo([](ConvolutionProblem& p) { p.w[1] = 8; }));  // groups
  CHECK(halo([](ConvolutionProblem& p) { p.x[1] = p.w[1] = 12; }));
  CHECK(halo([](ConvolutionProblem& p) { p.kind = Kind::GradWeight; }));
  CHECK(halo([](ConvolutionProblem& p) { p.output_type = DataType::Float32; }));
  const auto folded = [&](auto change) {
    return refused(problem_of(Kind::Forward, {2, 16, 19, 115}, 24, {4, 4}), is_folded_row, change);
  };
  CHECK(folded([](ConvolutionProblem& p) { p.stride = {2, 2}; }));
  CHECK(folded([](ConvolutionProblem& p) { p.pad_begin = {1, 1}; }));
  CHECK(folded([](ConvolutionProblem& p) { p.w[2] = 3; }));
  CHECK(folded([](ConvolutionProblem& p) { p.x[1] = 48, p.w = {24, 48, 4, 1}; }));  // no part of 64
  CHECK(folded([](ConvolutionProblem& p) { p.x[1] = 24, p.w = {24, 24, 4, 2}; }));
  CHECK(folded([](ConvolutionProblem& p) { p.y[3] = 131; }));  // a prime number: tiles of one pixel
  CHECK(folded([](ConvolutionProblem& p) { p.kind = Kind::GradInput; }));
}

}  // namespace conv_tile_cuda_test
