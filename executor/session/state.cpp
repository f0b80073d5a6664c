// SPDX-License-Identifier: Apache-2.0
#include "executor/session/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/in_threads.h"
#include "base/process.h"
#include "base/random.h"
#include "io/formats/layout.h"

namespace arbalest {
namespace {

std::vector<ValueId> members(const Graph& graph, ValueId base) {
  std::vector<ValueId> found;
  for (const ValueId v : graph.values.ids()) {
    const Role role = graph.values[v].role;
    const bool stored = role != Role::Activation && role != Role::Input;
    if (stored && graph.values[v].view.base == base) found.push_back(v);
  }
  std::sort(found.begin(), found.end(), [&](ValueId a, ValueId b) {
    return graph.values[a].view.offset_bytes < graph.values[b].view.offset_bytes;
  });
  return found;
}

// Box and Muller's transform of two uniform draws.
double normal(uint64_t key, uint64_t element) {
  const Random4 draw = philox(key, 0, element);
  const double u = (double(draw.word[0]) + 1) * 0x1p-32, v = double(draw.word[1]) * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

double draw(const Initializer& initializer, uint64_t key, uint64_t element) {
  switch (initializer.kind) {
    case Initializer::Kind::Constant: return initializer.a;
    case Initializer::Kind::Normal: return initializer.a * normal(key, element);
    case Initializer::Kind::Uniform: {
      const Random4 words = philox(key, 0, element);
      return initializer.a * (2 * (double(words.word[0]) * 0x1p-32) - 1);
    }
    case Initializer::Kind::Data: break;
  }
  return 0;
}

// Not by tbb::parallel_for: ThreadSanitizer knows nothing of how TBB orders its own objects, and to suppress a report
// for each part takes it minutes.
template <typename T>
void fill(const Value& value, uint64_t key, int threads, std::vector<std::byte>& bytes) {
  constexpr int64_t kLeast = 1 << 14;  // elements worth a thread: some 1 ms of normal draws
  auto* const elements = reinterpret_cast<T*>(bytes.data());
  const int64_t count = value.type.elements(), parts = std::clamp<int64_t>(count / kLeast, 1, threads);
  const auto draw_part = [&value, key, elements, count, parts](size_t place) {
    const auto part = int64_t(place);
    for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
      elements[i] = T(draw(value.initializer, key, uint64_t(i)));
    }
  };
  in_threads(size_t(parts), size_t(parts), draw_part);
}

// Logical row-major bytes of one value.
std::vector<std::byte> drawn(const Value& value, uint64_t seed, int threads) {
  if (value.initializer.kind == Initializer::Kind::Data) return *value.initializer.data;
  std::vector<std::byte> bytes(size_t(value.type.bytes()));
  const uint64_t key = random_key(seed, hash_name(value.name));
  switch (value.type.dtype) {
    case DataType::Float32: fill<float>(value, key, threads, bytes); break;
    case DataType::Float64: fill<double>(value, key, threads, bytes); break;
    case DataType::Int32: fill<int32_t>(value, key, threads, bytes); break;
    case DataType::Int64: fill<int64_t>(value, key, threads, bytes); break;
    case DataType::Uint8: fill<uint8_t>(value, key, threads, bytes); break;
    case DataType::Bfloat16: fill<bfloat16>(value, key, threads, bytes); break;
    default: break;  // the rest starts as zeros
  }
  return bytes;
}

bool starts_as_zeros(const Value& value) {
  const Initializer& initializer = value.initializer;
  return initializer.kind == Initializer::Kind::Constant && initializer.a == 0 && !std::signbit(initializer.a);
}

void put(const Value& value, const std::byte* row_major, std::byte* memory) {
  to_memory_order(value.type, row_major, memory);
}

template <typename T>
bool all_finite(std::span<const std::byte> content) {
  for (size_t i = 0; i + sizeof(T) <= content.size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, content.data() + i, sizeof value);
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

std::vector<std::byte> initial_content(const Graph& graph, ValueId base, uint64_t seed, int threads) {
  const Value& arena = graph.values[base];
  std::vector<std::byte> content(size_t(arena.type.bytes()));
  const bool zeros = starts_as_zeros(arena);
  if (!zeros) put(arena, drawn(arena, seed, threads).data(), content.data());
  for (const ValueId member : members(graph, base)) {
    const Value& value = graph.values[member];
    if (zeros && starts_as_zeros(value)) continue;
    put(value, drawn(value, seed, threads).data(), content.data() + value.view.offset_bytes);
  }
  return content;
}

bool starts_as_zeros(const Graph& graph, ValueId base) {
  if (!starts_as_zeros(graph.values[base])) return false;
  const std::vector<ValueId> parts = members(graph, base);
  return std::all_of(parts.begin(), parts.end(), [&](ValueId member) { return starts_as_zeros(graph.values[member]); });
}

std::vector<std::byte> lowered_content(const std::vector<std::byte>& floats) {
  std::vector<std::byte> lowered(floats.size() / 2);
  for (size_t i = 0; i < floats.size() / sizeof(float); ++i) {
    float value = 0;
    std::memcpy(&value, floats.data() + i * sizeof(float), sizeof value);
    const bfloat16 rounded(value);
    std::memcpy(lowered.data() + i * sizeof rounded, &rounded, sizeof rounded);
  }
  return lowered;
}

std::vector<std::string> adopt_tensors(const WeightsFile& file, const Graph& graph, ValueId base,
                                       std::vector<std::byte>& content) {
  std::vector<std::string> used;
  for (const ValueId member : members(graph, base)) {
    const Value& value = graph.values[member];
    if (!file.has(value.name)) continue;
    put(value, file.read(value).data(), content.data() + value.view.offset_bytes);
    used.push_back(value.name);
  }
  return used;
}

void check_weights(const WeightsFile& file, const Graph& graph, const std::vector<ValueId>& bases) {
  std::vector<std::string> names;
  for (const ValueId base : bases) {
    if (base == kNone) continue;
    for (const ValueId member : members(graph, base)) names.push_back(graph.values[member].name);
  }
  file.check(names);
  if (const std::string summary = file.summary(names); !summary.empty()) warn(summary);
}

std::vector<ArenaMember> arena_members(const Graph& graph, ValueId base) {
  std::vector<ArenaMember> found;
  if (base == kNone) return found;
  for (const ValueId member : members(graph, base)) {
    const Value& value = graph.values[member];
    found.push_back({value.name, value.type, value.view.offset_bytes});
  }
  return found;
}

void append_tensors(TensorFile& file, const Graph& graph, ValueId base, const std::vector<std::byte>& content) {
  for (const ValueId member : members(graph, base)) {
    const Value& value = graph.values[member];
    NamedTensor tensor{value.name, value.type.dtype, value.type.shape, {}};
    tensor.bytes.resize(size_t(value.type.bytes()));
    to_row_major(value.type, content.data() + value.view.offset_bytes, tensor.bytes.data());
    file.tensors.push_back(std::move(tensor));
  }
}

void append_model(TensorFile& file, const Loop& training, const ModelState& model) {
  const ArenaValues& arenas = training.arenas;
  append_tensors(file, training.graph, arenas.weights, model.weights);
  if (arenas.statistics != kNone) append_tensors(file, training.graph, arenas.statistics, model.statistics);
  if (arenas.frozen != kNone) append_tensors(file, training.graph, arenas.frozen, model.frozen);
}

int64_t parameter_count(const Graph& graph) {
  int64_t count = 0;
  for (const Value& value : graph.values) {
    const bool member =
        value.role == Role::Parameter && value.view.base != kNone && value.type.dtype == DataType::Float32;
    if (member) count += value.type.elements();
  }
  return count;
}

bool all_finite(DataType type, std::span<const std::byte> content) {
  if (type == DataType::Float32) return all_finite<float>(content);
  return type != DataType::Float64 || all_finite<double>(content);
}

}  // namespace arbalest
