// SPDX-License-Identifier: Apache-2.0
#include "executor/training/checkpoint.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "executor/weights/class_names.h"
#include "io/formats/json_error.h"
#include "io/formats/layout.h"

namespace arbalest {
namespace {

constexpr const char *kState = "arbalest.checkpoint", *kSum = "arbalest.sum";  // keys of the metadata

uint32_t sum_of(uint32_t sum, const void* bytes, size_t count) {
  return uint32_t(crc32_z(sum, static_cast<const Bytef*>(bytes), count));
}

// Checksum of a file's whole content. Tensors are sorted by name, since a file may hold them in another order.
std::string sum_of(const TensorFile& file, const std::string& state) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : file.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  uint32_t sum = sum_of(0, state.data(), state.size());
  for (const NamedTensor* tensor : order) {
    const std::string head = fmt::format("{} {} {}", tensor->name, name_of(tensor->dtype), to_string(tensor->shape));
    sum = sum_of(sum, head.data(), head.size());
    sum = sum_of(sum, tensor->bytes.data(), tensor->bytes.size());
  }
  return fmt::format("{:08x}", sum);
}

// By the name of an array, or what it begins with: not what a user gave, nor slots, since a run may go on with a square
// that is infinite.
bool has_to_be_finite(std::string_view name) {
  if (name.starts_with("frozen/")) return false;
  if (!name.starts_with("learner ")) return true;
  const std::string_view part = name.substr(std::min(name.size(), name.find('/') + 1));
  return part.starts_with("weights/") || part.starts_with("statistics/") || part.starts_with("state/");
}

}  // namespace

// An array of the checkpoint, and what it consists of in the file: the members of an arena, or, without any, bytes.
struct CheckpointLayout::Part {
  std::string prefix;
  std::vector<std::byte>* content = nullptr;
  DataType type = DataType::Float32;
  const std::vector<ArenaMember>* members = nullptr;
  int64_t bytes = 0;   // of the content
  int64_t before = 0;  // of a checkpoint from before means had weights of their own, which Segment::start_from() adds
};

CheckpointLayout::CheckpointLayout(const Loop& training) {
  const Graph& graph = training.graph;
  const auto bytes_of = [&](ValueId value) { return value == kNone ? 0 : graph.values[size_t(value)].type.bytes(); };
  weights_ = arena_members(graph, training.arenas.weights);
  statistics_ = arena_members(graph, training.arenas.statistics);
  frozen_ = arena_members(graph, training.arenas.frozen);
  skips_ = training.arenas.factor != kNone;
  weight_bytes_ = bytes_of(training.arenas.weights);
  statistic_bytes_ = bytes_of(training.arenas.statistics);
  frozen_bytes_ = bytes_of(training.arenas.frozen);
  for (const ArenaValues::Slot& slot : training.arenas.slots) slots_.push_back(slot.name);
  for (const ValueId value : kept_values(training)) {
    const Value& kept = graph.values[size_t(value)];
    const int64_t bytes = kept.type.bytes();
    kept_.push_back({kept.name, kept.type.dtype, bytes, bytes - weight_bytes_of(training, value)});
  }
}

std::vector<CheckpointLayout::Part> CheckpointLayout::parts_of(Checkpoint& checkpoint) const {
  std::vector<Part> parts;
  const auto add = [&](std::string prefix, std::vector<std::byte>& content, const std::vector<ArenaMember>& members,
                       int64_t bytes) {
    if (bytes > 0) parts.push_back({std::move(prefix), &content, DataType::Float32, &members, bytes});
  };
  const auto add_model = [&](const std::string& prefix, ModelState& model) {
    add(prefix + "/weights/", model.weights, weights_, weight_bytes_);
    add(prefix + "/statistics/", model.statistics, statistics_, statistic_bytes_);
  };
  SegmentSnapshot& segment = checkpoint.segment;
  RunState& state = segment.state;
  segment.kept.resize(state.learners.size());
  for (size_t j = 0; j < state.learners.size(); ++j) {
    const std::string prefix = fmt::format("learner {}", j);
    LearnerState& learner = state.learners[j];
    add(prefix + "/weights/", learner.weights, weights_, weight_bytes_);
    add(prefix + "/statistics/", learner.statistics, statistics_, statistic_bytes_);
    learner.slots.resize(slots_.size());
    for (size_t k = 0; k < slots_.size(); ++k) {
      add(fmt::format("{}/{}/", prefix, slots_[k]), learner.slots[k], weights_, weight_bytes_);
    }
    segment.kept[j].resize(kept_.size());
    for (size_t k = 0; k < kept_.size(); ++k) {
      parts.push_back({fmt::format("{}/state/{}", prefix, kept_[k].name), &segment.kept[j][k], kept_[k].type, nullptr,
                       kept_[k].bytes, kept_[k].before});
    }
  }
  add("frozen/", state.frozen, frozen_, frozen_bytes_);
  for (size_t host = 0; host < state.averages.size(); ++host) {
    const std::string prefix = host == 0 ? "" : fmt::format("host {}/", host);
    add(prefix + "average/", state.averages[host].now, weights_, weight_bytes_);
    add(prefix + "previous average/", state.averages[host].before, weights_, weight_bytes_);
  }
  add("moving average/", state.moving_average.weights, weights_, weight_bytes_);
  if (segment.validating) add_model("validating", segment.model);
  if (checkpoint.keeps_validated) add_model("validated", checkpoint.validated);
  return parts;
}

