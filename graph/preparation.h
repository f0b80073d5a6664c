// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host nodes: operators that make a fixed array of a sample's bytes, such as an image file, before the batch is copied
// to its device. A plan runs them as part of filling a slot, sample by sample, on as many threads as there are.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "graph/types.h"

namespace arbalest {

struct Node;

// The key of a sample's random choices. A sample is prepared the same way on any thread, learner or machine.
struct SampleKey {
  uint64_t seed = 0;      // the run's
  uint64_t epoch = 0;     // of the run
  uint64_t position = 0;  // in the epoch's order
};

// Seconds that samples took, by stage.
struct PreparationTimes {
  double decode = 0;  // from the file's bytes to pixels
  double scale = 0;   // from these to what the model reads
};

// A host node made ready to run. One thread at a time; it keeps what it needs between samples.
class Preparation {
 public:
  virtual ~Preparation() = default;
  // Writes the sample: output.bytes(); samples of three dimensions (C, H, W) are channels-last. Adds to `times`. Throws
  // RunError if the bytes are malformed, with what was found and what was expected.
  virtual void run(std::span<const std::byte> bytes, const SampleKey& key, std::byte* out, PreparationTimes& times) = 0;
};

struct PreparationRequest {
  const Node& node;
  TensorType output;  // of one sample
};

using PreparationFactory = std::function<std::unique_ptr<Preparation>(const PreparationRequest&)>;

}  // namespace arbalest
