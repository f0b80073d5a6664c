// SPDX-License-Identifier: Apache-2.0
#include "executor/run/keep_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/plain_message.h"
#include "base/process.h"
#include "executor/devices/threads.h"
#include "executor/run/task_error.h"

namespace arbalest {
namespace {

constexpr int64_t kPartBytes = int64_t{4} << 20;
constexpr int64_t kPartSamples = 256;  // of files that take a while, so that an interrupt need not wait
constexpr std::chrono::milliseconds kInterruptLook{100};
constexpr std::chrono::seconds kReadingGrace{2};  // of a thread that reads too long

class Keeper {
 public:
  Keeper(const Binding& binding, const std::vector<SamplesOnDevice>& places, const SampleReader& reader, int64_t size,
         const KeepingOptions& options)
      : binding_(binding), places_(places), reader_(reader), size_(size), options_(options), uploading_(places.size()) {
    const size_t fields = places.front().fields.size();
    int64_t bytes = 0;
    for (size_t field = 0; field < fields; ++field) {
      kept_.push_back(std::any_of(places.begin(), places.end(),
                                  [&](const SamplesOnDevice& place) { return place.fields[field] != kNone; }));
      if (kept_.back()) bytes += reader.stride(field);
    }
    pace_.part = std::clamp<int64_t>(kPartBytes / std::max<int64_t>(1, bytes), 1, kPartSamples);
    samples_.bad.assign(size_t(size), false);
  }

  std::optional<KeptSamples> run(const std::stop_token& stop) {
    const auto threads = int64_t(std::min<int64_t>(options_.threads, (size_ + pace_.part - 1) / pace_.part));
    pace_.ahead = threads * pace_.part;
    will_read(0, pace_.ahead);
    working_ = int(threads);
    std::vector<std::thread> workers;
    try {
      for (int64_t i = 0; i < threads; ++i) workers.push_back(start_thread("reading samples", [this] { work(); }));
    } catch (...) {
      failed(std::current_exception());
      const std::scoped_lock lock(mutex_);
      working_ -= int(threads) - int(workers.size());
    }
    try {
      wait(stop);
    } catch (...) {  // thrown by a callback
      failed(std::current_exception());
    }
    for (std::thread& worker : workers) worker.join();
    if (error_) std::rethrow_exception(error_);
    if (progress_.done < size_) return std::nullopt;
    tell();
    return std::move(samples_);
  }

 private:
  void failed(std::exception_ptr error) {
    const std::scoped_lock lock(mutex_);
    if (!error_) error_ = std::move(error);
    stop_ = true;
  }

  // Waits for the workers, and looks meanwhile at what may end the work earlier.
  void wait(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (working_ > 0) {
      changed_.wait_for(lock, kInterruptLook);
      if (stop.stop_requested()) stop_ = true;
      lock.unlock();
      if (progress_.done < size_) tell();
      const std::optional<std::string> late = options_.late_read && !stop_ ? options_.late_read() : std::nullopt;
      if (late) failed(std::make_exception_ptr(TaskError(*late, -1)));
      lock.lock();
      if (late && !changed_.wait_for(lock, kReadingGrace, [this] { return working_ == 0; })) end_process(*late);
    }
  }

  [[noreturn]] void end_process(const std::string& message) const {
    if (options_.process_ends) options_.process_ends(message);
    arbalest::end_process(message);
  }

  void tell() const {
    if (options_.progress) options_.progress(progress_.done);
  }

  // Tells of the blocks that begin at `count` samples from `first` on.
  void will_read(int64_t first, int64_t count) const {
    const int64_t block = reader_.block(), last = std::min(first + count, size_);
    std::vector<int64_t> blocks;
    for (int64_t b = (first + block - 1) / block; block > 1 && b * block < last; ++b) blocks.push_back(b);
    if (!blocks.empty()) reader_.will_read(std::move(blocks));
  }

  void work() {
    try {
      std::vector<std::vector<std::byte>> content(kept_.size());
      std::vector<std::byte*> fields(kept_.size(), nullptr);
      for (size_t field = 0; field < kept_.size(); ++field) {
        if (!kept_[field]) continue;
        content[field].resize(size_t(pace_.part * reader_.stride(field)));
        fields[field] = content[field].data();
      }
      for (int64_t first = progress_.next.fetch_add(pace_.part); first < size_ && !stop_;
           first = progress_.next.fetch_add(pace_.part)) {
        keep(first, std::min(pace_.part, size_ - first), fields);
      }
    } catch (...) {
      failed(std::current_exception());
    }
    const std::scoped_lock lock(mutex_);
    --working_;
    changed_.notify_all();
  }

  void keep(int64_t first, int64_t count, const std::vector<std::byte*>& fields) {
    will_read(first + pace_.ahead, count);
    const std::vector<int64_t> bad = read(first, count, fields);
    for (size_t p = 0; p < places_.size(); ++p) {
      const std::scoped_lock one_at_a_time(uploading_[p]);
      for (size_t field = 0; field < fields.size(); ++field) {
        const BufferId buffer = places_[p].fields[field];
        if (buffer == kNone) continue;
        const int64_t stride = reader_.stride(field);
        std::byte* const to = binding_.address(buffer, 0) + first * stride;
        binding_.device(places_[p].device).upload(to, fields[field], count * stride);
      }
    }
    const std::scoped_lock lock(mutex_);
    for (const int64_t index : bad) samples_.bad[size_t(index)] = true;
    progress_.done += count;
  }

  std::vector<int64_t> read(int64_t first, int64_t count, const std::vector<std::byte*>& fields) const {
    try {
      return reader_.read_to_keep(first, count, fields);
    } catch (const TaskError&) {
      throw;
    } catch (const std::exception& error) {
      throw RunError(fmt::format("samples {} to {}: {}", first, first + count - 1, plain_message(error)));
    }
  }

  const Binding& binding_;
  const std::vector<SamplesOnDevice>& places_;
  const SampleReader& reader_;
  const int64_t size_;
  const KeepingOptions& options_;
  std::vector<bool> kept_;  // by field
  struct Pace {
    int64_t part = 1;   // samples that a thread reads at a time
    int64_t ahead = 0;  // samples by which will_read() is ahead of reading
  };
  Pace pace_;
  struct Progress {
    std::atomic<int64_t> next{0}, done{0};
  };
  Progress progress_;  // in samples
  std::atomic<bool> stop_{false};
  std::vector<std::mutex> uploading_;  // by place: a device is called by one thread at a time
  std::mutex mutex_;                   // of what follows
  std::condition_variable changed_;
  int working_ = 0;  // threads
  std::exception_ptr error_;
  KeptSamples samples_;
};

}  // namespace

std::optional<KeptSamples> keep_samples(const Binding& binding, const std::vector<SamplesOnDevice>& places,
                                        const SampleReader& reader, int64_t size, const KeepingOptions& options,
                                        const std::stop_token& stop) {
  return Keeper(binding, places, reader, size, options).run(stop);
}

}  // namespace arbalest
