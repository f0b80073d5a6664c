// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan bound to devices: memory allocated, kernels made, every address known. After this nothing is looked up.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "executor/devices/call_watch.h"
#include "executor/devices/device.h"
#include "executor/plan/plan.h"
#include "executor/run/workspaces.h"

namespace arbalest {

class Ranks;  // executor/world/ranks.h

// Memory of arenas whose content is of use to the plans that follow (Arena::kept), by their names. It outlives the
// plan's devices, and the next plan with such an arena of as many bytes has it as it is.
struct KeptArena {
  std::shared_ptr<std::byte> memory;
  int64_t bytes = 0;
  bool filled = false;  // set by the code that fills it
};
using KeptArenas = std::map<std::string, KeptArena>;

struct BindOptions {
  MathMode math = MathMode::Fp32;
  bool deterministic = false;
  int64_t workspace_limit = 64 << 20;  // bytes per compute lane
  int threads = 1;                     // that make kernels of GPUs
  bool nvtx = false;                   // each launch is an NvtxRange, while it is recorded as well
  bool capture = true;                 // record steps and replay them, if the device can
  std::shared_ptr<KeptArenas> kept = std::make_shared<KeptArenas>();
  std::shared_ptr<Ranks> ranks = {};  // nullptr: this process has all devices
  int at_once = 1;                    // plans that run at the same time on each device
};

// Throws LacksMemory if the plan needs more of a memory than is free, with the largest parts. `free` is bytes by
// device; CPU devices have one memory, and what they need counts together.
void check_memory(const Plan& plan, const std::vector<int64_t>& free);

class Binding {
 public:
  // `calls` watches what the devices call; they are parallel to plan.devices. `collectives` runs the lanes that span
  // them, nullptr if there are none. Adds arenas for workspaces that find no gap to the plan. Throws RunError,
  // naming the largest arenas, if a device lacks memory: before the first allocation. With several processes all throw
  // the same, so that a run can go on with a plan of less memory.
  Binding(Plan& plan, std::unique_ptr<CallWatch> calls, std::vector<std::unique_ptr<Device>> devices,
          std::unique_ptr<Queues> collectives, const BindOptions& options);

  const Plan& plan() const { return plan_; }
  CallWatch& calls() const { return *calls_; }
  Device& device(int32_t index) const { return *devices_[size_t(index)]; }
  // The queues that run a device task.
  Queues& queues(TaskId task) const { return queues_of(plan_.tasks[task].lane); }
  const std::vector<Queues*>& all_queues() const { return all_queues_; }
  const Table<TaskId, BoundTask>& tasks() const { return tasks_; }  // host tasks have no variants

  // The address of an operand for instance `tick` of its buffer's clock.
  std::byte* address(const Operand& operand, int64_t tick) const;
  std::byte* address(BufferId buffer, int64_t tick) const { return address(Operand{buffer, 0, 0}, tick); }
  // Copy to and from the memory of an operand, before the plan starts or once it is at rest.
  void put(const Operand& to, int64_t tick, const std::vector<std::byte>& content) const;
  void put_zeros(const Operand& to, int64_t bytes) const;  // for instance 0
  std::vector<std::byte> get(const Operand& from, int64_t tick, int64_t bytes) const;
  // Bytes planned on a device, workspaces included.
  int64_t peak_bytes(int32_t device) const;
  // Bytes of a device's memory that were taken once all kernels were made, before anything of the plan was allocated.
  // They include handles and code of libraries, queues, NCCL's connections, and memory of other processes. −1 if
  // unknown.
  int64_t library_bytes(int32_t device) const { return library_bytes_[size_t(device)]; }

 private:
  Queues& queues_of(LaneId lane) const;
  Device& device_of(const Operand& operand) const;
  void make_queues();
  void choose_slots(const Task& task, BoundTask& bound, std::vector<ClockId>& clocks) const;
  void bind_variant(const Task& task, BoundTask::Variant& variant, const std::function<std::byte*(const Operand&)>& at);
  void make_kernels(const BindOptions& options);
  void check_free_memory(const KeptArenas& kept) const;
  void measure_libraries(const KeptArenas& kept);
  void allocate(KeptArenas& kept);
  std::byte* kept_memory(const Arena& arena, KeptArenas& kept);
  void bind(TaskId task, const BindOptions& options);

  Plan& plan_;
  std::unique_ptr<CallWatch> calls_;  // outlives the devices
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Queues> collectives_;
  std::vector<Queues*> all_queues_;
  Table<ArenaId, std::byte*> arenas_;
  std::vector<std::shared_ptr<std::byte>> kept_;  // those of them that outlive this
  std::vector<std::unique_ptr<Kernel>> kernels_;  // one a launch
  std::vector<Workspace> workspaces_;             // one a launch
  Table<TaskId, BoundTask> tasks_;
  std::vector<int64_t> library_bytes_;  // by device
};

}  // namespace arbalest
