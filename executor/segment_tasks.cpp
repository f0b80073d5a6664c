// What a segment's host tasks do: filling slots with batches, reporting, ending a validation.

#include "executor/segment.h"

namespace arbalest {

void Segment::make_host_tasks() {
  host_.resize(plan_.tasks.size());
  for (TaskId id = 0; id < TaskId(plan_.tasks.size()); ++id) {
    const Task& task = plan_.tasks[size_t(id)];
    switch (task.kind) {
      case Task::Kind::Fill:
        host_[size_t(id)] = task.learner != kNone                                         ? fill_training(task)
                            : plan_.clocks[size_t(task.clock)].name == "validation batch" ? fill_validation(task)
                                                                                          : fill_recalibration(task);
        break;
      case Task::Kind::Report: host_[size_t(id)] = report(); break;
      case Task::Kind::ValidationBegin: host_[size_t(id)] = [](int64_t) {}; break;
      case Task::Kind::ValidationEnd: host_[size_t(id)] = end_validation(); break;
      default: break;
    }
  }
}

std::function<void(int64_t)> Segment::fill_training(const Task& task) {
  auto filler = std::make_shared<BatchFiller>(*binding_, task, training(), *prepared_.training,
                                              batch_layout(training(), prepared_.request.training_resident));
  return [this, filler, learner = task.learner](int64_t tick) {
    const int64_t batch = from_.batch + batch_number(tick % rounds_, learner, learners_);
    filler->fill(tick, order_, from_.epoch + tick / rounds_, batch, scalars_of(tick, learner));
  };
}

std::function<void(int64_t)> Segment::fill_validation(const Task& task) {
  const Loop& loop = validation();
  auto filler = std::make_shared<BatchFiller>(*binding_, task, loop, *prepared_.validation,
                                              batch_layout(loop, prepared_.request.validation_resident));
  const DataOrder order(options_.seed, prepared_.validation->size(), false);
  const int64_t validators = validator_count(prepared_.request);
  const int64_t batches = (validation_batches(prepared_.validation->size(), loop.batch) + validators - 1) / validators;
  return [this, filler, order, batches, validators, device = task.device](int64_t tick) {
    StepScalars scalars;
    scalars.seed = options_.seed;
    scalars.iteration = uint64_t(tick);
    filler->fill(tick, order, tick / batches, tick % batches * validators + device, scalars);
  };
}

// With the first batches of the epoch that follows what is validated, and of those after it.
std::function<void(int64_t)> Segment::fill_recalibration(const Task& task) {
  const Loop& loop = *prepared_.program.recalibration;
  auto filler = std::make_shared<BatchFiller>(*binding_, task, loop, *prepared_.training,
                                              batch_layout(loop, prepared_.request.training_resident));
  const int64_t batches = prepared_.program.recalibration_batches, in_epoch = prepared_.training->size() / loop.batch,
                validators = validator_count(prepared_.request);
  return [this, filler, batches, in_epoch, validators, device = task.device](int64_t tick) {
    StepScalars scalars;
    scalars.seed = options_.seed;
    scalars.iteration = uint64_t(tick);
    scalars.accumulated = int32_t(tick % batches);
    const int64_t validated = by_validation_->last_of(tick / batches) / rounds_;  // epoch of this segment
    const int64_t batch = tick % batches * validators + device;
    filler->fill(tick, order_, from_.epoch + validated + 1 + batch / in_epoch, batch % in_epoch, scalars);
  };
}

// The tasks that bring sums to the host at the ticks of a clock.
std::vector<TaskId> Segment::tally_copies(std::string_view clock) const {
  std::vector<TaskId> copies;
  for (const Edge& edge : plan_.edges) {
    const Task& from = plan_.tasks[size_t(edge.from)];
    const bool tally = edge.what == "tally" && from.kind == Task::Kind::CopyOut && plan_.on_host(edge.to);
    if (tally && plan_.clocks[size_t(from.clock)].name == clock) copies.push_back(edge.from);
  }
  return copies;
}

std::function<void(int64_t)> Segment::report() {
  TallyReader reader(*binding_, tally_copies("report"), training().metrics.size());
  return [this, reader, relation = *relation_to("report")](int64_t tick) mutable {
    const int64_t last = relation.last_of(tick);
    const bool ends_epoch = (last + 1) % rounds_ == 0;
    const RunPosition at = position_after(last + 1);
    monitor_.report(at, ends_epoch, rate(last), reader.advance(tick));
    if (on_report) on_report(at);
  };
}

Model Segment::validated_model() const {
  Model model;
  const auto kept = [&](const char* name, std::vector<std::byte>& content) {
    const BufferId buffer = binding_->find(name);
    if (buffer == kNone) return;
    const std::byte* from = binding_->address(buffer, 0);
    content.assign(from, from + plan_.buffers[size_t(buffer)].bytes);
  };
  kept(kKeptWeights, model.weights);
  kept(kKeptStatistics, model.statistics);
  return model;
}

std::function<void(int64_t)> Segment::end_validation() {
  TallyReader reader(*binding_, tally_copies("validation"), validation().metrics.size());
  return [this, reader, relation = *relation_to("validation"), over = false](int64_t tick) mutable {
    if (over) return;  // what is validated until the stop takes hold counts no more
    const RunPosition at = position_after(relation.last_of(tick) + 1);
    const Monitor::Verdict verdict = monitor_.validated(at, reader.advance(tick));
    if (on_validated) on_validated(verdict, validated_model(), at);
    over = verdict.stop;
    if (over) scheduler_->stop();
  };
}

}  // namespace arbalest
