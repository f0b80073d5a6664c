// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a program (the graphs of a training step and a validation batch) to a plan. Pure bookkeeping: no device is
// needed.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "executor/plan/plan.h"
#include "ops/replicas/synchronize.h"
#include "passes/program.h"

namespace arbalest {

// The place from which a device gets the fields of a batch.
enum class BatchOrigin : uint8_t {
  Host,      // fills write them, and they are copied
  Resident,  // they stay on the device, the same ones for every batch
  Samples,   // from the samples of the split, all of which lie in the device's memory: fills write their indices
};

struct PlanRequest {
  std::vector<PlanDevice> devices;
  int32_t learners = 1;  // per device
  // Resolved for all learners; if it corrects towards an average, the program has ArenaValues::average.
  StrategyOptions strategy{.name = kNoStrategy};
  int64_t strategy_until = INT64_MAX;  // the run's epoch from which another strategy holds
  int64_t rounds = 0;                  // iterations of an epoch; 0: as many as the samples give
  int64_t epochs = 1;
  int64_t iterations = 0;  // of each learner; 0: as the epochs say
  int64_t training_samples = 0;
  int64_t validation_samples = 0;
  BatchOrigin training_batches = BatchOrigin::Host, validation_batches = BatchOrigin::Host;
  // How long it takes to fill one sample on one thread, in µs: see Source::microseconds_per_sample().
  double training_fill_time = 0, validation_fill_time = 0;
  bool endless = false;             // a pass without an end, whose batches the caller fills
  int32_t host_threads = 1;         // of host tasks: how many parts of batches are worth having at once
  int32_t run_ahead = 2;            // iterations that may be under way at once
  int32_t device_slots = 2;         // batches on the device per learner
  int64_t report_every = 0;         // iterations between progress reports; 0: about 20 an epoch, at most 100 apart
  bool validates = true;            // if the program has a validation graph
  bool keep_validated = false;      // what is validated is copied to the host as well
  bool follows_validation = false;  // reading an epoch waits for the validation of the epoch before the last
  int64_t validation_lead = 8;      // iterations before the end of the epoch at which validation's reading begins
  // Tasks that need the result of a collective wait for its end, not for its place in a queue. A collective that
  // is aborted, because a process is lost, then leaves nothing behind it that runs on sums that are not whole.
  bool awaits_collectives = false;
  int32_t at_once = 1;   // plans that run at the same time on each device
  bool branches = true;  // on GPUs with few learners gradients of parameters and parts of updates run aside
  int64_t workspace_limit = 64 << 20;  // bytes of a compute lane, and of its branch, that a kernel may need at most on
                                       // CUDA. If a convolution of few channels is folded, its images come on top
};

// Whether a GPU has so few learners, of all plans that run at the same time, that gradients of parameters run aside.
inline bool has_few_learners(int64_t learners) {
  return learners <= 2;
}

// Devices that share validation's work: all that have the model which the learners share.
inline int64_t validator_count(const PlanRequest& request) {
  return strategy_spec(request.strategy.name).alone ? 1 : int64_t(request.devices.size());
}

// Iterations of an epoch in which every update is whole: see rounds_per_epoch() in io/sources/data_order.h.
int64_t rounds_of(int64_t samples, int64_t learners, int64_t batch, int64_t accumulate);

// Number of parts in which a batch is filled, each by a host task: one for each thread, but no part so small that
// handing it over would matter. `fill_time`: µs per sample; 0: the batch is not divided.
int32_t fill_parts(int64_t samples, double fill_time, int32_t threads);

// Layout of a batch's slot on the device: the scalars, then the fields. Also the size of the pinned slot that it is
// made from.
struct BatchLayout {
  BatchOrigin origin = BatchOrigin::Host;
  std::vector<int64_t> offsets;  // by the source's field, in bytes; 0 if it is not in the slot
  int64_t bytes = 0;
  int64_t pinned_bytes = 0;  // Host: as `bytes`; Resident: the scalars; Samples: the scalars, then an int64 a sample
};
BatchLayout batch_layout(const Loop& loop, BatchOrigin origin);

// Makes the plan in the phases of executor/plan/phases.h. Throws GraphError if the options do not fit the program.
Plan make_plan(const Program& program, const PlanRequest& request);

// The plan of one pass over the validation split with weights that are given. It is the program's validation loop on
// every device of the request, each with its share of the batches, without training. Sums are read back at the end,
// outputs (Loop::outputs) with every batch.
Plan make_inference_plan(const Program& program, const PlanRequest& request);

// Bytes rounded up to a multiple of 256, since buffers begin at multiples of 256 bytes.
inline int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Transient memory: offsets for buffers so that those alive at the same time do not overlap. `first` and `last` are
// inclusive positions in the lane's order of nodes.
struct Lifetime {
  int64_t bytes = 0;
  int32_t first = 0, last = 0;
};
struct Packing {
  std::vector<int64_t> offsets;  // multiples of 256
  int64_t bytes = 0;
};
Packing pack(const std::vector<Lifetime>& lifetimes);

// Packs `added` around buffers that are already placed, without growing past `limit` bytes. Returns offsets; −1 for
// each that does not fit.
std::vector<int64_t> pack_into_gaps(const std::vector<Lifetime>& placed, const std::vector<int64_t>& offsets,
                                    const std::vector<Lifetime>& added, int64_t limit);

// Parameters that follow each other in the flat arenas and are updated together, once node `after` has run.
struct UpdatePart {
  int64_t offset = 0, elements = 0;  // of the arenas
  NodeId after = kNone;
  // Elements of the part that belong to no parameter, each after one whose size is no multiple of kParameterAlignment:
  // (where the gap begins in the part, how many). They are updated with the others, by gradients that are made zeros.
  std::vector<std::pair<int64_t, int64_t>> gaps = {};

