// SPDX-License-Identifier: Apache-2.0
#include "executor/run/workspaces.h"

#include <algorithm>
#include <map>
#include <utility>

namespace arbalest {
namespace {

// The buffers of an arena, and the workspaces that might be placed in its gaps.
struct Gaps {
  std::vector<Lifetime> buffers, workspaces;
  std::vector<int64_t> offsets;  // of buffers
  std::vector<size_t> launches;  // of workspaces
};

std::vector<Workspace> find_gaps(const Plan& plan, const std::vector<int64_t>& bytes) {
  std::map<ArenaId, Gaps> arenas;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const Launch& launch = plan.launches[i];
    if (bytes[i] == 0 || launch.gaps == kNone) continue;
    Gaps& gaps = arenas[launch.gaps];
    gaps.workspaces.push_back(life_of(launch, bytes[i]));
    gaps.launches.push_back(i);
  }
  for (const Buffer& buffer : plan.buffers) {
    const auto gaps = arenas.find(buffer.arena);
    if (gaps == arenas.end()) continue;
    gaps->second.buffers.push_back({buffer.bytes, buffer.first, buffer.last});
    gaps->second.offsets.push_back(buffer.offset);
  }
  std::vector<Workspace> found(bytes.size());
  for (const auto& [arena, gaps] : arenas) {
    const int64_t limit = plan.arenas[arena].bytes;
    const std::vector<int64_t> offsets = pack_into_gaps(gaps.buffers, gaps.offsets, gaps.workspaces, limit);
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (offsets[i] >= 0) found[gaps.launches[i]] = {arena, offsets[i]};
    }
  }
  return found;
}

}  // namespace

Lifetime life_of(const Launch& launch, int64_t workspace) {
  const auto node = int32_t(launch.node);
  return {workspace, node, node + (launch.aside ? linger_of(workspace) : 0)};
}

std::vector<Workspace> place_workspaces(Plan& plan, const std::vector<int64_t>& bytes) {
  std::vector<Workspace> places = find_gaps(plan, bytes);
  std::map<std::pair<LaneId, bool>, ArenaId> own;  // by lane, and whether it is of its branch
  const auto each = [&](auto&& visit) {
    for (const Task& task : plan.tasks) {
      for (int32_t i = task.first_launch; i < task.first_launch + task.launches; ++i) visit(task, size_t(i));
    }
  };
  each([&](const Task& task, size_t i) {
    const bool aside = plan.launches[i].aside;
    if (bytes[i] == 0 || places[i].arena != kNone) return;
    const auto [arena, is_new] = own.try_emplace({task.lane, aside}, plan.arenas.end_id());
    if (is_new) {
      const std::string name = plan.lanes[task.lane].name + (aside ? "/workspace aside" : "/workspace");
      plan.arenas.push_back({name, task.device, Arena::Memory::Device, 0});
    }
    int64_t& size = plan.arenas[arena->second].bytes;
    size = std::max(size, bytes[i]);
  });
  each([&](const Task& task, size_t i) {
    const auto arena = own.find({task.lane, plan.launches[i].aside});
    const bool fits = arena != own.end() && bytes[i] > 0 && bytes[i] <= plan.arenas[arena->second].bytes;
    if (fits) places[i] = {arena->second, 0};
  });
  return places;
}

}  // namespace arbalest
