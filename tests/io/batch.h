// SPDX-License-Identifier: Apache-2.0
#pragma once
// Samples of a source whose fields are an image and a label.

#include <cstdint>
#include <vector>

#include "io/sources/source.h"

namespace arbalest::test {

struct ImageBatch {
  std::vector<uint8_t> images;
  std::vector<int32_t> labels;
};

inline ImageBatch image_batch(const Source& source, const std::vector<int64_t>& samples) {
  std::vector<SampleRef> wanted;
  for (const int64_t sample : samples) wanted.push_back({sample, 0, wanted.size()});
  ImageBatch batch{std::vector<uint8_t>(samples.size() * size_t(source.fields()[0].sample().bytes())),
                   std::vector<int32_t>(samples.size())};
  std::byte* const fields[] = {reinterpret_cast<std::byte*>(batch.images.data()),
                               reinterpret_cast<std::byte*>(batch.labels.data())};
  source.fill(wanted, fields);
  return batch;
}

// The labels of all samples.
inline std::vector<int32_t> labels(const Source& source) {
  std::vector<SampleRef> all;
  for (int64_t i = 0; i < source.size(); ++i) all.push_back({i, 0, uint64_t(i)});
  std::vector<int32_t> values(all.size());
  std::byte* const fields[] = {nullptr, reinterpret_cast<std::byte*>(values.data())};
  source.fill(all, fields);
  return values;
}

}  // namespace arbalest::test
