// SPDX-License-Identifier: Apache-2.0
#include "executor/session/output_paths.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <system_error>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/file_kind.h"
#include "base/files/random_access_file.h"
#include "executor/session/session.h"
#include "io/formats/safetensors.h"

namespace arbalest {
namespace {

constexpr auto kWritable =
    std::filesystem::perms::owner_write | std::filesystem::perms::group_write | std::filesystem::perms::others_write;

// Throws RunError if there is no writing to `path`: sooner than after the training.
void check_output_path(const std::string& path) {
  if (path.empty()) return;
  namespace fs = std::filesystem;
  const auto fail = [&](const std::string& why) {
    throw RunError(fmt::format("{}: cannot be written: {}", path, why));
  };
  const auto status_of = [&](const fs::path& looked_at) {
    std::error_code error;
    const fs::file_status status = fs::status(looked_at, error);
    if (error && status.type() != fs::file_type::not_found) fail(error.message());
    return status;
  };
  const fs::path target = output_target(path), folder = fs::absolute(target).parent_path();
  if (!fs::is_directory(status_of(folder))) fail(fmt::format("there is no folder '{}'", folder.string()));
  const fs::file_status there = status_of(target);
  const bool device = fs::is_character_file(there);
  if (fs::exists(there) && !fs::is_regular_file(there) && !device) fail("it is there and no regular file");
  if (fs::exists(there) && (there.permissions() & kWritable) == fs::perms::none) fail("the file is read-only");
  if (access((device ? target : folder).c_str(), W_OK) != 0) {
    fail(device ? std::string("the device takes nothing") : "the folder is read-only");
  }
}

// Absolute first: of a file that is not there, weakly_canonical leaves "a" as it is, but not "./a".
// Some special files (/dev/stdout into a pipe) have no such path.
std::filesystem::path canonical(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path);
  const std::filesystem::path found = std::filesystem::weakly_canonical(absolute, error);
  return error ? absolute.lexically_normal() : found;
}

constexpr uint64_t kHead = 512;  // bytes that tell what a file is

bool is_saved_model(const std::string& path) {
  try {
    return SafetensorsReader(path).metadata().count("graph") > 0;
  } catch (const RunError&) {
    return false;
  }
}

bool is_of_kind(const std::string& path, std::span<const uint8_t> head, OutputKind kind) {
  switch (kind) {
    case OutputKind::Weights: return is_saved_model(path);
    case OutputKind::Trace: return begins_with(path, kTraceStart);
    case OutputKind::Log: return begins_with(path, kLogStart);
    case OutputKind::MlperfLog: return begins_with(path, kMlperfLogStart);
    case OutputKind::Model: return kind_of_file(head) == kOnnxFile;
    case OutputKind::Page: return begins_with(path, "<!doctype html>");
    case OutputKind::Picture: return begins_with(path, "<svg ");
    case OutputKind::Bundle: {
      constexpr size_t kMagic = 257;  // where "ustar" stands in a header
      const std::string_view bytes(reinterpret_cast<const char*>(head.data()), head.size());
      return bytes.size() > kMagic && bytes.substr(kMagic).starts_with("ustar");
    }
  }
  return false;
}

const char* name_of(OutputKind kind) {
  switch (kind) {
    case OutputKind::Weights: return "weights that a run has saved";
    case OutputKind::Trace: return "a trace";
    case OutputKind::Log: return "a log";
    case OutputKind::MlperfLog: return "an MLPerf log";
    case OutputKind::Model: return "an .onnx model";
    case OutputKind::Page: return "a page";
    case OutputKind::Picture: return "a picture (SVG)";
    case OutputKind::Bundle: return "a tar archive";
  }
  return "";
}

}  // namespace

bool same_file(const std::string& one, const std::string& other) {
  if (one.empty() || other.empty()) return false;
  std::error_code error;
  return canonical(one) == canonical(other) || std::filesystem::equivalent(one, other, error);
}

bool saves_best_or_last(const FileOptions& files) {
  return same_file(files.save, files.save_best);
}

bool saves_by_metric(const FileOptions& files) {
  return !files.save_best.empty() && !saves_best_or_last(files);
}

void check_kind_kept(const std::string& option, const std::string& path, OutputKind kind) {
  std::error_code error;
  if (path.empty() || !std::filesystem::is_regular_file(path, error)) return;
  if (std::filesystem::file_size(path, error) == 0 || error) return;
  const RandomAccessFile file(path, "an earlier output");
  std::vector<uint8_t> head(size_t(std::min(file.size(), kHead)));
  file.read(0, std::as_writable_bytes(std::span(head)));
  if (is_of_kind(path, head, kind)) return;
  const std::string found = kind_of_file(head);
  throw GraphError(fmt::format("{} would overwrite '{}': found {}, expected {} or no file", option, path,
                               found.empty() ? "a file of another kind" : found, name_of(kind)));
}

