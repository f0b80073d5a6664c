// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors of a model that are kept in files next to it.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files/random_access_file.h"

namespace arbalest {

// As ONNX's `external_data` states it.
struct ExternalTensor {
  std::string location;            // relative to the model's folder
  uint64_t offset = 0;             // bytes
  std::optional<uint64_t> length;  // bytes; none: what the tensor takes
};

class ExternalData {
 public:
  explicit ExternalData(const std::filesystem::path& model) : folder_(model.parent_path()) {}

  // The `bytes` that the tensor takes. Throws RunError: a location outside the model's folder, a file that is missing,
  // an offset or a length that goes beyond it, another length than expected.
  std::vector<std::byte> read(const ExternalTensor& tensor, uint64_t bytes);
  // The files that were read.
  std::vector<std::string> files() const;

 private:
  const RandomAccessFile& open(const std::string& location);

  std::filesystem::path folder_;
  std::map<std::string, std::unique_ptr<RandomAccessFile>> files_;
};

}  // namespace arbalest
