// SPDX-License-Identifier: Apache-2.0
#include "base/files/file_kind.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"

namespace arbalest {

namespace {

using std::string_view_literals::operator""sv;

constexpr const char* kWebPage = "a web page, as a failed download leaves it";

struct KindSignature {
  std::string_view start;
  const char* kind;
};
constexpr KindSignature kSignatures[] = {
    {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file, as Keras writes"},
    {"\x93NUMPY"sv, "a NumPy array"},
    {"GGUF"sv, "a GGUF model"},
    {"\x1f\x8b"sv, "a gzipped file"},
    {"\x7f"
     "ELF"sv,
     "a program"},
    {"\x89PNG"sv, "a PNG image"},
    {"\xff\xd8\xff"sv, "a JPEG image"},
    {"\x80\x02"sv, kPyTorchFile},  // Python's pickle: torch.save() before PyTorch 1.6
    {"\x80\x03"sv, kPickle},
    {"\x80\x04"sv, kPickle},
    {"\x80\x05"sv, kPickle},
    {"version https://git-lfs"sv, "a pointer of Git LFS; 'git lfs pull' fetches the file"},
    {"<!DOCTYPE html"sv, kWebPage},
    {"<!doctype html"sv, kWebPage},
    {"<html"sv, kWebPage},
};

// A protocol buffer that starts with ir_version, then another of ModelProto's fields.
bool is_onnx(std::string_view head) {
  constexpr std::string_view kNextFields = "\x12\x1a\x22\x28\x32\x3a\x42\x72";
  return head.size() > 2 && head[0] == 0x08 && head[1] > 0 && head[1] < 32 && kNextFields.find(head[2]) != head.npos;
}

bool is_text(std::string_view head) {
  return std::none_of(head.begin(), head.end(),
                      [](char c) { return uint8_t(c) < 0x20 && c != '\n' && c != '\r' && c != '\t'; });
}

}  // namespace

std::string kind_of_file(std::span<const uint8_t> bytes) {
  std::string_view head(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (head.empty()) return "an empty file";
  for (const KindSignature& signature : kSignatures) {
    if (head.starts_with(signature.start)) return signature.kind;
  }
  if (head.starts_with("PK\x03\x04")) {
    return head.find("data.pkl") != head.npos ? kPyTorchFile : "a zip archive";
  }
  if (is_onnx(head)) return kOnnxFile;
  if (!is_text(head)) return "";
  head.remove_prefix(utf8_mark(head));
  if (head.find("ir_version") != head.npos || head.find("opset_import") != head.npos) return "a graph file";
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (first != head.npos && (head[first] == '{' || head[first] == '[')) return "JSON";
  return "";
}

bool begins_with(const std::string& path, std::string_view start) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  try {
    const std::vector<uint8_t> head = InputFile(path).read(start.size(), "a file's beginning");
    return std::equal(head.begin(), head.end(), start.begin(), start.end());
  } catch (const RunError&) {
    return false;
  }
}

}  // namespace arbalest
