// SPDX-License-Identifier: Apache-2.0
#include "executor/run/host_tasks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace arbalest {

BatchFiller::BatchFiller(const Binding& binding, const Task& task, const BatchLayout& layout,
                         std::shared_ptr<const SampleReader> reader)
    : binding_(binding),
      buffer_(binding.plan().operands[size_t(task.first_operand)].buffer),
      reader_(std::move(reader)),
      layout_(layout),
      batch_(reader_->batch()),
      parts_of_batch_(int(task.parts)),
      first_(batch_ * task.part / task.parts),
      count_(batch_ * (task.part + 1) / task.parts - first_),
      parts_(size_t(binding.plan().buffers[buffer_].slots),
             {std::vector<int64_t>(size_t(count_)), std::vector<SampleRef>(size_t(count_)),
              std::vector<std::byte*>(layout.offsets.size())}) {}

void BatchFiller::put_scalars(int64_t tick, const DataOrder& order, int64_t epoch, int64_t number,
                              StepScalars scalars) const {
  const int64_t position = number * batch_;
  scalars.epoch = uint64_t(epoch);
  scalars.position = uint64_t(position);
  scalars.valid = int32_t(std::clamp<int64_t>(order.samples() - position, 0, batch_));
  std::memcpy(binding_.address(buffer_, tick), &scalars, sizeof scalars);
}

void BatchFiller::fill(int64_t tick, const DataOrder& order, int64_t epoch, int64_t number) {
  if (layout_.origin == BatchOrigin::Resident) return;
  std::byte* slot = binding_.address(buffer_, tick);
  Part& part = parts_[size_t(tick) % parts_.size()];
  const int64_t position = number * batch_ + first_;
  const auto ordered = uint64_t(epoch & ~kDrawsOfRecalibration);
  order.range(ordered, number * batch_, position, part.order);
  for (int64_t i = 0; i < count_; ++i) {
    part.samples[size_t(i)] = {part.order[size_t(i)], uint64_t(epoch), uint64_t(position + i)};
  }
  if (layout_.origin == BatchOrigin::Samples) {
    name_samples(slot, epoch, number, part.samples);
    return;
  }
  reader_->will_read(order.blocks_ahead(ordered, position, count_));
  for (size_t field = 0; field < part.fields.size(); ++field) {
    const int64_t offset = layout_.offsets[field];
    part.fields[field] = offset > 0 ? slot + offset + first_ * reader_->stride(field) : nullptr;
  }
  reader_->read(part.samples, part.fields);
  if (reader_->leaves_out() && reader_->left_out().part_is_last(uint64_t(epoch), number, parts_of_batch_)) {
    take_out(slot, epoch, number);
  }
}

// The indices of the batch's samples, of which there is one part only.
void BatchFiller::name_samples(std::byte* slot, int64_t epoch, int64_t number, std::span<SampleRef> samples) const {
  reader_->choose(samples);
  auto* indices = reinterpret_cast<int64_t*>(slot + sizeof(StepScalars));
  for (const SampleRef& sample : samples) *indices++ = sample.index;
  if (reader_->leaves_out()) take_out(slot, epoch, number);
}

void BatchFiller::take_out(std::byte* slot, int64_t epoch, int64_t number) const {
  const int64_t first = number * batch_;
  const std::vector<int64_t> positions = reader_->left_out().among(uint64_t(epoch), first, batch_);
  if (positions.empty()) return;
  StepScalars scalars;
  std::memcpy(&scalars, slot, sizeof scalars);
  const int64_t left = scalars.valid - int64_t(positions.size());
  // Rows behind those that are left repeat them in turn, as padding does.
  const auto close_gaps = [&](std::byte* rows, int64_t stride) {
    auto hole = positions.begin();
    int64_t to = 0;
    for (int64_t row = 0; row < scalars.valid; ++row) {
      if (hole != positions.end() && *hole == first + row) {
        ++hole;
        continue;
      }
      if (to != row) std::memcpy(rows + to * stride, rows + row * stride, size_t(stride));
      ++to;
    }
    for (; left > 0 && to < batch_; ++to) std::memcpy(rows + to * stride, rows + (to - left) * stride, size_t(stride));
  };
  if (layout_.origin == BatchOrigin::Samples) close_gaps(slot + sizeof scalars, sizeof(int64_t));
  for (size_t field = 0; field < layout_.offsets.size() && layout_.origin == BatchOrigin::Host; ++field) {
    if (layout_.offsets[field] > 0) close_gaps(slot + layout_.offsets[field], reader_->stride(field));
  }
  scalars.valid = int32_t(left);
  std::memcpy(slot, &scalars, sizeof scalars);
}

TallyReader::TallyReader(const Binding& binding, const LoopPlan& loop, size_t sums)
    : binding_(binding), last_(sums, 0) {
  const Plan& plan = binding.plan();
  for (const Replica& replica : loop.replicas) {
    sums_.push_back(plan.operands[size_t(plan.tasks[replica.read_back].first_operand)]);
    buffers_.push_back(replica.tally);
  }
}

std::vector<double> TallyReader::read(int64_t tick) const {
  std::vector<double> tallies;
  for (const BufferId buffer : buffers_) {
    const auto* tally = reinterpret_cast<const double*>(binding_.address(buffer, tick));
    tallies.insert(tallies.end(), tally, tally + last_.size());
  }
  return tallies;
}

std::vector<double> TallyReader::read_end() const {
  const size_t count = last_.size();
  std::vector<double> tallies(sums_.size() * count);
  const Plan& plan = binding_.plan();
  for (size_t r = 0; r < sums_.size(); ++r) {
    const Operand& operand = sums_[r];
    const Arena& arena = plan.arenas[plan.buffers[operand.buffer].arena];
    binding_.device(arena.device)
        .download(tallies.data() + r * count, binding_.address(operand.buffer, 0) + operand.offset,
                  int64_t(count * sizeof(double)));
  }
  return tallies;
}

std::vector<double> TallyReader::advance(const std::vector<double>& tallies) {
  const size_t count = last_.size();
  std::vector<double> sums(count, 0), since(count);
  not_finite_.clear();
  for (size_t replica = 0; count > 0 && replica < tallies.size() / count; ++replica) {
    const double* tally = tallies.data() + replica * count;
    if (count > 1 && !std::isfinite(tally[1])) not_finite_.push_back(replica);
    for (size_t i = 0; i < count; ++i) sums[i] += tally[i];
  }
  for (size_t i = 0; i < count; ++i) since[i] = sums[i] - last_[i];
  last_ = std::move(sums);
  return since;
}

}  // namespace arbalest
