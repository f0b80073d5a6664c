// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of TakeSamples. It reads scalars and indices from the pinned slot itself, so that a batch takes one
// launch and no copy.

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

constexpr int kMostFields = 8;              // of a launch
constexpr int64_t kBlockBytes = 16 * 1024;  // of a row, that a block copies
constexpr int kScalarWords = sizeof(StepScalars) / sizeof(int64_t);

struct Fields {
  const std::byte* samples[kMostFields];  // (samples, bytes)
  std::byte* batch[kMostFields];          // (batch, bytes)
  int64_t bytes[kMostFields];
};

// The block's part of a row; both rows are aligned to a Word.
template <typename Word>
__device__ inline void copy_part(const std::byte* from, std::byte* to, int64_t bytes) {
  const int64_t begin = int64_t(blockIdx.x) * kBlockBytes, end = min(bytes, begin + kBlockBytes);
  const auto* source = reinterpret_cast<const Word*>(from);
  auto* target = reinterpret_cast<Word*>(to);
  for (int64_t i = begin / int64_t(sizeof(Word)) + threadIdx.x; i < end / int64_t(sizeof(Word)); i += blockDim.x) {
    target[i] = source[i];
  }
}

// grid: parts of a row, samples of the batch, fields. `scalars` is nullptr if another launch writes them.
__global__ void __launch_bounds__(kThreads)
    take_kernel(Fields fields, int64_t batch, const int64_t* slot, int64_t* scalars) {
  __shared__ int64_t index;  // read once a block, since it comes from the host's memory
  if (scalars && blockIdx.x + blockIdx.y + blockIdx.z == 0 && threadIdx.x < kScalarWords) {
    scalars[threadIdx.x] = slot[threadIdx.x];
  }
  const int field = int(blockIdx.z);
  const int64_t bytes = fields.bytes[field];
  if (int64_t(blockIdx.x) * kBlockBytes >= bytes) return;
  for (int64_t n = blockIdx.y; n < batch; n += gridDim.y) {
    __syncthreads();  // the row before has been copied
    if (threadIdx.x == 0) index = slot[kScalarWords + n];
    __syncthreads();
    const std::byte* from = fields.samples[field] + index * bytes;
    std::byte* to = fields.batch[field] + n * bytes;
    if (bytes % 16 == 0) {
      copy_part<uint4>(from, to, bytes);
    } else if (bytes % 8 == 0) {
      copy_part<uint2>(from, to, bytes);
    } else if (bytes % 4 == 0) {
      copy_part<uint32_t>(from, to, bytes);
    } else {
      copy_part<uint8_t>(from, to, bytes);
    }
  }
}

void take(const KernelContext& c, const std::vector<int64_t>& strides, int64_t batch) {
  constexpr int64_t kMostRows = 65535;  // of a grid
  for (size_t first = 1; first < strides.size(); first += kMostFields) {
    const size_t count = std::min<size_t>(kMostFields, strides.size() - first);
    Fields fields{};
    int64_t longest = 1;
    for (size_t i = 0; i < count; ++i) {
      fields.samples[i] = input<std::byte>(c, first + i);
      fields.batch[i] = output<std::byte>(c, first + i);
      fields.bytes[i] = strides[first + i];
      longest = std::max(longest, strides[first + i]);
    }
    const dim3 grid(unsigned((longest + kBlockBytes - 1) / kBlockBytes), unsigned(std::min(batch, kMostRows)),
                    unsigned(count));
    take_kernel<<<grid, kThreads, 0, stream_of(c)>>>(fields, batch, input<int64_t>(c, 0),
                                                     first == 1 ? output<int64_t>(c, 0) : nullptr);
    check_launch("samples of a batch");
  }
}

}  // namespace

void register_data_take_samples_cuda(OpRegistry& registry) {
  registry.find("arbalest.TakeSamples")->cuda = [](const KernelRequest& request) {
    const int64_t batch = request.inputs[0].shape[0] - kScalarWords;
    std::vector<int64_t> strides;  // by input
    for (const TensorType& type : request.inputs) strides.push_back(type.shape.back());
    return make_kernel([=](const KernelContext& c) { take(c, strides, batch); });
  };
}

}  // namespace arbalest
