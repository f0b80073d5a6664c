// SPDX-License-Identifier: Apache-2.0

// The CUDA kernel of a region, as text. A thread computes `width` neighbouring elements in float. Extents, strides and
// numbers of formulas are arguments, so that regions of other shapes are one kernel where they are walked through
// alike. Numbers that are 0 or 1 are part of the text, because they may choose between formulas.
//
// By columns, a thread keeps its place along the innermost axis and walks down rows, which are all the others. It reads
// what is the same for all rows once, and adds up sums. A block has a chunk of rows and a slice of the innermost axis,
// and leaves its sums as partials (chunks, sums, channels), which another kernel adds up (ops/regions/region.cu). By
// sample, a chunk's rows are of one place along the first axis, so that what is the same for these is read once, too.

#include <fmt/format.h>

#include <algorithm>

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
// As an early launch has to (ops/cuda/dependent_launch.cuh). A small region lets the next kernel start at once.
__device__ void begin(long long count) {{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (count <= {small}) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
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

// Whether a number of a formula is part of the text.
bool is_literal(float number) {
  return number == 0 || number == 1;
}

// How an operand's elements are found for a pack of neighbours.
enum class Way { Whole, Along, Still, Strided };

// Registers of 32 bits that a pack takes.
int registers_of(DataType type, int width) {
  return (int(size_of(type)) * width + 3) / 4;
}

Way way_of(const RegionWalk& walk, size_t operand) {
  if (walk.is_whole(operand)) return Way::Whole;
  const int64_t inner = walk.strides[operand].back();
  return inner == 0 ? Way::Still : inner == 1 ? Way::Along : Way::Strided;
}

// The most elements that one access of 16 bytes of the narrowest type holds, and that every run along the innermost
// axis is a multiple of.
int width_of(const RegionWalk& walk, const std::vector<DataType>& types) {
  int64_t width = std::count(types.begin(), types.end(), DataType::Bfloat16) > 0 ? 8 : 4;
  for (size_t i = 0; i < types.size(); ++i) {
    const Way way = way_of(walk, i);
    const bool one = std::all_of(walk.strides[i].begin(), walk.strides[i].end(), [](int64_t s) { return s == 0; });
    if (one) continue;
    while ((way == Way::Whole || way == Way::Along) && walk.first[i] % width != 0) width /= 2;
    if (way == Way::Whole) continue;
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
         const std::vector<DataType>& results)
      : program_(program), walk_(walk), inputs_(inputs), results_(results) {}

  RegionSource write() {
    for (size_t i = 0; i < inputs_.size() + results_.size(); ++i) {
      if (way_of(walk_, i) != Way::Whole) source_.placed.push_back(i);
    }
    constexpr int kSmall = 1 << 20;  // elements
    add(fmt::format(kPrelude, fmt::arg("functions", kFormulaText), fmt::arg("small", kSmall)));
    if (!source_.placed.empty()) {
      add(fmt::format("struct Walk {{ long long extent[{0}], stride[{1}][{0}]; }};\n", rank(), source_.placed.size()));
    }
    for (const RegionStep& step : program_.steps) {
      for (const double number : step.numbers) source_.numbers.push_back(float(number));
    }
    if (std::all_of(source_.numbers.begin(), source_.numbers.end(), is_literal)) source_.numbers.clear();
    if (!source_.numbers.empty()) add(fmt::format("struct Numbers {{ float of[{}]; }};\n", source_.numbers.size()));
    choose();
    if (source_.by_columns) {
      write_columns();
      write_columns_kernel();
    } else {
      write_body();
      write_kernel();
    }
    return std::move(source_);
  }

 private:
  void add(std::string_view text) { source_.text += text; }
  size_t rank() const { return walk_.extents.size(); }

  // "long long count, Walk walk, const T0* __restrict__ x0, …"
  std::string parameters() const {
    std::string text = "long long count";
    if (!source_.placed.empty()) text += ", const Walk walk";
    if (!source_.numbers.empty()) text += ", const Numbers numbers";
    for (size_t i = 0; i < inputs_.size(); ++i) {
      text += fmt::format(", const {}* __restrict__ x{}", element_type(inputs_[i]), i);
    }
    for (size_t k = 0; k < results_.size(); ++k) {
      text += fmt::format(", {}* __restrict__ y{}", element_type(results_[k]), k);
    }
    return text;
  }
  std::string arguments() const {
    std::string text = "count";
    if (!source_.placed.empty()) text += ", walk";
    if (!source_.numbers.empty()) text += ", numbers";
    for (size_t i = 0; i < inputs_.size(); ++i) text += fmt::format(", x{}", i);
    for (size_t k = 0; k < results_.size(); ++k) text += fmt::format(", y{}", k);
    return text;
  }

  const char* index_type() const { return walk_.count < int64_t{1} << 31 ? "unsigned" : "long long"; }

  // Coordinates c0, c1, … of the element, or row, that `at` is the number of, along the outermost `axes` axes.
  void write_coordinates(size_t axes) {
    add(fmt::format("  {} rest = at;\n", index_type()));
    for (size_t axis = axes; axis-- > 1;) {
      add(fmt::format(
          "  const {0} e{1} = walk.extent[{1}], q{1} = rest / e{1}, c{1} = rest - q{1} * e{1};\n  rest = q{1};\n",
          index_type(), axis));
    }
    add(fmt::format("  const {} c0 = rest;\n", index_type()));
  }

  void write_body() {
    add(fmt::format("template <int N> __device__ void compute(long long at, {}) {{\n", parameters()));
    if (!source_.placed.empty()) write_coordinates(rank());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      add(fmt::format("  {} in{};\n", element_of(i, "N"), i));
      write_load(i, "");
    }
    write_packs();
    write_elements();
    for (size_t k = 0; k < results_.size(); ++k) write_store(k);
    add("}\n");
  }

  void write_packs() {
    for (size_t k = 0; k < results_.size(); ++k) {
      add(fmt::format("  Pack<N, {}> out{};\n", element_type(results_[k]), k));
    }
  }

  // The type of what is loaded of an input.
  std::string element_of(size_t i, std::string_view width) const {
    if (way_of(walk_, i) == Way::Still) return "W";
    return fmt::format("Pack<{}, {}>", width, element_type(inputs_[i]));
  }

  // Computes a pack's elements of what was loaded. By columns, that of each row is at its number, u.
  void write_elements() {
    add("#pragma unroll\n  for (int j = 0; j < N; ++j) {\n");
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const std::string_view own = source_.by_columns && !is_kept(i) ? "[u]" : "";
      const bool one = way_of(walk_, i) == Way::Still;
      add(fmt::format("    const W v{0} = {1};\n", i,
                      one ? fmt::format("in{}{}", i, own) : fmt::format("widen(in{}{}.element[j])", i, own)));
    }
    for (size_t s = 0; s < program_.steps.size(); ++s) write_step(s);
    for (size_t k = 0; k < results_.size(); ++k) {
      add(fmt::format("    narrow(v{}, out{}.element[j]);\n", program_.inputs + program_.results[k], k));
    }
    for (size_t a = 0; a < source_.summed.size(); ++a) {
      add(fmt::format("    sum[{}][j] += v{};\n", a, source_.summed[a]));
    }
    add("  }\n");
  }

  // The place of a pack in an operand. By columns, the last coordinate is the thread's own, `channel`.
  std::string offset_of(size_t operand) const {
    if (way_of(walk_, operand) == Way::Whole) return source_.by_columns ? "at * channels + channel" : "at";
    std::string offset;
    for (size_t axis = 0; axis < rank(); ++axis) {
      if (walk_.strides[operand][axis] == 0) continue;
      const bool own = source_.by_columns && axis + 1 == rank();
      offset += fmt::format("{}{} * {}", offset.empty() ? "" : " + ", own ? "channel" : fmt::format("c{}", axis),
                            stride_of(operand, axis));
    }
    return offset.empty() ? "0" : offset;
  }
  std::string stride_of(size_t operand, size_t axis) const {
    const auto found = std::find(source_.placed.begin(), source_.placed.end(), operand);
    return fmt::format("walk.stride[{}][{}]", found - source_.placed.begin(), axis);
  }

  void write_load(size_t i, std::string_view suffix) {
    const std::string offset = offset_of(i);
    switch (way_of(walk_, i)) {
      case Way::Still: return add(fmt::format("  in{0}{2} = widen(x{0}[{1}]);\n", i, offset, suffix));
      case Way::Strided:
        return add(
            fmt::format("#pragma unroll\n  for (int j = 0; j < N; ++j) in{0}{3}.element[j] = x{0}[{1} + j * {2}];\n", i,
                        offset, stride_of(i, rank() - 1), suffix));
      default: return add(fmt::format("  in{0}{2} = load<N>(x{0} + ({1}));\n", i, offset, suffix));
    }
  }
  void write_store(size_t k) {
    const size_t operand = inputs_.size() + k;
    const std::string offset = offset_of(operand);
    if (way_of(walk_, operand) != Way::Strided) return add(fmt::format("  store(y{0} + ({1}), out{0});\n", k, offset));
    add(fmt::format("#pragma unroll\n  for (int j = 0; j < N; ++j) y{0}[{1} + j * {2}] = out{0}.element[j];\n", k,
                    offset, stride_of(operand, rank() - 1)));
  }

  // By columns: whether the input is the same for all rows, or for all of a sample.
  bool is_kept(size_t i) const {
    const std::vector<int64_t>& strides = walk_.strides[i];
    const auto first = strides.begin() + (source_.by_sample ? 1 : 0), last = strides.end() - 1;
    return std::all_of(first, last, [](int64_t stride) { return stride == 0; }) && (*last == 0 || *last == 1);
  }
  // Whether the input is one number, or one row, for each place along the first axis, which many rows share.
  bool is_of_samples(size_t i) const {
    constexpr int64_t kFewestRows = 32;
    const std::vector<int64_t>& strides = walk_.strides[i];
    if (rank() < 3 || strides.front() == 0 || strides.back() > 1) return false;
    if (walk_.count < kFewestRows * walk_.extents.front() * walk_.extents.back()) return false;
    return std::all_of(strides.begin() + 1, strides.end() - 1, [](int64_t stride) { return stride == 0; });
  }

  // Kernels by columns are for sums, and where several inputs are the same for all rows.
  void choose() {
    size_t rows = 0;
    for (size_t i = 0; i < inputs_.size(); ++i) rows += walk_.is_row(i) ? 1 : 0;
    for (const RegionSum& sum : program_.sums) {
      if (std::find(source_.summed.begin(), source_.summed.end(), sum.of) == source_.summed.end()) {
        source_.summed.push_back(sum.of);
      }
    }
    source_.by_columns = !program_.sums.empty() || rows > 1;
    source_.by_sample = program_.sums_by_sample();
    for (size_t i = 0; source_.by_columns && i < inputs_.size(); ++i) source_.by_sample |= is_of_samples(i);
    std::vector<DataType> types = inputs_;
    types.insert(types.end(), results_.begin(), results_.end());
    source_.width = width_of(walk_, types);
    if (!source_.by_columns) return;
    while (walk_.extents.back() % source_.width != 0) source_.width /= 2;
    int kept = int(source_.summed.size()) * source_.width, read = 1;  // registers for all rows, and for each
    for (size_t i = 0; i < inputs_.size(); ++i) {
      (is_kept(i) ? kept : read) += way_of(walk_, i) == Way::Still ? 1 : registers_of(inputs_[i], source_.width);
    }
    constexpr int kRegisters = 84, kMostUnrolled = 4;  // of 128, some of which are for the work
    while (source_.unroll < kMostUnrolled && kept + 2 * source_.unroll * read <= kRegisters) source_.unroll *= 2;
  }

  void write_columns() {
    const std::string sums = fmt::format("float sum[{}][N] = {{}};", std::max<size_t>(1, source_.summed.size()));
    add(fmt::format(R"(template <int n> struct Number {{ static const int value = n; }};
template <int N> __device__ void columns(int channels, int samples, int chunks, int wide, float* partials, {0}) {{
  const int lanes = channels / N, across = N == {4} ? wide : lanes < {1} ? lanes : {1}, depth = {1} / across;
  const int slices = (lanes + across - 1) / across, lane = threadIdx.x % across, first = threadIdx.x / across;
  const long long rows = count / channels / samples, per = (rows + chunks - 1) / chunks;
  for (int block = blockIdx.x; block < slices * chunks * samples; block += gridDim.x) {{
  const int slice = block % slices;
  const long long chunk = {2}block / slices, c0 = chunk / chunks;
  const long long channel = ((long long)slice * across + lane) * N;
  {3}
  if (first < depth && channel < channels) {{
)",
                    parameters(), RegionSource::kThreads, source_.summed.empty() ? "samples * chunks - 1 - " : "", sums,
                    source_.width));
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!is_kept(i)) continue;
      add(fmt::format("  {} in{};\n", element_of(i, "N"), i));
      write_load(i, "");
    }
    add("  const auto take = [&](auto unrolled, long long from) {\n  constexpr int U = decltype(unrolled)::value;\n");
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!is_kept(i)) add(fmt::format("  {} in{}[U];\n", element_of(i, "N"), i));
    }
    add("#pragma unroll\n  for (int u = 0; u < U; ++u) {\n  const long long at = from + u * depth;\n");
    const auto is_input = [&](size_t operand) { return operand < inputs_.size(); };
    const auto after_inputs = std::find_if_not(source_.placed.begin(), source_.placed.end(), is_input);
    const bool placed = std::any_of(source_.placed.begin(), after_inputs, [&](size_t i) { return !is_kept(i); });
    if (placed && rank() > 1) write_coordinates(rank() - 1);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!is_kept(i)) write_load(i, "[u]");
    }
    add("  }\n#pragma unroll\n  for (int u = 0; u < U; ++u) {\n  const long long at = from + u * depth;\n");
    if (after_inputs != source_.placed.end() && rank() > 1) write_coordinates(rank() - 1);
    write_packs();
    write_elements();
    for (size_t k = 0; k < results_.size(); ++k) write_store(k);
    add(fmt::format(R"(  }}
  }};
  const long long part = chunk - c0 * chunks, last = (part + 1) * per < rows ? (part + 1) * per : rows;
  const long long end = c0 * rows + last;
  long long row = c0 * rows + part * per + first;
  for (; row + {0} * depth < end; row += {1} * depth) take(Number<{1}>(), row);
  for (; row < end; row += depth) take(Number<1>(), row);
  }}
)",
                    source_.unroll - 1, source_.unroll));
    if (!source_.summed.empty()) write_partials();
    add("  }\n}\n");
  }

  // Sums of a block's threads that have the same channels.
  void write_partials() {
    add(fmt::format(R"(  __shared__ float scratch[{0} * N];
  for (int a = 0; a < {1}; ++a) {{
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; ++j) scratch[threadIdx.x * N + j] = sum[a][j];
    __syncthreads();
    for (int t = threadIdx.x; t < across * N; t += {0}) {{
      float total = 0;
      for (int group = 0; group < depth; ++group) total += scratch[group * across * N + t];
      const long long at = (long long)slice * across * N + t;
      if (at < channels) partials[(chunk * {1} + a) * channels + at] = total;
    }}
  }}
)",
                    RegionSource::kThreads, source_.summed.size()));
  }

  void write_columns_kernel() {
    add(fmt::format(
        R"(extern "C" __global__ void __launch_bounds__({0}, 2)
    region(int packs, int channels, int samples, int chunks, int wide, float* partials, {1}) {{
  begin(count);
  if (packs) columns<{2}>(channels, samples, chunks, wide, partials, {3});
  else columns<1>(channels, samples, chunks, wide, partials, {3});
}}
)",
        RegionSource::kThreads, parameters(), source_.width, arguments()));
  }

  std::string number_of(size_t s, size_t k) const {
    const auto number = float(program_.steps[s].numbers[k]);
    return is_literal(number) ? fmt::format("{:.1f}f", number) : fmt::format("numbers.of[{}]", 2 * s + k);
  }

  void write_step(size_t s) {
    const RegionStep& step = program_.steps[s];
    const ElementFunction& element = *step.op->element;
    add(fmt::format("    W v{};\n    {{\n", program_.inputs + s));
    for (size_t k = 0; k < step.operands.size(); ++k) {
      add(fmt::format("      const W {} = v{};\n", element.arguments[k], step.operands[k]));
    }
    add(fmt::format("      const W alpha = {}, beta = {};\n      v{} = {};\n    }}\n", number_of(s, 0), number_of(s, 1),
                    program_.inputs + s, element.text));
  }

  // A region whose pointers are not aligned is computed element by element, and so are the last ones.
  void write_kernel() {
    add(fmt::format(R"(extern "C" __global__ void __launch_bounds__(256) region(int packs, {0}) {{
  begin(count);
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
  const std::vector<DataType>&inputs_, &results_;  // their types
  RegionSource source_;
};

}  // namespace

RegionWalk::RegionWalk(const TensorType& space, const std::vector<TensorType>& inputs, const RegionProgram& program)
    : first(program.inputs + program.results.size(), 0), count(space.elements()) {
  std::vector<std::vector<int64_t>> all = {memory_strides(space)};
  for (size_t i = 0; i < program.inputs; ++i) {
    const RegionView* view = program.view_of(i);
    all.push_back(view ? view->strides : broadcast_strides(inputs[i], space.shape.size()));
    if (view) first[i] = view->first;
  }
  for (const auto& [output, part, concat] : program.targets()) {
    all.push_back(memory_strides(result_type(space, program, output)));
    if (!concat) continue;
    first[all.size() - 2] = int64_t(part) * space.shape[concat->axis] * all.back()[concat->axis];
  }
  if (!program.sums.empty()) {  // one more tensor, with a stride along axes that are merged with no other
    all.emplace_back(space.shape.size(), 0);
    all.back()[innermost_axis(space)] = 1;
    if (program.sums_by_sample()) all.back()[0] = 1;
  }
  const MergedAxes merged = merge_axes(space.shape, all);
  extents = merged.extents;
  strides.assign(merged.strides.begin() + 1, merged.strides.begin() + 1 + std::ptrdiff_t(first.size()));
}

int64_t RegionWalk::alignment(size_t operand, int width, DataType type) const {
  const bool packed = is_whole(operand) || strides[operand].back() == 1;
  return std::min<int64_t>(16, int64_t(size_of(type)) * (packed ? width : 1));
}

bool RegionWalk::is_row(size_t operand) const {
  const std::vector<int64_t>& own = strides[operand];
  const bool still = std::all_of(own.begin(), own.end() - 1, [](int64_t stride) { return stride == 0; });
  return still && own.size() > 1 && own.back() == 1;
}

bool RegionWalk::is_whole(size_t operand) const {
  int64_t elements = 1;
  for (size_t axis = extents.size(); axis-- > 0;) {
    if (extents[axis] != 1 && strides[operand][axis] != elements) return false;
    elements *= extents[axis];
  }
  return true;
}

RegionColumns::RegionColumns(const RegionWalk& walk, const RegionSource& source, int multiprocessors) {
  constexpr int64_t kResident = 2, kFewestRows = 32;  // blocks that a multiprocessor runs at once; rows of a chunk
  channels = walk.extents.back();
  samples = source.by_sample ? int(walk.extents.front()) : 1;
  rows = channels * samples == 0 ? 0 : walk.count / channels / samples;
  const auto parts = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
  // The fewest slices, but for more that leave fewer threads idle.
  const int64_t lanes = std::max<int64_t>(1, channels / source.width), fewest = parts(lanes, RegionSource::kThreads);
  double best = 0;
  for (int64_t count = fewest; count < fewest + 8; ++count) {
    const int64_t own = parts(lanes, count), depth = RegionSource::kThreads / own;
    const double busy = double(depth * lanes) / double(count * RegionSource::kThreads);
    if (busy <= 1.02 * best) continue;
    best = busy;
    across = int(own);
    slices = int(parts(lanes, own));
  }
  const int64_t depth = RegionSource::kThreads / across;
  const int64_t most = std::max<int64_t>(1, kResident * multiprocessors / slices / std::max(1, samples));
  chunks = int(std::clamp<int64_t>(parts(rows, std::max(kFewestRows, depth * source.unroll)), 1, most));
}

RegionSource region_source(const RegionProgram& program, const RegionWalk& walk, const std::vector<DataType>& inputs,
                           const std::vector<DataType>& results) {
  return Writer(program, walk, inputs, results).write();
}

}  // namespace arbalest
