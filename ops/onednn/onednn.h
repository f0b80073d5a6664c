// SPDX-License-Identifier: Apache-2.0
#pragma once
// oneDNN as kernels: primitives are made once with their memory in our layouts, run() sets addresses and executes. Its
// C++ interface changed between versions 2 and 3; make_* below hide that. Only with ARBALEST_ONEDNN. Primitives are
// made for the OpenMP thread count of the thread that makes them: run them on threads with the same one. How oneDNN
// orders its sums depends on that count. If the same bits are wanted for any count, work is divided into pieces that
// the shapes alone decide on (divided(), add_pieces()). Each piece is made for and runs on one thread.

#include <atomic>
#include <dnnl.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "graph/kernel.h"

namespace arbalest::onednn {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;

const dnnl::engine& cpu_engine();
bool supported(DataType type);  // Float32 and Bfloat16; Float64 is left to plain loops
dnnl::memory::data_type type_of(DataType type);

// Images (N, C, …), or filters (K, C/g, …) or (g, K/g, C/g, …), whose channels lie innermost in memory.
Desc channels_last_desc(const Dims& shape, size_t channel_axis, DataType type);
// A matrix of rows × columns. If `transposed`, its transpose lies in memory.
Desc matrix_desc(int64_t rows, int64_t columns, bool transposed, DataType type);
Desc vector_desc(int64_t count, DataType type);
// The same extents and type, in the layout that oneDNN prefers.
Desc any_layout(const Dims& dims, DataType type);

// Location of a primitive's argument at run(): in an input, an output or the workspace.
struct Operand {
  enum class Place : uint8_t { Input, Output, Workspace };
  Place place = Place::Input;
  int64_t index = 0;  // of the input or output; bytes into the workspace
  Desc desc;
  int64_t offset = 0;  // bytes after the start of the input or output

  // The part of `count` extents of an axis, from `first` on. An axis of extent 1 is broadcast, so all of it.
  Operand part(size_t axis, int64_t first, int64_t count) const;
};
using Arguments = std::vector<std::pair<int, Operand>>;

// A range of an axis.
struct Part {
  int64_t first = 0, count = 0;
};
// Divides an axis into at most `most` parts of whole blocks; the last part may end within a block.
std::vector<Part> divided(int64_t extent, int64_t block, int64_t most);

// While an instance lives, primitives that this thread makes and runs are for one thread.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// The threads of a kernel with so many additions and multiplications, stated before its primitives are made. Few
// operations take longer on several threads, which have to wake up first.
struct ThreadChoice {
  ThreadChoice(double operations, bool deterministic);
  const bool alone;    // all on the thread that calls run(): primitives are made for one while this lives
  const bool divides;  // in pieces that do not depend on the number of threads

 private:
  std::optional<OneThread> one_;
};

class OnednnKernel final : public Kernel {
 public:
  // `alone`: all of it runs on the thread that calls run(). Its primitives are made under OneThread.
  explicit OnednnKernel(bool alone);
  Operand input(int64_t index, const Desc& desc) const { return {Operand::Place::Input, index, desc}; }
  Operand output(int64_t index, const Desc& desc) const { return {Operand::Place::Output, index, desc}; }
  Operand reserve(const Desc& desc);  // in the workspace

  // `from` in the layout `wanted`: `from` itself, or a copy, whose step is appended.
  Operand arranged(const Operand& from, const Desc& wanted);
  // Appends the sum of operands of one description, added in their order.
  void sum(const std::vector<Operand>& from, const Operand& to);
  // Destination in the layout `wanted` for a primitive: `to` itself, or workspace that finish() copies to `to`.
  Operand before(const Operand& to, const Desc& wanted);
  void finish(const Operand& from, const Operand& to);

  // Appends a primitive, with its scratchpad in the workspace.
  template <typename Primitive>
  void add(const typename Primitive::primitive_desc& desc, Arguments arguments) {
    Step step;
    step.pieces.push_back(made<Primitive>(desc, std::move(arguments)));
    steps_.push_back(std::move(step));
  }
  // Appends pieces that may run at the same time, each on one thread. They were described under OneThread.
  template <typename Primitive>
  void add_pieces(std::vector<std::pair<typename Primitive::primitive_desc, Arguments>> pieces) {
    const OneThread one;
    Step step{{}, true};
    for (auto& [desc, arguments] : pieces) step.pieces.push_back(made<Primitive>(desc, std::move(arguments)));
    steps_.push_back(std::move(step));
  }

  int64_t workspace_bytes() const override { return workspace_; }
  void run(const KernelContext& context) const override;

 private:
  struct Binding {
    Operand operand;
    dnnl::memory memory;
  };
  struct Piece {
    dnnl::primitive primitive;
    std::vector<Binding> bindings;
    std::vector<dnnl_exec_arg_t> arguments;
  };
  struct Step {
    std::vector<Piece> pieces;
    bool divided = false;  // else there is one piece, on all threads
  };
  template <typename Primitive>
  Piece made(const typename Primitive::primitive_desc& desc, Arguments arguments) {
    return made_piece(Primitive(desc), desc.scratchpad_desc(), std::move(arguments));
  }
  Piece made_piece(dnnl::primitive primitive, const Desc& scratchpad, Arguments arguments);
  void run(const Piece& piece, const KernelContext& context) const;
  void reorder(const Operand& from, const Operand& to);

  const bool alone_;
  dnnl::stream stream_;
  std::vector<Step> steps_;
  int64_t workspace_ = 0;
  mutable std::atomic<bool> has_run_{false};
};

struct ConvDescs {
  Desc src, weights, bias, dst;
  Dims strides, dilations, pad_begin, pad_end;  // dilations count from 0, as oneDNN has them
};

// These functions throw dnnl::error if oneDNN has no such primitive. An empty bias: none.
dnnl::convolution_forward::primitive_desc make_convolution(const ConvDescs& descs);
dnnl::convolution_backward_data::primitive_desc make_convolution_backward_data(const ConvDescs& descs);
// `forward_weights` are in the type that the forward convolution reads; descs.weights may be wider.
dnnl::convolution_backward_weights::primitive_desc make_convolution_backward_weights(const ConvDescs& descs,
                                                                                     const Desc& forward_weights);
dnnl::matmul::primitive_desc make_matmul(const Desc& a, const Desc& b, const Desc& bias, const Desc& y);

// Whether the primitive is oneDNN's reference code, slower than our plain loops.
bool is_reference(const dnnl::primitive_desc_base& desc);

}  // namespace arbalest::onednn
