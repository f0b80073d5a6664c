#include "executor/host_tasks.h"

#include <cstring>

namespace arbalest {

BatchFiller::BatchFiller(const Binding& binding, const Task& task, const Loop& loop, const Source& source,
                         const BatchLayout& layout)
    : binding_(binding),
      buffer_(binding.plan().operands[size_t(task.first_operand)].buffer),
      source_(source),
      layout_(layout),
      batch_(loop.batch),
      samples_(size_t(binding.plan().buffers[size_t(buffer_)].slots), std::vector<int64_t>(size_t(loop.batch))),
      unused_labels_(layout.labels > 0 ? 0 : samples_.size(), std::vector<int32_t>(size_t(loop.batch))) {}

void BatchFiller::fill(int64_t tick, const DataOrder& order, int64_t epoch, int64_t number, StepScalars scalars) {
  std::byte* slot = binding_.address(buffer_, tick);
  std::vector<int64_t>& samples = samples_[size_t(tick) % samples_.size()];
  scalars.epoch = uint64_t(epoch);
  scalars.position = uint64_t(number * batch_);
  scalars.valid = int32_t(order.batch(uint64_t(epoch), number, samples));
  std::memcpy(slot, &scalars, sizeof scalars);
  if (layout_.images == 0) return;  // the batch stays on the device
  int32_t* labels = layout_.labels > 0 ? reinterpret_cast<int32_t*>(slot + layout_.labels)
                                       : unused_labels_[size_t(tick) % samples_.size()].data();
  source_.fill(samples, reinterpret_cast<uint8_t*>(slot + layout_.images), labels);
}

TallyReader::TallyReader(const Binding& binding, const std::vector<TaskId>& copies, size_t metrics)
    : binding_(binding), last_(metrics + 1, 0) {
  for (const TaskId copy : copies) {
    const Task& task = binding.plan().tasks[size_t(copy)];
    buffers_.push_back(binding.plan().operands[size_t(task.first_operand) + 1].buffer);
  }
}

std::vector<double> TallyReader::advance(int64_t tick) {
  std::vector<double> sums(last_.size(), 0);
  for (const BufferId buffer : buffers_) {
    const auto* tally = reinterpret_cast<const double*>(binding_.address(buffer, tick));
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += tally[i];
  }
  std::vector<double> since(sums.size());
  for (size_t i = 0; i < sums.size(); ++i) since[i] = sums[i] - last_[i];
  last_ = sums;
  return since;
}

}  // namespace arbalest
