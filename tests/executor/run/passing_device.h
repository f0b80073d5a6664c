// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device that stands in for another and changes one of its calls, for tests.

#include <memory>
#include <utility>
#include <vector>

#include "executor/devices/device.h"

namespace arbalest::test {

// Passes everything on.
struct PassingDevice : Device {
  explicit PassingDevice(std::unique_ptr<Device> inner) : inner(std::move(inner)) {}

  void make_queue(LaneId lane, Lane::Kind kind) override { inner->make_queue(lane, kind); }
  DeviceContext* context(LaneId lane) override { return inner->context(lane); }
  void* stream(LaneId lane) override { return inner->stream(lane); }
  void run_there(const std::function<void()>& function) override { inner->run_there(function); }
  void start(const Plan& plan, const Table<TaskId, BoundTask>& tasks, CompletionSink& sink,
             TraceRecorder* trace) override {
    inner->start(plan, tasks, sink, trace);
  }
  void issue(const BoundTask& task, int64_t instance) override { inner->issue(task, instance); }
  void wake() override { inner->wake(); }
  void abort() override { inner->abort(); }
  void stop(Deadline until) override { inner->stop(until); }
  void* allocate(int64_t bytes) override { return inner->allocate(bytes); }
  void* allocate_pinned(int64_t bytes) override { return inner->allocate_pinned(bytes); }
  std::shared_ptr<std::byte> allocate_kept(int64_t bytes) override { return inner->allocate_kept(bytes); }
  void upload(void* to, const void* from, int64_t bytes) override { inner->upload(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { inner->download(to, from, bytes); }
  int64_t free_bytes() const override { return inner->free_bytes(); }
  std::vector<int64_t> time_launches(LaneId lane, const std::vector<BoundLaunch>& launches) override {
    return inner->time_launches(lane, launches);
  }

  std::unique_ptr<Device> inner;
};

}  // namespace arbalest::test
