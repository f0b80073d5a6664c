// SPDX-License-Identifier: Apache-2.0
#pragma once
// A data set of photos as shards: tar archives as WebDataset has them, which the source `tar:` reads.
//
// DIR/SPLIT-0000.tar, …   members KEY.jpg (or .png, …) and KEY.cls, the number of the class; KEY is the sample's
// number
//                         in the source
// DIR/classes.txt         names of the classes, a line each
// DIR/SPLIT.shards        JSON lines: what was packed and how, then each finished shard with its size and CRC-32

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>

#include "io/sources/source.h"

namespace arbalest {

struct PackOptions {
  std::string source;  // as written
  std::string folder, split;
  uint64_t seed = 1;         // of the order
  int64_t shorter_side = 0;  // pixels; larger images are scaled and become JPEGs. 0: all files are decoded, and stored
                             // as they are
  int quality = 90;          // of these JPEGs, 1 … 100
  int64_t shard_mib = 256;   // that a shard has at most, unless one sample is larger
  int64_t skip_bad = 0;      // files that may be left out because they cannot be read
  int threads = 1;
};

struct PackProgress {
  int64_t done = 0, total = 0;  // samples; those of shards that were there already are done
  int64_t shards = 0;           // finished
  uint64_t bytes = 0;           // written by this call
};

struct PackResult {
  PackProgress progress;
  int64_t kept_shards = 0;  // that were there already
  int64_t skipped = 0;
  bool interrupted = false;
};

// Writes what of the split's shards is not there yet, each under a temporary name until it is finished. Samples come in
// an order that depends on the seed and their number alone, so that a call after an interrupted one goes on where that
// stopped. Listed shards are checked first, and written anew from the first on that is not as listed. Ends early once
// `stop` is requested, after the shards that are finished. `progress` is called by the calling thread, `skipped` with
// the place and the reason of each file that is left out.
//
// Throws GraphError if the source has no photos with a class, or the folder has shards of another data set or made with
// other options. Throws RunError if files cannot be read or written.
PackResult pack(const Source& source, const PackOptions& options, const std::stop_token& stop,
                const std::function<void(const PackProgress&)>& progress,
                const std::function<void(const std::string& where, const std::string& why)>& skipped);

}  // namespace arbalest
