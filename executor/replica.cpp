#include "executor/replica.h"

#include <fmt/format.h>

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

void set_replica_state(const Binding& binding, const Loop& loop, const std::string& prefix, const Source& source,
                       const StartingState& start) {
  const Graph& graph = loop.graph;
  const auto buffer_of = [&](size_t value) {
    return binding.find(fmt::format("{}/{}", prefix, graph.values[value].name));
  };
  std::vector<std::byte> weights;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    const auto id = ValueId(v);
    const bool stored = value.view.base == kNone && value.role != Role::Activation && id != loop.arenas.weights_lowered;
    const BufferId buffer = stored ? buffer_of(v) : kNone;
    if (buffer == kNone) continue;
    std::vector<std::byte> content =
        value.role == Role::Input ? resident_input(loop, id, source) : initial_content(graph, id, start.seed);
    if (start.file) adopt_tensors(*start.file, start.path, graph, id, content);
    upload(binding, buffer, content);
    if (id == loop.arenas.weights) weights = std::move(content);
  }
  if (loop.arenas.weights_lowered == kNone) return;
  const BufferId lowered = buffer_of(size_t(loop.arenas.weights_lowered));
  if (lowered != kNone) upload(binding, lowered, lowered_content(weights));  // kNone: a run too short to validate
}

void append_replica(TensorFile& file, const Binding& binding, const Loop& loop, const std::string& prefix,
                    int32_t device) {
  for (const ValueId base : {loop.arenas.weights, loop.arenas.statistics}) {
    if (base == kNone) continue;
    const Value& value = loop.graph.values[size_t(base)];
    std::vector<std::byte> content(size_t(value.type.bytes()));
    const BufferId buffer = binding.find(fmt::format("{}/{}", prefix, value.name));
    binding.device(device).download(content.data(), binding.address(buffer, 0), int64_t(content.size()));
    append_tensors(file, loop.graph, base, content);
  }
}

}  // namespace arbalest