TensorFile CheckpointLayout::encode(Checkpoint checkpoint) const {
  TensorFile file;
  const std::string state = to_json(checkpoint).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (const Part& part : parts_of(checkpoint)) {
    std::vector<std::byte>& content = *part.content;
    if (content.empty()) continue;  // the run has no such array
    if (!part.members) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(content.data());
      file.tensors.push_back(
          {part.prefix, DataType::Uint8, {int64_t(content.size())}, {bytes, bytes + content.size()}});
      continue;
    }
    for (const ArenaMember& member : *part.members) {
      NamedTensor tensor{part.prefix + member.name, member.type.dtype, member.type.shape, {}};
      tensor.bytes.resize(size_t(member.type.bytes()));
      to_row_major(member.type, content.data() + member.offset, tensor.bytes.data());
      file.tensors.push_back(std::move(tensor));
    }
    content = {};
  }
  seal(file, state);
  return file;
}

std::string CheckpointLayout::not_finite(Checkpoint& checkpoint) const {
  for (const Part& part : parts_of(checkpoint)) {
    if (skips_ && part.members != &weights_) continue;
    if (!has_to_be_finite(part.prefix) || all_finite(part.type, *part.content)) continue;
    return part.prefix.substr(0, part.prefix.size() - (part.members ? 1 : 0));
  }
  return "";
}

bool is_finite(const CheckpointFile& file) {
  return std::all_of(file.tensors.tensors.begin(), file.tensors.tensors.end(), [](const NamedTensor& tensor) {
    return !has_to_be_finite(tensor.name) || all_finite(tensor.dtype, std::as_bytes(std::span(tensor.bytes)));
  });
}

void seal(TensorFile& file, const std::string& state) {
  file.metadata = {{kState, state}, {kSum, sum_of(file, state)}};
}

void CheckpointLayout::decode(const TensorFile& file, Checkpoint& checkpoint) const {
  std::map<std::string_view, const NamedTensor*> tensors;
  for (const NamedTensor& tensor : file.tensors) tensors.emplace(tensor.name, &tensor);
  size_t taken = 0;
  const auto take = [&](const std::string& name, DataType type, const Shape& shape) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) throw RunError(fmt::format("the checkpoint has no '{}'", name));
    const NamedTensor& tensor = *found->second;
    if (tensor.dtype != type || tensor.shape != shape) {
      throw RunError(fmt::format("'{}': found {}{} in the checkpoint, expected {}{}", name, name_of(tensor.dtype),
                                 to_string(tensor.shape), name_of(type), to_string(shape)));
    }
    ++taken;
    return tensor.bytes.data();
  };
  const auto optional = [&](const Part& part) {  // averages, which not every strategy has
    return part.members == &weights_ && !part.prefix.starts_with("learner ") && !part.members->empty() &&
           !tensors.contains(part.prefix + part.members->front().name);
  };
  std::vector<AverageState>& averages = checkpoint.segment.state.averages;
  averages.assign(1, {});
  for (const LearnerState& learner : checkpoint.segment.state.learners) {
    averages.resize(std::max(averages.size(), size_t(learner.host) + 1));
  }
  for (const Part& part : parts_of(checkpoint)) {
    if (optional(part)) continue;
    part.content->assign(size_t(part.bytes), std::byte{0});
    if (!part.members) {
      const auto known = tensors.find(part.prefix);
      const bool older = known != tensors.end() && known->second->shape == Shape{part.before};
      part.content->resize(size_t(older ? part.before : part.bytes));
      const auto bytes = int64_t(part.content->size());
      std::memcpy(part.content->data(), take(part.prefix, DataType::Uint8, {bytes}), size_t(bytes));
      continue;
    }
    for (const ArenaMember& member : *part.members) {
      to_memory_order(member.type, take(part.prefix + member.name, member.type.dtype, member.type.shape),
                      part.content->data() + member.offset);
    }
  }
  const bool averaged = !averages.front().now.empty();
  for (const LearnerState& learner : checkpoint.segment.state.learners) {
    if (averaged == !averages[size_t(learner.host)].now.empty()) continue;
    throw RunError(fmt::format("the checkpoint has no average for learners of host {}", averaged ? learner.host : 0));
  }
  if (!averaged) averages.clear();
  if (taken != file.tensors.size()) throw RunError("the checkpoint has tensors that are not of this run");
  for (ModelState* model : {&checkpoint.segment.model, &checkpoint.validated}) {
    model->frozen = checkpoint.segment.state.frozen;
  }
}

