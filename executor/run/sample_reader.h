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
#include "graph/passes/program.h"
#include "graph/preparation.h"
#include "io/sources/bad_samples.h"
#include "io/sources/source.h"

namespace arbalest {

// The fields that a batch's slot may hold, by Loop::fields: the source's, then what host nodes make, by its name.
std::vector<Field> slot_fields(const Loop& loop, const Source& source);

// What a cache keeps of a sample: all that the loop's host nodes make. Throws GraphError where one of them draws anew
// in each epoch, so that nothing is worth keeping.
int64_t cached_bytes(const Loop& loop);

// What is known of a split's samples that lie on devices (Prefetch's `cache`), once they have been brought there.
struct KeptSamples {
  std::vector<bool> bad;  // by index: it could not be read
};

// Of one loop. Any thread may read.
class SampleReader {
 public:
  // Keeps the references. `bad`: how many samples that cannot be read are passed over; nullptr: none. Where the loop
  // trains, the next one of the split that can be read takes such a sample's place; validation leaves it out.
  // `cache`: where prepared samples stay, each cached_bytes() long; nullptr: nowhere. `watch`: what is told of each
  // read; nullptr: nobody. `kept`: what is known of the samples that lie on devices; nullptr: none do.
  SampleReader(const Loop& loop, const Source& source, uint64_t seed, BadSamples* bad = nullptr,
               SampleCache* cache = nullptr, ReadWatch* watch = nullptr, const KeptSamples* kept = nullptr);

  int64_t batch() const { return batch_; }
  int64_t block() const { return source_.block(); }  // Source::block()
  // Of a sample of a field of the slot (Loop::fields), in bytes.
  int64_t stride(size_t field) const { return strides_[field]; }
  // Writes samples one after the other, each field where `fields` says, as Source::fill() does; nullptr where the
  // field is not in the slot; a sample that is left out is zeros there. Throws what the source throws, and TaskError
  // with the place of a sample that cannot be prepared.
  void read(std::span<SampleRef> samples, std::span<std::byte* const> fields) const;
  // Chooses the samples of a batch from those that lie on the devices: what could not be read when they were brought
  // there is passed over as read() does.
  void choose(std::span<SampleRef> samples) const;
  // Writes `count` samples from `first` on, by their indices, to be kept. Returns those that cannot be read, which are
  // zeros. Throws as read() does.
  std::vector<int64_t> read_to_keep(int64_t first, int64_t count, std::span<std::byte* const> fields) const;
  // Tells the source which of its blocks will be read soon.
  void will_read(std::vector<int64_t> blocks) const;

  ReadingTimes times() const;

  // Whether samples may be left out of batches, and which were; SampleRef::epoch is the pass.
  bool leaves_out() const { return leaves_out_ && bad_ && bad_->most() > 0 && !preparations_.empty(); }
  LeftOut& left_out() const { return left_out_; }

 private:
  // What a thread works with while it prepares.
  struct Worker {
    std::vector<std::unique_ptr<Preparation>> preparations;
    std::vector<std::byte> bytes;
  };
  std::unique_ptr<Worker> borrow() const;
  void give_back(std::unique_ptr<Worker> worker, const ReadingTimes& times) const;
  void prepare(Worker& worker, const SampleRef& sample, size_t n, std::span<std::byte* const> fields,
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
