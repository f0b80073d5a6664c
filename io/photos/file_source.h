// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sources of photos that are files of their own. Internal to io.

#include <cstdint>
#include <functional>
#include <string>

#include "io/sources/source.h"
#include "io/sources/split_part.h"

namespace arbalest {

class FileSource : public Source, public FileChecks {
 public:
  explicit FileSource(std::string label) : label_(std::move(label)) {}

  uint32_t checksum() const final;  // of names, and of labels
  void check_files() const final;
  void check_files(int64_t count, const std::function<int64_t(int64_t)>& sample) const final;

 protected:
  const std::string& label() const { return label_; }  // "csv:FILE train", for messages

  // The known fault of a sample's file before it is read: "No such file or directory"; "" if none is known.
  virtual std::string fault(int64_t index) const = 0;

 private:
  std::string label_;
};

// The reason why a path is no file with something in it; "" if it is one.
std::string fault_of_file(const std::string& path);

}  // namespace arbalest
