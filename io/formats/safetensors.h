// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights in safetensors: a little-endian length, a JSON header, the tensors' bytes in logical row-major order (NCHW,
// KCRS; io/formats/layout.h converts). Other frameworks read and write the same files.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/files/random_access_file.h"
#include "graph/types.h"

namespace arbalest {

// Opens a file and reads its header. Tensors are read one by one, straight to where they are wanted, so that a file
// larger than memory can be looked at and no tensor lies in memory twice. Element types: F64, F32, F16, BF16, BOOL and
// whole numbers of any width. A path that ends with ".safetensors.index.json" is the index of a model in several files
// ("shards") next to it, which are read as one.
class SafetensorsReader {
 public:
  // A tensor of the file.
  struct Entry {
    std::string name;
    DataType dtype = DataType::Float32;  // F16 is delivered as Float32, other whole numbers as Int32 or Int64
    Shape shape;
    std::string_view widens = {};  // the format's name for the elements' type if it is not `dtype`
    size_t file = 0;               // the shard's number
    uint64_t begin = 0, end = 0;   // bytes of the file
  };

  // Throws RunError for a file that is missing, malformed or of another kind: file, tensor, expected, found. Sizes,
  // offsets and their products are checked here, once.
  explicit SafetensorsReader(const std::filesystem::path& path);

  const std::string& path() const { return path_; }               // as the constructor was given
  const std::vector<Entry>& entries() const { return entries_; }  // in the headers' order; names are unique
  const Entry* find(const std::string& name) const;               // nullptr: there is none of the name
  std::vector<std::string> shards() const;                        // if path() is an index: the files that it names
  const std::map<std::string, std::string>& metadata() const { return metadata_; }  // __metadata__

  // Whether read() delivers the entry's elements as `type`: they are of it, or both are floating point.
  static bool converts(const Entry& entry, DataType type);
  // The elements as `type`, rounded to nearest if it is narrower. `to` has exactly the bytes that they take. Throws
  // RunError if the file cannot be read or has become shorter, or if a number is too great for 64 bits with a sign.
  void read(const Entry& entry, DataType type, std::span<std::byte> to) const;

 private:
  void add_file(std::unique_ptr<RandomAccessFile> opened);
  void add_shards(const RandomAccessFile& index);

  std::string path_;
  std::vector<std::unique_ptr<RandomAccessFile>> files_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

// A tensor in memory.
struct NamedTensor {
  std::string name;
  DataType dtype = DataType::Float32;  // not Token
  Shape shape;
  std::vector<uint8_t> bytes;  // little-endian elements, row-major
};

// The content of a file in memory.
struct TensorFile {
  std::vector<NamedTensor> tensors;             // in the header's order; names are unique
  std::map<std::string, std::string> metadata;  // __metadata__

  const NamedTensor* find(const std::string& name) const;  // nullptr: there is none of the name
};

// Whether the text can be a tensor's name.
bool is_utf8(const std::string& text);
// The text as files of weights have it, in which bytes that are no UTF-8 are replaced.
std::string as_utf8(const std::string& text);

// The file, F16 as Float32: whole, or the tensors of which `reads` says so by name. Throws as SafetensorsReader does.
TensorFile read_safetensors(const std::filesystem::path& path,
                            const std::function<bool(const std::string& name)>& reads = {});

// Names are UTF-8; in metadata, bytes that are not are replaced. Replaces the file at once and whole: after a failure
// (RunError) the old one is as it was. `written`: called once all bytes are in a temporary file, before that takes the
// file's place; if it throws, the old one stays.
void write_safetensors(const std::filesystem::path& path, const TensorFile& file,
                       const std::function<void()>& written = {});

}  // namespace arbalest
