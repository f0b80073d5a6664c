// SPDX-License-Identifier: Apache-2.0
#pragma once
// Work that a stream has recorded, to be launched as a whole.

#include <functional>
#include <utility>

#include "ops/cuda/cuda_context.h"

namespace arbalest {

class RecordedGraph {
 public:
  RecordedGraph() = default;
  RecordedGraph(RecordedGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  RecordedGraph& operator=(RecordedGraph&&) = delete;
  ~RecordedGraph() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }

  // Nothing has been recorded yet. Passes on what `work` throws; RunError if something in it cannot be recorded.
  void record(cudaStream_t stream, const std::function<void()>& work) {
    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));  // libraries load modules at first use
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    CUDA_CHECK(made);
  }
  cudaGraphExec_t graph() const { return graph_; }  // nullptr: nothing is recorded

 private:
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace arbalest
