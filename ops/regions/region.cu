// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of regions, and of operators that state their formula (Op::element), which are regions of one step. They
// are compiled while a plan is made (ops/regions/region_source.cpp).

#include "ops/regions/region.h"

#include <algorithm>
#include <optional>

#include "ops/cuda/compiled_kernel.h"
#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/dependent_launch.cuh"
#include "ops/shape/copy.h"

namespace arbalest {

using namespace cuda;

namespace {

// The outputs that are sums: where each goes, its factor, which of the partial sums it is of, and whether by sample.
struct SumTargets {
  void* to[RegionProgram::kMostOutputs];
  bool lowered[RegionProgram::kMostOutputs];  // to bfloat16
  float scale[RegionProgram::kMostOutputs];
  int of[RegionProgram::kMostOutputs];
  bool by_sample[RegionProgram::kMostOutputs];
  int count;
};

constexpr int kSumColumns = 32;  // channels that a block adds up

// partials: (samples, chunks, sums, channels). A row of blocks adds up a sum, a block 32 channels of it: first those of
// all samples, then those of each.
__global__ void __launch_bounds__(kThreads)
    finish_sums_kernel(int samples, int chunks, int64_t channels, const float* partials, SumTargets targets) {
  __shared__ double scratch[kThreads];
  const int column = int(threadIdx.x) % kSumColumns, group = int(threadIdx.x) / kSumColumns;
  constexpr int kGroups = kThreads / kSumColumns;
  const int64_t slices = (channels + kSumColumns - 1) / kSumColumns, place = blockIdx.x / slices;
  const int64_t channel = blockIdx.x % slices * kSumColumns + column;
  const bool by_sample = place > 0;
  const int64_t sample = by_sample ? place - 1 : 0;
  bool wanted = false;
  for (int i = 0; i < targets.count; ++i) {
    wanted = wanted || (targets.of[i] == int(blockIdx.y) && targets.by_sample[i] == by_sample);
  }
  wait_for_dependencies();
  launch_dependents();
  if (!wanted) return;
  double total = 0;
  if (channel < channels) {
    const float* own = partials + int64_t(blockIdx.y) * channels + channel;
    const int64_t step = int64_t(gridDim.y) * channels, end = by_sample ? (sample + 1) * chunks : samples * chunks;
#pragma unroll 4
    for (int64_t chunk = sample * chunks + group; chunk < end; chunk += kGroups) total += double(own[chunk * step]);
  }
  scratch[threadIdx.x] = total;
  __syncthreads();
  if (group != 0 || channel >= channels) return;
#pragma unroll
  for (int other = 1; other < kGroups; ++other) total += scratch[other * kSumColumns + column];
  for (int i = 0; i < targets.count; ++i) {
    if (targets.of[i] != int(blockIdx.y) || targets.by_sample[i] != by_sample) continue;
    const auto sum = float(double(targets.scale[i]) * total);
    if (targets.lowered[i]) {
      static_cast<__nv_bfloat16*>(targets.to[i])[sample * channels + channel] = narrow<__nv_bfloat16>(sum);
    } else {
      static_cast<float*>(targets.to[i])[sample * channels + channel] = sum;
    }
  }
}

class RegionKernel final : public Kernel {
 public:
  // `rough`: quotients and roots may be two units of float's last place off, if rounding to bfloat16 hides that.
  RegionKernel(const KernelRequest& request, const TensorType& space, const RegionProgram& program, bool rough)
      : walk_(space, request.inputs, program), inputs_(program.inputs), outputs_(program.result_outputs()) {
    std::vector<DataType> inputs, results;
    for (size_t i = 0; i < inputs_; ++i) inputs.push_back(request.inputs[i].dtype);
    for (const RegionProgram::Target& target : program.targets()) {
      goes_.push_back(target.output);
      results.push_back(request.outputs[target.output].dtype);
    }
    source_ = region_source(program, walk_, inputs, results);
    for (size_t i = 0; i < inputs.size() + results.size(); ++i) {
      const DataType type = i < inputs.size() ? inputs[i] : results[i - inputs.size()];
      begins_.push_back(walk_.first[i] * int64_t(size_of(type)));
      alignments_.push_back(walk_.alignment(i, source_.width, type));
    }
    sums_.count = int(program.sums.size());
    for (size_t k = 0; k < program.sums.size(); ++k) {
      const auto& [of, scale, rank] = program.sums[k];
      sums_.by_sample[k] = rank > 1;
      sums_.lowered[k] = request.outputs[outputs_ + k].dtype == DataType::Bfloat16;
      sums_.scale[k] = float(scale);
      sums_.of[k] = int(std::find(source_.summed.begin(), source_.summed.end(), of) - source_.summed.begin());
    }
    CudaContext& context = cuda_context(request);
    // A region that does not fill the device goes by single elements, to be spread over more of it.
    const int multiprocessors = multiprocessors_of(request);
    packs_ = walk_.count > int64_t{2} * kThreads * multiprocessors;
    const int width = packs_ ? source_.width : 1;
    blocks_ = blocks_for((walk_.count + width - 1) / width, multiprocessors);
    if (source_.by_columns) {
      columns_.emplace(walk_, source_, multiprocessors);
      packs_ = true;
      blocks_ = unsigned(columns_->samples * columns_->chunks * columns_->slices);
    }
    rough = rough && std::count(results.begin(), results.end(), DataType::Float32) == 0;
    compiled_ = context.compiled.find(source_.text + (rough ? "rough" : "exact"), [&] {
      return std::make_shared<const CompiledKernel>(source_.text, "region", rough);
    });
    source_.text.clear();
    if (source_.placed.empty()) return;
    places_ = walk_.extents;
    for (const size_t i : source_.placed) {
      places_.insert(places_.end(), walk_.strides[i].begin(), walk_.strides[i].end());
    }
  }

