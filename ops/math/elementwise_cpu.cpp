// SPDX-License-Identifier: Apache-2.0
#include "ops/math/elementwise_cpu.h"

#include <limits>

#include "ops/math/elementwise.h"

namespace arbalest {
namespace {

constexpr int64_t kBuffered = 512;  // elements in a buffer: they stay in the nearest cache
constexpr int64_t kShort = 64;      // shorter runs are put together before the row function sees them
constexpr size_t kMostBytes = 8;    // of an element

// Whether the tensor lies without gaps in the order of the walk.
bool is_dense(const Strided& walk, size_t tensor) {
  int64_t elements = 1;
  for (int axis = walk.rank - 1; axis >= 0; --axis) {
    if (walk.extent[axis] != 1 && walk.stride[tensor][axis] != elements) return false;
    elements *= walk.extent[axis];
  }
  return true;
}

// Puts `count` elements of the walk side by side.
template <typename Word>
void gather_words(Cursor& cursor, const void* from, int64_t count, void* to) {
  const Word* x = static_cast<const Word*>(from);
  Word* y = static_cast<Word*>(to);
  const int64_t step = cursor.step();
  while (count > 0) {
    const int64_t run = std::min(count, cursor.left());
    const Word* first = x + cursor.offset();
    if (step == 1) {
      std::copy_n(first, run, y);
    } else if (step == 0) {
      std::fill_n(y, run, *first);
    } else {
      ARBALEST_INDEPENDENT
      for (int64_t i = 0; i < run; ++i) y[i] = first[i * step];
    }
    y += run;
    count -= run;
    cursor.advance(run);
  }
}

void gather(size_t bytes, Cursor& cursor, const void* from, int64_t count, void* to) {
  switch (bytes) {
    case 1: return gather_words<uint8_t>(cursor, from, count, to);
    case 2: return gather_words<uint16_t>(cursor, from, count, to);
    case 4: return gather_words<uint32_t>(cursor, from, count, to);
    default: return gather_words<uint64_t>(cursor, from, count, to);
  }
}

// Computes a part of the output. Row functions take neighbouring elements: inputs that lie otherwise are gathered in
// buffers, but for one that stands still if the function takes that.
class PartMap {
 public:
  PartMap(const Strided& walk, const RowMap& map, const void* const* in, int64_t begin)
      : map_(map), in_(in), place_(begin), inner_(walk.inner()) {
    const bool is_short = inner_ < kShort;
    for (size_t t = 0; t < map.inputs; ++t) {
      cursors_[t] = Cursor(walk, t + 1, begin);
      const int64_t step = cursors_[t].step();
      const bool stands = step == 0 && !is_short && map.broadcasts && still_ < 0;
      if (stands) still_ = int(t);
      way_[t] = is_dense(walk, t + 1) ? Way::Dense : stands || (step == 1 && !is_short) ? Way::Along : Way::Gathered;
      if (way_[t] == Way::Gathered) most_ = kBuffered;
    }
    within_runs_ = std::count(way_, way_ + map.inputs, Way::Along) > 0;
  }

  void run(int64_t count, std::byte* out) {
    const void* from[RowMap::kMostInputs];
    while (count > 0) {
      int64_t part = std::min(count, most_);
      if (within_runs_) part = std::min(part, inner_ - place_ % inner_);
      for (size_t t = 0; t < map_.inputs; ++t) from[t] = input(t, part);
      map_.row(map_.function, part, out, from, still_);
      out += part * int64_t(map_.out_bytes);
      place_ += part;
      count -= part;
    }
  }

 private:
  // Dense: neighbours wherever the walk is. Along: neighbours in a run along the innermost axis, or one element there.
  enum class Way : uint8_t { Dense, Along, Gathered };

  const void* input(size_t t, int64_t count) {
    const std::byte* base = static_cast<const std::byte*>(in_[t]);
    const int64_t bytes = int64_t(map_.in_bytes[t]);
    switch (way_[t]) {
      case Way::Dense: return base + place_ * bytes;
      case Way::Along: {
        const void* at = base + cursors_[t].offset() * bytes;
        cursors_[t].advance(count);
        return at;
      }
      case Way::Gathered: gather(size_t(bytes), cursors_[t], base, count, buffers_[t]);
    }
    return buffers_[t];
  }

  const RowMap& map_;
  const void* const* in_;
  int64_t place_, inner_, most_ = std::numeric_limits<int64_t>::max();  // elements
  int still_ = -1;
  bool within_runs_ = false;
  Way way_[RowMap::kMostInputs] = {};
  Cursor cursors_[RowMap::kMostInputs];
  alignas(64) std::byte buffers_[RowMap::kMostInputs][kBuffered * kMostBytes];
};

}  // namespace

void map_strided(const Strided& walk, int64_t count, const RowMap& map, void* out, const void* const* in) {
  if (count == 0) return;
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    PartMap(walk, map, in, begin).run(end - begin, static_cast<std::byte*>(out) + begin * int64_t(map.out_bytes));
  });
}

void copy_strided(const Strided& walk, int64_t count, size_t bytes, void* out, const void* in) {
  if (count == 0) return;
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    Cursor cursor(walk, 1, begin);
    gather(bytes, cursor, in, end - begin, static_cast<std::byte*>(out) + begin * int64_t(bytes));
  });
}

namespace elementwise {

ElementFunction element_function(std::string_view text, std::vector<std::string> arguments, const TypedRows& rows) {
  return {.text = std::string(text),
          .arguments = std::move(arguments),
          .floats = rows.floats,
          .doubles = rows.doubles,
          .numbers = [](const Node& node) {
            const Parameters parameters = parameters_of(node);
            return std::array{parameters.alpha, parameters.beta};
          }};
}

std::unique_ptr<Kernel> row_kernel(const KernelRequest& request, const TypedRows& rows, const Parameters& parameters,
                                   const Strided& walk) {
  const DataType type = request.inputs[0].dtype;
  const auto row_of = [&] {
    switch (type) {
      case DataType::Float32: return rows.floats;
      case DataType::Bfloat16: return rows.bfloat16s;
      case DataType::Float64: return rows.doubles;
      case DataType::Uint8: return rows.uint8s;
      case DataType::Int32: return rows.int32s;
      case DataType::Int64: return rows.int64s;
      default: return RowFunction{};
    }
  };
  RowMap map{.row = row_of(), .inputs = rows.inputs, .out_bytes = size_of(type), .broadcasts = rows.broadcasts};
  if (!map.row) throw RunError("no CPU kernel for elements of type " + std::string(name_of(type)));
  map.in_bytes.fill(size_of(type));
  return make_kernel([map, parameters, walk, count = request.outputs[0].elements()](const KernelContext& c) {
    RowMap own = map;
    own.function = &parameters;
    map_strided(walk, count, own, c.outputs[0], c.inputs);
  });
}

KernelFactory row_kernels(const TypedRows& rows) {
  return [rows](const KernelRequest& request) {
    std::vector<TensorType> walked = walked_types(request);
    walked.resize(1 + rows.inputs);  // without Clip's bounds
    return row_kernel(request, rows, parameters_of(request.node), Strided(walked));
  };
}

}  // namespace elementwise

}  // namespace arbalest
