// SPDX-License-Identifier: Apache-2.0
#include "graph/samples/sample_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/random.h"
#include "graph/constants.h"
#include "graph/op.h"
#include "graph/verify/host_node.h"

namespace arbalest {
namespace {

using Bytes = std::vector<std::byte>;
using Kind = SampleOrder::Kind;

constexpr int kAttempts = 3;  // with other numbers, while more than one order is possible

// SplitMix64 (Steele et al., 2014).
uint64_t scrambled(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Whether the content is used as it is. Weights are drawn instead: a weight of 0 now need not stay 0.
bool is_given(const Graph& graph, ValueId value) {
  return graph.values[value].role != Role::Parameter && content_of(graph, value);
}

// Random numbers for one operand: of a batch, or of weights, which are positive, as variances have to be.
struct Draw {
  uint64_t key = 0;
  bool wide = false;      // of very different sizes, for what small numbers do not change
  bool positive = false;  // 0.5 to 1.5

  template <typename T>
  T number(uint64_t element, bool changed) const {
    if constexpr (std::is_integral_v<T>) return T((scrambled(key + element) & 1) ^ uint64_t(changed));
    const uint64_t drawn = scrambled((changed ? ~key : key) + element);
    const float unit = float(drawn >> 40) * 0x1p-24f;
    if (positive) return T(0.5f + unit);
    if (!wide) return T(2 * unit - 1);
    return T((drawn & 1 ? 1.0f : -1.0f) * std::exp2(20 * unit - 10));
  }
};

// Whether f(first, past) holds for all elements of one sample, stretch by stretch, or of all others; ends where it does
// not.
template <typename F>
bool all_stretches(int64_t count, int64_t stride, int64_t samples, int64_t sample, bool others, const F& f) {
  for (int64_t first = 0, of = 0; first < count; first += stride, of = of + 1 == samples ? 0 : of + 1) {
    if ((of == sample) != others && !f(first, first + stride)) return false;
  }
  return true;
}

template <typename T>
void fill(const Draw& draw, Bytes& bytes, int64_t first, int64_t past, bool changed) {
  for (int64_t e = first; e < past; ++e) {
    const T number = draw.number<T>(uint64_t(e), changed);
    std::memcpy(bytes.data() + size_t(e) * sizeof(T), &number, sizeof(T));
  }
}

// Writes elements first … past − 1.
void fill(DataType type, const Draw& draw, Bytes& bytes, int64_t first, int64_t past, bool changed) {
  switch (type) {
    case DataType::Float32: return fill<float>(draw, bytes, first, past, changed);
    case DataType::Float64: return fill<double>(draw, bytes, first, past, changed);
    case DataType::Bfloat16: return fill<bfloat16>(draw, bytes, first, past, changed);
    case DataType::Int32: return fill<int32_t>(draw, bytes, first, past, changed);
    case DataType::Int64: return fill<int64_t>(draw, bytes, first, past, changed);
    case DataType::Bool:
    case DataType::Uint8: return fill<uint8_t>(draw, bytes, first, past, changed);
    case DataType::String:
    case DataType::Token: return;
  }
}

// Which orders an output may have, after what has been seen of it.
class Candidates {
 public:
  Candidates(const TensorType& type, int64_t samples) : type_(type), samples_(samples) {
    const int64_t each = type.elements() % samples == 0 ? type.elements() / samples : 0;
    for (int64_t i = 1; i <= each / i; ++i) {
      if (each % i != 0) continue;
      strides_.push_back(each / i);
      if (i != each / i) strides_.push_back(i);
    }
    std::sort(strides_.rbegin(), strides_.rend());
  }

  // The two contents differ by what became of one sample.
  void narrow(const Bytes& before, const Bytes& after, int64_t sample) {
    const size_t size = size_of(type_.dtype);
    const auto equal = [&](int64_t first, int64_t past) {
      const size_t at = size_t(first) * size;
      return std::memcmp(before.data() + at, after.data() + at, size_t(past - first) * size) == 0;
    };
    if (equal(0, type_.elements())) return;
    seen_ = true;
    std::erase_if(strides_, [&](int64_t stride) {
      return !all_stretches(type_.elements(), stride, samples_, sample, true, equal);
    });
  }

  bool decided() const { return type_.dtype == DataType::Token || (seen_ && strides_.size() <= 1); }
  SampleOrder order(NodeId node) const {
    if (!seen_) return {};
    return strides_.empty() ? SampleOrder{Kind::Mixed, 0, node} : SampleOrder{Kind::Apart, strides_.front(), kNone};
  }

 private:
  TensorType type_;
  int64_t samples_;
  bool seen_ = false;
  std::vector<int64_t> strides_;  // the largest first
};

// One node's runs.
class Runs {
 public:
  Runs(const Graph& graph, const HostNode& host, const Table<ValueId, SampleOrder>& values, int64_t samples)
      : graph_(graph), host_(host), values_(values), samples_(samples) {
    for (const ValueId output : host.node().outputs) {
      candidates_.emplace_back(output == kNone ? TensorType{DataType::Token, {}} : graph.values[output].type, samples);
    }
  }

  std::vector<SampleOrder> orders(NodeId node) {
    for (int attempt = 0; attempt < kAttempts && !decided(); ++attempt) {
      draw(attempt);
      const std::vector<std::shared_ptr<Bytes>> before = run();
      for (const int64_t sample : {int64_t{0}, samples_ - 1}) {
        const auto kept = contents_;
        change(attempt, sample);
        const std::vector<std::shared_ptr<Bytes>> after = run();
        for (size_t i = 0; i < after.size(); ++i) {
          if (after[i]) candidates_[i].narrow(*before[i], *after[i], sample);
        }
        contents_ = kept;
      }
    }
    std::vector<SampleOrder> orders;
    for (const Candidates& each : candidates_) orders.push_back(each.order(node));
    return orders;
  }

 private:
  bool decided() const {
    return std::all_of(candidates_.begin(), candidates_.end(), [](const Candidates& each) { return each.decided(); });
  }
  const Value& value(ValueId id) const { return graph_.values[id]; }
  Draw numbers(ValueId input, int attempt) const {
    const bool weights =
        value(input).role == Role::Parameter || value(input).role == Role::State || value(input).role == Role::Frozen;
    return {scrambled(uint64_t(input) * kAttempts + uint64_t(attempt)), attempt % 2 == 1, weights};
  }

  void draw(int attempt) {
    for (const ValueId input : host_.node().inputs) {
      if (input == kNone || is_given(graph_, input)) continue;
      auto bytes = std::make_shared<Bytes>(size_t(value(input).type.bytes()));
      fill(value(input).type.dtype, numbers(input, attempt), *bytes, 0, value(input).type.elements(), false);
      contents_[input] = std::move(bytes);
    }
  }

  void change(int attempt, int64_t sample) {
    for (auto& [input, bytes] : contents_) {
      const SampleOrder& order = values_[input];
      if (order.kind != Kind::Apart) continue;
      auto changed = std::make_shared<Bytes>(*bytes);
      const TensorType& type = value(input).type;
      const Draw draw = numbers(input, attempt);
      all_stretches(type.elements(), order.stride, samples_, sample, false, [&](int64_t first, int64_t past) {
        fill(type.dtype, draw, *changed, first, past, true);
        return true;
      });
      bytes = std::move(changed);
    }
  }

  std::vector<std::shared_ptr<Bytes>> run() const {
    return host_.run([&](ValueId input) -> std::shared_ptr<const Bytes> {
      const auto drawn = contents_.find(input);
      return drawn == contents_.end() ? content_of(graph_, input) : drawn->second;
    });
  }

  const Graph& graph_;
  const HostNode& host_;
  const Table<ValueId, SampleOrder>& values_;
  const int64_t samples_;
  std::unordered_map<ValueId, std::shared_ptr<Bytes>> contents_;  // of operands whose numbers are drawn
  std::vector<Candidates> candidates_;                            // one an output
};

// A node that is too large to be run here a few times before a run begins: 64 MiB of operands and results.
bool is_large(const Graph& graph, const Node& node) {
  constexpr int64_t kMost = int64_t{64} << 20;
  int64_t bytes = 0;
  for (const std::vector<ValueId>* values : {&node.inputs, &node.outputs}) {
    for (const ValueId value : *values) bytes += value == kNone ? 0 : graph.values[value].type.bytes();
  }
  return bytes > kMost;
}

// The order to assume if nothing can be run: samples are rows of the output, or it is not known that they are apart.
SampleOrder by_rows(const TensorType& type, int64_t samples, NodeId node) {
  const bool rows = !type.shape.empty() && type.shape[0] % samples == 0 && type.elements() > 0;
  return rows ? SampleOrder{Kind::Apart, type.elements() / samples, kNone} : SampleOrder{Kind::Mixed, 0, node};
}

}  // namespace

std::vector<SampleOrder> SampleProbe::outputs(NodeId id, const Table<ValueId, SampleOrder>& values) {
  const Node& node = graph_.nodes[id];
  std::vector<SampleOrder> orders(node.outputs.size());
  bool apart = false;
  for (const ValueId input : node.inputs) {
    if (input == kNone) continue;
    const SampleOrder& order = values[input];
    if (order.kind == Kind::Mixed) return std::vector<SampleOrder>(node.outputs.size(), order);
    apart = apart || order.kind == Kind::Apart;
  }
  const bool known = std::all_of(node.outputs.begin(), node.outputs.end(),
                                 [&](ValueId output) { return output == kNone || graph_.values[output].content; });
  if (!apart || known) return orders;
  const auto [entry, fresh] = known_.try_emplace(key(node, values));
  if (fresh) {
    try {
      const HostNode host(graph_, node);
      if (host.has_kernel() && !is_large(graph_, node)) entry->second = Runs(graph_, host, values, samples_).orders(id);
    } catch (const RunError&) {  // random numbers are no content for it
    }
    for (size_t i = 0; i < orders.size() && entry->second.size() < orders.size(); ++i) {
      const ValueId output = node.outputs[i];
      if (output != kNone) orders[i] = by_rows(graph_.values[output].type, samples_, id);
    }
    if (entry->second.size() < orders.size()) entry->second = orders;
  }
  orders = entry->second;
  for (SampleOrder& order : orders) {
    if (order.kind == Kind::Mixed) order.origin = id;
  }
  return orders;
}

// All that a run depends on; numbers of weights are drawn.
std::string SampleProbe::key(const Node& node, const Table<ValueId, SampleOrder>& values) const {
  std::string text = node.op->qualified_name();
  for (const NamedAttribute& attribute : node.attributes)
    text += fmt::format(" {}={}", attribute.name, to_string(attribute.value));
  for (const ValueId input : node.inputs) {
    if (input == kNone) {
      text += " ,";
      continue;
    }
    const Value& value = graph_.values[input];
    text += fmt::format(" {} {} {}", to_string(value.type), int(value.role), values[input].stride);
    if (!is_given(graph_, input)) continue;
    const auto content = content_of(graph_, input);
    text += fmt::format(" {:x}", hash_name({reinterpret_cast<const char*>(content->data()), content->size()}));
  }
  text += fmt::format(" {}", node.outputs.size());
  return text;
}

}  // namespace arbalest
