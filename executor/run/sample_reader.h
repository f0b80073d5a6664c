// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a source to the fields of a slot: reads samples, and runs the host nodes that prepare them.

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "executor/run/left_out.h"
#include "executor/run/read_watch.h"
#include "executor/run/sample_cache.h"
#include "executor/trace/trace_file.h"
#include "graph/preparation.h"
#include "io/sources/bad_samples.h"
#include "io/sources/source.h"
#include "passes/program.h"

namespace arbalest {

// The fields that a batch's slot may hold, by Loop::fields: first the source's, then the outputs of host nodes, by
// name.
std::vector<Field> slot_fields(const Loop& loop, const Source& source);

// Bytes that a cache keeps of one sample: all outputs of the loop's host nodes. Throws GraphError if one of them draws
// anew in each epoch, so that nothing is worth keeping.
int64_t cached_bytes(const Loop& loop);

// Facts about a split's samples that are kept on devices (Prefetch's `cache`), known once the samples are there.
struct KeptSamples {
  std::vector<bool> bad;  // by index: it could not be read
};

// Reads the samples of one loop. Any thread may read.
class SampleReader {
 public:
  // Keeps the references. `bad`: counts the samples that cannot be read and are passed over, up to its limit; nullptr:
  // none may be passed over. In training, the split's next sample that can be read takes the place of such a sample;
  // validation leaves it out. `cache`: holds prepared samples, each of cached_bytes(); nullptr: samples are not cached.
  // `watch`: gets each read; nullptr: reads are not watched. `kept`: facts about the samples that are kept on devices;
  // nullptr: none are.
  SampleReader(const Loop& loop, const Source& source, uint64_t seed, BadSamples* bad = nullptr,
               SampleCache* cache = nullptr, ReadWatch* watch = nullptr, const KeptSamples* kept = nullptr);

  int64_t batch() const { return batch_; }
  int64_t block() const { return source_.block(); }  // Source::block()
  // Size in bytes of one sample of a field of the slot (Loop::fields).
  int64_t stride(size_t field) const { return strides_[field]; }
  // Writes samples one after the other, each field to its address in `fields`, as Source::fill() does; nullptr for a
  // field that is not in the slot. A sample that is left out becomes zeros. Throws what the source throws, and
  // TaskError with the place of a sample that cannot be prepared.
  void read(std::span<SampleRef> samples, std::span<std::byte* const> fields) const;
  // Chooses the samples of a batch from those kept on the devices. Samples that could not be read when they were
  // brought there are passed over as in read().
  void choose(std::span<SampleRef> samples) const;
  // Writes `count` samples from `first` on, by index, to be kept. Returns the indices of those that cannot be read,
  // which become zeros. Throws as read() does.
  std::vector<int64_t> read_to_keep(int64_t first, int64_t count, std::span<std::byte* const> fields) const;
  // Tells the source which of its blocks will be read soon.
  void will_read(std::vector<int64_t> blocks) const;

  ReadingTimes times() const;

  // True if samples may be left out of batches. left_out() has those that were; its passes are SampleRef::epoch.
  bool leaves_out() const { return leaves_out_ && bad_ && bad_->most() > 0 && !preparations_.empty(); }
  LeftOut& left_out() const { return left_out_; }

 private:
  // Objects that a thread uses while it prepares samples.
  struct Worker {
    std::vector<std::unique_ptr<Preparation>> preparations;
    std::vector<std::byte> bytes;
  };
  std::unique_ptr<Worker> borrow() const;
  void give_back(std::unique_ptr<Worker> worker, const ReadingTimes& times) const;
  int64_t repeated_place(std::span<const SampleRef> samples, size_t n) const;
  void prepare(Worker& worker, std::span<const SampleRef> samples, size_t n, std::span<std::byte* const> fields,
               ReadingTimes& times) const;
  void tell_bad(int64_t index, const std::string& error) const;
  void pass_over(SampleRef& sample, int64_t tries) const;
  void set_zero(size_t n, std::span<std::byte* const> fields) const;
  bool take_cached(const SampleRef& sample, size_t n, std::span<std::byte* const> fields) const;
  void keep(const SampleRef& sample, size_t n, std::span<std::byte* const> fields) const;

  const Source& source_;
  const uint64_t seed_;
  const int64_t batch_;
  const std::vector<LoopPreparation> preparations_;
  const bool leaves_out_;
  BadSamples* const bad_;
  SampleCache* const cache_;
  ReadWatch* const watch_;
  const KeptSamples* const kept_;
  const size_t source_fields_;
  std::vector<int64_t> strides_;
  mutable LeftOut left_out_;
  mutable std::mutex mutex_;  // of what follows
  mutable std::vector<std::unique_ptr<Worker>> idle_;
  mutable ReadingTimes times_;
};

}  // namespace arbalest
