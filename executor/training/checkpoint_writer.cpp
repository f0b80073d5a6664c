// SPDX-License-Identifier: Apache-2.0
#include "executor/training/checkpoint_writer.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/plain_message.h"
#include "base/process.h"
#include "executor/devices/threads.h"

namespace arbalest {

CheckpointWriter::CheckpointWriter(std::shared_ptr<const CheckpointFolder> folder, int64_t keep,
                                   std::function<int64_t()> best)
    : folder_(std::move(folder)),
      keep_(keep),
      best_(std::move(best)),
      thread_(start_thread("checkpoints", [this] { serve(); })) {}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

bool CheckpointWriter::busy() {
  const std::scoped_lock lock(mutex_);
  return job_ || writing_;
}

void CheckpointWriter::write(Job job) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !job_ && !writing_; });
  job_ = std::move(job);
  changed_.notify_all();
}

void CheckpointWriter::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !job_ && !writing_; });
}

std::string CheckpointWriter::error() {
  const std::scoped_lock lock(mutex_);
  return error_;
}

std::optional<CheckpointWriter::NotFinite> CheckpointWriter::take_not_finite() {
  const std::scoped_lock lock(mutex_);
  found_not_finite_ = false;
  return std::exchange(not_finite_, std::nullopt);
}

void CheckpointWriter::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closed_ || job_; });
    if (!job_) return;
    Job job = *std::exchange(job_, std::nullopt);
    writing_ = true;
    lock.unlock();
    const int64_t iteration = job.checkpoint.position.iteration;
    std::string error;
    std::optional<NotFinite> found;
    try {
      write_now(std::move(job));
    } catch (const NotFiniteError& failure) {  // which ends the run, or what is under way of it
      error = plain_message(failure);
      found = {failure.array(), iteration};
    } catch (const std::exception& failure) {
      error = plain_message(failure);
      warn(fmt::format("{}; training goes on without this checkpoint", error));
    }
    lock.lock();
    error_ = error;
    if (found && !not_finite_) not_finite_ = found;
    found_not_finite_ = not_finite_.has_value();
    writing_ = false;
    changed_.notify_all();
  }
}

void CheckpointWriter::write_now(Job job) {
  if (job.before) job.before();
  const int64_t iteration = job.checkpoint.position.iteration;
  const std::filesystem::path path = folder_->path_of(iteration);
  write_checkpoint(path, *job.layout, std::move(job.checkpoint));
  folder_->prune(iteration, keep_, best_());
}

}  // namespace arbalest