  int64_t workspace_bytes() const override {
    if (sums_.count == 0) return 0;
    return int64_t{4} * columns_->samples * columns_->chunks * int64_t(source_.summed.size()) * columns_->channels;
  }

  void run(const KernelContext& c) const override {
    if (walk_.count == 0) {  // with sums by sample it is not
      for (int k = 0; k < sums_.count && columns_->channels > 0; ++k) {
        const size_t bytes = size_t(columns_->channels) * (sums_.lowered[k] ? 2 : 4);
        CUDA_CHECK(cudaMemsetAsync(c.outputs[outputs_ + size_t(k)], 0, bytes, stream_of(c)));
      }
      return;
    }
    int packs = packs_;
    int64_t count = walk_.count;
    int channels = 0, samples = 0, chunks = 0, wide = 0;
    void* partials = c.workspace;
    const void* pointers[RegionProgram::kMostInputs + RegionProgram::kMostOutputs];
    void* arguments[9 + RegionProgram::kMostInputs + RegionProgram::kMostOutputs] = {&packs};
    size_t next = 1;
    if (columns_) {
      channels = int(columns_->channels), samples = columns_->samples;
      chunks = columns_->chunks, wide = columns_->across;
      for (int* number : {&channels, &samples, &chunks, &wide}) arguments[next++] = number;
      arguments[next++] = &partials;
    }
    arguments[next++] = &count;
    if (!places_.empty()) arguments[next++] = const_cast<int64_t*>(places_.data());
    if (!source_.numbers.empty()) arguments[next++] = const_cast<float*>(source_.numbers.data());
    for (size_t i = 0; i < begins_.size(); ++i) {
      const void* whole = i < inputs_ ? c.inputs[i] : c.outputs[goes_[i - inputs_]];
      pointers[i] = static_cast<const char*>(whole) + begins_[i];
      packs = packs && reinterpret_cast<uintptr_t>(pointers[i]) % uintptr_t(alignments_[i]) == 0;
      arguments[next++] = &pointers[i];
    }
    static_assert(RegionSource::kThreads == kThreads);
    compiled_->launch(blocks_, kThreads, stream_of(c), arguments);
    if (sums_.count > 0) finish_sums(c);
  }
  std::string engine() const override { return "generated"; }

 private:
  void finish_sums(const KernelContext& c) const {
    SumTargets targets = sums_;
    for (int k = 0; k < sums_.count; ++k) targets.to[k] = c.outputs[outputs_ + size_t(k)];
    const bool by_sample = std::count(sums_.by_sample, sums_.by_sample + sums_.count, true) > 0;
    const int64_t slices = (columns_->channels + kSumColumns - 1) / kSumColumns;
    const dim3 grid(unsigned(by_sample ? slices * (columns_->samples + 1) : slices), unsigned(source_.summed.size()));
    launch_dependent(finish_sums_kernel, grid, kThreads, 0, stream_of(c), columns_->samples, columns_->chunks,
                     columns_->channels, static_cast<const float*>(c.workspace), targets);
    check_launch("region sums");
  }

  RegionWalk walk_;
  size_t inputs_, outputs_;          // these without sums
  std::vector<size_t> goes_;         // the output that each result is in
  std::vector<int64_t> begins_;      // bytes, by operand of the walk
  std::vector<int64_t> alignments_;  // of the addresses
  SumTargets sums_ = {};             // but for where each goes
  RegionSource source_;              // without its text
  std::optional<RegionColumns> columns_;
  bool packs_ = true;  // threads take packs if the operands' addresses allow it
  unsigned blocks_ = 1;
  std::vector<int64_t> places_;  // as the kernel's parameter `walk` has them
  std::shared_ptr<const CompiledKernel> compiled_;
};

// An operator that states its formula is a region of one step, with exact quotients and roots. Elements of other types
// are for its own kernel, if it has one.
KernelFactory one_step_kernel(const KernelFactory& own) {
  return [own](const KernelRequest& request) -> std::unique_ptr<Kernel> {
    const TensorType& space = request.outputs[0];
    std::vector<DataType> inputs;
    for (const TensorType& type : request.inputs) inputs.push_back(type.dtype);
    if (is_region_step(*request.node.op, inputs, space.dtype)) {
      return std::make_unique<RegionKernel>(request, space, one_step(request.node), false);
    }
    if (!own) fail_type(request, inputs[0], "float and bfloat16");
    return own(request);
  };
}

}  // namespace

void register_regions_region_cuda(OpRegistry& registry) {
  registry.find("arbalest.Region")->cuda = [&registry](const KernelRequest& request) {
    return std::make_unique<RegionKernel>(request, stated_type(request.node, DataType::Float32),
                                          region_program(request.node, registry), true);
  };
  for (const Op& op : registry.all()) {
    if (!op.element) continue;
    KernelFactory& cuda = registry.find(op.qualified_name())->cuda;
    cuda = one_step_kernel(cuda);
  }
}

}  // namespace arbalest
