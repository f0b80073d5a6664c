// SPDX-License-Identifier: Apache-2.0

// Parts of operands are copied into padded memory, cuBLASLt multiplies them, and the result is copied out. Whatever is
// added to the product is added on the way out.

#include "ops/product/padded_product.h"

#include "ops/cuda/cuda_math.cuh"
#include "ops/math/divisor.h"
#include "ops/product/row_words.h"

namespace arbalest::cuda {
namespace {

// beta · c and factor · summand, which are added to elements that are copied; both may be null. c has strides; a stride
// of 0 broadcasts it along rows or columns. The summand lies as the destination does.
template <typename T>
struct Added {
  const float* c = nullptr;
  float beta = 0, factor = 0;
  int64_t c_row = 0, c_column = 0;
  const T* summand = nullptr;
};

// Eight or four elements from `at`, by the aligned words that they lie in.
template <typename T>
__device__ inline Pack<T, int(16 / sizeof(T))> load_anywhere(const T* from, int64_t at) {
  constexpr int W = int(16 / sizeof(T));
  const int inside = int(at % W);
  const auto low = load<W>(from + at - inside);
  if (inside == 0) return low;
  union Words {
    uint32_t word[8];
    Pack<T, W> pack[2];
    __device__ Words() {}
  } pair;
  pair.pack[0] = low;
  pair.pack[1] = load<W>(from + at - inside + W);
  union Result {
    uint32_t word[4];
    Pack<T, W> pack;
    __device__ Result() {}
  } result;
  take_word(pair.word, inside * int(sizeof(T)), result.word);
  return result.pack;
}

// A word of the destination a thread. `from` and `to` are aligned; matrices begin `first_from` and `first_to` elements
// after them.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    move_rows_kernel(RowsMove move, int words, Divisor by_words, Added<To> added, const From* from, int64_t first_from,
                     To* to, int64_t first_to) {
  constexpr int W = int(16 / sizeof(To));
  for (int64_t matrix = blockIdx.y; matrix < move.batch; matrix += gridDim.y) {
    const int64_t source = first_from + matrix * move.from.step, destination = first_to + matrix * move.to.step;
    const int64_t end = source + (move.rows - 1) * move.from.pitch + move.columns;  // of what is there to be read
    for (int64_t i = thread_index(); i < move.to_rows * words; i += thread_count()) {
      const int64_t row = by_words.quotient(int(i)), at = destination + row * move.to.pitch;
      const RowWord word = row_word(at, move.to_columns, i - row * words, W);
      if (word.begin >= word.end) continue;
      const bool whole = word.end - word.begin == W;
      const int64_t read = source + row * move.from.pitch + word.first;
      Pack<To, W> pack;
      bool loaded = false;
      if constexpr (std::is_same_v<From, To>) {
        loaded = whole && row < move.rows && word.end <= move.columns && read - read % W + 2 * W <= end;
        if (loaded) pack = load_anywhere(from, read);
      }
      if (!loaded) {
#pragma unroll
        for (int e = 0; e < W; ++e) {
          const int64_t column = word.first + e;
          const bool there = row < move.rows && column >= word.begin && column < min(word.end, move.columns);
          pack.element[e] = narrow<To>(there ? widen(from[read + e]) : 0.0f);
        }
      }
      if (added.c != nullptr || added.summand != nullptr) {
#pragma unroll
        for (int e = 0; e < W; ++e) {
          const int64_t column = word.first + e;
          if (column < word.begin || column >= word.end) continue;
          float sum = widen(pack.element[e]);
          if (added.c != nullptr) sum += added.beta * added.c[row * added.c_row + column * added.c_column];
          if (added.summand != nullptr) sum += added.factor * widen(added.summand[at + column]);
          pack.element[e] = narrow<To>(sum);
        }
      }
      if (whole) {
        store(to + at + word.first, pack);
      } else {
#pragma unroll
        for (int e = 0; e < W; ++e) {
          const int64_t column = word.first + e;
          if (column >= word.begin && column < word.end) to[at + column] = pack.element[e];
        }
      }
    }
  }
}

class PaddedProduct final : public Kernel {
 public:
  PaddedProduct(const KernelRequest& request, const Problem& problem, const ProductPadding& padding)
      : problem_(problem),
        padding_(padding),
        memory_(padded_memory(problem, padding)),
        parts_(parts_of(problem, padding)),
        multiprocessors_(multiprocessors_of(request)) {
    KernelRequest inner = request;
    inner.workspace_limit = request.workspace_limit - memory_for_padding(request);
    const auto make = [&](int64_t part) {
      return std::shared_ptr<Kernel>(library_product(inner, problem_of_part(problem_, padding_, part)));
    };
    const bool adds_up = padding.axis == ProductAxis::K;
    first_ = make(0);
    middle_ = parts_ > 2 && adds_up ? make(1) : first_;
    last_ = parts_ > 1 ? make(parts_ - 1) : first_;
  }

  bool found() const { return first_ && middle_ && last_; }
  std::string engine() const override {
    constexpr const char* kWays[] = {"padded operands, ", "padded rows, ", "padded extents, "};
    return kWays[size_t(padding_.way)] + first_->engine();
  }
  int64_t workspace_bytes() const override {
    return memory_.bytes + std::max({first_->workspace_bytes(), middle_->workspace_bytes(), last_->workspace_bytes()});
  }