void check_distinct_paths(const NamedPaths& files) {
  for (size_t i = 0; i < files.size(); ++i) {
    const auto& [option, path] = files[i];
    for (size_t j = 0; j < i; ++j) {
      std::error_code error;
      if (!same_file(path, files[j].second) || std::filesystem::is_character_file(path, error)) continue;
      throw GraphError(fmt::format("{} and {} both name '{}'", files[j].first, option, path));
    }
  }
}

void check_inputs_kept(const NamedPaths& inputs, const NamedPaths& outputs) {
  for (const auto& [reader, input] : inputs) {
    for (const auto& [writer, output] : outputs) {
      if (!same_file(input, output)) continue;
      throw GraphError(fmt::format("{} would overwrite '{}', which {} reads", writer, output, reader));
    }
  }
}

void check_output_name(const std::string& option, const std::string& path) {
  if (path != "-") return;
  throw GraphError(fmt::format(
      "{}: found '-', expected the name of a file; /dev/stdout is standard output, and ./- a file of that name",
      option));
}

void check_weights_name(const std::string& option, const std::string& path) {
  const std::string ending = std::filesystem::path(path).extension().string();
  const auto refuse = [&](const std::string& instead) {
    throw GraphError(
        fmt::format("{} {}: found the ending {}, and weights are saved as safetensors: expected "
                    "NAME.safetensors, {}",
                    option, path, ending, instead));
  };
  if (ending == ".onnx") {
    refuse("of which 'arbalest export GRAPH FILE.onnx --weights NAME.safetensors' makes an .onnx file");
  }
  for (const char* of_torch : {".pt", ".pth", ".ckpt"}) {
    if (ending != of_torch) continue;
    refuse("of which PyTorch makes one by torch.save(safetensors.torch.load_file(\"NAME.safetensors\"), FILE)");
  }
  if (ending == ".onnxtxt")
    refuse("which 'arbalest run GRAPH --weights NAME.safetensors' reads next to the graph's file");
  for (const char* of_keras : {".h5", ".keras"}) {
    if (ending == of_keras) refuse("which safetensors.numpy.load_file() reads as arrays for Keras' set_weights()");
  }
}

void check_model_name(const std::string& option, const std::string& path) {
  const std::string ending = std::filesystem::path(path).extension().string();
  for (const char* of_others : {".pt", ".pth", ".ckpt", ".h5", ".keras", ".safetensors", ".onnxtxt"}) {
    if (ending != of_others) continue;
    throw GraphError(fmt::format("{} {}: found the ending {}, and a binary .onnx file is written: expected NAME.onnx",
                                 option, path, ending));
  }
}

std::vector<OutputLock> hold_outputs(const NamedPaths& files) {
  for (const auto& [option, path] : files) check_output_name(option, path);
  for (const auto& [option, path] : files) check_output_path(path);
  check_distinct_paths(files);
  std::vector<OutputLock> held;
  for (const auto& [option, path] : files) {
    if (!path.empty()) held.emplace_back(path);
  }
  return held;
}

FreePath free_path(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kMostNames = 1000;
  const fs::path whole(path);
  fs::path free = whole;
  std::error_code error;
  const auto taken = [&] { return fs::symlink_status(free, error).type() != fs::file_type::not_found; };
  for (int n = 1; n <= kMostNames; ++n) {
    try {
      if (!taken()) {
        OutputLock held(free);
        if (!taken()) return {free.string(), std::move(held)};  // nor since then
      }
    } catch (const OutputInUse&) {
    } catch (const RunError&) {
      return {free.string(), std::nullopt};
    }
    free.replace_filename(fmt::format("{}-{}{}", whole.stem().string(), n, whole.extension().string()));
  }
  return {};
}

std::vector<FreePath> other_places(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<FreePath> places;
  const fs::path file = fs::path(path).filename();
  std::error_code error;
  for (const fs::path& folder : {fs::current_path(error), fs::temp_directory_path(error)}) {
    if (folder.empty()) continue;
    if (FreePath free = free_path((folder / file).string()); !free.path.empty()) places.push_back(std::move(free));
  }
  return places;
}

std::string file_name_of(const std::string& text) {
  constexpr size_t kLongest = 100;
  std::string name = text.empty() ? "unnamed" : text;
  if (name.size() > kLongest) {
    size_t end = kLongest;
    while (end > 0 && (uint8_t(name[end]) & 0xc0u) == 0x80u) --end;  // not inside a character of UTF-8
    name.resize(end);
  }
  bool in_front = true;
  for (char& c : name) {
    in_front = in_front && c == '.';
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '_' || c == '.' || uint8_t(c) >= 0x80;
    if (!plain || in_front) c = '_';
  }
  return name;
}

}  // namespace arbalest
