// SPDX-License-Identifier: Apache-2.0

// Collectives over CPU devices of several processes. The tasks of a lane run in the same order on every rank; those of
// different lanes do not, and a task holds its thread until all ranks have come to it. So each lane has a thread and
// connections of its own.

#include <map>
#include <utility>

#include "executor/devices/device.h"
#include "executor/devices/rank_links.h"
#include "executor/plan/plan_part.h"

namespace arbalest {
namespace {

class RankCollectives final : public Queues {
 public:
  RankCollectives(std::shared_ptr<Ranks> ranks, const Plan& part, std::shared_ptr<CpuProgress> progress)
      : ranks_(std::move(ranks)), part_(part), progress_(std::move(progress)) {}

  void make_queue(LaneId lane, Lane::Kind kind) override {
    const auto connect = ranks_->settings().collectives == Collectives::Mpi ? make_mpi_links : make_gloo_links;
    const std::shared_ptr<RankLinks> links = connect(ranks_, ranks_of(part_, lane));
    const int index = int(part_.ranks_of_devices.size() + lanes_.size());
    lanes_[lane] = {links, make_cpu_device(index, 1, progress_)};
    lanes_[lane].device->make_queue(lane, kind);
  }
  DeviceContext* context(LaneId lane) override { return lanes_.at(lane).links.get(); }
  void* stream(LaneId) override { return nullptr; }
  void run_there(const std::function<void()>& function) override { lanes_.begin()->second.device->run_there(function); }

  void go_on_from(const Table<TaskId, int64_t>& instances) override {
    for (auto& [lane, own] : lanes_) own.device->go_on_from(instances);
  }
  void start(const Plan& plan, const Table<TaskId, BoundTask>& tasks, CompletionSink& sink,
             TraceRecorder* trace) override {
    for (auto& [lane, own] : lanes_) own.device->start(plan, tasks, sink, trace);
  }
  void issue(const BoundTask& task, int64_t instance) override {
    lanes_.at(part_.tasks[task.id].lane).device->issue(task, instance);
  }
  void wake() override {
    for (auto& [lane, own] : lanes_) own.device->wake();
  }
  int64_t worked() const override {
    int64_t sum = 0;
    for (const auto& [lane, own] : lanes_) sum += own.device->worked();
    return sum;
  }
  void abort() override {
    for (auto& [lane, own] : lanes_) own.links->abort();
  }
  void stop(Deadline until) override {
    for (auto& [lane, own] : lanes_) own.device->stop(until);
  }

 private:
  struct Own {
    std::shared_ptr<RankLinks> links;
    std::unique_ptr<Device> device;  // after the links, which its tasks use
  };

  const std::shared_ptr<Ranks> ranks_;
  const Plan& part_;
  const std::shared_ptr<CpuProgress> progress_;
  std::map<LaneId, Own> lanes_;
};

}  // namespace

std::unique_ptr<Queues> make_rank_collectives(std::shared_ptr<Ranks> ranks, const Plan& part,
                                              std::shared_ptr<CpuProgress> progress) {
  return std::make_unique<RankCollectives>(std::move(ranks), part, std::move(progress));
}

}  // namespace arbalest
