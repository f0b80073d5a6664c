// SPDX-License-Identifier: Apache-2.0

// The CUDA kernel of a region, as text. A thread computes `width` neighbouring elements in float. Extents and strides
// are arguments, so that regions of other shapes are one kernel where they are walked through alike.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/math/strided.h"
#include "ops/regions/region.h"

namespace arbalest {
namespace {

constexpr std::string_view kPrelude = R"(
#define ARBALEST_HOST_DEVICE __device__
typedef float W;
typedef unsigned short Bfloat16;
{functions}
template <int bytes> struct Words;
template <> struct Words<1> {{ typedef unsigned char Type; }};
template <> struct Words<2> {{ typedef unsigned short Type; }};
template <> struct Words<4> {{ typedef unsigned int Type; }};
template <> struct Words<8> {{ typedef uint2 Type; }};
template <> struct Words<16> {{ typedef uint4 Type; }};
template <int N, typename T> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {{ T element[N]; }};

template <int N, typename T> __device__ Pack<N, T> load(const T* from) {{
  constexpr int bytes = N * sizeof(T), unit = bytes < 16 ? bytes : 16;
  typedef typename Words<unit>::Type Word;
  Pack<N, T> pack;
#pragma unroll
  for (int i = 0; i < bytes / unit; ++i) ((Word*)&pack)[i] = __ldg((const Word*)from + i);
  return pack;
}}
template <int N, typename T> __device__ void store(T* to, const Pack<N, T>& pack) {{
  constexpr int bytes = N * sizeof(T), unit = bytes < 16 ? bytes : 16;
  typedef typename Words<unit>::Type Word;
#pragma unroll
  for (int i = 0; i < bytes / unit; ++i) ((Word*)to)[i] = ((const Word*)&pack)[i];
}}
__device__ W widen(float x) {{ return x; }}
__device__ W widen(bool x) {{ return x; }}
__device__ W widen(Bfloat16 x) {{ return __uint_as_float((unsigned)x << 16); }}
__device__ void narrow(W x, float& to) {{ to = x; }}
__device__ void narrow(W x, Bfloat16& to) {{ asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to) : "f"(x)); }}
)";

std::string_view element_type(DataType type) {
  switch (type) {
    case DataType::Float32: return "float";
    case DataType::Bfloat16: return "Bfloat16";
    case DataType::Bool: return "bool";
    default: throw RunError(fmt::format("regions on GPUs take float, bfloat16 and bool; found {}", name_of(type)));
  }
}

// Exactly the number's value in float.
std::string literal(double number) {
  const float value = float(number);
  if (std::isnan(value)) return "__int_as_float(0x7fffffff)";
  if (std::isinf(value)) return value > 0 ? "__int_as_float(0x7f800000)" : "__int_as_float(0xff800000)";
  return fmt::format("{:a}f", value);
}

// How an input's elements are found for a pack of neighbours.
enum class Way { Whole, Along, Still, Strided };

Way way_of(const RegionWalk& walk, size_t input) {
  if (walk.is_whole(input)) return Way::Whole;
  const int64_t inner = walk.strides[input].back();
  return inner == 0 ? Way::Still : inner == 1 ? Way::Along : Way::Strided;
}

// The most elements that one access of 16 bytes of the narrowest type holds, and that every run along the innermost
// axis is a multiple of.
int width_of(const RegionWalk& walk, const std::vector<DataType>& inputs, const std::vector<DataType>& outputs) {
  int64_t width = 4;
  for (const std::vector<DataType>* types : {&inputs, &outputs}) {
    for (const DataType type : *types) width = type == DataType::Bfloat16 ? 8 : width;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Way way = way_of(walk, i);
    const bool one = std::all_of(walk.strides[i].begin(), walk.strides[i].end(), [](int64_t s) { return s == 0; });
    if (way == Way::Whole || one) continue;
    while (walk.extents.back() % width != 0) width /= 2;
    if (way != Way::Along) continue;
    for (size_t axis = 0; axis + 1 < walk.extents.size(); ++axis) {
      while (walk.strides[i][axis] % width != 0) width /= 2;
    }
  }
  return int(width);
}

class Writer {
 public:
  Writer(const RegionProgram& program, const RegionWalk& walk, const std::vector<DataType>& inputs,
         const std::vector<DataType>& outputs)
      : program_(program), walk_(walk), inputs_(inputs), outputs_(outputs) {}

