// SPDX-License-Identifier: Apache-2.0
#include "executor/run/first_not_finite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "graph/op.h"

namespace arbalest {
namespace {

template <typename T>
void look(const std::vector<std::byte>& bytes, ValueRange& range) {
  range.least = std::numeric_limits<double>::infinity();
  range.most = -range.least;
  for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    const auto value = double(element);
    if (std::isfinite(value)) {
      range.least = std::min(range.least, value);
      range.most = std::max(range.most, value);
      continue;
    }
    ++(std::isnan(value) ? range.undefined : range.infinite);
    if (range.first < 0) range.first = int64_t(i);
  }
}

// The logical index of the element at a place in memory.
std::vector<int64_t> index_of(const TensorType& type, int64_t place) {
  const size_t rank = type.shape.size();
  std::vector<size_t> order(rank);  // of axes, outermost first
  for (size_t i = 0; i < rank; ++i) order[i] = i;
  if (type.layout == Layout::ChannelsLast && rank > 2) std::rotate(order.begin() + 1, order.begin() + 2, order.end());
  std::vector<int64_t> index(rank, 0);
  for (size_t i = rank; i-- > 0;) {
    index[order[i]] = place % type.shape[order[i]];
    place /= type.shape[order[i]];
  }
  return index;
}

std::string not_finite_text(const ValueRange& range) {
  const char* kind = range.infinite == 0 ? "nan" : range.undefined == 0 ? "infinite" : "nan or infinite";
  return fmt::format("{} of {} elements {} {}, the first at [{}]", range.infinite + range.undefined,
                     range.type.elements(), range.infinite + range.undefined == 1 ? "is" : "are", kind,
                     fmt::join(index_of(range.type, range.first), ", "));
}

std::string range_text(const ValueRange& range) {
  std::string text = fmt::format("'{}', {}: ", range.name, to_string(range.type));
  if (range.least <= range.most) text += fmt::format("{:g} to {:g}", range.least, range.most);
  if (!range.finite()) text += (range.least <= range.most ? "; " : "") + not_finite_text(range);
  return text;
}

// The step of one learner, launch after launch.
class Search {
 public:
  Search(const Binding& binding, const Replica& learner) : device_(binding.device(learner.device)), learner_(learner) {
    found_.learner = learner.learner;
    found_.device = to_string(binding.plan().devices[size_t(learner.device)]);
  }

  // Runs a launch; whether it shows the first value that is not finite.
  bool run(const Graph& graph, const BoundLaunch& launch) {
    const Node& node = *launch.node;
    found_.node = node.name;
    found_.op = node.op->qualified_name();
    found_.inputs.clear();
    const ValueRange* from_outside = nullptr;
    bool infinite = false, undefined = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      if (input == kNone || !is_floating(graph.values[input].type.dtype)) continue;
      const ValueRange& range = range_of(graph, input, launch.inputs[i]);
      const Role role = graph.values[input].role;
      found_.inputs.push_back(range);
      infinite = infinite || range.infinite > 0;
      undefined = undefined || range.undefined > 0;
      const bool trained = role == Role::Parameter || role == Role::State;
      if ((role == Role::Parameter && !range.finite()) || (trained && range.undefined > 0)) return tell(range, false);
      if (!range.finite() && (role == Role::Input || role == Role::Frozen)) from_outside = &range;
    }
    clear_outputs(graph, launch);
    device_.run_there([&] { launch.run_on(device_.stream(learner_.lane)); });
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId output = node.outputs[i];
      if (output == kNone || !is_floating(graph.values[output].type.dtype)) continue;
      const ValueRange& range = range_of(graph, output, launch.outputs[i]);
      if (range.finite()) continue;
      // Labels may be missing, so that what the batch holds is to blame only if it comes through.
      if (from_outside) return tell(*from_outside, false);
      if ((range.undefined > 0 && !undefined) || (range.infinite > 0 && !infinite && !undefined))
        return tell(range, true);
    }
    return false;
  }

  const NotFinite& found() const { return found_; }

 private:
  bool tell(const ValueRange& range, bool made) {
    found_.value = range;
    found_.made = made;
    return true;
  }

  // A value is written once, so it is looked at once.
  const ValueRange& range_of(const Graph& graph, ValueId id, const void* memory) {
    const auto [place, is_new] = known_.try_emplace({&graph, id});
    ValueRange& range = place->second;
    if (!is_new) return range;
    const Value& value = graph.values[id];
    range.name = value.name;
    range.type = value.type;
    std::vector<std::byte> bytes(size_t(value.type.bytes()));
    if (bytes.empty() || !memory) return range;
    device_.download(bytes.data(), memory, int64_t(bytes.size()));
    switch (value.type.dtype) {
      case DataType::Float64: look<double>(bytes, range); break;
      case DataType::Bfloat16: look<bfloat16>(bytes, range); break;
      default: look<float>(bytes, range);
    }
    return range;
  }

  // Zeroes the outputs that share no memory with inputs. So old content of an output that the node does not write, such
  // as the factor of an update that is not due, is not reported.
  void clear_outputs(const Graph& graph, const BoundLaunch& launch) const {
    const auto bytes_of = [&](ValueId id) { return graph.values[id].type.bytes(); };
    const Node& node = *launch.node;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == kNone || !launch.outputs[i]) continue;
      auto* const begin = static_cast<std::byte*>(launch.outputs[i]);
      const int64_t bytes = bytes_of(node.outputs[i]);
      bool shared = false;
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        if (node.inputs[k] == kNone || !launch.inputs[k]) continue;
        const auto* const from = static_cast<const std::byte*>(launch.inputs[k]);
        shared = shared || (from < begin + bytes && begin < from + bytes_of(node.inputs[k]));
      }
      if (shared || bytes == 0) continue;
      device_.upload(begin, std::vector<std::byte>(size_t(bytes)).data(), bytes);
    }
  }

  Device& device_;
  const Replica& learner_;
  std::map<std::pair<const Graph*, ValueId>, ValueRange> known_;
  NotFinite found_;
};

}  // namespace

std::optional<NotFinite> first_not_finite(const Binding& binding, int64_t tick) {
  const Plan& plan = binding.plan();
  const std::vector<Replica>& learners = plan.handles.loops.front().replicas;
  std::vector<Search> searches;
  size_t parts = 0;
  for (const Replica& learner : learners) {
    searches.emplace_back(binding, learner);
    parts = std::max(parts, learner.step.size());
  }
  // Part by part: what learners share is made of the parts before of all of them.
  for (size_t part = 0; part < parts; ++part) {
    for (size_t j = 0; j < learners.size(); ++j) {
      if (part >= learners[j].step.size()) continue;
      const BoundTask& task = binding.tasks()[learners[j].step[part]];
      if (task.variants.empty()) continue;
      for (const BoundLaunch& launch : task.variants[task.variant_of(tick)].launches) {
        const Graph& graph = plan.graphs[size_t(plan.launches[size_t(launch.launch)].program)];
        if (!searches[j].run(graph, launch)) continue;
        NotFinite found = searches[j].found();
        found.part = int64_t(part);
        return found;
      }
    }
  }
  return std::nullopt;
}

std::string to_string(const NotFinite& found) {
  std::string text =
      fmt::format("node '{}' ({}) of learner {} on {} ", found.node, found.op, found.learner, found.device);
  if (!found.made) return text + "reads " + range_text(found.value);
  text += "makes " + range_text(found.value);
  for (const ValueRange& input : found.inputs) text += "\n  of " + range_text(input);
  return text;
}

}  // namespace arbalest
