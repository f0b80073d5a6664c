// SPDX-License-Identifier: Apache-2.0
#include "executor/weights/weights_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "base/files/file.h"
#include "base/setting.h"
#include "executor/weights/class_names.h"
#include "graph/name_patterns.h"

namespace arbalest {
namespace {

using Entry = SafetensorsReader::Entry;

constexpr size_t kMostNames = 12;  // names in a message

std::string listed(const std::vector<std::string>& names) {
  const std::vector<std::string> told(names.begin(), names.begin() + int64_t(std::min(names.size(), kMostNames)));
  const size_t more = names.size() - told.size();
  return fmt::format("{}{}", fmt::join(told, ", "), more ? fmt::format(" and {} more", more) : "");
}

// PyTorch's batch norms count their batches; nothing reads that.
bool is_counter(const Entry& entry) {
  return entry.shape.empty() && entry.name.ends_with("num_batches_tracked");
}

WeightsMap read_map(const std::string& path) {
  if (path.empty()) return {};
  return {read_text(path), path};
}

// Elements of a float tensor as they are kept: a double beyond a float's range is infinite.
void check_finite(const std::string& name, const std::vector<std::byte>& floats, const std::string& path) {
  for (size_t i = 0; i < floats.size() / sizeof(float); ++i) {
    float element = 0;
    std::memcpy(&element, floats.data() + i * sizeof element, sizeof element);
    if (std::isfinite(element)) continue;
    throw RunError(
        fmt::format("{}: tensor '{}', element {}: found {}, expected a finite number", path, name, i, element));
  }
}

// A scale of channels is (C) or (C, 1, 1), and filters of one pixel are a matrix: the same elements in the same order.
bool same_but_for_ones(const Shape& a, const Shape& b) {
  const auto without_ones = [](Shape shape) {
    shape.erase(std::remove(shape.begin(), shape.end(), 1), shape.end());
    return shape;
  };
  return without_ones(a) == without_ones(b);
}

// The axes of TensorFlow's kernel in the order of ours: (…, C, K) to (K, C, …). For a depthwise one with C · M filters
// of one channel each: (…, C, M) to (C, M, …). Nothing if neither has the wanted shape.
std::optional<std::vector<size_t>> axes_of_kernel(const Shape& from, const Shape& wanted) {
  const size_t rank = from.size();
  if (rank < 2 || wanted.size() != rank) return std::nullopt;
  for (const bool depthwise : {false, true}) {
    if (depthwise && rank < 3) break;  // a matrix has no height and width
    std::vector<size_t> axes = depthwise ? std::vector{rank - 2, rank - 1} : std::vector{rank - 1, rank - 2};
    for (size_t axis = 0; axis + 2 < rank; ++axis) axes.push_back(axis);
    Shape shape;
    for (const size_t axis : axes) shape.push_back(from[axis]);
    if (depthwise) {
      shape[0] *= shape[1];
      shape[1] = 1;
    }
    if (shape == wanted) return axes;
  }
  return std::nullopt;
}

std::vector<std::byte> permuted(const std::vector<std::byte>& elements, size_t size, const Shape& from,
                                const std::vector<size_t>& axes) {
  Shape strides(from.size(), 1);
  for (size_t axis = from.size() - 1; axis > 0; --axis) strides[axis - 1] = strides[axis] * from[axis];
  std::vector<std::byte> result(elements.size());
  Shape index(from.size(), 0);
  for (size_t to = 0; to < result.size(); to += size) {
    int64_t at = 0;
    for (size_t i = 0; i < axes.size(); ++i) at += index[i] * strides[axes[i]];
    std::memcpy(result.data() + to, elements.data() + size_t(at) * size, size);
    for (size_t i = axes.size(); i-- > 0;) {
      if (++index[i] < from[axes[i]]) break;
      index[i] = 0;
    }
  }
  return result;
}

}  // namespace

WeightsFile::WeightsFile(const std::string& path, const std::string& map_path, std::vector<std::string> fresh)
    : reader_(path), mapped_(!map_path.empty()), fresh_(std::move(fresh)) {
  const bool part = reader_.metadata().contains("arbalest.part");
  if (part || reader_.metadata().contains("arbalest.checkpoint")) {
    throw GraphError(fmt::format(
        "{}: found {} of a run, expected weights, as {} writes them; 'arbalest resume DIR' goes on with the "
        "run of a folder of checkpoints, and saves its weights",
        path, part ? "one rank's part of a checkpoint" : "a checkpoint", name_of(SettingKey::Save)));
  }
  const WeightsMap map = read_map(map_path);
  for (const Entry& entry : reader_.entries()) {
    const WeightsMap::Target target = map(entry.name);
    if (target.name.empty()) continue;
    const auto [known, added] = tensors_.emplace(target.name, Tensor{&entry, target.transposed});
    if (added) continue;
    throw RunError(fmt::format("{}: tensors '{}' and '{}' both become '{}'", path, known->second.entry->name,
                               entry.name, target.name));
  }
}

std::vector<std::string> WeightsFile::class_names() const {
  return class_names_in(reader_.metadata());
}

std::optional<std::vector<std::string>> WeightsFile::overrides() const {
  return overrides_in(reader_.metadata());
}

std::optional<uint64_t> WeightsFile::number(const std::string& name) const {
  return number_in(reader_.metadata(), name);
}

std::string WeightsFile::graph_name() const {
  const auto name = reader_.metadata().find("graph");
  return name == reader_.metadata().end() ? "" : name->second;
}

bool WeightsFile::is_fresh(const std::string& name) const {
  return first_fit(name, fresh_) < fresh_.size();
}

bool WeightsFile::has(const std::string& name) const {
  return tensors_.count(name) > 0 && !is_fresh(name);
}

std::vector<std::byte> WeightsFile::read(const Value& value) const {
  const auto found = tensors_.find(value.name);
  if (found == tensors_.end()) fail_missing({value.name});
  const auto& [entry, transposed] = found->second;
  const auto axes = transposed ? axes_of_kernel(entry->shape, value.type.shape) : std::nullopt;
  const bool same = mapped_ ? same_but_for_ones(entry->shape, value.type.shape) : entry->shape == value.type.shape;
  const bool fits = transposed ? axes.has_value() : same;
  if (!fits || !SafetensorsReader::converts(*entry, value.type.dtype)) {
    throw RunError(fmt::format("{}: tensor '{}' is {}{}, the graph's parameter {}is {}; in training {} leaves it",
                               path(), entry->name, to_string(TensorType{entry->dtype, entry->shape}),
                               transposed ? " (transposed)" : "",
                               entry->name == value.name ? "" : fmt::format("'{}' ", value.name), to_string(value.type),
                               set_to(SettingKey::Fresh, fmt::format("'{}'", value.name))));
  }
  std::vector<std::byte> elements(size_t(value.type.bytes()));
  reader_.read(*entry, value.type.dtype, elements);
  if (axes) elements = permuted(elements, size_of(value.type.dtype), entry->shape, *axes);
  if (value.type.dtype == DataType::Float32) check_finite(entry->name, elements, path());
  return elements;
}

void WeightsFile::fail_missing(const std::vector<std::string>& missing) const {
  std::vector<std::string> found;
  for (const auto& [name, tensor] : tensors_) found.push_back(name);
  std::sort(found.begin(), found.end());
  const std::vector<std::string> others(missing.begin() + 1, missing.end());
  throw RunError(fmt::format("{}: no tensor '{}', which the graph needs{}{}{}", path(), missing[0],
                             did_you_mean(missing[0], found), others.empty() ? "" : "; also missing: " + listed(others),
                             mapped_ ? ""
                                     : fmt::format("; {} tells of other names, in training {} what is to start anew",
                                                   name_of(SettingKey::WeightsMap), name_of(SettingKey::Fresh))));
}

// Tensors of the file that no name is read from.
std::vector<std::string> WeightsFile::left(const std::vector<std::string>& names) const {
  std::set<const Entry*> read;
  for (const std::string& name : names) {
    if (has(name)) read.insert(tensors_.at(name).entry);
  }
  std::vector<std::string> left;
  for (const Entry& entry : reader_.entries()) {
    if (!read.contains(&entry) && !is_counter(entry)) left.push_back(entry.name);
  }
  return left;
}

void WeightsFile::check(const std::vector<std::string>& names) const {
  for (const std::string& pattern : fresh_) {
    if (std::any_of(names.begin(), names.end(), [&](const auto& name) { return fits(name, pattern); })) continue;
    throw GraphError(fmt::format("{}: the graph has no such parameter{}",
                                 set_to(SettingKey::Fresh, fmt::format("'{}'", pattern)),
                                 did_you_mean(pattern, names)));
  }
  require(names);
  refuse_others(names);
}

void WeightsFile::refuse_others(const std::vector<std::string>& names) const {
  if (mapped_ || !fresh_.empty()) return;
  const std::vector<std::string> unknown = left(names);
  if (unknown.empty()) return;
  const std::vector<std::string> others(unknown.begin() + 1, unknown.end());
  throw RunError(fmt::format("{}: tensor '{}' is not in the graph{}{}", path(), unknown[0],
                             did_you_mean(unknown[0], names), others.empty() ? "" : "; nor are: " + listed(others)));
}

void WeightsFile::require(const std::vector<std::string>& names) const {
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (!tensors_.count(name) && !is_fresh(name)) missing.push_back(name);
  }
  if (!missing.empty()) fail_missing(missing);
}

std::string WeightsFile::summary(const std::vector<std::string>& names) const {
  const std::vector<std::string> unread = left(names);
  std::vector<std::string> anew;
  for (const std::string& name : names) {
    if (is_fresh(name)) anew.push_back(name);
  }
  if (unread.empty() && anew.empty()) return "";
  std::string text = fmt::format("{}: {} tensors taken", path(), names.size() - anew.size());
  if (!unread.empty()) text += fmt::format("; {} left: {}", unread.size(), listed(unread));
  if (!anew.empty()) text += fmt::format("; {} start anew: {}", anew.size(), listed(anew));
  return text;
}

}  // namespace arbalest
