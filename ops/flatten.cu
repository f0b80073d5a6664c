// CUDA kernels of Flatten and arbalest.Unflatten: a channels-last image to logical row-major order and back, which for
// each image is the transposition (H·W, C) → (C, H·W); a plain copy where the two orders agree.

#include "ops/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

constexpr int kTile = 32;

// from: (batch, rows, columns) → to: (batch, columns, rows). A block of 32 × 8 threads takes tiles of 32 × 32.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(int64_t batch, int64_t rows, int64_t columns, const Word* from, Word* to) {
  __shared__ Word tile[kTile][kTile + 1];
  const int64_t row_tiles = (rows + kTile - 1) / kTile, column_tiles = (columns + kTile - 1) / kTile;
  const int tx = int(threadIdx.x) % kTile, ty = int(threadIdx.x) / kTile;
  for (int64_t i = blockIdx.x; i < batch * row_tiles * column_tiles; i += gridDim.x) {
    const int64_t image = i / (row_tiles * column_tiles), within = i % (row_tiles * column_tiles);
    const int64_t row = within / column_tiles * kTile, column = within % column_tiles * kTile;
    const int64_t base = image * rows * columns;
#pragma unroll
    for (int k = 0; k < kTile; k += kThreads / kTile) {
      if (row + ty + k < rows && column + tx < columns) {
        tile[ty + k][tx] = from[base + (row + ty + k) * columns + column + tx];
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTile; k += kThreads / kTile) {
      if (column + ty + k < columns && row + tx < rows) {
        to[base + (column + ty + k) * rows + row + tx] = tile[tx][ty + k];
      }
    }
    __syncthreads();
  }
}

template <typename Word>
std::unique_ptr<Kernel> transpose(int64_t batch, int64_t rows, int64_t columns, int multiprocessors) {
  const int64_t tiles = batch * ((rows + kTile - 1) / kTile) * ((columns + kTile - 1) / kTile);
  const unsigned blocks = unsigned(std::min<int64_t>(tiles, int64_t(multiprocessors) * 16));
  return make_kernel([=](const KernelContext& c) {
    transpose_kernel<<<blocks, kThreads, 0, stream_of(c)>>>(batch, rows, columns, input<Word>(c, 0),
                                                            output<Word>(c, 0));
    check_launch("flatten");
  });
}

// `image`: the type of the channels-last operand.
std::unique_ptr<Kernel> reorder(const KernelRequest& request, const TensorType& image, bool to_logical) {
  const int64_t pixels = image.shape.size() == 4 ? image.shape[2] * image.shape[3] : 1;
  const int64_t channels = image.shape.size() == 4 ? image.shape[1] : 1;
  const int64_t bytes = image.bytes();
  if (bytes == 0 || pixels == 1 || channels == 1) {
    return make_kernel([bytes](const KernelContext& c) {
      if (bytes == 0 || c.outputs[0] == c.inputs[0]) return;
      CUDA_CHECK(cudaMemcpyAsync(c.outputs[0], c.inputs[0], size_t(bytes), cudaMemcpyDeviceToDevice, stream_of(c)));
    });
  }
  const int64_t rows = to_logical ? pixels : channels, columns = to_logical ? channels : pixels;
  const int multiprocessors = cuda_context(request).multiprocessors;
  switch (size_of(image.dtype)) {
    case 1: return transpose<uint8_t>(image.shape[0], rows, columns, multiprocessors);
    case 2: return transpose<uint16_t>(image.shape[0], rows, columns, multiprocessors);
    case 4: return transpose<uint32_t>(image.shape[0], rows, columns, multiprocessors);
    default: return transpose<uint64_t>(image.shape[0], rows, columns, multiprocessors);
  }
}

}  // namespace

void register_flatten_cuda(OpRegistry& registry) {
  registry.find("Flatten")->cuda = [](const KernelRequest& request) {
    return reorder(request, request.inputs[0], true);
  };
  registry.find("arbalest.Unflatten")->cuda = [](const KernelRequest& request) {
    return reorder(request, request.outputs[0], false);
  };
}

}  // namespace arbalest
