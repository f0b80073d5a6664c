// SPDX-License-Identifier: Apache-2.0
#include "executor/run/sample_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/plain_message.h"
#include "executor/run/task_error.h"
#include "graph/op.h"

namespace arbalest {
namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The type of one sample of a batch.
TensorType sample_of(TensorType batch) {
  batch.shape.erase(batch.shape.begin());
  return batch;
}

}  // namespace

std::vector<Field> slot_fields(const Loop& loop, const Source& source) {
  std::vector<Field> fields = source.fields();
  for (const LoopPreparation& preparation : loop.preparations) {
    const TensorType sample = sample_of(preparation.output);
    fields.push_back({preparation.output_name, sample.dtype, sample.shape});
  }
  return fields;
}

int64_t cached_bytes(const Loop& loop) {
  int64_t bytes = 0;
  for (const LoopPreparation& preparation : loop.preparations) {
    const Node& node = preparation.node;
    const bool draws = node.op->random && (!node.op->attribute_spec("random") || int_attribute(node, "random") != 0);
    if (draws) {
      fail(node,
           "it prepares a sample anew in each epoch, so Prefetch's attribute 'cache' would keep nothing; let "
           "ResizeCrop bring the files to one size, and Augment cut at random (attribute 'area' or 'crop')");
    }
    bytes += sample_of(preparation.output).bytes();
  }
  return bytes;
}

SampleReader::SampleReader(const Loop& loop, const Source& source, uint64_t seed, BadSamples* bad, SampleCache* cache,
                           ReadWatch* watch, const KeptSamples* kept)
    : source_(source),
      seed_(seed),
      batch_(loop.batch),
      preparations_(loop.preparations),
      leaves_out_(loop.role == LoopRole::Validate),
      bad_(bad),
      cache_(cache),
      watch_(watch),
      kept_(kept),
      source_fields_(loop.fields.size() - loop.preparations.size()) {
  for (const Field& field : slot_fields(loop, source)) strides_.push_back(field.sample().bytes());
}

std::unique_ptr<SampleReader::Worker> SampleReader::borrow() const {
  {
    const std::scoped_lock lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Worker> worker = std::move(idle_.back());
      idle_.pop_back();
      return worker;
    }
  }
  auto worker = std::make_unique<Worker>();
  for (const LoopPreparation& preparation : preparations_) {
    worker->preparations.push_back(preparation.node.op->prepare({preparation.node, sample_of(preparation.output)}));
  }
  return worker;
}

void SampleReader::give_back(std::unique_ptr<Worker> worker, const ReadingTimes& times) const {
  const std::scoped_lock lock(mutex_);
  idle_.push_back(std::move(worker));
  times_.samples += times.samples;
  times_.read += times.read;
  times_.decode += times.decode;
  times_.scale += times.scale;
}

ReadingTimes SampleReader::times() const {
  const std::scoped_lock lock(mutex_);
  return times_;
}

// The place before `n` of the sample that padding at `n` repeats; -1 if `n` is no padding, or if its sample is in
// another part of the batch.
int64_t SampleReader::repeated_place(std::span<const SampleRef> samples, size_t n) const {
  if (int64_t(samples[n].position) < source_.size()) return -1;
  for (size_t before = n; before-- > 0;) {
    if (samples[before].index == samples[n].index) return int64_t(before);
  }
  return -1;
}

void SampleReader::prepare(Worker& worker, std::span<const SampleRef> samples, size_t n,
                           std::span<std::byte* const> fields, ReadingTimes& times) const {
  const SampleRef& sample = samples[n];
  const SampleKey key{seed_, sample.epoch, sample.position};
  const int64_t repeated = repeated_place(samples, n);
  int read = kNone;
  for (size_t p = 0; p < preparations_.size(); ++p) {
    const int64_t stride = strides_[source_fields_ + p];
    std::byte* const out = fields[source_fields_ + p] + int64_t(n) * stride;
    if (!fields[source_fields_ + p]) continue;
    if (repeated >= 0) {
      std::memcpy(out, out - (int64_t(n) - repeated) * stride, size_t(stride));
      continue;
    }
    if (preparations_[p].field != read) {
      const double began = seconds();
      read = preparations_[p].field;
      const ReadWatch::Reading watched(watch_, source_, sample);
      source_.read(sample.index, size_t(read), worker.bytes);
      times.read += seconds() - began;
    }
    PreparationTimes spent;
    worker.preparations[p]->run(worker.bytes, key, out, spent);
    times.decode += spent.decode;
    times.scale += spent.scale;
  }
}

// Prepared fields follow each other in the cache. Those that the slot has not are prepared all the same: every loop of
// a split reads the same ones.
bool SampleReader::take_cached(const SampleRef& sample, size_t n, std::span<std::byte* const> fields) const {
  const std::byte* from = cache_ ? cache_->find(sample.index) : nullptr;
  if (!from) return false;
  for (size_t f = source_fields_; f < fields.size(); ++f) {
    if (fields[f]) std::memcpy(fields[f] + int64_t(n) * strides_[f], from, size_t(strides_[f]));
    from += strides_[f];
  }
  return true;
}

