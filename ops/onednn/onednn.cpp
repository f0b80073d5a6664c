// SPDX-License-Identifier: Apache-2.0
#include "ops/onednn/onednn.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/error.h"
#include "base/memory/address_space.h"

namespace arbalest::onednn {
namespace {

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

}  // namespace

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

bool supported(DataType type) {
  return type == DataType::Float32 || type == DataType::Bfloat16;
}

dnnl::memory::data_type type_of(DataType type) {
  return type == DataType::Bfloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

Desc channels_last_desc(const Dims& shape, size_t channel_axis, DataType type) {
  Dims strides(shape.size());
  int64_t stride = 1;
  const auto take = [&](size_t axis) { strides[axis] = stride, stride *= shape[axis]; };
  take(channel_axis);
  for (size_t axis = shape.size(); axis-- > 0;) {
    if (axis != channel_axis) take(axis);
  }
  return {shape, type_of(type), strides};
}

Desc matrix_desc(int64_t rows, int64_t columns, bool transposed, DataType type) {
  return {Dims{rows, columns}, type_of(type), transposed ? Dims{1, rows} : Dims{columns, 1}};
}

Desc vector_desc(int64_t count, DataType type) {
  return {Dims{count}, type_of(type), Dims{1}};
}

Desc any_layout(const Dims& dims, DataType type) {
  return {dims, type_of(type), dnnl::memory::format_tag::any};
}

Operand Operand::part(size_t axis, int64_t first, int64_t count) const {
#if DNNL_VERSION_MAJOR >= 3
  Dims dims = desc.get_dims();
  const Dims strides = desc.get_strides();
  const auto type = desc.get_data_type();
#else
  Dims dims = desc.dims();
  const Dims strides(desc.data.format_desc.blocking.strides, desc.data.format_desc.blocking.strides + dims.size());
  const auto type = desc.data_type();
#endif
  if (dims[axis] == 1) return *this;
  dims[axis] = count;
  Operand result = *this;
  result.desc = Desc(dims, type, strides);
  result.offset += first * strides[axis] * int64_t(dnnl::memory::data_type_size(type));
  return result;
}

std::vector<Part> divided(int64_t extent, int64_t block, int64_t most) {
  const int64_t blocks = (extent + block - 1) / block;
  const int64_t step = (blocks + most - 1) / most * block;
  std::vector<Part> parts;
  for (int64_t first = 0; first < extent; first += step) parts.push_back({first, std::min(step, extent - first)});
  return parts;
}

#ifdef _OPENMP
OneThread::OneThread() : before_(omp_get_max_threads()) {
  omp_set_num_threads(1);
}
OneThread::~OneThread() {
  omp_set_num_threads(before_);
}
#else
OneThread::OneThread() : before_(1) {}
OneThread::~OneThread() = default;
#endif

ThreadChoice::ThreadChoice(double operations, bool deterministic)
    : alone(operations < 4e6), divides(deterministic && !alone) {  // 4e6: some 50 µs of one core
  if (alone) one_.emplace();
}

OnednnKernel::OnednnKernel(bool alone) : alone_(alone), stream_(cpu_engine()) {}

Operand OnednnKernel::reserve(const Desc& desc) {
  constexpr int64_t kAlignment = 256;
  const int64_t at = workspace_;
  workspace_ += (int64_t(desc.get_size()) + kAlignment - 1) / kAlignment * kAlignment;
  return {Operand::Place::Workspace, at, desc};
}

Operand OnednnKernel::arranged(const Operand& from, const Desc& wanted) {
  if (from.desc == wanted) return from;
  const Operand to = reserve(wanted);
  reorder(from, to);
  return to;
}

Operand OnednnKernel::before(const Operand& to, const Desc& wanted) {
  return to.desc == wanted ? to : reserve(wanted);
}

void OnednnKernel::finish(const Operand& from, const Operand& to) {
  if (from.desc != to.desc) reorder(from, to);
}

void OnednnKernel::reorder(const Operand& from, const Operand& to) {
  const dnnl::reorder::primitive_desc desc(cpu_engine(), from.desc, cpu_engine(), to.desc, user_scratchpad());
  add<dnnl::reorder>(desc, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

void OnednnKernel::sum(const std::vector<Operand>& from, const Operand& to) {
  const std::vector<Desc> descs(from.size(), to.desc);
  const std::vector<float> scales(from.size(), 1.0f);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::sum::primitive_desc desc(cpu_engine(), to.desc, scales, descs, user_scratchpad());
#else
  const dnnl::sum::primitive_desc desc(to.desc, scales, descs, cpu_engine(), user_scratchpad());
#endif
  Arguments arguments = {{DNNL_ARG_DST, to}};
  for (size_t i = 0; i < from.size(); ++i) arguments.emplace_back(DNNL_ARG_MULTIPLE_SRC + int(i), from[i]);
  add<dnnl::sum>(desc, std::move(arguments));
}

OnednnKernel::Piece OnednnKernel::made_piece(dnnl::primitive primitive, const Desc& scratchpad, Arguments arguments) {
  if (scratchpad.get_size() > 0) arguments.emplace_back(DNNL_ARG_SCRATCHPAD, reserve(scratchpad));
  Piece piece{std::move(primitive), {}, {}};
  for (auto& [id, operand] : arguments) {
    dnnl::memory memory(operand.desc, cpu_engine(), DNNL_MEMORY_NONE);
    piece.arguments.push_back({id, memory.get()});
    piece.bindings.push_back({std::move(operand), std::move(memory)});
  }
  return piece;
}

void OnednnKernel::run(const KernelContext& context) const {
  if (!has_run_.load(std::memory_order_relaxed)) {
    // Some code is made when it is first needed, and oneDNN crashes if there is no memory for it.
    const AddressSpace room(size_t{32} << 20);
    has_run_.store(true, std::memory_order_relaxed);
  }
  std::optional<OneThread> one;
  if (alone_) one.emplace();
  for (const Step& step : steps_) {
    if (!step.divided) {
      run(step.pieces.front(), context);
      continue;
    }
    std::mutex mutex;
    std::exception_ptr error;
    const int64_t count = int64_t(step.pieces.size());
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic)
#endif
    for (int64_t i = 0; i < count; ++i) {
      const OneThread one;
      try {
        run(step.pieces[size_t(i)], context);
      } catch (...) {  // none may leave the parallel loop
        const std::scoped_lock lock(mutex);
        error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
  }
}

void OnednnKernel::run(const Piece& piece, const KernelContext& context) const {
  for (const Binding& binding : piece.bindings) {
    const Operand& operand = binding.operand;
    const size_t index = size_t(operand.index);
    std::byte* address = nullptr;
    switch (operand.place) {
      case Operand::Place::Input:
        address = static_cast<std::byte*>(const_cast<void*>(context.inputs[index])) + operand.offset;
        break;
      case Operand::Place::Output: address = static_cast<std::byte*>(context.outputs[index]) + operand.offset; break;
      case Operand::Place::Workspace: address = static_cast<std::byte*>(context.workspace) + index; break;
    }
    // Setting an address has a price (padding is cleared), so it is done only if it changes.
    if (binding.memory.get_data_handle() != address) binding.memory.set_data_handle(address);
  }
  const dnnl_status_t status =
      dnnl_primitive_execute(piece.primitive.get(), stream_.get(), int(piece.arguments.size()), piece.arguments.data());
  if (status != dnnl_success) throw RunError("oneDNN: execution failed with status " + std::to_string(int(status)));
}

dnnl::convolution_forward::primitive_desc make_convolution(const ConvDescs& d) {
  const auto kind = dnnl::prop_kind::forward_training;
#if DNNL_VERSION_MAJOR >= 3
  return {cpu_engine(), kind,      kAlgorithm,  d.src,       d.weights, d.bias,
          d.dst,        d.strides, d.dilations, d.pad_begin, d.pad_end, user_scratchpad()};
#else
  return {{kind, kAlgorithm, d.src, d.weights, d.bias, d.dst, d.strides, d.dilations, d.pad_begin, d.pad_end},
          user_scratchpad(),
          cpu_engine()};
#endif
}

namespace {

// Gradients need the forward primitive as a hint.
template <typename Backward>
typename Backward::primitive_desc make_backward(const ConvDescs& d, const Desc& forward_weights) {
  ConvDescs forward_descs = d;
  forward_descs.weights = forward_weights;
  const auto forward = make_convolution(forward_descs);
#if DNNL_VERSION_MAJOR >= 3
  return {cpu_engine(), kAlgorithm, d.src,   d.weights,        d.dst, d.strides, d.dilations,
          d.pad_begin,  d.pad_end,  forward, user_scratchpad()};
#else
  return {{kAlgorithm, d.src, d.weights, d.dst, d.strides, d.dilations, d.pad_begin, d.pad_end},
          user_scratchpad(),
          cpu_engine(),
          forward};
#endif
}

}  // namespace

dnnl::convolution_backward_data::primitive_desc make_convolution_backward_data(const ConvDescs& d) {
  return make_backward<dnnl::convolution_backward_data>(d, d.weights);
}

dnnl::convolution_backward_weights::primitive_desc make_convolution_backward_weights(const ConvDescs& d,
                                                                                     const Desc& forward_weights) {
  return make_backward<dnnl::convolution_backward_weights>(d, forward_weights);
}

dnnl::matmul::primitive_desc make_matmul(const Desc& a, const Desc& b, const Desc& bias, const Desc& y) {
#if DNNL_VERSION_MAJOR >= 3
  return {cpu_engine(), a, b, bias, y, user_scratchpad()};
#else
  return {{a, b, bias, y}, user_scratchpad(), cpu_engine()};
#endif
}

bool is_reference(const dnnl::primitive_desc_base& desc) {
  return std::string_view(desc.impl_info_str()).find("ref") != std::string_view::npos;
}

}  // namespace arbalest::onednn
