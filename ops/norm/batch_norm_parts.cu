// SPDX-License-Identifier: Apache-2.0

// CUDA side of batch normalisation over parts: chooses among the kernels in batch_norm_parts.cuh, and cuts slices.

#include "ops/norm/batch_norm_operands.cuh"
#include "ops/norm/batch_norm_parts.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Place = size_t (*)(size_t part);
using Limits = ColumnLimits (*)(int64_t bytes, int multiprocessors);

// Makes a table for packs of `width` channels, which divides those of each part. Part i is input at(i).
PartTable make_table(const KernelRequest& request, size_t parts, Place at, int width, Limits limits_of) {
  PartTable table{};
  int64_t bytes = 0;
  for (size_t i = 0; i < parts; ++i) bytes += request.inputs[at(i)].bytes();
  const ColumnLimits limits = limits_of(bytes, multiprocessors_of(request));
  Columns& all = table.all;
  int fewest = kThreads;
  for (size_t i = 0; i < parts; ++i) {
    const TensorType& x = request.inputs[at(i)];
    const Columns part = make_columns(x.elements() / x.shape[1], x.shape[1], width, limits);
    all.rows = part.rows;
    table.lanes[i] = part.lanes;
    table.first_slice[i + 1] = table.first_slice[i] + part.slices;
    table.first_channel[i + 1] = table.first_channel[i] + part.channels;
    fewest = std::min(fewest, part.lanes);
  }
  all.slices = table.first_slice[parts];
  all.count = table.first_channel[parts];
  for (size_t i = parts + 1; i <= kMostParts; ++i) {
    table.first_slice[i] = all.slices;
    table.first_channel[i] = all.count;
  }
  all.lanes = fewest;  // whose blocks have the most rows at once
  cut_rows(all, all.slices, limits);
  return table;
}

// Packs of 16 or 8 bytes, whichever divides the channels of all parts, else single elements.
int widest(const KernelRequest& request, size_t parts, Place at) {
  for (int width = int(16 / size_of(request.inputs[at(0)].dtype)), least = width / 2; width >= least; width /= 2) {
    bool divides = true;
    for (size_t i = 0; i < parts; ++i) divides = divides && request.inputs[at(i)].shape[1] % width == 0;
    if (divides) return width;
  }
  return 1;
}

// function(std::integral_constant W)
template <typename T, typename Function>
void with_width(int width, Function function) {
  constexpr int kWide = int(16 / sizeof(T));
  if (width == kWide) return function(std::integral_constant<int, kWide>{});
  if (width == kWide / 2) return function(std::integral_constant<int, kWide / 2>{});
  function(std::integral_constant<int, 1>{});
}
// function(std::integral_constant W, std::bool_constant relu)
template <typename T, typename Function>
void with_width_and_relu(int width, bool relu, Function function) {
  with_width<T>(width, [&](auto w) { relu ? function(w, std::true_type{}) : function(w, std::false_type{}); });
}

// Tables for one kernel: with the widest packs, and with single elements in case tensors are not aligned.
struct Tables {
  int width;
  PartTable wide, narrow;

  Tables(const KernelRequest& request, size_t parts, Place at, Limits limits)
      : width(widest(request, parts, at)),
        wide(make_table(request, parts, at, width, limits)),
        narrow(make_table(request, parts, at, 1, limits)) {}
  const PartTable& of_width(int w) const { return w == width ? wide : narrow; }
};

// Fills `pointers`. Returns whether all are aligned to 16 bytes.
template <typename T>
bool take_inputs(const KernelContext& c, size_t parts, Place at, const T** pointers) {
  bool all_aligned = true;
  for (size_t i = 0; i < parts; ++i) {
    pointers[i] = input<T>(c, at(i));
    all_aligned = all_aligned && aligned(pointers[i]);
  }
  return all_aligned;
}

