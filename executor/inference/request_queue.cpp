// SPDX-License-Identifier: Apache-2.0
#include "executor/inference/request_queue.h"

#include <algorithm>
#include <set>

namespace arbalest {

void RequestQueue::push(const std::shared_ptr<Request>& request) {
  const std::scoped_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  waiting_.push_back(request);
}

void RequestQueue::open(int32_t device, int64_t tick) {
  const std::scoped_lock lock(mutex_);
  open_.push_back({device, tick, {}});
}

RequestQueue::Batch RequestQueue::take() {
  const std::scoped_lock lock(mutex_);
  const auto slot = std::find_if(open_.begin(), open_.end(), [&](const Batch& b) { return b.tick == next_[b.device]; });
  if (waiting_.empty() || slot == open_.end() || error_) return {};
  Batch batch{slot->device, slot->tick, {}};
  int64_t at = 0;
  for (auto request = waiting_.begin(); request != waiting_.end() && at < batch_; ++request) {
    const int64_t count = std::min(batch_ - at, (*request)->samples - (*request)->taken);
    batch.pieces.push_back({*request, (*request)->taken, count, at});
    at += count;
  }
  under_way_[{batch.device, batch.tick}] = batch.pieces;
  for (const Piece& piece : batch.pieces) {  // nothing is thrown from here on
    piece.request->taken += piece.count;
    if (piece.request->taken == piece.request->samples) waiting_.pop_front();
  }
  open_.erase(slot);
  ++next_[batch.device];
  return batch;
}

std::vector<RequestQueue::Piece> RequestQueue::under_way(int32_t device, int64_t tick) {
  const std::scoped_lock lock(mutex_);
  const auto batch = under_way_.find({device, tick});
  return batch == under_way_.end() ? std::vector<Piece>() : batch->second;
}

void RequestQueue::finish(int32_t device, int64_t tick) {
  const std::scoped_lock lock(mutex_);
  const auto batch = under_way_.find({device, tick});
  if (batch == under_way_.end()) return;  // it has failed
  for (const Piece& piece : batch->second) {
    Request& request = *piece.request;
    request.done += piece.count;
    if (request.done == request.samples) request.finished.set_value();
  }
  under_way_.erase(batch);
  changed_.notify_all();
}

void RequestQueue::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return (waiting_.empty() && under_way_.empty()) || error_; });
}

void RequestQueue::fail(const std::exception_ptr& error) {
  const std::scoped_lock lock(mutex_);
  error_ = error;
  std::set<std::shared_ptr<Request>> failed(waiting_.begin(), waiting_.end());
  for (const auto& [batch, pieces] : under_way_) {
    for (const Piece& piece : pieces) failed.insert(piece.request);
  }
  for (const auto& request : failed) request->finished.set_exception(error);
  waiting_.clear();
  under_way_.clear();
  changed_.notify_all();
}

}  // namespace arbalest
