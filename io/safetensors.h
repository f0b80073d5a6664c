#pragma once
// Weights in safetensors: a little-endian length, a JSON header, the tensors' bytes in logical row-major order (NCHW,
// KCRS; io/layout.h converts). Other frameworks read and write the same files.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "graph/types.h"

namespace arbalest {

struct NamedTensor {
  std::string name;
  DataType dtype = DataType::Float32;  // not Token
  Shape shape;
  std::vector<uint8_t> bytes;  // little-endian elements, row-major
};

struct TensorFile {
  std::vector<NamedTensor> tensors;             // in the header's order; names are unique
  std::map<std::string, std::string> metadata;  // __metadata__

  const NamedTensor* find(const std::string& name) const;
};

// Throws RunError for a file that is missing or malformed: file, tensor, expected, found.
TensorFile read_safetensors(const std::filesystem::path& path);

// Replaces the file at once and whole: after a failure (RunError) the old one is as it was.
void write_safetensors(const std::filesystem::path& path, const TensorFile& file);

}  // namespace arbalest
