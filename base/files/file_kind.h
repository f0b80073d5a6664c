// SPDX-License-Identifier: Apache-2.0
#pragma once
// Detection of a file's kind by its first bytes, for errors about a file that is not of the kind expected.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace arbalest {

// "a PyTorch checkpoint", "an ONNX model", "a graph file", "JSON", "an empty file", …; "" if the bytes do not show it.
// `head`: the first few hundred bytes of the file, or all of it if it is shorter.
std::string kind_of_file(std::span<const uint8_t> head);

// Results of kind_of_file() that callers tell from all others, because users can convert or use such files in another
// way.
inline constexpr const char* kOnnxFile = "an ONNX model";
inline constexpr const char* kPyTorchFile = "a PyTorch checkpoint";
inline constexpr const char* kPickle = "a Python pickle";

// The beginnings of the traces and logs that runs write.
inline constexpr std::string_view kTraceStart = "{\"displayTimeUnit\"",
                                  kLogStart = "{\"event\":", kMlperfLogStart = ":::MLLOG ";

// Whether a file, or the content of a gzipped file, begins with `start`. False if it cannot be read or is no regular
// file: reading from a pipe would lose the bytes.
bool begins_with(const std::string& path, std::string_view start);

}  // namespace arbalest
