// SPDX-License-Identifier: Apache-2.0
#include "executor/run/launches_aside.h"

#include <algorithm>

namespace arbalest {
namespace {

bool overlap(const MemoryUse::Ranges& some, const MemoryUse::Ranges& others) {
  for (const auto& [begin, end] : some) {
    for (const auto& [other_begin, other_end] : others) {
      if (begin < other_end && other_begin < end && begin < end && other_begin < other_end) return true;
    }
  }
  return false;
}

}  // namespace

bool MemoryUse::conflicts_with(const MemoryUse& other) const {
  return overlap(writes, other.writes) || overlap(writes, other.reads) || overlap(reads, other.writes);
}

MemoryUse memory_use(const Plan& plan, const BoundLaunch& launch) {
  const Graph& graph = plan.graphs[size_t(plan.launches[size_t(launch.launch)].program)];
  const auto range = [&](const void* at, ValueId value) {
    const auto* begin = static_cast<const std::byte*>(at);
    return std::pair(begin, begin + (begin == nullptr ? 0 : graph.values[value].type.bytes()));
  };
  MemoryUse use;
  use.aside = launch.aside;
  const auto* workspace = static_cast<const std::byte*>(launch.context.workspace);
  use.writes.emplace_back(workspace, workspace + (workspace == nullptr ? 0 : launch.kernel->workspace_bytes()));
  for (size_t i = 0; i < launch.inputs.size(); ++i) {
    use.reads.push_back(range(launch.inputs[i], launch.node->inputs[i]));
  }
  for (size_t i = 0; i < launch.outputs.size(); ++i) {
    use.writes.push_back(range(launch.outputs[i], launch.node->outputs[i]));
  }
  return use;
}

std::vector<int32_t> waits_for_aside(const std::vector<MemoryUse>& launches) {
  constexpr size_t kMostPending = 64;
  std::vector<int32_t> waits(launches.size(), kNone), pending;  // pending: aside, by place
  for (size_t i = 0; i < launches.size(); ++i) {
    if (launches[i].aside) {
      pending.push_back(int32_t(i));
      continue;
    }
    const size_t old = pending.size() - std::min(pending.size(), kMostPending);
    size_t waited = pending.size();  // so many of them, the first
    while (waited > old && !launches[i].conflicts_with(launches[size_t(pending[waited - 1])])) --waited;
    if (waited == 0) continue;
    waits[i] = pending[waited - 1];
    pending.erase(pending.begin(), pending.begin() + int64_t(waited));
  }
  return waits;
}

}  // namespace arbalest
