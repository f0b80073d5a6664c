// SPDX-License-Identifier: Apache-2.0
#include "executor/training/checkpoint.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/number.h"
#include "executor/weights/class_names.h"
#include "io/formats/json_error.h"
#include "io/formats/layout.h"

namespace arbalest {
namespace {

// Keys of the metadata.
constexpr const char *kState = "arbalest.checkpoint", *kPart = "arbalest.part", *kSum = "arbalest.sum";
constexpr std::string_view kFileEnding = ".safetensors", kRank = ".rank-";

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

void seal(TensorFile& file, const char* key, const std::string& state) {
  file.metadata = {{key, state}, {kSum, sum_of(file, state)}};
}

// Binds a rank's part to its checkpoint.
std::string state_of_part(const std::string& tag, int64_t iteration, size_t rank) {
  return nlohmann::json{{"checkpoint", tag}, {"iteration", iteration}, {"rank", rank}}.dump();
}

// The metadata under a key.
const std::string& state_in(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata,
                            const char* key) {
  const auto state = metadata.find(key);
  if (state != metadata.end() && metadata.contains(kSum)) return state->second;
  if (metadata.contains(kPart)) {
    throw RunError(fmt::format("{}: one rank's part of a checkpoint, which is read with that: expected rank 0's file",
                               path.string()));
  }
  throw RunError(fmt::format("{}: no checkpoint: its metadata has no '{}'", path.string(), key));
}

TensorFile read_sealed(const std::filesystem::path& path, const char* key) {
  TensorFile file = read_safetensors(path);
  const std::string& state = state_in(path, file.metadata, key);
  if (sum_of(file, state) != file.metadata.at(kSum)) {
    throw RunError(fmt::format("{}: damaged: what it holds is not what was written", path.string()));
  }
  return file;
}

Checkpoint checkpoint_in(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata) {
  const std::string& state = state_in(path, metadata, kState);
  try {
    return checkpoint_from_json(nlohmann::json::parse(state));
  } catch (const nlohmann::json::exception& error) {
    throw RunError(fmt::format("{}: no checkpoint: {}", path.string(), message_of(error)));
  } catch (const RunError& error) {
    throw RunError(fmt::format("{}: no checkpoint: {}", path.string(), error.what()));
  }
}

TensorFile read_part(const std::filesystem::path& whole, const Checkpoint& checkpoint, size_t rank) {
  const std::string& tag = checkpoint.parts.tag;
  const std::filesystem::path path = part_path(whole, tag, rank);
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) {
    throw RunError(
        fmt::format("{}: not whole: rank {}'s part '{}' is missing", whole.string(), rank, path.filename().string()));
  }
  try {
    TensorFile file = read_sealed(path, kPart);
    if (file.metadata.at(kPart) == state_of_part(tag, checkpoint.position.iteration, rank)) return file;
  } catch (const RunError& error) {
    throw RunError(fmt::format("{}: not whole: {}", whole.string(), error.what()));
  }
  throw RunError(fmt::format("{}: not whole: '{}' is not rank {}'s part of it, but of another checkpoint",
                             whole.string(), path.filename().string(), rank));
}

void add_to(std::vector<NamedTensor>& tensors, std::vector<NamedTensor> more) {
  tensors.insert(tensors.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

// The number after `word` at the beginning of a name, and what follows its slash; none: the name begins otherwise.
std::optional<std::pair<int64_t, std::string_view>> numbered(std::string_view name, std::string_view word) {
  if (!name.starts_with(word)) return std::nullopt;
  name.remove_prefix(word.size());
  const std::optional<int64_t> number = take_number<int64_t>(name);
  if (!number || !name.starts_with('/')) return std::nullopt;
  return std::pair(*number, name.substr(1));
}

}  // namespace

bool CheckpointNeeds::has(std::string_view tensor) const {
  if (all) return true;
  if (const auto learner = numbered(tensor, "learner ")) {
    return learner->first >= first_learner && learner->first - first_learner < learners;
  }
  const auto host = numbered(tensor, "host ");
  const std::string_view array = host ? host->second : tensor;
  const bool of_host = array.starts_with("average/") || array.starts_with("previous average/");
  return !of_host || hosts.contains(host ? int32_t(host->first) : 0);
}

bool CheckpointNeeds::any_of(const CheckpointParts::Part& part) const {
  const bool learnt =
      part.first_learner < first_learner + learners && first_learner < part.first_learner + part.learners;
  return all || learnt || hosts.contains(part.host);
}

// An array of the checkpoint, and what it consists of in the file: the members of an arena, or, without any, bytes.
struct CheckpointLayout::Array {
  std::string prefix;
  std::vector<std::byte>* content = nullptr;
  DataType type = DataType::Float32;
  const std::vector<ArenaMember>* members = nullptr;
  int64_t bytes = 0;   // of the content
  int64_t before = 0;  // of a checkpoint from before means had weights of their own, which Segment::start_from() adds
};

CheckpointLayout::CheckpointLayout(const Loop& training) {
  const Graph& graph = training.graph;
  const auto bytes_of = [&](ValueId value) { return value == kNone ? 0 : graph.values[value].type.bytes(); };
  weights_ = arena_members(graph, training.arenas.weights);
  statistics_ = arena_members(graph, training.arenas.statistics);
  frozen_ = arena_members(graph, training.arenas.frozen);
  skips_ = training.arenas.factor != kNone;
  weight_bytes_ = bytes_of(training.arenas.weights);
  statistic_bytes_ = bytes_of(training.arenas.statistics);
  frozen_bytes_ = bytes_of(training.arenas.frozen);
  for (const ArenaValues::Slot& slot : training.arenas.slots) slots_.push_back(slot.name);
  for (const ValueId value : kept_values(training)) {
    const Value& kept = graph.values[value];
    const int64_t bytes = kept.type.bytes();
    kept_.push_back({kept.name, kept.type.dtype, bytes, bytes - weight_bytes_of(training, value)});
  }
}

std::vector<CheckpointLayout::Array> CheckpointLayout::arrays_of(Checkpoint& checkpoint) const {
  std::vector<Array> arrays;
  const auto add = [&](std::string prefix, std::vector<std::byte>& content, const std::vector<ArenaMember>& members,
                       int64_t bytes) {
    if (bytes > 0) arrays.push_back({std::move(prefix), &content, DataType::Float32, &members, bytes});
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
      arrays.push_back({fmt::format("{}/state/{}", prefix, kept_[k].name), &segment.kept[j][k], kept_[k].type, nullptr,
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
  return arrays;
}

std::vector<NamedTensor> CheckpointLayout::encode(Checkpoint checkpoint) const {
  std::vector<NamedTensor> tensors;
  for (const Array& array : arrays_of(checkpoint)) {
    std::vector<std::byte>& content = *array.content;
    if (content.empty()) continue;  // the run has no such array, or another rank writes it
    if (!array.members) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(content.data());
      tensors.push_back({array.prefix, DataType::Uint8, {int64_t(content.size())}, {bytes, bytes + content.size()}});
      continue;
    }
    for (const ArenaMember& member : *array.members) {
      NamedTensor tensor{array.prefix + member.name, member.type.dtype, member.type.shape, {}};
      tensor.bytes.resize(size_t(member.type.bytes()));
      to_row_major(member.type, content.data() + member.offset, tensor.bytes.data());
      tensors.push_back(std::move(tensor));
    }
    content = {};
  }
  return tensors;
}

std::string CheckpointLayout::not_finite(Checkpoint& checkpoint) const {
  for (const Array& array : arrays_of(checkpoint)) {
    if (skips_ && array.members != &weights_) continue;
    if (!has_to_be_finite(array.prefix) || all_finite(array.type, *array.content)) continue;
    return array.prefix.substr(0, array.prefix.size() - (array.members ? 1 : 0));
  }
  return "";
}

std::string text_of(const Checkpoint& checkpoint) {
  return to_json(checkpoint).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool is_finite(const CheckpointFile& file) {
  return std::all_of(file.tensors.tensors.begin(), file.tensors.tensors.end(), [](const NamedTensor& tensor) {
    return !has_to_be_finite(tensor.name) || all_finite(tensor.dtype, std::as_bytes(std::span(tensor.bytes)));
  });
}

void seal(TensorFile& file, const std::string& state) {
  seal(file, kState, state);
}

void CheckpointLayout::decode(const CheckpointFile& file, Checkpoint& checkpoint, const CheckpointNeeds& needs) const {
  const auto needed = [&](const std::string& name) { return needs.has(name); };
  std::vector<NamedTensor> more;
  for (const size_t rank : file.left) {  // another rank has held these against their sums
    const CheckpointParts& parts = checkpoint.parts;
    if (!needs.any_of(parts.of_ranks.at(rank - 1))) continue;
    add_to(more, read_safetensors(part_path(file.path, parts.tag, rank), needed).tensors);
  }
  std::map<std::string_view, const NamedTensor*> tensors;
  for (const auto* each : {&file.tensors.tensors, &std::as_const(more)}) {
    for (const NamedTensor& tensor : *each) {
      if (needed(tensor.name)) tensors.emplace(tensor.name, &tensor);
    }
  }
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
  const auto optional = [&](const Array& array) {  // averages, which not every strategy has
    return array.members == &weights_ && !array.prefix.starts_with("learner ") && !array.members->empty() &&
           !tensors.contains(array.prefix + array.members->front().name);
  };
  std::vector<AverageState>& averages = checkpoint.segment.state.averages;
  averages.assign(1, {});
  for (const LearnerState& learner : checkpoint.segment.state.learners) {
    averages.resize(std::max(averages.size(), size_t(learner.host) + 1));
  }
  for (const Array& array : arrays_of(checkpoint)) {
    if (!needs.has(array.prefix) || optional(array)) continue;
    array.content->assign(size_t(array.bytes), std::byte{0});
    if (!array.members) {
      const auto known = tensors.find(array.prefix);
      const bool older = known != tensors.end() && known->second->shape == Shape{array.before};
      array.content->resize(size_t(older ? array.before : array.bytes));
      const auto bytes = int64_t(array.content->size());
      std::memcpy(array.content->data(), take(array.prefix, DataType::Uint8, {bytes}), size_t(bytes));
      continue;
    }
    for (const ArenaMember& member : *array.members) {
      to_memory_order(member.type, take(array.prefix + member.name, member.type.dtype, member.type.shape),
                      array.content->data() + member.offset);
    }
  }
  const auto has = [](const AverageState& average) { return !average.now.empty(); };
  const bool averaged = std::any_of(averages.begin(), averages.end(), has) ||
                        std::any_of(file.tensors.tensors.begin(), file.tensors.tensors.end(),
                                    [](const NamedTensor& each) { return each.name.starts_with("average/"); });
  for (const LearnerState& learner : checkpoint.segment.state.learners) {
    const bool awaited = averaged && (needs.all || needs.hosts.contains(learner.host));
    if (!awaited || has(averages[size_t(learner.host)])) continue;
    throw RunError(fmt::format("the checkpoint has no average for learners of host {}", learner.host));
  }
  if (!averaged) averages.clear();
  if (taken != tensors.size()) throw RunError("the checkpoint has tensors that are not of this run");
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

CheckpointFile read_checkpoint(const std::filesystem::path& path, const std::function<bool(size_t)>& reads) {
  CheckpointFile file;
  file.path = path.string();
  file.tensors = read_sealed(path, kState);
  file.checkpoint = checkpoint_in(path, file.tensors.metadata);
  for (size_t rank = 1; rank <= file.checkpoint.parts.of_ranks.size(); ++rank) {
    if (reads && !reads(rank)) {
      file.left.insert(rank);
    } else {
      add_to(file.tensors.tensors, read_part(path, file.checkpoint, rank).tensors);
    }
  }
  return file;
}

std::filesystem::path part_path(const std::filesystem::path& path, const std::string& tag, size_t rank) {
  std::string name = path.filename().string();
  if (name.ends_with(kFileEnding)) name.resize(name.size() - kFileEnding.size());
  return path.parent_path() / fmt::format("{}{}{}.{}{}", name, kRank, rank, tag, kFileEnding);
}

std::filesystem::path whole_path(const std::filesystem::path& part) {
  const std::string name = part.filename().string();
  const size_t rank = name.find(kRank);
  if (rank == name.npos || !name.ends_with(kFileEnding)) return {};
  return part.parent_path() / (name.substr(0, rank) + std::string(kFileEnding));
}

CheckpointParts parts_named_in(const std::filesystem::path& path) {
  return checkpoint_in(path, SafetensorsReader(path).metadata()).parts;
}

NotFiniteError::NotFiniteError(const std::filesystem::path& path, std::string array)
    : RunError(fmt::format("{}: not written: '{}' is no longer finite", path.string(), array)),
      array_(std::move(array)) {}

namespace {

void write_sealed(const std::filesystem::path& path, const CheckpointLayout& layout, Checkpoint checkpoint,
                  const char* key, const std::string& state, const std::function<void()>& written) {
  if (const std::string what = layout.not_finite(checkpoint); !what.empty()) throw NotFiniteError(path, what);
  TensorFile file;
  file.tensors = layout.encode(std::move(checkpoint));
  seal(file, key, state);
  write_safetensors(path, file, written);
}

}  // namespace

void write_checkpoint(const std::filesystem::path& path, const CheckpointLayout& layout, Checkpoint checkpoint,
                      const std::function<void()>& written) {
  const std::string state = text_of(checkpoint);
  write_sealed(path, layout, std::move(checkpoint), kState, state, written);
}

void write_part(const std::filesystem::path& path, size_t rank, const CheckpointLayout& layout, Checkpoint checkpoint) {
  const std::string tag = checkpoint.parts.tag, state = state_of_part(tag, checkpoint.position.iteration, rank);
  write_sealed(part_path(path, tag, rank), layout, std::move(checkpoint), kPart, state, {});
}

}  // namespace arbalest
