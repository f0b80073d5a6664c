// SPDX-License-Identifier: Apache-2.0

// CUDA side of batch normalisation: which of the kernels in batch_norm.cuh run, and over what layout.

#include "ops/norm/batch_norm_launch.cuh"
#include "ops/norm/batch_norm_operands.cuh"
#include "ops/norm/batch_norms.h"

namespace arbalest {

using namespace cuda;

namespace {

// Blocks that a multiprocessor has registers for, of kernels for packs of eight bfloat16.
constexpr int kNormResident = 3, kNormGradientResident = 2;

// function(std::bool_constant)
template <typename Function>
void with_flag(bool flag, Function function) {
  flag ? function(std::true_type{}) : function(std::false_type{});
}
template <typename Function>
void with_flags(bool first, bool second, Function function) {
  with_flag(first, [&](auto one) { with_flag(second, [&](auto two) { function(one, two); }); });
}

std::unique_ptr<Kernel> norm_training(const KernelRequest& request) {
  using In = BatchNormInput;
  using Out = BatchNormOutput;
  const NormLayouts layouts(request, request.inputs[In::X], kNormResident);
  const bool relu = int_attribute(request.node, "relu") != 0, residual = request.has_input(In::Residual);
  const StatisticsOperands<In, Out> operands(request);
  const bool given = request.has_input(In::Partials);  // partials
  const Columns chunks = given ? chunks_of(request, request.inputs[In::X]) : Columns();
  return with_type(request, request.inputs[In::X].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel(
        [=](const KernelContext& c) {
          const T *x = input<T>(c, In::X), *added = residual ? input<T>(c, In::Residual) : nullptr;
          T* y = output<T>(c, Out::Y);
          const auto* partials = given ? input<Partial>(c, In::Partials) : static_cast<const Partial*>(c.workspace);
          const Statistics statistics = operands.of(c);
          with_width<T>(layouts, aligned(x) && aligned(y) && aligned(added),
                        [&](auto width, const Columns& own, const Columns& columns) {
                          constexpr int W = decltype(width)::value;
                          const Columns& reduced = given ? chunks : own;
                          if (!given) {
                            launch_dependent(statistics_kernel<W, T>, own.grid(), kThreads, 0, stream_of(c), own, x,
                                             static_cast<Partial*>(c.workspace));
                            check_launch("batch_norm statistics");
                          }
                          with_flags(relu, residual, [&](auto with_relu, auto with_residual) {
                            launch_dependent(normalize_kernel<W, with_relu.value, with_residual.value, T>,
                                             columns.grid(), kThreads, 0, stream_of(c), columns, reduced, statistics,
                                             partials, x, added, y);
                          });
                          check_launch("batch_norm normalize");
                        });
        },
        given ? 0 : layouts.workspace_bytes());
  });
}

std::unique_ptr<Kernel> norm_statistics(const KernelRequest& request) {
  using In = BatchNormStatisticsInput;
  using Out = BatchNormStatisticsOutput;
  const NormLayouts layouts(request, request.inputs[In::X], kNormResident);
  const StatisticsOperands<In, Out> operands(request);
  const bool given = request.has_input(In::Partials);
  const Columns chunks = given ? chunks_of(request, request.inputs[In::X]) : Columns();
  return with_type(request, request.inputs[In::X].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel(
        [=](const KernelContext& c) {
          const Statistics numbers = operands.of(c);
          const T* x = input<T>(c, In::X);
          with_width<T>(layouts, aligned(x), [&](auto width, const Columns& own, const Columns& columns) {
            constexpr int W = decltype(width)::value;
            if (!given) {
              launch_dependent(statistics_kernel<W, T>, own.grid(), kThreads, 0, stream_of(c), own, x,
                               static_cast<Partial*>(c.workspace));
              check_launch("batch_norm statistics");
            }
            const auto* partials = given ? input<Partial>(c, In::Partials) : static_cast<const Partial*>(c.workspace);
            launch_dependent(merge_kernel<W>, dim3(unsigned(columns.slices)), kThreads, 0, stream_of(c), columns,
                             given ? chunks : own, numbers, partials);
            check_launch("batch_norm merge");
          });
        },
        given ? 0 : layouts.workspace_bytes());
  });
}

