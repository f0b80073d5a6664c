#include "executor/replica.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace arbalest {
namespace {

void upload(const Binding& binding, BufferId to, const std::vector<std::byte>& content) {
  const Plan& plan = binding.plan();
  const Arena& arena = plan.arenas[size_t(plan.buffers[size_t(to)].arena)];
  binding.device(arena.device).upload(binding.address(to, 0), content.data(), int64_t(content.size()));
}

// What a resident source's batch holds.
std::vector<std::byte> resident_input(const Loop& loop, ValueId input, const Source& source) {
  std::vector<int64_t> samples(size_t(loop.batch));
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = int64_t(i) % source.size();
  std::vector<uint8_t> images(size_t(loop.batch * source.sample_shape().bytes()));
  std::vector<int32_t> labels(size_t(loop.batch));
  source.fill(samples, images.data(), labels.data());
  std::vector<std::byte> content(size_t(loop.graph.values[size_t(input)].type.bytes()));
  const void* from = input == loop.image ? static_cast<const void*>(images.data()) : labels.data();
  std::memcpy(content.data(), from, content.size());
  return content;
}

}  // namespace

ReplicaContent initial_replica(const Loop& loop, const Source& source, const StartingState& start,
                               const std::vector<ValueId>& without) {
  const Graph& graph = loop.graph;
  ReplicaContent content;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    const auto id = ValueId(v);
    const bool filled_elsewhere = id == loop.arenas.average || id == loop.arenas.averaged ||
                                  std::find(without.begin(), without.end(), id) != without.end();
    const bool stored = value.view.base == kNone && value.role != Role::Activation && id != loop.arenas.weights_lowered;
    if (!stored || filled_elsewhere) continue;
    std::vector<std::byte> bytes = value.role == Role::Input ? resident_input(loop, id, source)
                                                             : initial_content(graph, id, start.seed, start.threads);
    if (start.file) adopt_tensors(*start.file, start.path, graph, id, bytes);
    if (id == loop.arenas.weights && loop.arenas.weights_lowered != kNone) {
      content.emplace(graph.values[size_t(loop.arenas.weights_lowered)].name, lowered_content(bytes));
    }
    content.emplace(value.name, std::move(bytes));
  }
  return content;
}

void put_replica(const Binding& binding, const std::string& prefix, const ReplicaContent& content) {
  for (const auto& [name, bytes] : content) {
    const BufferId buffer = binding.find(fmt::format("{}/{}", prefix, name));
    if (buffer != kNone) upload(binding, buffer, bytes);
  }
}

}  // namespace arbalest
