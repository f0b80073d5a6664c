#pragma once
// The weights that a model starts from: a safetensors file, whose tensors may have other names than the graph's.

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
  // `path`: safetensors, or the index of sharded ones. `map`: a file of rules (WeightsMap); "": names are the graph's.
  // `fresh`: patterns of the graph's names that start as without the file. Throws GraphError for a map that is wrong,
  // RunError for a file that cannot be read, or where the map gives two tensors one name.
  explicit WeightsFile(const std::string& path, const std::string& map = "", std::vector<std::string> fresh = {});

  const std::string& path() const { return reader_.path(); }
  std::vector<std::string> shards() const { return reader_.shards(); }  // beside an index, which path() is then
  // What the classes are called that the file's model tells apart, by index; empty where the file does not say.
  std::vector<std::string> class_names() const;
  // What the run that saved it changed in its graph's file (--set), and that graph's name; none: the file does not say.
  std::optional<std::vector<std::string>> overrides() const;
  int64_t skip_bad() const;  // samples that it passed over at most (--skip-bad); 0: none, or the file does not say
  std::string graph_name() const;  // "": the file does not say

  // Whether the graph's value `name` is read from the file.
  bool has(const std::string& name) const;
  // The value's elements in row-major order; another floating-point type is converted. With a map, axes of extent 1 do
  // not count. Throws RunError where the file has no such tensor, where its shape or type does not fit the value's, or
  // where a number in it is not finite.
  std::vector<std::byte> read(const Value& value) const;

  // Throws RunError unless the file has all `names` but those that start anew, and, where there is neither a map nor
  // such a pattern, nothing else: all that are missing or unknown. GraphError for a pattern that fits no name.
  void check(const std::vector<std::string>& names) const;
  // Only the first of these: what the file has besides does not matter.
  void require(const std::vector<std::string>& names) const;
  // What became of the tensors and names: "w.safetensors: 60 tensors taken; 2 left: fc.weight, fc.bias; 2 start anew:
  // …".
  // "" where every name has its tensor and every tensor its name.
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
