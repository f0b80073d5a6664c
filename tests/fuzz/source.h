#pragma once
// What fuzz targets of sources share: a folder to write the input into, and a source read whole.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "graph/error.h"
#include "io/sources/source.h"

namespace arbalest::fuzz {

// Of this process, below TMPDIR; memory (/dev/shm) is the fastest.
inline const std::filesystem::path& folder() {
  static const std::filesystem::path path = [] {
    auto made = std::filesystem::temp_directory_path() / ("arbalest-fuzz-" + std::to_string(getpid()));
    std::filesystem::create_directories(made);
    return made;
  }();
  return path;
}

inline void write(const std::filesystem::path& name, std::string_view content) {
  std::ofstream(folder() / name, std::ios::binary) << content;
}

inline std::string_view text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Everything that a split tells and gives, or GraphError or RunError; anything else ends the fuzzer.
inline void read_split(const std::string& spec, const std::string& split) try {
  const auto source = open_source(spec, split, 1);
  const std::vector<Field> fields = source->fields();
  std::vector<SampleRef> samples;
  for (int64_t i = 0; i < std::min<int64_t>(source->size(), 64); ++i) samples.push_back({i, 0, uint64_t(i)});
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> places;
  for (const Field& field : fields) {
    const bool file = field.dtype == DataType::String;
    memory.emplace_back(file ? 0 : samples.size() * size_t(field.sample().bytes()));
    places.push_back(file ? nullptr : memory.back().data());
  }
  source->fill(samples, places);
  source->class_names();
  std::vector<std::byte> bytes;
  for (const SampleRef& sample : samples) {
    source->locate(sample.index);
    source->name(sample.index);
    for (size_t f = 0; f < fields.size(); ++f) {
      if (fields[f].dtype == DataType::String) source->read(sample.index, f, bytes);
    }
  }
} catch (const GraphError&) {
} catch (const RunError&) {
}

}  // namespace arbalest::fuzz
