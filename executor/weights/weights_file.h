// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights that a model starts from: a safetensors file, whose tensors may have other names than the graph's.

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "executor/weights/weights_map.h"
#include "graph/graph.h"
#include "io/formats/safetensors.h"

namespace arbalest {

class WeightsFile {
 public:
  // `path`: a safetensors file, or the index of sharded ones. `map`: a file of rules (WeightsMap); "": names are the
  // graph's. `fresh`: patterns of the graph's names that start as they would without the file. Throws GraphError if the
  // map is wrong or the file is a checkpoint, RunError if a file cannot be read or the map gives two tensors one name.
  explicit WeightsFile(const std::string& path, const std::string& map = "", std::vector<std::string> fresh = {});

  const std::string& path() const { return reader_.path(); }
  const std::map<std::string, std::string>& metadata() const { return reader_.metadata(); }  // as TensorFile has it
  std::vector<std::string> shards() const { return reader_.shards(); }                       // if path() is an index
  // Names of the classes that the file's model distinguishes, by index; empty if the file has none.
  std::vector<std::string> class_names() const;
  // Changes that the run which saved the file made in its graph's file (--set); nullopt if the file does not record
  // them.
  std::optional<std::vector<std::string>> overrides() const;
  // A number of that run, "seed" or "skip_bad" (put_number()); nullopt if it is not recorded.
  std::optional<uint64_t> number(const std::string& name) const;
  std::string graph_name() const;  // of that run's graph; "": not recorded

  // Whether the graph's value `name` is read from the file.
  bool has(const std::string& name) const;
  // The value's elements in row-major order; other floating-point types are converted. With a map, axes of extent 1 do
  // not count. Throws RunError if the file has no such tensor, if its shape or type does not fit the value's, or if one
  // of its numbers is not finite.
  std::vector<std::byte> read(const Value& value) const;

  // Throws RunError that lists missing and unknown names: the file must have all `names` but those that start anew.
  // Without a map or such a pattern, it must have nothing else. Throws GraphError for a pattern that fits no name.
  void check(const std::vector<std::string>& names) const;
  // Throws RunError if the file has another tensor than `names`, without a map or such a pattern.
  void refuse_others(const std::vector<std::string>& names) const;
  // Throws RunError if the file lacks one of `names` as in check(); other tensors in the file do not matter.
  void require(const std::vector<std::string>& names) const;
  // Summary of the tensors taken, the tensors left over and the names that start anew: "w.safetensors: 60 tensors
  // taken; 2 left: fc.weight, fc.bias; 2 start anew: …". "" if every name has its tensor and every tensor its name.
  std::string summary(const std::vector<std::string>& names) const;

 private:
  struct Tensor {
    const SafetensorsReader::Entry* entry = nullptr;
    bool transposed = false;
  };

  bool is_fresh(const std::string& name) const;
  [[noreturn]] void fail_missing(const std::vector<std::string>& missing) const;
  std::vector<std::string> left(const std::vector<std::string>& names) const;

  const SafetensorsReader reader_;
  const bool mapped_;
  const std::vector<std::string> fresh_;
  std::unordered_map<std::string, Tensor> tensors_;  // by the graph's names
};

}  // namespace arbalest
