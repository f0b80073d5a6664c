// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arrays as NumPy saves them (.npy, versions 1 to 3).

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "graph/types.h"

namespace arbalest {

struct NpyArray {
  DataType dtype = DataType::Float32;  // of the bytes, in the machine's order
  std::string stored_as;               // NumPy's name of the type in the file: "int16"
  Shape shape;
  std::vector<std::byte> bytes;  // row-major
};

// Whole numbers, floats and booleans of either byte order, in C's order. Types that graphs lack become the smallest
// that holds all of their numbers: int8, int16 and uint16 int32, uint32 and uint64 int64, float16 float, bool uint8.
// Throws RunError for any other array, and says how NumPy converts it; also for a uint64 that no int64 holds. A file
// that is no array is a RunError as well: file, expected, found.
NpyArray read_npy(const std::filesystem::path& path);

// How Python makes arrays of an archive of them (.npz), for messages.
std::string unpacking(const std::filesystem::path& archive);

}  // namespace arbalest
