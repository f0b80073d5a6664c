// SPDX-License-Identifier: Apache-2.0
#pragma once
// The contract between operators and whatever runs them. ops implements it, executor calls it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graph/types.h"

namespace arbalest {

struct Node;

// Values that change from instance to instance, in the memory of the device that runs the kernel. The host fills them
// in with the slot that holds the batch, so that recorded (captured) work can be replayed. 64 bytes.
struct alignas(64) StepScalars {
  uint64_t seed = 0;  // the run's
  uint64_t epoch = 0;
  uint64_t position = 0;   // of the batch's first sample in the epoch's order of data
  uint64_t iteration = 0;  // of this learner
  int32_t valid = 0;       // samples of the batch that count; the rest is padding (validation's last batch)
  float learning_rate = 0;
  float correction = 0;     // α: the share of its distance from the average that a learner gives up; 0: none now
  int32_t restart = 0;      // 1: instead of an update, learners start again from the average
  int32_t accumulated = 0;  // batches whose gradients are already in the sum
  int32_t update = 1;       // 0: the weights stay, more gradients are to come
  int32_t updates = 0;      // updates that the optimiser's slots have seen since they were zeros
};
static_assert(sizeof(StepScalars) == 64);

// Everything is device memory of the kernel's device. How tensors lie in it is in their types (see types.h).
struct KernelContext {
  void* stream = nullptr;               // cudaStream_t on CUDA, nullptr on the CPU
  const void* const* inputs = nullptr;  // one per node input; nullptr for an input left out
  void* const* outputs = nullptr;       // one per node output; may equal an input as Op::aliases or overwrites says
  void* workspace = nullptr;            // Kernel::workspace_bytes(), 256-byte aligned; content undefined
  const StepScalars* scalars = nullptr;
};

// fp32: IEEE single throughout. tf32: matrix units may round operands to 10 bits of mantissa (CUDA only).
enum class MathMode : uint8_t { Fp32, Tf32 };

// The context that kernels of a device share: on CUDA a CudaContext (ops/cuda/cuda_context.h). Those of collectives
// share a CollectiveContext there (ops/replicas/collective_context.h) and, on CPUs of several processes, a RankExchange
// (ops/replicas/rank_exchange.h).
struct DeviceContext {};

// The node that a kernel is made for, with the types and limits.
struct KernelRequest {
  const Node& node;                // op and attributes
  std::vector<TensorType> inputs;  // one a node input; shape and dtype; Token dtype for one left out
  std::vector<TensorType> outputs;
  MathMode math = MathMode::Fp32;
  bool deterministic = false;           // the same bits each time
  int concurrent = 1;                   // on a GPU: how many learners' kernels run at the same time
  int64_t workspace_limit = 256 << 20;  // bytes
  DeviceContext* device = nullptr;      // nullptr: CPUs of one process

  bool has_input(size_t i) const { return i < inputs.size() && inputs[i].dtype != DataType::Token; }     // or left out
  bool has_output(size_t i) const { return i < outputs.size() && outputs[i].dtype != DataType::Token; }  // or not made
};

// A node made ready to run for fixed types: library descriptors, chosen engines. The kernel's run() may be called any
// number of times, from one thread at a time. It allocates nothing, waits for nothing and is safe to record into a CUDA
// graph.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual int64_t workspace_bytes() const { return 0; }  // that run() needs for itself
  // Throws RunError on failure.
  virtual void run(const KernelContext& context) const = 0;
  // The implementation that was chosen, for people to read; "" if there is only one.
  virtual std::string engine() const { return {}; }
};

// Makes the kernel of a node. Throws GraphError or RunError if it cannot.
using KernelFactory = std::function<std::unique_ptr<Kernel>(const KernelRequest&)>;

// A kernel from a function; for operators with nothing to prepare.
template <typename Function>
std::unique_ptr<Kernel> make_kernel(Function function, int64_t workspace_bytes = 0) {
  class FunctionKernel final : public Kernel {
   public:
    FunctionKernel(Function f, int64_t bytes) : function_(std::move(f)), bytes_(bytes) {}
    int64_t workspace_bytes() const override { return bytes_; }
    void run(const KernelContext& context) const override { function_(context); }

   private:
    Function function_;
    int64_t bytes_;
  };
  return std::make_unique<FunctionKernel>(std::move(function), workspace_bytes);
}

}  // namespace arbalest
