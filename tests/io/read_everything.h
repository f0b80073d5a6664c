// SPDX-License-Identifier: Apache-2.0
#pragma once
// Calls every function of a source that tells of its data or gives it.

#include <algorithm>
#include <vector>

#include "io/sources/source.h"

namespace arbalest::test {

// Reads the first 64 samples. Passes on exceptions of the source.
inline void read_everything(const Source& source) {
  const std::vector<Field> fields = source.fields();
  std::vector<SampleRef> samples;
  for (int64_t i = 0; i < std::min<int64_t>(source.size(), 64); ++i) samples.push_back({i, 0, uint64_t(i)});
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> places;
  for (const Field& field : fields) {
    const bool file = field.dtype == DataType::String;
    memory.emplace_back(file ? 0 : samples.size() * size_t(field.sample().bytes()));
    places.push_back(file ? nullptr : memory.back().data());
  }
  source.fill(samples, places);
  source.class_names();
  std::vector<std::byte> bytes;
  for (const SampleRef& sample : samples) {
    source.locate(sample.index);
    source.name(sample.index);
    for (size_t f = 0; f < fields.size(); ++f) {
      if (fields[f].dtype == DataType::String) source.read(sample.index, f, bytes);
    }
  }
}

}  // namespace arbalest::test
