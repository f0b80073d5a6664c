// SPDX-License-Identifier: Apache-2.0
#include "executor/run/binding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/in_threads.h"
#include "executor/devices/nvtx.h"
#include "executor/plan/make_plan.h"
#include "executor/run/launches_aside.h"
#include "executor/world/agreement.h"
#include "graph/op.h"

namespace arbalest {
namespace {

TensorType type_of(const Graph& graph, ValueId value) {
  return value == kNone ? TensorType{DataType::Token, {}} : graph.values[value].type;
}

std::vector<TensorType> types_of(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<TensorType> types;
  for (const ValueId value : values) types.push_back(type_of(graph, value));
  return types;
}

// A kernel may name its node itself, since passes run kernels as well.
std::string with_node(const Node& node, std::string message) {
  if (message.starts_with(fmt::format("node '{}'", node.name))) return message;
  return fmt::format("node '{}' ({}): {}", node.name, node.op->qualified_name(), message);
}

std::unique_ptr<Kernel> make_kernel_for(const Graph& graph, const Node& node, PlanDevice::Kind kind,
                                        const BindOptions& options, Queues& queues, LaneId lane, int concurrent) {
  const KernelFactory& factory = kind == PlanDevice::Kind::Cuda ? node.op->cuda : node.op->cpu;
  if (!factory) {
    fail(node, fmt::format("the operator has no {} kernel", kind == PlanDevice::Kind::Cuda ? "CUDA" : "CPU"));
  }
  KernelRequest request{node, types_of(graph, node.inputs), types_of(graph, node.outputs)};
  request.math = options.math;
  request.deterministic = options.deterministic;
  request.workspace_limit = options.workspace_limit;
  request.device = queues.context(lane);
  request.concurrent = options.deterministic ? 1 : concurrent;  // the same bits whatever runs at the same time
  try {
    return factory(request);
  } catch (const RunError& error) {
    throw RunError(with_node(node, error.what()));
  }
}

// Number of events of an edge's first task that must be distinguished. A slow task waits for the last instance of a
// group only. If the fast task waits for the slow one too, it cannot run further ahead than that edge allows.
int32_t events_for(const Plan& plan, const Edge& edge, int64_t lead) {
  if (edge.relation == kNone) return int32_t(lead) + 1;
  const ClockRelation& relation = plan.relations[edge.relation];
  if (plan.tasks[edge.from].clock != relation.fine) return int32_t(lead) + 1;
  if (edge.needs == Edge::Needs::Done) return 1;  // no queue waits for it, and the pace bounds what is under way
  for (const Edge& back : plan.edges) {
    const bool returns = back.from == edge.to && back.to == edge.from && back.relation == edge.relation;
    if (returns && back.distance >= 1) return int32_t((back.distance - 1) * relation.group) + 1;
  }
  return int32_t(lead) + 1;
}

// Whether a queue need not wait for an edge's event, since the task is issued only after `from` is done, at the same
// distance or a smaller one.
bool covered(const Plan& plan, const Edge& edge) {
  return std::any_of(plan.edges.begin(), plan.edges.end(), [&](const Edge& other) {
    return other.from == edge.from && other.to == edge.to && other.relation == edge.relation &&
           other.needs == Edge::Needs::Done && other.distance <= edge.distance;
  });
}

bool is_there(const Arena& arena, const KeptArenas& kept) {
  const auto found = arena.kept ? kept.find(arena.name) : kept.end();
  return found != kept.end() && found->second.bytes == arena.bytes;
}

// Advice for the error if samples kept on these devices take part of their memory; "" if there are none.
std::string advice_on_samples(const Plan& plan, const std::vector<int32_t>& devices) {
  int64_t bytes = 0;
  for (const SamplesOnDevice& samples : plan.handles.samples) {
    const bool here = std::find(devices.begin(), devices.end(), samples.device) != devices.end();
    if (here) bytes += plan.arenas[samples.arena].bytes;
  }
  if (bytes == 0) return "";
  return fmt::format(
      "\nsamples that stay there (cache = \"device\" of Prefetch) are {:.1f} MiB of that; with cache = \"host\", or "
      "\"none\" where their source has them in memory already, they stay in the host's",
      double(bytes) / (1 << 20));
}

LacksMemory lack_of_memory(const Plan& plan, const std::vector<int32_t>& devices, int64_t needed, int64_t free) {
  std::vector<std::string> names;
  for (const int32_t device : devices) names.push_back(to_string(plan.devices[size_t(device)]));
  std::vector<const Arena*> largest;
  for (const Arena& arena : plan.arenas) {
    const bool here = std::find(devices.begin(), devices.end(), arena.device) != devices.end();
    if (here && arena.memory == Arena::Memory::Device) largest.push_back(&arena);
  }
  std::sort(largest.begin(), largest.end(), [](const Arena* a, const Arena* b) { return a->bytes > b->bytes; });
  largest.resize(std::min<size_t>(largest.size(), 4));
  std::string list;
  for (const Arena* arena : largest) {
    list += fmt::format("\n  {:>10.1f} MiB  {}", double(arena->bytes) / (1 << 20), arena->name);
  }
  return LacksMemory(fmt::format("{}: the plan needs {:.1f} MiB{}, {:.1f} MiB are free; the largest parts:{}{}",
                                 fmt::join(names, ", "), double(needed) / (1 << 20), names.size() > 1 ? " in all" : "",
                                 double(free) / (1 << 20), list, advice_on_samples(plan, devices)));
}

}  // namespace

void check_memory(const Plan& plan, const std::vector<int64_t>& free) {
  std::vector<std::vector<int32_t>> memories;  // the devices of each
  std::vector<int32_t> cpus;
  for (int32_t d = 0; d < int32_t(plan.devices.size()); ++d) {
    const bool cpu = plan.devices[size_t(d)].kind == PlanDevice::Kind::Cpu;
    if (cpu) cpus.push_back(d);
    if (!cpu) memories.push_back({d});
  }
  if (!cpus.empty()) memories.push_back(std::move(cpus));
  for (const std::vector<int32_t>& devices : memories) {
    int64_t needed = 0;
    for (const int32_t device : devices) needed += planned_bytes(plan, device);
    if (needed > free[size_t(devices.front())])
      throw lack_of_memory(plan, devices, needed, free[size_t(devices.front())]);
  }
}

#ifdef __SANITIZE_THREAD__
// Kernels are compiled without ThreadSanitizer, which makes them ten times slower. So each launch declares to it the
// memory that its kernel reads and writes.
extern "C" void __tsan_read_range(const void* at, unsigned long bytes);
extern "C" void __tsan_write_range(const void* at, unsigned long bytes);

namespace {
constexpr bool kDeclares = true;

void declare(const MemoryUse& use) {
  for (const auto& [begin, end] : use.reads) __tsan_read_range(begin, size_t(end - begin));
  for (const auto& [begin, end] : use.writes) __tsan_write_range(begin, size_t(end - begin));
}
}  // namespace
#else
namespace {
constexpr bool kDeclares = false;

void declare(const MemoryUse&) {}
}  // namespace
#endif

void BoundLaunch::run_on(void* stream) const {
  if (use) declare(*use);
  const NvtxRange range(ranged, node->name);
  KernelContext there = context;
  there.stream = stream;
  try {
    kernel->run(there);
  } catch (const std::exception& error) {
    throw RunError(with_node(*node, error.what()));
  }
}

Binding::Binding(Plan& plan, std::unique_ptr<CallWatch> calls, std::vector<std::unique_ptr<Device>> devices,
                 std::unique_ptr<Queues> collectives, const BindOptions& options)
    : plan_(plan), calls_(std::move(calls)), devices_(std::move(devices)), collectives_(std::move(collectives)) {
  for (const auto& device : devices_) all_queues_.push_back(device.get());
  if (collectives_) all_queues_.push_back(collectives_.get());
  Ranks* const ranks = options.ranks.get();
  on_all(ranks, [&] { check_free_memory(*options.kept); });
  make_queues();  // connects all ranks
  on_all(ranks, [&] {
    make_kernels(options);
    measure_libraries(*options.kept);
    check_free_memory(*options.kept);
    allocate(*options.kept);
  });
  tasks_.resize(plan_.tasks.size());
  const Table<EdgeId, int64_t> leads = edge_leads(plan_);
  for (const EdgeId edge : leads.ids()) {
    int32_t& events = tasks_[plan_.edges[edge].from].events;
    events = std::max(events, events_for(plan_, plan_.edges[edge], leads[edge]));
  }
  for (const TaskId task : plan_.tasks.ids()) bind(task, options);
}

void Binding::check_free_memory(const KeptArenas& kept) const {
  std::vector<int64_t> free;
  for (const auto& device : devices_) free.push_back(device->free_bytes());
  for (const Arena& arena : plan_.arenas) {  // what is there already need not be free
    if (!is_there(arena, kept)) continue;
    const bool shared = plan_.devices[size_t(arena.device)].kind == PlanDevice::Kind::Cpu;
    for (size_t d = 0; d < free.size(); ++d) {
      const bool same = int32_t(d) == arena.device || (shared && plan_.devices[d].kind == PlanDevice::Kind::Cpu);
      if (same && free[d] <= INT64_MAX - arena.bytes) free[d] += arena.bytes;
    }
  }
  check_memory(plan_, free);
}

// Records the bytes that libraries take on each device. Called before any of the plan is allocated; arenas kept from an
// earlier plan are subtracted.
void Binding::measure_libraries(const KeptArenas& kept) {
  for (const auto& device : devices_) library_bytes_.push_back(device->taken_bytes());
  for (const Arena& arena : plan_.arenas) {
    const auto found = arena.kept ? kept.find(arena.name) : kept.end();
    if (found == kept.end() || library_bytes_[size_t(arena.device)] < 0) continue;
    int64_t& taken = library_bytes_[size_t(arena.device)];
    taken = std::max<int64_t>(0, taken - found->second.bytes);
  }
}

void Binding::make_queues() {
  for (const LaneId lane : plan_.lanes.ids()) {
    const Lane& description = plan_.lanes[lane];
    if (description.kind != Lane::Kind::Host) queues_of(lane).make_queue(lane, description.kind);
  }
}

Queues& Binding::queues_of(LaneId lane) const {
  const int32_t device = plan_.lanes[lane].device;
  if (device != kNone) return *devices_[size_t(device)];
  if (!collectives_) throw std::logic_error(plan_.lanes[lane].name + ": nothing runs this lane");
  return *collectives_;
}

void Binding::make_kernels(const BindOptions& options) {
  constexpr int kMostThreads = 4;  // each takes handles of the libraries, and those launch memory: docs/design.md
  kernels_.resize(plan_.launches.size());
  std::vector<int64_t> workspaces(plan_.launches.size(), 0);  // bytes
  // Those of GPUs one by one, by several threads: cuDNN takes milliseconds to propose and to build an engine. CPU
  // devices have one thread to make them on, which is handed all of them at once.
  const bool gpus = std::all_of(plan_.devices.begin(), plan_.devices.end(),
                                [](const PlanDevice& device) { return device.kind == PlanDevice::Kind::Cuda; });
  struct HandOver {
    Queues* queues;
    std::vector<std::pair<const Task*, int32_t>> launches;
  };
  std::vector<HandOver> hand_overs;
  for (const Task& task : plan_.tasks) {
    for (int32_t i = task.first_launch; i < task.first_launch + task.launches; ++i) {
      Queues* const queues = &queues_of(task.lane);
      const auto same = [&](const HandOver& other) { return other.queues == queues; };
      auto found = hand_overs.end();
      if (!gpus) found = std::find_if(hand_overs.begin(), hand_overs.end(), same);
      if (found == hand_overs.end()) found = hand_overs.insert(found, {queues, {}});
      found->launches.emplace_back(&task, i);
    }
  }
  const auto make = [&](Queues& queues, const Task& task, int32_t i) {
    const Launch& launch = plan_.launches[size_t(i)];
    const Graph& graph = plan_.graphs[size_t(launch.program)];
    const PlanDevice::Kind kind = plan_.devices[task.device == kNone ? 0 : size_t(task.device)].kind;
    // Validation, too, runs at the same time as the learners.
    const auto learners = std::count_if(plan_.lanes.begin(), plan_.lanes.end(), [&](const Lane& lane) {
      return lane.kind == Lane::Kind::Compute && lane.device == task.device;
    });
    kernels_[size_t(i)] = make_kernel_for(graph, graph.nodes[launch.node], kind, options, queues, task.lane,
                                          std::max(1, int(learners) * options.at_once));
    workspaces[size_t(i)] = kernels_[size_t(i)]->workspace_bytes();
  };
  in_threads(hand_overs.size(), size_t(gpus ? std::clamp(options.threads, 1, kMostThreads) : 1), [&](size_t place) {
    const HandOver& all = hand_overs[place];
    all.queues->run_there([&] {
      for (const auto& [task, i] : all.launches) make(*all.queues, *task, i);
    });
  });
  workspaces_ = place_workspaces(plan_, workspaces);
}

// Takes the memory anew if what was kept has another size.
std::byte* Binding::kept_memory(const Arena& arena, KeptArenas& kept) {
  if (!is_there(arena, kept)) {
    kept.erase(arena.name);
    kept[arena.name] = {devices_[size_t(arena.device)]->allocate_kept(arena.bytes), arena.bytes};
  }
  return kept_.emplace_back(kept.at(arena.name).memory).get();
}

void Binding::allocate(KeptArenas& kept) {
  for (const Arena& arena : plan_.arenas) {
    if (arena.kept) {
      arenas_.push_back(kept_memory(arena, kept));
      continue;
    }
    Device& device = *devices_[size_t(arena.device)];
    arenas_.push_back(static_cast<std::byte*>(
        arena.memory == Arena::Memory::Pinned ? device.allocate_pinned(arena.bytes) : device.allocate(arena.bytes)));
  }
}

std::byte* Binding::address(const Operand& operand, int64_t tick) const {
  if (operand.buffer == kNone) return nullptr;
  const Buffer& buffer = plan_.buffers[operand.buffer];
  return arenas_[buffer.arena] + buffer.offset + (tick + operand.shift) % buffer.slots * buffer.stride + operand.offset;
}

void Binding::put(const Operand& to, int64_t tick, const std::vector<std::byte>& content) const {
  device_of(to).upload(address(to, tick), content.data(), int64_t(content.size()));
}

void Binding::put_zeros(const Operand& to, int64_t bytes) const {
  const std::vector<std::byte> zeros(size_t(std::min<int64_t>(bytes, 1 << 22)));
  for (int64_t at = 0; at < bytes; at += int64_t(zeros.size())) {
    const auto count = std::min<int64_t>(int64_t(zeros.size()), bytes - at);
    device_of(to).upload(address(to, 0) + at, zeros.data(), count);
  }
}

std::vector<std::byte> Binding::get(const Operand& from, int64_t tick, int64_t bytes) const {
  std::vector<std::byte> content(size_t(bytes), std::byte{0});
  device_of(from).download(content.data(), address(from, tick), bytes);
  return content;
}

Device& Binding::device_of(const Operand& operand) const {
  return device(plan_.arenas[plan_.buffers[operand.buffer].arena].device);
}

int64_t Binding::peak_bytes(int32_t device) const {
  return planned_bytes(plan_, device);
}

// Which slots a task's instances use: a choice for each clock of its buffers.
void Binding::choose_slots(const Task& task, BoundTask& bound, std::vector<ClockId>& clocks) const {
  const auto add = [&](BufferId id) {
    if (id == kNone || plan_.buffers[id].slots == 1) return;
    const Buffer& buffer = plan_.buffers[id];
    const auto known = std::find(clocks.begin(), clocks.end(), buffer.clock);
    if (known != clocks.end()) {
      int64_t& slots = bound.choices[size_t(known - clocks.begin())].slots;
      slots = std::lcm(slots, int64_t(buffer.slots));
      return;
    }
    SlotChoice choice;
    choice.slots = buffer.slots;
    for (const ClockRelation& relation : plan_.relations) {
      const bool coarser = relation.fine == task.clock && relation.coarse == buffer.clock;
      const bool finer = relation.coarse == task.clock && relation.fine == buffer.clock;
      if (!coarser && !finer) continue;
      choice.tick = coarser ? SlotChoice::Tick::Coarser : SlotChoice::Tick::Finer;
      choice.relation = relation;
    }
    if (buffer.clock != task.clock && choice.tick == SlotChoice::Tick::Same) {
      throw std::logic_error(task.name + " uses the slots of a clock that is foreign to it: " + buffer.name);
    }
    clocks.push_back(buffer.clock);
    bound.choices.push_back(choice);
  };
  for (int32_t i = 0; i < task.operands; ++i) add(plan_.operands[size_t(task.first_operand + i)].buffer);
  for (int32_t i = task.first_launch; i < task.first_launch + task.launches; ++i) {
    const Launch& launch = plan_.launches[size_t(i)];
    for (int32_t o = 0; o < launch.inputs + launch.outputs; ++o) {
      add(plan_.operands[size_t(launch.first_operand + o)].buffer);
    }
  }
  add(task.scalars);
}

void Binding::bind(TaskId id, const BindOptions& options) {
  const Task& task = plan_.tasks[id];
  BoundTask& bound = tasks_[id];
  bound.id = id;
  if (plan_.on_host(id)) return;
  std::vector<ClockId> clocks;
  choose_slots(task, bound, clocks);
  int64_t variants = 1;
  for (const SlotChoice& choice : bound.choices) variants *= choice.slots;
  for (int64_t v = 0; v < variants; ++v) {
    std::vector<int64_t> slots(bound.choices.size());  // as BoundTask::variant_of() counts them
    for (auto [c, rest] = std::pair(slots.size(), v); c-- > 0; rest /= bound.choices[c].slots) {
      slots[c] = rest % bound.choices[c].slots;
    }
    bind_variant(task, bound.variants.emplace_back(), [&](const Operand& operand) {
      if (operand.buffer == kNone) return address(operand, 0);
      const auto clock = std::find(clocks.begin(), clocks.end(), plan_.buffers[operand.buffer].clock);
      return address(operand, clock == clocks.end() ? 0 : slots[size_t(clock - clocks.begin())]);
    });
  }
  for (BoundTask::Variant& variant : bound.variants) {
    for (BoundLaunch& launch : variant.launches) launch.ranged = options.nvtx;
  }
  bound.every = task.every;
  if (task.every > 1) bound.variants.emplace_back();
  // Collectives over several GPUs of a process are never recorded.
  bound.capture = options.capture && task.launches > 0 && task.kind != Task::Kind::Collective;
  for (const Edge& edge : plan_.edges) {
    const bool other_lane = plan_.tasks[edge.from].lane != task.lane;
    if (edge.to == id && edge.needs == Edge::Needs::Issued && other_lane && !covered(plan_, edge)) {
      bound.waits.push_back({edge.from, edge});
    }
  }
}

void Binding::bind_variant(const Task& task, BoundTask::Variant& variant,
                           const std::function<std::byte*(const Operand&)>& at) {
  for (int32_t i = 0; i < task.operands; i += 2) {
    const Operand &from = plan_.operands[size_t(task.first_operand + i)],
                  &to = plan_.operands[size_t(task.first_operand + i + 1)];
    variant.copies.push_back({at(to), at(from), plan_.buffers[to.buffer].bytes});
  }
  for (int32_t i = task.first_launch; i < task.first_launch + task.launches; ++i) {
    const Launch& launch = plan_.launches[size_t(i)];
    BoundLaunch ready;
    ready.kernel = kernels_[size_t(i)].get();
    ready.node = &plan_.graphs[size_t(launch.program)].nodes[launch.node];
    ready.launch = i;
    ready.aside = launch.aside;
    const Workspace& workspace = workspaces_[size_t(i)];
    const auto operand = [&](int32_t o) { return at(plan_.operands[size_t(launch.first_operand + o)]); };
    for (int32_t o = 0; o < launch.inputs; ++o) ready.inputs.push_back(operand(o));
    for (int32_t o = 0; o < launch.outputs; ++o) ready.outputs.push_back(operand(launch.inputs + o));
    ready.context.stream = queues_of(task.lane).stream(task.lane);
    if (workspace.arena != kNone) ready.context.workspace = arenas_[workspace.arena] + workspace.offset;
    ready.context.scalars = reinterpret_cast<const StepScalars*>(at({task.scalars, 0, 0}));
    variant.launches.push_back(std::move(ready));
  }
  for (BoundLaunch& launch : variant.launches) {
    launch.context.inputs = launch.inputs.data();
    launch.context.outputs = launch.outputs.data();
  }
  std::vector<MemoryUse> uses;
  for (BoundLaunch& launch : variant.launches) {
    uses.push_back(memory_use(plan_, launch));
    if (kDeclares) launch.use = std::make_shared<MemoryUse>(uses.back());
  }
  const std::vector<int32_t> waits = waits_for_aside(uses);
  for (size_t i = 0; i < waits.size(); ++i) variant.launches[i].after = waits[i];
}

}  // namespace arbalest
