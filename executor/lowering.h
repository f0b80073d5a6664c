#pragma once
// How make_plan() works inside: one object that grows a plan phase by phase. The phases are in make_plan.cpp (clocks,
// lanes), plan_learners.cpp (readers and steps), plan_synchronize.cpp (averaging) and plan_validation.cpp.

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executor/make_plan.h"

namespace arbalest {

class Lowering {
 public:
  Lowering(const Program& program, const PlanRequest& request) : program_(program), request_(request) {}
  Plan run();

 private:
  using Needs = Edge::Needs;
  using Why = Edge::Why;

  struct Reader {  // the way of a batch: from its source to a device slot
    TaskId fill = kNone, copy = kNone;
    BufferId slot = kNone;
  };

  // A learner's model on its device. Its step is one task, or several where others have to come in between: parts of
  // forward and backward, then the update.
  struct Replica {
    int32_t device = 0, learner = 0;
    LaneId lane = kNone;
    Reader reader;
    Placement placement;
    std::vector<TaskId> step;

    TaskId first() const { return step.front(); }
    TaskId update() const { return step.back(); }
  };

  // Gradients that are averaged together, complete once node `last` has run.
  struct Bucket {
    int64_t offset = 0, bytes = 0;
    NodeId last = kNone;
  };

  // A device's part in validation.
  struct Validator {
    LaneId lane = kNone;
    Reader reader;
    Placement placement;
    TaskId snapshot = kNone, evaluate = kNone;
    TaskId ready = kNone;  // after which the model is complete: the snapshot, or what follows recalibration
  };

  // An operand with what it holds, for nodes that the plan adds itself.
  struct Term {
    Operand operand;
    TensorType type;
  };

  // make_plan.cpp
  void check() const;
  void make_clocks();
  void make_lanes();
  ClockId add_clock(std::string name, int64_t ticks);
  std::pair<ClockId, int32_t> add_coarser(std::string name, ClockId fine, int64_t group, int64_t period);
  LaneId add_lane(Lane::Kind kind, int32_t device, int32_t learner, std::string name);
  TaskId add_task(Task::Kind kind, std::string name, LaneId lane, ClockId clock, int32_t width = 1);
  void add_edge(TaskId from, TaskId to, int64_t distance, Needs needs, Why why, std::string what = "");
  void add_lane_order(TaskId task) { add_edge(task, task, 1, Needs::Issued, Why::Lane); }
  void add_operands(TaskId task, const std::vector<Operand>& operands);
  ArenaId add_arena(std::string name, int32_t device, Arena::Memory memory);
  // A buffer in an arena of its own.
  BufferId add_device_buffer(const std::string& name, int32_t device, int64_t bytes, int32_t slots, ClockId clock);
  // A node of the plan's own graph, run by `task`.
  void add_node(TaskId task, std::string_view op, std::string name, const std::vector<Term>& inputs,
                const std::vector<Term>& outputs, Attributes attributes);
  // Elements [offset, offset + bytes) of an operand, as a flat array.
  static Term part(const Operand& whole, DataType type, int64_t offset, int64_t bytes);

  bool synchronised() const { return request_.strategy.kind != Strategy::Kind::None; }
  int32_t device_count() const { return int32_t(plan_.devices.size()); }
  int64_t learner_count() const { return int64_t(plan_.devices.size()) * request_.learners; }
  std::string device_name(int32_t device) const { return to_string(plan_.devices[size_t(device)]); }
  std::vector<const Replica*> replicas_on(int32_t device) const;

  // plan_learners.cpp
  Reader add_reader(const Loop& loop, bool resident, const std::string& prefix, int32_t device, ClockId clock);
  void add_launches(TaskId task, int32_t program, const Placement& placement, NodeId begin, NodeId end);
  TaskId add_part(const Loop& loop, int32_t program, const Placement& placement, const std::string& name, LaneId lane,
                  const Reader& reader, NodeId begin, NodeId end);
  void close_step(const Reader& reader, const std::vector<TaskId>& step);
  TaskId add_read_back(TaskId sum, const Operand& tally, int64_t bytes, const std::string& prefix, int32_t device,
                       ClockId clock);
  void add_learner(int32_t device, int32_t index);
  std::vector<NodeId> step_cuts() const;
  void add_accumulation(const Replica& replica, size_t index);
  NodeId find_accumulate() const;
  std::vector<Bucket> find_buckets() const;

  // plan_synchronize.cpp
  void make_average_memory();
  void synchronize();
  using SumWriter = std::function<void(TaskId task, int32_t device, const std::vector<Term>& terms,
                                       const std::vector<double>& coefficients)>;
  void sum_models(const std::string& name, double share, const SumWriter& write);
  void average_models();
  // What S-SGD averages: a batch's gradients or, where several make an update, their sum.
  ValueId averaged_gradients() const;
  int32_t batches_averaged() const { return accumulate_ == kNone ? 1 : int32_t(program_.accumulate); }
  std::pair<Term, TaskId> bucket_on(int32_t device, size_t index);
  void average_gradients();
  void replace_models();
  // What sums or averages operands, one a device, in their place: a task on the fabric's lane. Edges are the caller's.
  TaskId add_all_reduce(const std::string& name, ClockId clock, const std::vector<Term>& operands, bool mean);
  Term weights_of(const Replica& replica) const;
  std::vector<Term> weights_written(const Replica& replica) const;

  // plan_validation.cpp
  void add_validation();
  void add_validator(int32_t device, TaskId begin, const Term& statistics, TaskId gathered);
  void add_snapshot(int32_t device, const Term& statistics, TaskId gathered);
  TaskId gather_statistics(std::vector<Term>& sums);
  void add_recalibration(TaskId begin);
  void keep_validated(TaskId end);

  const Program& program_;
  const PlanRequest& request_;
  Plan plan_;
  ClockId batch_ = kNone, report_clock_ = kNone, sync_ = kNone, validation_ = kNone, validation_batch_ = kNone,
          recalibration_batch_ = kNone;
  int32_t by_validation_ = kNone, by_validation_batch_ = kNone;
  int64_t validations_ = 0;
  int32_t own_graph_ = kNone;  // in plan_.graphs: the nodes that averaging adds
  LaneId host_ = kNone, fabric_ = kNone;
  std::vector<LaneId> copy_in_, copy_out_, collectives_;  // one a device
  TaskId report_ = kNone;
  std::vector<Replica> replicas_;
  std::vector<Bucket> buckets_;              // Ssgd
  NodeId accumulate_ = kNone;                // Ssgd, several batches an update: the node that adds a batch to their sum
  std::vector<BufferId> averages_;           // Sma: z of each device, two slots of the sync clock
  std::vector<BufferId> gradient_averages_;  // Ssgd with several learners on a device: the mean gradient
  std::vector<Validator> validators_;        // by device
  std::vector<TaskId> averaged_;             // Sma, Local: the task of each device after which its models are averaged
};

}  // namespace arbalest
