// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of regions, compiled while a plan is made (ops/regions/region_source.cpp).

#include "ops/regions/region.h"

#include "ops/cuda/compiled_kernel.h"
#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

class RegionKernel final : public Kernel {
 public:
  RegionKernel(const KernelRequest& request, const RegionProgram& program)
      : walk_(request.outputs[0], request.inputs), inputs_(request.inputs.size()), outputs_(request.outputs.size()) {
    std::vector<DataType> inputs, outputs;
    for (const TensorType& type : request.inputs) inputs.push_back(type.dtype);
    for (const TensorType& type : request.outputs) outputs.push_back(type.dtype);
    const RegionSource source = region_source(program, walk_, inputs, outputs);
    CudaContext& context = cuda_context(request);
    blocks_ = blocks_for((walk_.count + source.width - 1) / source.width, context.multiprocessors);
    // Rounding to bfloat16 hides what is rough; the source says which types there are.
    const bool rough = std::count(outputs.begin(), outputs.end(), DataType::Float32) == 0;
    compiled_ = context.compiled.find(
        source.text, [&] { return std::make_shared<const CompiledKernel>(source.text, "region", rough); });
    if (source.placed.empty()) return;
    places_ = walk_.extents;
    for (const size_t i : source.placed)
      places_.insert(places_.end(), walk_.strides[i].begin(), walk_.strides[i].end());
  }

  void run(const KernelContext& c) const override {
    if (walk_.count == 0) return;
    int packs = 1;
    int64_t count = walk_.count;
    const void* pointers[RegionProgram::kMostInputs + RegionProgram::kMostOutputs];
    void* arguments[3 + RegionProgram::kMostInputs + RegionProgram::kMostOutputs] = {&packs, &count};
    size_t next = 2;
    if (!places_.empty()) arguments[next++] = const_cast<int64_t*>(places_.data());
    for (size_t i = 0; i < inputs_ + outputs_; ++i) {
      pointers[i] = i < inputs_ ? c.inputs[i] : c.outputs[i - inputs_];
      packs = packs && aligned(pointers[i]);
      arguments[next++] = &pointers[i];
    }
    compiled_->launch(blocks_, kThreads, stream_of(c), arguments);
  }
  std::string engine() const override { return "generated"; }

 private:
  RegionWalk walk_;
  size_t inputs_, outputs_;
  unsigned blocks_ = 1;
  std::vector<int64_t> places_;  // as the kernel's parameter `walk` has them
  std::shared_ptr<const CompiledKernel> compiled_;
};

}  // namespace

void register_regions_region_cuda(OpRegistry& registry) {
  registry.find("arbalest.Region")->cuda = [&registry](const KernelRequest& request) {
    return std::make_unique<RegionKernel>(request, region_program(request.node, registry));
  };
}

}  // namespace arbalest
