#pragma once
// How a session reads its splits: what fills the slots of a loop, what is kept of samples, and which may be skipped.

#include <memory>

#include "executor/run/sample_reader.h"
#include "executor/session/session.h"
#include "io/sources/bad_samples.h"

namespace arbalest {

// Samples that are skipped go to standard error; Training tells its observer instead.
std::shared_ptr<BadSamples> make_bad_samples(const SessionOptions& options);

// Where Prefetch's `cache` asks for them, and host nodes prepare samples. Throws GraphError where they prepare none, or
// draw anew in each epoch, and RunError where there is not the memory.
void add_caches(Prepared& prepared);

std::shared_ptr<const SampleReader> make_reader(const Prepared& prepared, const Loop& loop, uint64_t seed);

}  // namespace arbalest