std::unique_ptr<Kernel> norm_again(const KernelRequest& request) {
  using In = BatchNormInput;
  const NormLayouts layouts(request, request.inputs[In::X], kNormResident);
  const bool relu = int_attribute(request.node, "relu") != 0, residual = request.has_input(In::Residual);
  return with_type(request, request.inputs[In::X].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      const T *x = input<T>(c, In::X), *added = residual ? input<T>(c, In::Residual) : nullptr;
      T* y = output<T>(c, 0);
      with_width<T>(layouts, aligned(x) && aligned(y) && aligned(added),
                    [&](auto width, const Columns&, const Columns& columns) {
                      constexpr int W = decltype(width)::value;
                      with_flags(relu, residual, [&](auto with_relu, auto with_residual) {
                        launch_dependent(normalize_again_kernel<W, with_relu.value, with_residual.value, T>,
                                         columns.grid(), kThreads, 0, stream_of(c), columns, x,
                                         input<float>(c, In::Scale), input<float>(c, In::Bias),
                                         input<float>(c, In::Mean), input<float>(c, In::Variance), added, y);
                      });
                      check_launch("batch_norm normalize again");
                    });
    });
  });
}

std::unique_ptr<Kernel> norm_inference(const KernelRequest& request) {
  using In = BatchNormInput;
  const NormLayouts layouts(request, request.inputs[In::X], kNormResident);
  const bool relu = int_attribute(request.node, "relu") != 0, residual = request.has_input(In::Residual);
  const float epsilon = float(float_attribute(request.node, "epsilon"));
  return with_type(request, request.inputs[In::X].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      const T *x = input<T>(c, In::X), *added = residual ? input<T>(c, In::Residual) : nullptr;
      T* y = output<T>(c, 0);
      with_width<T>(
          layouts, aligned(x) && aligned(y) && aligned(added), [&](auto width, const Columns&, const Columns& columns) {
            constexpr int W = decltype(width)::value;
            with_flags(relu, residual, [&](auto with_relu, auto with_residual) {
              inference_kernel<W, with_relu.value, with_residual.value><<<columns.grid(), kThreads, 0, stream_of(c)>>>(
                  columns, x, input<float>(c, In::Scale), input<float>(c, In::Bias), input<float>(c, In::Mean),
                  input<float>(c, In::Variance), epsilon, added, y);
            });
            check_launch("batch_norm inference");
          });
    });
  });
}