std::vector<std::string> differences(const RunIdentity& checkpoint, const RunIdentity& here, size_t most) {
  std::vector<std::string> found;
  const auto value_in = [](const RunIdentity& run, const std::string& wanted) -> std::string {
    for (const auto& [name, value] : run.settings) {
      if (name == wanted && !value.empty()) return value;
    }
    return "nothing";
  };
  for (const RunIdentity* side : {&here, &checkpoint}) {
    for (const auto& [name, value] : side->settings) {
      const std::string before = value_in(checkpoint, name), now = value_in(here, name);
      const bool told = side == &checkpoint && now != "nothing";
      if (before != now && !told) found.push_back(fmt::format("{}: {} in the checkpoint, {} here", name, before, now));
    }
  }
  if (const std::string other = other_classes(checkpoint.class_names, here.class_names); !other.empty()) {
    found.push_back(fmt::format("training data: {}", other));
  }
  const std::set<std::string> before(checkpoint.graph.begin(), checkpoint.graph.end()),
      now(here.graph.begin(), here.graph.end());
  const auto tell_missing = [&](const std::vector<std::string>& lines, const std::set<std::string>& others,
                                const char* where) {
    for (const std::string& line : lines) {
      if (!others.contains(line)) found.push_back(fmt::format("the graph, only {}: {}", where, line));
    }
  };
  tell_missing(checkpoint.graph, now, "in the checkpoint");
  tell_missing(here.graph, before, "here");
  if (found.empty() && checkpoint.graph != here.graph) found.push_back("the graph: its nodes have another order");
  if (found.size() > most) {
    const size_t more = found.size() - most;
    found.resize(most);
    found.push_back(fmt::format("and {} more", more));
  }
  return found;
}

CheckpointFile read_checkpoint(const std::filesystem::path& path) {
  CheckpointFile file;
  file.path = path.string();
  file.tensors = read_safetensors(path);
  const auto state = file.tensors.metadata.find(kState), sum = file.tensors.metadata.find(kSum);
  if (state == file.tensors.metadata.end() || sum == file.tensors.metadata.end()) {
    throw RunError(fmt::format("{}: no checkpoint: its metadata has no '{}'", path.string(), kState));
  }
  if (sum_of(file.tensors, state->second) != sum->second) {
    throw RunError(fmt::format("{}: damaged: what it holds is not what was written", path.string()));
  }
  try {
    file.checkpoint = checkpoint_from_json(nlohmann::json::parse(state->second));
  } catch (const nlohmann::json::exception& error) {
    throw RunError(fmt::format("{}: no checkpoint: {}", path.string(), message_of(error)));
  } catch (const RunError& error) {
    throw RunError(fmt::format("{}: no checkpoint: {}", path.string(), error.what()));
  }
  return file;
}

NotFiniteError::NotFiniteError(const std::filesystem::path& path, std::string array)
    : RunError(fmt::format("{}: not written: '{}' is no longer finite", path.string(), array)),
      array_(std::move(array)) {}

int64_t write_checkpoint(const std::filesystem::path& path, const CheckpointLayout& layout, Checkpoint checkpoint) {
  if (const std::string what = layout.not_finite(checkpoint); !what.empty()) {
    throw NotFiniteError(path, what);
  }
  const TensorFile file = layout.encode(std::move(checkpoint));
  write_safetensors(path, file);
  int64_t bytes = 0;
  for (const NamedTensor& tensor : file.tensors) bytes += int64_t(tensor.bytes.size());
  return bytes;
}

}  // namespace arbalest
