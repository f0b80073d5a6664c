// SPDX-License-Identifier: Apache-2.0
#pragma once
// Opens and reads the splits of a session: which source fills the slots of a loop, which samples are kept, and which
// may be skipped.

#include <memory>
#include <string>

#include "base/time/deadlines.h"
#include "executor/run/sample_reader.h"
#include "executor/session/session.h"
#include "io/sources/bad_samples.h"

namespace arbalest {

// Counts skipped samples and reports them on standard error; Training reports them to its observer instead.
std::shared_ptr<BadSamples> make_bad_samples(const SessionOptions& options);

// Adds the caches that Prefetch's `cache` asks for: "host" keeps the samples that host nodes prepare in the host's
// memory, "device" keeps all samples on the devices. Throws GraphError if samples differ in each epoch or are in memory
// already, and RunError if the host has too little memory. `shared` has those of runs with the same samples; nullptr:
// there are none.
void add_caches(Prepared& prepared, SharedResources* shared);

// Warns once if the work done while the result lives takes longer than so many seconds; 0: never. For opening data,
// whose listing may take its time and cannot be cancelled.
TimedLook warn_if_slow(std::string what, double seconds);

// Throws RunError if a sample's label is none that the graph can take, or one of its numbers is not finite. Nothing
// is decoded, and samples that take long to make are not looked at. Adds a note if training's labels are probably
// not counted as they are meant.
void check_samples(Prepared& prepared);

// That note alone, for a run that begins: what is asked for is a few batches if labels are as they should be.
std::string note_of_labels(const Prepared& prepared);

// Training samples that an epoch leaves out, others each time, because updates are made of whole batches.
int64_t samples_left_out(const Prepared& prepared);

// Adds notes where values that padding has a part in (Loop::padded) give validation another batch than was asked for,
// or are not exact. `skip_bad`: as ExecutionOptions has it.
void note_padding(Prepared& prepared, int64_t skip_bad);

// Adds notes where a measured value, or the loss of updates that are made of several batches, is computed of each batch
// (LoopMetric::of_batches), so that its mean depends on the batch.
void note_batches(Prepared& prepared);

// Adds a note to a prepared run whose validation, evaluation or prediction draws random numbers.
void note_draws(Prepared& prepared);

std::shared_ptr<const SampleReader> make_reader(const Prepared& prepared, const Loop& loop, uint64_t seed);

}  // namespace arbalest