std::unique_ptr<Kernel> norm_gradient(const KernelRequest& request) {
  using In = BatchNormGradInput;
  using Out = BatchNormGradOutput;
  const NormLayouts layouts(request, request.inputs[In::X], kNormGradientResident);
  const bool relu = int_attribute(request.node, "relu") != 0, residual = request.has_output(Out::Residual);
  const bool two = request.has_input(In::Second), given = request.has_input(In::Partials);
  const Columns chunks = given ? chunks_of(request, request.inputs[In::X]) : Columns();
  const Mask mask = !relu ? Mask::None : request.has_input(In::Y) ? Mask::Y : Mask::X;
  std::array<bool, 3> has{};
  for (size_t i = 0; i < has.size(); ++i) has[i] = request.has_output(i);
  return with_type(request, request.inputs[In::X].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel(
        [=](const KernelContext& c) {
          const auto from = gradient_of<In>(c, input<T>(c, In::dY), mask, two);
          T *dx = has[0] ? output<T>(c, Out::dX) : nullptr, *kept = residual ? output<T>(c, Out::Residual) : nullptr;
          float *dscale = has[1] ? output<float>(c, Out::dScale) : nullptr,
                *dbias = has[2] ? output<float>(c, Out::dBias) : nullptr;
          auto* partials = static_cast<Partial*>(c.workspace);  // if none are given
          const bool all_aligned = aligned(from.dy) && aligned(from.dy2) && aligned(from.x) && aligned(from.y) &&
                                   aligned(dx) && aligned(kept);
          with_width<T>(layouts, all_aligned, [&](auto width, const Columns& reduced, const Columns& columns) {
            constexpr int W = decltype(width)::value;
            const auto sums = [&](auto kind, auto sum, auto keep) {
              launch_dependent(gradient_sums_kernel<W, kind.value, sum.value, keep.value, T>, reduced.grid(), kThreads,
                               0, stream_of(c), reduced, from, kept, partials);
              check_launch("batch_norm gradient sums");
            };
            const auto write = [&](auto kind, auto sum, const GradientOf<T>& of) {
              launch_dependent(gradient_kernel<W, kind.value, sum.value, T>, columns.grid(), kThreads, 0, stream_of(c),
                               columns, given ? chunks : reduced, given ? input<Partial>(c, In::Partials) : partials,
                               of, dx, dscale, dbias);
              check_launch("batch_norm gradient");
            };
            with_mask(mask, two, [&](auto kind, auto sum) {
              if (given) {
                write(kind, sum, from);
              } else if (!residual) {
                sums(kind, sum, std::false_type{});
                write(kind, sum, from);
              } else if constexpr (kind.value != Mask::X) {
                sums(kind, sum, std::true_type{});
                GradientOf<T> made = from;  // which needs no mask again
                made.dy = kept;
                write(std::integral_constant<Mask, Mask::None>{}, std::false_type{}, made);
              }
            });
          });
        },
        given ? 0 : layouts.workspace_bytes());
  });
}

std::unique_ptr<Kernel> inference_gradient(const KernelRequest& request) {
  using In = BatchNormInferenceGradInput;
  using Out = BatchNormGradOutput;
  const NormLayouts layouts(request, request.inputs[In::X], kNormGradientResident);
  const float epsilon = float(float_attribute(request.node, "epsilon"));
  std::array<bool, 3> has{};
  for (size_t i = 0; i < has.size(); ++i) has[i] = request.has_output(i);
  return with_type(request, request.inputs[In::X].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel(
        [=](const KernelContext& c) {
          const T *dy = input<T>(c, In::dY), *x = input<T>(c, In::X);
          T* dx = has[0] ? output<T>(c, Out::dX) : nullptr;
          float *dscale = has[1] ? output<float>(c, Out::dScale) : nullptr,
                *dbias = has[2] ? output<float>(c, Out::dBias) : nullptr;
          const float *scale = input<float>(c, In::Scale), *mean = input<float>(c, In::Mean),
                      *var = input<float>(c, In::Variance);
          auto* partials = static_cast<Partial*>(c.workspace);
          with_width<T>(layouts, aligned(dy) && aligned(x) && aligned(dx),
                        [&](auto width, const Columns& reduced, const Columns&) {
                          constexpr int W = decltype(width)::value;
                          inference_gradient_kernel<W><<<reduced.grid(), kThreads, 0, stream_of(c)>>>(
                              reduced, dy, x, scale, mean, var, epsilon, dx, partials);
                          check_launch("batch_norm frozen gradient");
                          if (dscale == nullptr && dbias == nullptr) return;
                          parameter_gradients_kernel<W><<<unsigned(reduced.slices), kThreads, 0, stream_of(c)>>>(
                              reduced, partials, var, epsilon, dscale, dbias);
                          check_launch("batch_norm frozen parameter gradients");
                        });
        },
        layouts.workspace_bytes());
  });
}

}  // namespace

void register_norm_batch_norm_cuda(OpRegistry& registry) {
  registry.find("arbalest.BatchNormTraining")->cuda = norm_training;
  registry.find("arbalest.BatchNormStatistics")->cuda = norm_statistics;
  registry.find("arbalest.BatchNormAgain")->cuda = norm_again;
  registry.find("arbalest.BatchNormInference")->cuda = norm_inference;
  registry.find("arbalest.BatchNormGrad")->cuda = norm_gradient;
  registry.find("arbalest.BatchNormInferenceGrad")->cuda = inference_gradient;
}

}  // namespace arbalest
