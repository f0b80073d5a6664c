// SPDX-License-Identifier: Apache-2.0

// CUDA side of two batch norms whose sum goes through Relu: which of the kernels in batch_norm_pair.cuh run.

#include "ops/norm/batch_norm_launch.cuh"
#include "ops/norm/batch_norm_pair.cuh"
#include "ops/norm/batch_norms.h"

namespace arbalest {

using namespace cuda;

namespace {

// Blocks that a multiprocessor has registers for, of kernels for packs of eight bfloat16.
constexpr int kPairResident = 2, kPairGradientResident = 2;

std::unique_ptr<Kernel> pair_training(const KernelRequest& request) {
  const TensorType& type = request.inputs[0];
  const NormLayouts layouts(request, type, kPairResident);
  const float epsilon = float(float_attribute(request.node, "epsilon"));
  const float momentum = float(float_attribute(request.node, "momentum"));
  const float correction = float(int_attribute(request.node, "correction"));
  std::array<bool, 2> given{};  // partials
  std::array<Columns, 2> chunks;
  for (size_t of : {0, 1}) {
    given[of] = request.has_input(pair_training_partials(of));
    if (given[of]) chunks[of] = chunks_of(request, type, kPairChunkPixels[of]);
  }
  std::array<bool, 9> has{};
  for (size_t i = 0; i < has.size(); ++i) has[i] = request.has_output(i);
  return with_type(request, type.dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=](const KernelContext& c) {
      const auto in = [&](size_t of, size_t i) { return input<float>(c, pair_training_input(of, i)); };
      const auto out = [&](size_t of, size_t i) {
        const size_t at = pair_training_statistics(of, i);
        return has[at] ? output<float>(c, at) : nullptr;
      };
      const T *x = input<T>(c, 0), *x2 = input<T>(c, pair_training_input(1, 0));
      T* y = output<T>(c, 0);
      with_width<T>(
          layouts, aligned(x) && aligned(x2) && aligned(y),
          [&](auto width, const Columns& own, const Columns& columns) {
            constexpr int W = decltype(width)::value;
            const auto take = [&](size_t of, const T* from) {
              const Statistics statistics{in(of, 1),  in(of, 2),  in(of, 3), in(of, 4), out(of, 0), out(of, 1),
                                          out(of, 2), out(of, 3), epsilon,   momentum,  correction};
              if (given[of]) {
                const auto* partials = input<Partial>(c, pair_training_partials(of));
                return NormalizedOf<T>{from, partials, chunks[of], statistics};
              }
              auto* partials = static_cast<Partial*>(c.workspace) + int64_t(of) * layouts.partials();
              launch_dependent(statistics_kernel<W, T>, own.grid(), kThreads, 0, stream_of(c), own, from, partials);
              check_launch("batch_norm pair statistics");
              return NormalizedOf<T>{from, partials, own, statistics};
            };
            const NormalizedOf<T> first = take(0, x), second = take(1, x2);
            launch_dependent(normalize_pair_kernel<W, T>, columns.grid(), kThreads, 0, stream_of(c), columns, first,
                             second, y);
            check_launch("batch_norm pair normalize");
          });
    };
    return make_kernel(run, given[0] && given[1] ? 0 : 2 * layouts.workspace_bytes());
  });
}

std::unique_ptr<Kernel> pair_again(const KernelRequest& request) {
  const NormLayouts layouts(request, request.inputs[0], kPairResident);
  return with_type(request, request.inputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      const auto take = [&](size_t of) {
        const auto in = [&](size_t i) { return input<float>(c, pair_again_input(of, i)); };
        return SavedOf<T>{input<T>(c, pair_again_input(of, 0)), in(1), in(2), in(3), in(4)};
      };
      const SavedOf<T> first = take(0), second = take(1);
      T* y = output<T>(c, 0);
      with_width<T>(layouts, aligned(first.x) && aligned(second.x) && aligned(y),
                    [&](auto width, const Columns&, const Columns& columns) {
                      launch_dependent(normalize_pair_again_kernel<decltype(width)::value, T>, columns.grid(), kThreads,
                                       0, stream_of(c), columns, first, second, y);
                      check_launch("batch_norm pair normalize again");
                    });
    });
  });
}

