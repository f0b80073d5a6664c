#include "executor/session/reading.h"

#include <fmt/format.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "graph/op.h"
#include "graph/plain_message.h"

namespace arbalest {

std::shared_ptr<BadSamples> make_bad_samples(const SessionOptions& options) {
  return std::make_shared<BadSamples>(
      options.execution.skip_bad,
      [](const std::string& place, const std::string& fault) { warn(fmt::format("skipped {}: {}", place, fault)); });
}

SlowOpening::SlowOpening(std::string what, double seconds) {
  if (seconds <= 0) return;
  try {
    thread_ = std::thread([this, what = std::move(what), seconds] {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return done_; })) return;
      warn(fmt::format("{} has taken {:g} s, and goes on", what, seconds));
    });
  } catch (const std::system_error&) {  // what needs threads will say so
  }
}

SlowOpening::~SlowOpening() {
  {
    const std::scoped_lock lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void add_caches(Prepared& prepared) {
  const Node& prefetch = *prepared.graph.find_op("arbalest.Prefetch");
  if (string_attribute(prefetch, "cache") != "host") return;
  const auto cache_of = [&](const Loop* loop, const std::shared_ptr<const Source>& source) {
    const int64_t bytes = loop && source ? cached_bytes(*loop) : 0;
    return bytes > 0 ? std::make_shared<SampleCache>(source->size(), bytes) : nullptr;
  };
  prepared.training_cache = cache_of(&prepared.program.training(), prepared.training);
  prepared.validation_cache = cache_of(prepared.program.find(LoopRole::Validate), prepared.validation);
  check_memory_for_caches(bytes_of_caches(prepared));
  if (!prepared.training_cache) {
    fail(prefetch,
         fmt::format("attribute 'cache' keeps what host nodes make of files, and '{}' has none that the graph "
                     "prepares: its samples are in memory",
                     prepared.training->describe()));
  }
}

int64_t bytes_of_caches(const Prepared& prepared) {
  int64_t bytes = 0;
  for (const auto& cache : {prepared.training_cache, prepared.validation_cache}) bytes += cache ? cache->bytes() : 0;
  return bytes;
}

std::shared_ptr<const SampleReader> make_reader(const Prepared& prepared, const Loop& loop, uint64_t seed) {
  const Source& source = loop.role == LoopRole::Validate ? *prepared.validation : *prepared.training;
  SampleCache* cache = (loop.role == LoopRole::Validate ? prepared.validation_cache : prepared.training_cache).get();
  return std::make_shared<SampleReader>(loop, source, seed, prepared.bad.get(), cache, prepared.watch.get());
}

}  // namespace arbalest