std::unique_ptr<Kernel> channel_statistics(const KernelRequest& request) {
  const TensorType& type = request.inputs[0];
  const int multiprocessors = multiprocessors_of(request);
  const int widest_packs = widest(request, 1, training_part);
  const int64_t channels = type.shape[1], rows = type.elements() / channels;
  const Columns narrow = reduction_columns(rows, channels, 1, type.bytes(), multiprocessors);
  const Columns wide = reduction_columns(rows, channels, widest_packs, type.bytes(), multiprocessors);
  return with_type(request, type.dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=](const KernelContext& c) {
      const T* x = input<T>(c, 0);
      auto *statistics = output<Partial>(c, 0), *partials = static_cast<Partial*>(c.workspace);
      with_width<T>(aligned(x) ? widest_packs : 1, [&](auto width) {
        constexpr int W = decltype(width)::value;
        const Columns& columns = W == widest_packs ? wide : narrow;
        const bool whole = columns.chunks == 1;  // partials of one chunk are the statistics
        launch_dependent(statistics_kernel<W, T>, columns.grid(), kThreads, 0, stream_of(c), columns, x,
                         whole ? statistics : partials);
        check_launch("channel statistics");
        if (whole) return;
        launch_dependent(merge_statistics_kernel<W>, unsigned(columns.slices), kThreads, 0, stream_of(c), columns,
                         partials, statistics);
        check_launch("merged channel statistics");
      });
    };
    return make_kernel(run, std::max(wide.chunks, narrow.chunks) * channels * int64_t(sizeof(Partial)));
  });
}

std::unique_ptr<Kernel> parts_training(const KernelRequest& request) {
  using In = BatchNormInput;
  using Out = BatchNormOutput;
  const size_t parts = training_parts(request.inputs.size());
  const Tables tables(request, parts, training_part, broadcast_limits);
  const bool relu = int_attribute(request.node, "relu") != 0;
  const StatisticsOperands<In, Out> operands(request);
  return with_type(request, request.inputs[In::X].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      const Statistics statistics = operands.of(c);
      T* y = output<T>(c, Out::Y);
      NormalizedParts<T> of{};
      const bool all_aligned = take_inputs(c, parts, training_part, of.x) && aligned(y);
      for (size_t i = 0; i < parts; ++i) of.statistics[i] = input<Partial>(c, training_statistics(i));
      with_width_and_relu<T>(all_aligned ? tables.width : 1, relu, [&](auto width, auto with_relu) {
        constexpr int W = decltype(width)::value;
        of.table = tables.of_width(W);
        launch_dependent(normalize_parts_kernel<W, with_relu.value, T>, of.table.all.grid(), kThreads, 0, stream_of(c),
                         of, statistics, y);
        check_launch("batch_norm of parts");
      });
    });
  });
}

std::unique_ptr<Kernel> parts_again(const KernelRequest& request) {
  using In = BatchNormInput;
  const size_t parts = inference_parts(request.inputs.size());
  const Tables tables(request, parts, inference_part, broadcast_limits);
  const bool relu = int_attribute(request.node, "relu") != 0;
  return with_type(request, request.inputs[In::X].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      T* y = output<T>(c, 0);
      NormalizedParts<T> of{};
      const bool all_aligned = take_inputs(c, parts, inference_part, of.x) && aligned(y);
      with_width_and_relu<T>(all_aligned ? tables.width : 1, relu, [&](auto width, auto with_relu) {
        constexpr int W = decltype(width)::value;
        of.table = tables.of_width(W);
        launch_dependent(normalize_parts_again_kernel<W, with_relu.value, T>, of.table.all.grid(), kThreads, 0,
                         stream_of(c), of, input<float>(c, In::Scale), input<float>(c, In::Bias),
                         input<float>(c, In::Mean), input<float>(c, In::Variance), y);
        check_launch("batch_norm of parts, again");
      });
    });
  });
}