void SampleReader::keep(const SampleRef& sample, size_t n, std::span<std::byte* const> fields) const {
  const auto prepared = fields.subspan(source_fields_);
  const bool whole = std::all_of(prepared.begin(), prepared.end(), [](const std::byte* field) { return field; });
  const bool padding = int64_t(sample.position) >= source_.size();  // a copy of whatever stands before it
  std::byte* to = cache_ && whole && !padding ? cache_->claim(sample.index) : nullptr;
  if (!to) return;
  for (size_t f = source_fields_; f < fields.size(); ++f) {
    std::memcpy(to, fields[f] + int64_t(n) * strides_[f], size_t(strides_[f]));
    to += strides_[f];
  }
  cache_->publish(sample.index);
}

// A block whose first sample is in the cache is there, or almost.
void SampleReader::will_read(std::vector<int64_t> blocks) const {
  std::erase_if(blocks, [&](int64_t block) { return cache_ && cache_->find(block * source_.block()); });
  if (!blocks.empty()) source_.will_read(blocks);
}

// The error is about a file, not about the task that met it, so it is a TaskError, which is reported unchanged.
void SampleReader::tell_bad(int64_t index, const std::string& error) const {
  const std::string place = source_.locate(index), data = source_.describe();
  const std::string fault = fault_of_sample(source_, index, error);
  const std::string number = fmt::format("sample {} of {}", index, data.substr(0, data.find(": ")));
  if (!bad_) throw TaskError(fmt::format("{}: {} ({})", place, fault, number), -1);
  try {
    bad_->add({place, fault, number});
  } catch (const RunError& too_many) {
    throw TaskError(too_many.what(), -1);
  }
}

// The next sample takes its place, or it is left out.
void SampleReader::pass_over(SampleRef& sample, int64_t tries) const {
  if (!leaves_out_) {
    if (tries >= source_.size()) throw TaskError(fmt::format("none of {} can be read", source_.describe()), -1);
    sample.index = (sample.index + 1) % source_.size();
    return;
  }
  const bool padding = int64_t(sample.position) >= source_.size();
  if (!padding) left_out_.add(sample.epoch, int64_t(sample.position));
}

void SampleReader::set_zero(size_t n, std::span<std::byte* const> fields) const {
  for (size_t f = source_fields_; f < fields.size(); ++f) {
    if (fields[f]) std::memset(fields[f] + int64_t(n) * strides_[f], 0, size_t(strides_[f]));
  }
}

void SampleReader::read(std::span<SampleRef> samples, std::span<std::byte* const> fields) const {
  if (!preparations_.empty()) {
    std::unique_ptr<Worker> worker = borrow();
    ReadingTimes times;
    for (size_t n = 0; n < samples.size(); ++n) {
      for (int64_t tries = 1;; ++tries) {
        try {
          if (take_cached(samples[n], n, fields)) break;
          prepare(*worker, samples, n, fields, times);
          keep(samples[n], n, fields);
          break;
        } catch (const std::exception& error) {  // a source may throw what it likes
          tell_bad(samples[n].index, plain_message(error));
          pass_over(samples[n], tries);
          if (!leaves_out_) continue;
          set_zero(n, fields);
          break;
        }
      }
    }
    times.samples += int64_t(samples.size());
    give_back(std::move(worker), times);
  }
  const ReadWatch::Reading watched(watch_, source_, samples.front(), samples.size());
  source_.fill(samples, fields.first(source_fields_));
}

void SampleReader::choose(std::span<SampleRef> samples) const {
  for (SampleRef& sample : samples) {
    for (int64_t tries = 1; kept_->bad[size_t(sample.index)]; ++tries) {
      pass_over(sample, tries);
      if (leaves_out_) break;
    }
  }
}

std::vector<int64_t> SampleReader::read_to_keep(int64_t first, int64_t count,
                                                std::span<std::byte* const> fields) const {
  std::vector<SampleRef> samples(static_cast<size_t>(count));
  for (int64_t n = 0; n < count; ++n) samples[size_t(n)] = {first + n, 0, uint64_t(first + n)};
  std::vector<int64_t> bad;
  if (!preparations_.empty()) {
    std::unique_ptr<Worker> worker = borrow();
    ReadingTimes times;
    for (size_t n = 0; n < samples.size(); ++n) {
      try {
        prepare(*worker, samples, n, fields, times);
      } catch (const std::exception& error) {
        tell_bad(samples[n].index, plain_message(error));
        set_zero(n, fields);
        bad.push_back(samples[n].index);
      }
    }
    times.samples += count;
    give_back(std::move(worker), times);
  }
  const ReadWatch::Reading watched(watch_, source_, samples.front(), samples.size());
  source_.fill(samples, fields.first(source_fields_));
  return bad;
}

}  // namespace arbalest
