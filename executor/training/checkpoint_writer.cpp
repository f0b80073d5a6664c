// SPDX-License-Identifier: Apache-2.0
#include "executor/training/checkpoint_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <future>
#include <system_error>
#include <utility>
#include <vector>

#include "base/plain_message.h"
#include "base/process.h"
#include "executor/devices/threads.h"
#include "executor/world/part.h"

namespace arbalest {
namespace {

// Under this key ranks tell the first how they have come to an end with their parts of a checkpoint.
std::string key_of(const CheckpointParts& parts) {
  return "part of " + parts.tag;
}

// Writes this rank's part of the checkpoint in the file `path`, and tells rank 0 how it went. Throws as write_part()
// does, but for values that are not finite, of which rank 0 says so.
void write_own_part(const std::filesystem::path& path, CheckpointWriter::Job job) {
  const std::string key = key_of(job.checkpoint.parts), name = job.name;
  PartWriter told;
  const auto tell = [&](const std::string& not_finite, const std::string& error) {
    told.array(not_finite);
    told.array(error);
    try {
      job.ranks->gather(key, std::move(told.bytes));
    } catch (const RunError&) {  // a rank is lost, which the others hear as well
    }
  };
  try {
    write_part(path, size_t(job.rank), *job.layout, std::move(job.checkpoint));
    tell("", "");
  } catch (const NotFiniteError& error) {
    tell(error.array(), "");
  } catch (const std::exception& error) {
    tell("", error.what());
    throw RunError(fmt::format("{}: {}", name, error.what()));
  }
}

// A checkpoint that rank 0 writes together with others.
struct Joint {
  const std::filesystem::path& path;
  const CheckpointParts parts;
  Ranks& ranks;
  const std::chrono::seconds patience;

  std::filesystem::path part_of(size_t rank) const { return part_path(path, parts.tag, rank); }
  RunError error(const std::string& why) const {
    return RunError(fmt::format("{}: not written: {}", path.string(), why));
  }
};

// The reports of the other ranks once they have come to an end with their parts. Throws if one of them is lost.
Ranks::Parts told_of_parts(const Joint& all) {
  auto told = std::async(std::launch::async, [&all] { return all.ranks.gather(key_of(all.parts), ""); });
  if (told.wait_for(all.patience) != std::future_status::ready) {
    std::vector<std::string> awaited;
    std::error_code unknown;
    for (size_t rank = 1; rank <= all.parts.of_ranks.size(); ++rank) {
      if (!std::filesystem::exists(all.part_of(rank), unknown)) awaited.push_back(all.ranks.name(int(rank)));
    }
    warn(fmt::format("{}: not written so far: it waits for parts, and after {} s {}", all.path.string(),
                     all.patience.count(),
                     awaited.empty() ? "all are seen, but not all ranks have told of theirs"
                                     : fmt::format("there is none of {}", fmt::join(awaited, ", "))));
  }
  try {
    return told.get();
  } catch (const RunError& error) {
    throw all.error(error.what());
  }
}

// Waits until the other ranks have come to an end with their parts. Throws if one of them is not written; if any has
// values that are not finite, NotFiniteError.
void hear_of_parts(const Joint& all) {
  std::string failed;
  const Ranks::Parts parts = told_of_parts(all);
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    PartReader in(parts[rank]);
    const std::string not_finite = in.text(), error = in.text();
    if (!not_finite.empty()) throw NotFiniteError(all.path, not_finite);
    if (!error.empty() && failed.empty()) failed = fmt::format("{}: {}", all.ranks.name(int(rank)), error);
  }
  if (!failed.empty()) throw all.error(failed);
}

// Rank 0's file names the parts, and older checkpoints go after it: so they have to be seen from here. Throws RunError.
void see_parts(const Joint& all) {
  for (size_t rank = 1; rank <= all.parts.of_ranks.size(); ++rank) {
    const std::filesystem::path part = all.part_of(rank);
    if (comes_to_be(part, all.patience)) continue;
    throw all.error(fmt::format("the part '{}' that {} has written is not seen here", part.filename().string(),
                                all.ranks.name(int(rank))));
  }
}

}  // namespace

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
    const std::shared_ptr<Ranks> ranks = job.ranks;
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
      const bool lost = ranks && ranks->lost();  // which may end the run
      warn(lost ? error : fmt::format("{}; training goes on without this checkpoint", error));
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
  if (job.rank > 0) return write_own_part(path, std::move(job));
  if (job.ranks) {
    write_with_others(path, std::move(job));
  } else {
    write_checkpoint(path, *job.layout, std::move(job.checkpoint));
  }
  folder_->prune(iteration, keep_, best_());
}

// At rank 0, whose file lies there under another name until all parts do.
void CheckpointWriter::write_with_others(const std::filesystem::path& path, Job job) const {
  const std::shared_ptr<Ranks> ranks = job.ranks;
  const Joint all = {path, job.checkpoint.parts, *ranks, job.patience};
  bool heard = false;
  const auto hear = [&] {
    if (!std::exchange(heard, true)) hear_of_parts(all);
  };
  std::exception_ptr failure;
  try {
    if (const auto lost = ranks->lost()) throw all.error(*lost);
    write_checkpoint(path, *job.layout, std::move(job.checkpoint), [&] {
      hear();
      see_parts(all);
    });
    return;
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  try {
    hear();  // after which no part is under way
  } catch (const NotFiniteError&) {
    failure = std::current_exception();
  } catch (const RunError&) {
  }
  for (size_t rank = 1; rank <= all.parts.of_ranks.size(); ++rank) {
    std::error_code ignored;  // they go with the next checkpoint
    std::filesystem::remove(all.part_of(rank), ignored);
  }
  std::rethrow_exception(failure);
}

}  // namespace arbalest
