// SPDX-License-Identifier: Apache-2.0
#include "executor/session/initial_values.h"

#include <algorithm>
#include <cstring>

#include "executor/session/facts.h"

namespace arbalest {
namespace {

// The content of one field of a resident source's batch.
std::vector<std::byte> resident_input(const Loop& loop, ValueId input, const Source& source) {
  std::vector<SampleRef> samples(size_t(loop.batch));
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = {int64_t(i) % source.size(), 0, i};
  std::vector<std::byte> content(size_t(loop.graph.values[input].type.bytes()));
  std::vector<std::byte*> fields;
  for (const ValueId field : loop.fields) fields.push_back(field == input ? content.data() : nullptr);
  source.fill(samples, fields);
  return content;
}

}  // namespace

InitialValues initial_values(const Loop& loop, const Source& source, const Initialisation& start,
                             const std::vector<ValueId>& without) {
  const Graph& graph = loop.graph;
  InitialValues content;
  for (const ValueId v : graph.values.ids()) {
    const Value& value = graph.values[v];
    const auto id = v;
    const bool filled_elsewhere = id == loop.arenas.average || id == loop.arenas.averaged ||
                                  std::find(without.begin(), without.end(), id) != without.end();
    const bool in_slots = value.role == Role::Input && !source.resident();
    const bool lowered = id == loop.arenas.weights_lowered || id == loop.arenas.frozen_lowered;
    const bool stored = value.view.base == kNone && value.role != Role::Activation && !lowered;
    if (!stored || in_slots || filled_elsewhere) continue;
    const auto& slots = loop.arenas.slots;
    const bool is_slot = std::any_of(slots.begin(), slots.end(), [id](const auto& slot) { return slot.value == id; });
    if (is_slot && starts_as_zeros(graph, id)) {
      content.emplace(id, std::vector<std::byte>());
      continue;
    }
    std::vector<std::byte> bytes = value.role == Role::Input ? resident_input(loop, id, source)
                                                             : initial_content(graph, id, start.seed, start.threads);
    if (start.file) adopt_tensors(*start.file, graph, id, bytes);
    if (id == loop.arenas.weights && loop.arenas.weights_lowered != kNone) {
      content.emplace(loop.arenas.weights_lowered, lowered_content(bytes));
    }
    if (id == loop.arenas.frozen && loop.arenas.frozen_lowered != kNone) {
      content.emplace(loop.arenas.frozen_lowered, lowered_content(bytes));
    }
    content.emplace(id, std::move(bytes));
  }
  return content;
}

std::string sum_of(const InitialValues& values) {
  std::string sums;
  for (const auto& [value, bytes] : values) sums += sum_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  return sum_of(sums);
}

void put_values(const Binding& binding, const Replica& replica, const Graph& graph, const InitialValues& content) {
  for (const auto& [value, bytes] : content) {
    const Operand& home = replica.placement.of[value];
    if (home.buffer == kNone) continue;
    if (bytes.empty()) {
      binding.put_zeros(home, graph.values[value].type.bytes());
    } else {
      binding.put(home, 0, bytes);
    }
  }
}

}  // namespace arbalest