  int64_t bytes() const { return elements * int64_t(sizeof(float)); }
  // True if this part includes the gradient at byte `at` of the gradients' arena.
  bool holds(int64_t at) const {
    const int64_t begin = offset * int64_t(sizeof(float));
    return begin <= at && at < begin + bytes();
  }
};

// Number of further nodes for which values of this size stay if a launch aside reads them, so that those nodes need not
// wait for it: about two layers. If values are large, nodes take longer and memory is worth more.
inline int32_t linger_of(int64_t bytes) {
  constexpr int64_t kSmall = 2 << 20;
  return bytes <= kSmall ? 8 : 4;
}

// The small nodes that may run next to those that follow them, since the rest of the step needs none of their results
// soon. In the backward pass they make gradients of parameters, or values that lead to nothing else: if a weight is
// standardised, from the gradient of what that makes to the gradient of the weight. In the forward pass they are made
// of weights alone (advance_weights()).
Table<NodeId, bool> nodes_aside(const Graph& graph);

BufferId add_buffer(Plan& plan, ArenaId arena, std::string name, int64_t bytes, int32_t slots, ClockId clock);

// Bytes planned in a device's memory, activations and slots included, workspace not. A CPU's pinned slots are in its
// memory.
int64_t planned_bytes(const Plan& plan, int32_t device);

// "512 B", "1.5 KiB", "10.3 MiB", "7.65 GiB".
std::string bytes_text(int64_t bytes);

// The plan for reading, in parts: the first tells devices, clocks, lanes and memory, each other one a task with its
// nodes and the edges that lead to it. It refers to the plan.
class PlanText {
 public:
  explicit PlanText(const Plan& plan);
  size_t size() const { return plan_.tasks.size() + 1; }
  std::string part(size_t index) const;

 private:
  std::string head() const;
  std::string task(TaskId id) const;

  const Plan& plan_;
  Table<TaskId, std::vector<const Edge*>> edges_;  // that lead to each task, in the plan's order
};
std::string print_plan(const Plan& plan);  // all parts

}  // namespace arbalest