  void run(const KernelContext& c) const override {
    require_alignment("padded product", {c.inputs[problem_.inputs.a], c.inputs[problem_.inputs.b], c.outputs[0]});
    for (const MatrixSteps& call : problem_.calls) {
      for (int64_t part = 0; part < parts_; ++part) run_part(c, call, part);
    }
    if (!padding_.own[kOfY]) add_matrix(c, problem_, multiprocessors_);
  }

 private:
  void* own(const KernelContext& c, ProductMatrix matrix) const {
    return static_cast<char*>(c.workspace) + memory_.offset[matrix];
  }

  // The part's operand, in padded memory if it is to lie there.
  const void* operand(const KernelContext& c, int64_t part, int input, int64_t first, ProductMatrix matrix) const {
    const void* const given = c.inputs[input];
    if (!padding_.own[matrix]) return static_cast<const char*>(given) + first * int64_t(sizeof(__nv_bfloat16));
    void* const to = own(c, matrix);
    if (part == 0 || moves_with_part(problem_, padding_, matrix)) {
      launch(stream_of(c), move_of_part(problem_, padding_, part, matrix), Added<__nv_bfloat16>(),
             static_cast<const __nv_bfloat16*>(given), first, static_cast<__nv_bfloat16*>(to), 0);
    }
    return to;
  }

  void run_part(const KernelContext& c, const MatrixSteps& call, int64_t part) const {
    const MatrixSteps first = part_of(problem_, padding_, part).first;
    const void* operands[] = {operand(c, part, problem_.inputs.a, call.a + first.a, kOfA),
                              operand(c, part, problem_.inputs.b, call.b + first.b, kOfB), nullptr};
    const int64_t before = call.y + first.y, bytes_before = before * int64_t(size_of(problem_.out));
    void* const y = padding_.own[kOfY] ? own(c, kOfY) : static_cast<char*>(c.outputs[0]) + bytes_before;
    const bool adds_up = padding_.axis == ProductAxis::K && part > 0;
    if (adds_up) {
      operands[PartInput::Summand] = y;
    } else if (!padding_.own[kOfY] && problem_.inputs.summand >= 0) {
      operands[PartInput::Summand] = static_cast<const char*>(c.inputs[problem_.inputs.summand]) + bytes_before;
    }
    KernelContext inner = c;
    inner.inputs = operands;
    inner.outputs = &y;
    inner.workspace = static_cast<char*>(c.workspace) + memory_.bytes;
    (part == 0 ? first_ : part + 1 < parts_ ? middle_ : last_)->run(inner);
    const bool complete = padding_.axis != ProductAxis::K || part + 1 == parts_;
    if (padding_.own[kOfY] && complete) move_out(c, part, before);
  }

  void move_out(const KernelContext& c, int64_t part, int64_t before) const {
    const RowsMove move = move_of_part(problem_, padding_, part, kOfY);
    with_stored(type_of_sums(problem_, padding_), [&](auto from) {
      with_stored(problem_.out, [&](auto to) {
        using From = decltype(from);
        using To = decltype(to);
        if constexpr (std::is_same_v<From, To> || std::is_same_v<From, float>) {
          launch(stream_of(c), move, added<To>(c, part), static_cast<const From*>(own(c, kOfY)), 0,
                 static_cast<To*>(c.outputs[0]), before);
        }
      });
    });
  }

  template <typename T>
  Added<T> added(const KernelContext& c, int64_t part) const {
    Added<T> all;
    if (problem_.addend != Addend::None) {
      const bool rows = problem_.addend == Addend::Column || problem_.addend == Addend::Matrix;
      const bool columns = problem_.addend == Addend::Row || problem_.addend == Addend::Matrix;
      all.c_row = !rows ? 0 : columns ? problem_.n : 1;
      all.c_column = columns ? 1 : 0;
      const int64_t along = padding_.axis == ProductAxis::M   ? all.c_row
                            : padding_.axis == ProductAxis::N ? all.c_column
                                                              : 0;
      all.c = input<float>(c, size_t(problem_.inputs.c)) + part * padding_.part * along;
      all.beta = problem_.beta;
    }
    if (problem_.inputs.summand >= 0) {
      all.summand = input<T>(c, size_t(problem_.inputs.summand));
      all.factor = problem_.summand_factor;
    }
    return all;
  }

  template <typename From, typename To>
  void launch(cudaStream_t stream, const RowsMove& move, const Added<To>& added, const From* from, int64_t first_from,
              To* to, int64_t first_to) const {
    const int64_t words = most_row_words(move.to_columns, int(16 / sizeof(To)));
    const dim3 grid(blocks_for(move.to_rows * words, multiprocessors_), unsigned(std::min<int64_t>(move.batch, 65535)));
    move_rows_kernel<<<grid, kThreads, 0, stream>>>(move, int(words), Divisor(words), added, from, first_from, to,
                                                    first_to);
    check_launch("padded product's rows");
  }

  const Problem problem_;
  const ProductPadding padding_;
  const PaddedMemory memory_;
  const int64_t parts_;
  const int multiprocessors_;
  std::shared_ptr<Kernel> first_, middle_, last_;  // products of parts
};

}  // namespace

int64_t memory_for_padding(const KernelRequest& request) {
  return request.workspace_limit / 4 * 3;
}

std::unique_ptr<Kernel> padded_product(const KernelRequest& request, const Problem& problem,
                                       const ProductPadding& padding) {
  auto kernel = std::make_unique<PaddedProduct>(request, problem, padding);
  return kernel->found() ? std::move(kernel) : nullptr;
}

}  // namespace arbalest::cuda
