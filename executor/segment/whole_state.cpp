// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/whole_state.h"

#include <cstring>
#include <span>
#include <utility>

#include "base/error.h"

namespace arbalest {
namespace {

class StateWriter {
 public:
  std::string bytes;

  template <typename Number>
  void number(Number value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <typename Element>
  void array(const std::vector<Element>& content) {
    number(uint64_t(content.size()));
    bytes.append(reinterpret_cast<const char*>(content.data()), content.size() * sizeof(Element));
  }
};

class StateReader {
 public:
  explicit StateReader(const std::string& bytes) : left_(bytes) {}

  bool at_end() const { return left_.empty(); }
  template <typename Number>
  Number number() {
    Number value{};
    take(&value, sizeof value);
    return value;
  }
  template <typename Element>
  std::vector<Element> array() {
    const auto count = number<uint64_t>();
    if (count > left_.size() / sizeof(Element)) throw RunError("a rank sent half of its state");
    std::vector<Element> content(count);
    take(content.data(), count * sizeof(Element));
    return content;
  }

 private:
  void take(void* to, size_t count) {
    if (count > left_.size()) throw RunError("a rank sent half of its state");
    if (count > 0) std::memcpy(to, left_.data(), count);
    left_ = left_.subspan(count);
  }
  std::span<const char> left_;
};

std::string packed(const std::vector<LearnerState>& learners) {
  StateWriter out;
  for (const LearnerState& learner : learners) {
    out.array(learner.weights);
    out.array(learner.statistics);
    out.number(uint64_t(learner.slots.size()));
    for (const auto& slot : learner.slots) out.array(slot);
    out.number(learner.updates);
    out.number(learner.correction);
  }
  return std::move(out.bytes);
}

std::vector<LearnerState> learners_of(const Ranks::Parts& parts) {
  std::vector<LearnerState> learners;
  for (const std::string& part : parts) {
    for (StateReader in(part); !in.at_end();) {
      LearnerState& learner = learners.emplace_back();
      learner.weights = in.array<std::byte>();
      learner.statistics = in.array<std::byte>();
      for (auto slots = in.number<uint64_t>(); slots > 0; --slots) learner.slots.push_back(in.array<std::byte>());
      learner.updates = in.number<int64_t>();
      learner.correction = in.number<double>();
    }
  }
  return learners;
}

}  // namespace

RunState gathered(Ranks& ranks, RunState mine) {
  const Ranks::Parts parts = ranks.gather("learners", packed(mine.learners));
  if (ranks.first()) mine.learners = learners_of(parts);
  return mine;
}

RunState exchanged(Ranks& ranks, RunState mine) {
  mine.learners = learners_of(ranks.exchange("all learners", packed(mine.learners)));
  return mine;
}

SegmentSnapshot gathered(Ranks& ranks, SegmentSnapshot mine) {
  mine.state = gathered(ranks, std::move(mine.state));
  StateWriter out;
  out.number(uint64_t(mine.kept.size()));
  for (const auto& values : mine.kept) {
    out.number(uint64_t(values.size()));
    for (const auto& value : values) out.array(value);
  }
  for (const std::vector<double>& sums : mine.tallies) out.array(sums);
  const Ranks::Parts parts = ranks.gather("snapshot", std::move(out.bytes));
  if (!ranks.first()) return mine;
  mine.kept.clear();
  mine.tallies.clear();
  for (const std::string& part : parts) {
    StateReader in(part);
    for (auto learners = in.number<uint64_t>(); learners > 0; --learners) {
      auto& values = mine.kept.emplace_back();
      for (auto count = in.number<uint64_t>(); count > 0; --count) values.push_back(in.array<std::byte>());
    }
    while (!in.at_end()) mine.tallies.push_back(in.array<double>());
  }
  return mine;
}

}  // namespace arbalest
