#pragma once
// What a file is, told from its first bytes: for errors about a file that is not what was asked for.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace arbalest {

// "a PyTorch checkpoint", "an ONNX model", "a graph file", "JSON", "an empty file", …; "" where the bytes tell nothing.
// `head`: the beginning of the file, some hundred bytes of it; all of it where it is shorter.
std::string kind_of_file(std::span<const uint8_t> head);

// What kind_of_file() says of models, of PyTorch's files, and of others that Python may have written for it: what a
// user makes of them differs from all others.
inline constexpr const char* kOnnxFile = "an ONNX model";
inline constexpr const char* kPyTorchFile = "a PyTorch checkpoint";
inline constexpr const char* kPickle = "a Python pickle";

// How the traces and the logs begin that runs write.
inline constexpr std::string_view kTraceStart = "{\"displayTimeUnit\"", kLogStart = "{\"event\":";

// Whether a file begins with that, or what is gzipped in it; false where it cannot be read, or is no regular file: a
// pipe would lose what is read here.
bool begins_with(const std::string& path, std::string_view start);

}  // namespace arbalest