std::unique_ptr<Kernel> pair_gradient(const KernelRequest& request) {
  const TensorType& type = request.inputs[0];
  const NormLayouts layouts(request, type, kPairGradientResident);
  const bool two = request.has_input(kPairGradSecond), given = request.has_input(kPairGradPartials);
  const bool both_given = request.has_input(kPairGradPartials2);
  const Columns chunks = given ? chunks_of(request, type) : Columns();
  std::array<bool, 6> has{};
  for (size_t i = 0; i < has.size(); ++i) has[i] = request.has_output(i);
  return with_type(request, type.dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=](const KernelContext& c) {
      auto* workspace = static_cast<Partial*>(c.workspace);
      const auto take = [&](size_t of) {
        const auto in = [&](size_t i) { return input<float>(c, pair_grad_input(of, i)); };
        const auto out = [&](size_t i) {
          const size_t at = pair_grad_output(of, i);
          return has[at] ? output<float>(c, at) : nullptr;
        };
        return PairGradient<T>{input<T>(c, pair_grad_input(of, 0)),   in(1),  in(2), in(3), nullptr, {},
                               output<T>(c, pair_grad_output(of, 0)), out(1), out(2)};
      };
      PairGradient<T> first = take(0), second = take(1);
      const PairGradientOf<T> from{input<T>(c, 0),
                                   two ? input<T>(c, kPairGradSecond) : nullptr,
                                   given ? nullptr : input<T>(c, kPairGradY),
                                   first.x,
                                   second.x,
                                   first.mean,
                                   second.mean};
      const bool all_aligned = aligned(from.dy) && aligned(from.dy2) && aligned(from.y) && aligned(first.x) &&
                               aligned(second.x) && aligned(first.dx) && aligned(second.dx);
      with_width<T>(layouts, all_aligned, [&](auto width, const Columns& reduced, const Columns& columns) {
        constexpr int W = decltype(width)::value;
        first.reduced = given ? chunks : reduced;
        second.reduced = both_given ? chunks : reduced;
        first.partials = given ? input<Partial>(c, kPairGradPartials) : workspace;
        Partial* partials2 = workspace + (given ? 0 : layouts.partials());
        second.partials = both_given ? input<Partial>(c, kPairGradPartials2) : partials2;
        const T* g = from.dy;
        if (given && !both_given) {
          const GradientOf<T> of{from.dy,     nullptr,        second.x,     nullptr,
                                 second.mean, second.inv_std, second.scale, nullptr};
          launch_dependent(gradient_sums_kernel<W, Mask::None, false, false, T>, reduced.grid(), kThreads, 0,
                           stream_of(c), reduced, of, static_cast<T*>(nullptr), partials2);
        } else if (!given) {
          g = second.dx;  // holds g until the gradient replaces it
          const auto kernel = two ? pair_gradient_sums_kernel<W, true, T> : pair_gradient_sums_kernel<W, false, T>;
          launch_dependent(kernel, reduced.grid(), kThreads, 0, stream_of(c), reduced, from, second.dx, workspace,
                           partials2);
        }
        check_launch("batch_norm pair gradient sums");
        launch_dependent(pair_gradient_kernel<W, T>, columns.grid(), kThreads, 0, stream_of(c), columns, g, first,
                         second);
        check_launch("batch_norm pair gradient");
      });
    };
    return make_kernel(run, (both_given ? 0 : given ? 1 : 2) * layouts.workspace_bytes());
  });
}

}  // namespace

void register_norm_batch_norm_pair_cuda(OpRegistry& registry) {
  registry.find("arbalest.BatchNormPairTraining")->cuda = pair_training;
  registry.find("arbalest.BatchNormPairAgain")->cuda = pair_again;
  registry.find("arbalest.BatchNormPairGrad")->cuda = pair_gradient;
}

}  // namespace arbalest