std::unique_ptr<Kernel> parts_inference(const KernelRequest& request) {
  using In = BatchNormInput;
  const size_t parts = inference_parts(request.inputs.size());
  const Tables tables(request, parts, inference_part, broadcast_limits);
  const bool relu = int_attribute(request.node, "relu") != 0;
  const float epsilon = float(float_attribute(request.node, "epsilon"));
  return with_type(request, request.inputs[In::X].dtype, [&](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      T* y = output<T>(c, 0);
      NormalizedParts<T> of{};
      const bool all_aligned = take_inputs(c, parts, inference_part, of.x) && aligned(y);
      with_width_and_relu<T>(all_aligned ? tables.width : 1, relu, [&](auto width, auto with_relu) {
        constexpr int W = decltype(width)::value;
        of.table = tables.of_width(W);
        inference_parts_kernel<W, with_relu.value><<<of.table.all.grid(), kThreads, 0, stream_of(c)>>>(
            of, input<float>(c, In::Scale), input<float>(c, In::Bias), input<float>(c, In::Mean),
            input<float>(c, In::Variance), epsilon, y);
        check_launch("batch_norm of parts, inference");
      });
    });
  });
}

std::unique_ptr<Kernel> parts_gradient(const KernelRequest& request) {
  using In = BatchNormPartsGradInput;
  const size_t parts = gradient_parts(request.inputs.size());
  const Tables sums(request, parts, gradient_part, reduction_limits);
  const Tables writes(request, parts, gradient_part, broadcast_limits);
  const bool relu = request.has_input(In::Bias);
  const int chunks = std::max(sums.narrow.all.chunks, sums.wide.all.chunks);
  const int64_t workspace = int64_t(chunks) * sums.narrow.all.count * int64_t(sizeof(Partial));
  return with_type(request, request.inputs[In::dY].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=](const KernelContext& c) {
      GradientOfParts<T> of{};
      static_assert(sizeof of <= 4000, "more than parameters of a kernel may have");
      of.dy = input<T>(c, In::dY);
      of.scale = input<float>(c, In::Scale);
      of.mean = input<float>(c, In::SavedMean);
      of.inv_std = input<float>(c, In::SavedInvStd);
      of.bias = relu ? input<float>(c, In::Bias) : nullptr;
      bool all_aligned = aligned(of.dy);
      all_aligned = take_inputs(c, parts, gradient_part, of.x) && all_aligned;
      all_aligned = take_inputs(c, parts, gradient_addend, of.addend) && all_aligned;
      for (size_t i = 0; i < parts; ++i) {
        of.dx[i] = output<T>(c, part_gradient(i));
        all_aligned = all_aligned && aligned(of.dx[i]);
      }
      auto* partials = static_cast<Partial*>(c.workspace);
      with_width_and_relu<T>(all_aligned ? sums.width : 1, relu, [&](auto width, auto with_relu) {
        constexpr int W = decltype(width)::value;
        of.table = sums.of_width(W);
        const int reduced_chunks = of.table.all.chunks;
        launch_dependent(part_gradient_sums_kernel<W, with_relu.value, T>, of.table.all.grid(), kThreads, 0,
                         stream_of(c), of, partials);
        check_launch("batch_norm gradient sums of parts");
        of.table = writes.of_width(W);
        launch_dependent(part_gradient_kernel<W, with_relu.value, T>, of.table.all.grid(), kThreads, 0, stream_of(c),
                         of, reduced_chunks, partials, output<float>(c, BatchNormPartsGradOutput::dScale),
                         output<float>(c, BatchNormPartsGradOutput::dBias));
        check_launch("batch_norm gradient of parts");
      });
    };
    return make_kernel(run, workspace);
  });
}

}  // namespace

void register_norm_batch_norm_parts_cuda(OpRegistry& registry) {
  registry.find("arbalest.ChannelStatistics")->cuda = channel_statistics;
  registry.find("arbalest.BatchNormPartsTraining")->cuda = parts_training;
  registry.find("arbalest.BatchNormPartsAgain")->cuda = parts_again;
  registry.find("arbalest.BatchNormPartsInference")->cuda = parts_inference;
  registry.find("arbalest.BatchNormPartsGrad")->cuda = parts_gradient;
}

}  // namespace arbalest
