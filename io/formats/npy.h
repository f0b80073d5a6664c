#pragma once
// Arrays as NumPy saves them (.npy, versions 1 to 3).

#include <cstddef>
#include <filesystem>
#include <vector>

#include "graph/types.h"

namespace arbalest {

struct NpyArray {
  DataType dtype = DataType::Float32;
  Shape shape;
  std::vector<std::byte> bytes;  // row-major
};

// uint8, int32, int64, float32 and float64, little-endian, in C's order. Throws RunError for any other array, and for a
// file that is none: file, expected, found.
NpyArray read_npy(const std::filesystem::path& path);

}  // namespace arbalest