  RegionSource write() {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (way_of(walk_, i) != Way::Whole) source_.placed.push_back(i);
    }
    source_.width = width_of(walk_, inputs_, outputs_);
    add(fmt::format(kPrelude, fmt::arg("functions", kFormulaText)));
    write_body();
    write_kernel();
    return std::move(source_);
  }

 private:
  void add(std::string_view text) { source_.text += text; }
  size_t rank() const { return walk_.extents.size(); }

  // "long long count, Walk walk, const T0* __restrict__ x0, …"
  std::string parameters() const {
    std::string text = "long long count";
    if (!source_.placed.empty()) text += ", const Walk walk";
    for (size_t i = 0; i < inputs_.size(); ++i) {
      text += fmt::format(", const {}* __restrict__ x{}", element_type(inputs_[i]), i);
    }
    for (size_t k = 0; k < outputs_.size(); ++k) {
      text += fmt::format(", {}* __restrict__ y{}", element_type(outputs_[k]), k);
    }
    return text;
  }
  std::string arguments() const {
    std::string text = "count";
    if (!source_.placed.empty()) text += ", walk";
    for (size_t i = 0; i < inputs_.size(); ++i) text += fmt::format(", x{}", i);
    for (size_t k = 0; k < outputs_.size(); ++k) text += fmt::format(", y{}", k);
    return text;
  }

  void write_body() {
    const bool small = walk_.count < int64_t{1} << 31;
    if (!source_.placed.empty()) {
      add(fmt::format("struct Walk {{ long long extent[{0}], stride[{1}][{0}]; }};\n", rank(), source_.placed.size()));
    }
    add(fmt::format("template <int N> __device__ void compute(long long at, {}) {{\n", parameters()));
    if (!source_.placed.empty() && rank() > 1) {
      add(fmt::format("  {} rest = at;\n", small ? "unsigned" : "long long"));
      for (size_t axis = rank(); axis-- > 1;) {
        add(fmt::format(
            "  const {0} e{1} = walk.extent[{1}], q{1} = rest / e{1}, c{1} = rest - q{1} * e{1};\n  rest = q{1};\n",
            small ? "unsigned" : "long long", axis));
      }
      add(fmt::format("  const {} c0 = rest;\n", small ? "unsigned" : "long long"));
    } else if (!source_.placed.empty()) {
      add("  const long long c0 = at;\n");
    }
    for (size_t i = 0; i < inputs_.size(); ++i) write_load(i);
    for (size_t k = 0; k < outputs_.size(); ++k)
      add(fmt::format("  Pack<N, {}> out{};\n", element_type(outputs_[k]), k));
    add("#pragma unroll\n  for (int j = 0; j < N; ++j) {\n");
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const bool one = way_of(walk_, i) == Way::Still;
      add(fmt::format("    const W v{0} = {1};\n", i,
                      one ? fmt::format("in{}", i) : fmt::format("widen(in{}.element[j])", i)));
    }
    for (size_t s = 0; s < program_.steps.size(); ++s) write_step(s);
    for (size_t k = 0; k < outputs_.size(); ++k) {
      add(fmt::format("    narrow(v{}, out{}.element[j]);\n", program_.inputs + program_.results[k], k));
    }
    add("  }\n");
    for (size_t k = 0; k < outputs_.size(); ++k) add(fmt::format("  store(y{0} + at, out{0});\n", k));
    add("}\n");
  }

  void write_load(size_t i) {
    const Way way = way_of(walk_, i);
    if (way == Way::Whole) return add(fmt::format("  const auto in{0} = load<N>(x{0} + at);\n", i));
    const size_t place = size_t(std::find(source_.placed.begin(), source_.placed.end(), i) - source_.placed.begin());
    std::string offset;
    for (size_t axis = 0; axis < rank(); ++axis) {
      if (walk_.strides[i][axis] == 0) continue;
      offset += fmt::format("{}c{} * walk.stride[{}][{}]", offset.empty() ? "" : " + ", axis, place, axis);
    }
    if (offset.empty()) offset = "0";
    switch (way) {
      case Way::Along: return add(fmt::format("  const auto in{0} = load<N>(x{0} + ({1}));\n", i, offset));
      case Way::Still: return add(fmt::format("  const W in{0} = widen(x{0}[{1}]);\n", i, offset));
      default:
        return add(
            fmt::format("  Pack<N, {2}> in{0};\n#pragma unroll\n  for (int j = 0; j < N; ++j) in{0}.element[j] = "
                        "x{0}[{1} + j * walk.stride[{3}][{4}]];\n",
                        i, offset, element_type(inputs_[i]), place, rank() - 1));
    }
  }

  void write_step(size_t s) {
    const RegionStep& step = program_.steps[s];
    const ElementFunction& element = *step.op->element;
    add(fmt::format("    W v{};\n    {{\n", program_.inputs + s));
    for (size_t k = 0; k < step.operands.size(); ++k) {
      add(fmt::format("      const W {} = v{};\n", element.arguments[k], step.operands[k]));
    }
    add(fmt::format("      const W alpha = {}, beta = {};\n      v{} = {};\n    }}\n", literal(step.numbers[0]),
                    literal(step.numbers[1]), program_.inputs + s, element.text));
  }

  // A region whose pointers are not aligned is computed element by element, and so are the last ones.
  void write_kernel() {
    add(fmt::format(R"(extern "C" __global__ void __launch_bounds__(256) region(int packs, {0}) {{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x, all = (long long)gridDim.x * blockDim.x;
  const long long wide = packs ? count / {1} : 0;
  for (long long i = first; i < wide; i += all) compute<{1}>(i * {1}, {2});
  for (long long i = wide * {1} + first; i < count; i += all) compute<1>(i, {2});
}}
)",
                    parameters(), source_.width, arguments()));
  }

  const RegionProgram& program_;
  const RegionWalk& walk_;
  const std::vector<DataType>&inputs_, &outputs_;
  RegionSource source_;
};

}  // namespace

RegionWalk::RegionWalk(const TensorType& space, const std::vector<TensorType>& inputs) : count(space.elements()) {
  std::vector<std::vector<int64_t>> all = {memory_strides(space)};
  for (const TensorType& input : inputs) all.push_back(broadcast_strides(input, space.shape.size()));
  const MergedAxes merged = merge_axes(space.shape, all);
  extents = merged.extents;
  strides.assign(merged.strides.begin() + 1, merged.strides.end());
}

bool RegionWalk::is_whole(size_t input) const {
  int64_t elements = 1;
  for (size_t axis = extents.size(); axis-- > 0;) {
    if (extents[axis] != 1 && strides[input][axis] != elements) return false;
    elements *= extents[axis];
  }
  return true;
}

RegionSource region_source(const RegionProgram& program, const RegionWalk& walk, const std::vector<DataType>& inputs,
                           const std::vector<DataType>& outputs) {
  return Writer(program, walk, inputs, outputs).write();
}

}  // namespace arbalest
