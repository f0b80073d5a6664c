// SPDX-License-Identifier: Apache-2.0
#pragma once
// Brings the samples of a split into the memory of devices, where batches are made of them (BatchOrigin::Samples).

#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "executor/run/binding.h"
#include "executor/run/sample_reader.h"

namespace arbalest {

struct KeepingOptions {
  int threads = 1;  // that read and prepare
  // How many samples of the split have been brought: called on the calling thread, a few times a second and at the end.
  std::function<void(int64_t samples)> progress = nullptr;
  std::function<std::optional<std::string>()> late_read = nullptr;  // as SchedulerOptions has them
  std::function<void(const std::string& message)> process_ends = nullptr;
};

// Reads `size` samples from the first to the last, some MiB at a time on each thread, and puts each on all devices of
// `places`, which are of one split. Returns what is known of them; nothing if a stop was requested. Before a run.
// Throws what reading throws: RunError with the samples of a part that cannot be read, and TaskError as
// SampleReader::read() does.
std::optional<KeptSamples> keep_samples(const Binding& binding, const std::vector<SamplesOnDevice>& places,
                                        const SampleReader& reader, int64_t size, const KeepingOptions& options,
                                        const std::stop_token& stop);

}  // namespace arbalest
