// SPDX-License-Identifier: Apache-2.0
#pragma once
// Samples of both splits that are prepared once and kept.

#include <map>
#include <memory>
#include <string>

namespace arbalest {

class SampleCache;   // executor/run/sample_cache.h
class Source;        // io/sources/source.h
struct KeptSamples;  // executor/run/sample_reader.h
struct KeptArena;    // executor/run/binding.h

// Cached on the host or kept on devices; nullptr unless Prefetch's `cache` asks for them.
struct SampleStores {
  std::shared_ptr<SampleCache> training_cache, validation_cache;
  std::shared_ptr<KeptSamples> training_kept, validation_kept;
  std::shared_ptr<std::map<std::string, KeptArena>> kept_arenas;  // of all plans that use them
  std::shared_ptr<const Source> training, validation;             // that the samples are of, if runs share them
};

}  // namespace arbalest
