// SPDX-License-Identifier: Apache-2.0

// Dropouts that exporters spell out. A comparison of uniform numbers with a constant, Bernoulli, and Floor of numbers
// that are moved up are events: each element comes out one way or the other. What is computed of a tensor and an event
// elementwise is followed for both ways as slope · x + offset. It is a dropout if it is 0 one way, and the other way x
// over the probability of that way. The order in which exporters compare, cast, scale and multiply does not matter.
//
// Numbers that are drawn are taken out only if all that reads them ends in dropouts by one event. Dropouts of several
// tensors multiply them by the same noise. Otherwise the arithmetic stays, which has the same elements dropped.

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "graph/constants.h"
#include "graph/samples/exported_batch.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

// Two numbers: one if the event is false, one if it is true.
struct Ways {
  double number[2] = {0, 0};
  double operator[](int way) const { return number[way]; }
  double& operator[](int way) { return number[way]; }
};

// Each element is slope · base + offset.
struct Form {
  ValueId base = kNone;    // kNone: no tensor, the slopes are 0
  NodeId event = kNone;    // kNone: none, the two ways are the same
  double probability = 0;  // of the event's second way
  NodeId draw = kNone;     // what the event, or the base, is drawn by
  Shape drawn = {};        // elements of this shape, broadcast to the value's, come out independently
  Ways slope = {}, offset = {};

  bool is_number() const { return base == kNone; }
  bool is_constant() const { return is_number() && event == kNone; }
};

Form of_value(ValueId value) {
  return {.base = value, .slope = {{1, 1}}};
}
Form of_number(double number) {
  return {.offset = {{number, number}}};
}

// The result of `combine(slope, offset, way)` for both ways, of two forms that have no two bases or events.
template <typename F>
std::optional<Form> combined(const Form& a, const Form& b, const F& combine) {
  if (!a.is_number() && !b.is_number() && a.base != b.base) return std::nullopt;
  if (a.event != kNone && b.event != kNone && (a.event != b.event || a.drawn != b.drawn)) return std::nullopt;
  Form form = a.is_constant() || (!b.is_constant() && a.event == kNone) ? b : a;
  form.base = a.is_number() ? b.base : a.base;
  for (const int way : {0, 1}) combine(form.slope[way], form.offset[way], way);
  return form;
}

std::optional<Form> sum(const Form& a, const Form& b, double sign) {
  return combined(a, b, [&](double& slope, double& offset, int way) {
    slope = a.slope[way] + sign * b.slope[way];
    offset = a.offset[way] + sign * b.offset[way];
  });
}

std::optional<Form> product(const Form& a, const Form& b, bool divides) {
  if (!b.is_number()) return a.is_number() && !divides ? product(b, a, false) : std::nullopt;
  if (divides && (b.offset[0] == 0 || b.offset[1] == 0)) return std::nullopt;
  return combined(a, b, [&](double& slope, double& offset, int way) {
    const double factor = divides ? 1 / b.offset[way] : b.offset[way];
    slope = a.slope[way] * factor;
    offset = a.offset[way] * factor;
  });
}

// `a` where the condition is true, else `b`.
std::optional<Form> choice(const Form& condition, const Form& a, const Form& b) {
  const std::optional<Form> any = combined(a, b, [](double&, double&, int) {});
  if (!any || !condition.is_number()) return std::nullopt;
  return combined(condition, *any, [&](double& slope, double& offset, int way) {
    const Form& taken = condition.offset[way] != 0 ? a : b;
    slope = taken.slope[way];
    offset = taken.offset[way];
  });
}

double clamped(double probability) {
  return std::clamp(probability, 0.0, 1.0);
}

class Dropouts {
 public:
  explicit Dropouts(Graph& graph) : graph_(graph), rewriter_(graph), forms_(graph.values.size()) {}

  void run() {
    if (std::none_of(graph_.nodes.begin(), graph_.nodes.end(), draws)) return;
    find_batch_axes();
    std::vector<NodeId> all;
    for (const NodeId n : rewriter_.ids()) {
      const Node& node = rewriter_.node(n);
      if (node.outputs.size() != 1 || node.output() == kNone) continue;
      const ValueId y = node.output();
      if (draws(node)) all.push_back(n);
      if (draws(node) && !node.is(op::Bernoulli)) {
        forms_[y] = of_value(y);
        forms_[y]->draw = n;
        forms_[y]->drawn = rewriter_.shape(y);
      } else if (draws(node) || follows(node)) {
        forms_[y] = form_of(n, false);
        if (!forms_[y]) forms_[y] = form_of(n, true);
      }
    }
    for (const NodeId draw : all) take_out(draw);
    rewriter_.finish();
    for (NodeId n = 0; changed_ && n < graph_.nodes.end_id(); ++n) infer(graph_, n);  // layouts
  }

 private:
  static bool draws(const Node& node) {
    constexpr std::string_view kDraw[] = {op::RandomUniformLike, op::RandomUniform, op::Bernoulli};
    return node.op->domain.empty() && std::find(std::begin(kDraw), std::end(kDraw), node.op->name) != std::end(kDraw);
  }

  const Form* form(ValueId value) const {
    return value != kNone && forms_.contains(value) && forms_[value] ? &*forms_[value] : nullptr;
  }
  bool follows(const Node& node) const {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId value) { return form(value) != nullptr; });
  }

  // The number that all elements of a value are.
  std::optional<double> number(ValueId value) const {
    if (content_of(graph_, value)) return number_of(graph_, value);
    const NodeId producer = rewriter_.value(value).producer;
    constexpr std::string_view kSame[] = {op::Expand, op::Cast, op::CastLike, op::Identity};
    if (std::none_of(std::begin(kSame), std::end(kSame),
                     [&](std::string_view op) { return rewriter_.is(producer, op); }))
      return std::nullopt;
    return number(rewriter_.input(producer));
  }

  // `anew`: a tensor that has been dropped from is one like any other.
  Form operand(ValueId value, bool anew) const {
    const Form* known = form(value);
    if (known && !(anew && !known->is_number() && known->event != kNone)) return *known;
    const std::optional<double> same = known ? std::nullopt : number(value);
    return same ? of_number(*same) : of_value(value);
  }

  // The form of the node's result; none if it is a tensor like any other.
  std::optional<Form> form_of(NodeId id, bool anew) const {
    const Node& node = rewriter_.node(id);
    if (!node.op->domain.empty() || std::count(node.inputs.begin(), node.inputs.end(), kNone) > 0) return std::nullopt;
    const Form a = operand(node.input(), anew);
    if (node.is(op::Cast) || node.is(op::CastLike)) return cast(id, a);
    if (rewriter_.reshapes(id)) return reshaped(id, a);
    if (node.inputs.size() == 1) return of_one(id, a);
    const Form b = operand(node.input(BinaryInput::B), anew);
    if (node.inputs.size() == 3 && node.is(op::Where)) return choice(a, b, operand(node.input(WhereInput::Y), anew));
    if (node.inputs.size() != 2) return std::nullopt;
    if (node.is(op::Less) || node.is(op::LessOrEqual)) return below_zero(id, sum(a, b, -1));
    if (node.is(op::Greater) || node.is(op::GreaterOrEqual)) return below_zero(id, sum(b, a, -1));
    if (!makes_floats(id)) return std::nullopt;
    if (node.is(op::Add) || node.is(op::Sum)) return sum(a, b, 1);
    if (node.is(op::Sub)) return sum(a, b, -1);
    if (node.is(op::Mul) || node.is(op::Div)) return product(a, b, node.is(op::Div));
    return std::nullopt;
  }

  // Integers are divided, and overflow, in ways that no form tells.
  bool makes_floats(NodeId id) const { return is_floating(rewriter_.value(rewriter_.output(id)).type.dtype); }

  std::optional<Form> of_one(NodeId id, const Form& x) const {
    const Node& node = rewriter_.node(id);
    if (node.is(op::Identity)) return x;
    if (node.is(op::Not)) return sum(of_number(1), x, -1);
    if (node.is(op::Neg) && makes_floats(id)) return sum(of_number(0), x, -1);
    if (node.is(op::Floor)) return floor(id, x);
    if (!node.is(op::Bernoulli) || !x.is_constant()) return std::nullopt;
    return event(id, id, rewriter_.shape(rewriter_.input(id)), x.offset[0]);
  }

  // 0 or 1, with this probability of 1.
  static Form event(NodeId id, NodeId draw, const Shape& drawn, double probability) {
    return {.event = id, .probability = clamped(probability), .draw = draw, .drawn = drawn, .offset = {{0, 1}}};
  }

  // Whether each element is a number that is drawn, scaled and moved.
  bool is_drawn(const Form& form) const {
    return !form.is_number() && form.event == kNone && form.draw != kNone && form.slope[0] != 0;
  }
  // How likely slope · u + offset is below `bound`.
  double probability_below(const Form& form, double bound) const {
    const Node& draw = rewriter_.node(form.draw);
    const double low = float_attribute(draw, "low"), high = float_attribute(draw, "high");
    const double below = clamped(((bound - form.offset[0]) / form.slope[0] - low) / (high - low));
    return form.slope[0] > 0 ? below : 1 - below;
  }

  std::optional<Form> below_zero(NodeId id, const std::optional<Form>& difference) const {
    if (!difference || !is_drawn(*difference)) return std::nullopt;
    return event(id, difference->draw, difference->drawn, probability_below(*difference, 0));
  }

  // Takes numbers from 0 to below 2 alone: others have more than two results.
  std::optional<Form> floor(NodeId id, const Form& x) const {
    if (!is_drawn(x) || probability_below(x, 0) > 0 || probability_below(x, 2) < 1) return std::nullopt;
    return event(id, x.draw, x.drawn, 1 - probability_below(x, 1));
  }

  // Zeros and ones are the same in every type; other numbers are in floating ones.
  std::optional<Form> cast(NodeId id, const Form& x) const {
    const DataType from = rewriter_.value(rewriter_.input(id)).type.dtype;
    const DataType to = rewriter_.value(rewriter_.output(id)).type.dtype;
    const auto is_whole = [&](int way) { return x.offset[way] == 0 || x.offset[way] == 1; };
    const bool same = from == to || (is_floating(from) && is_floating(to));
    if (same || (x.is_number() && (is_floating(to) || (is_whole(0) && is_whole(1))))) return x;
    return std::nullopt;
  }

  // Numbers that are drawn stay as independent in another shape.
  std::optional<Form> reshaped(NodeId id, Form x) const {
    if (!x.is_number() && !is_drawn(x)) return std::nullopt;
    if (x.drawn != rewriter_.shape(rewriter_.input(id))) return std::nullopt;
    x.drawn = rewriter_.shape(rewriter_.output(id));
    if (!x.is_number()) x.base = rewriter_.output(id);  // its elements are not paired with those of the former
    return x;
  }

  // The way that keeps the elements of a dropout, and how likely it is.
  static int kept_way(const Form& form) { return form.slope[0] == 0 ? 1 : 0; }
  static double kept_share(const Form& form) { return kept_way(form) == 1 ? form.probability : 1 - form.probability; }

  // Whether the node makes a dropout, by an event of these numbers.
  bool is_dropout(NodeId id, NodeId draw) {
    const ValueId y = rewriter_.output(id);
    const Form* of = form(y);
    if (!of || of->draw != draw || of->is_number() || of->event == kNone || !makes_floats(id)) return false;
    const Form* base = form(of->base);
    if (base && (base->draw == draw || is_drawn(*base))) return false;
    const double share = kept_share(*of);
    const bool drops = of->offset[0] == 0 && of->offset[1] == 0 && of->slope[1 - kept_way(*of)] == 0;
    if (!drops || !(share > 0) || !(float(1 - share) < 1)) return false;
    return is_alike(of->base, y) && shares_of(id) && dropped_from(id, false) != kNone;
  }

  // Whether two nodes compute the same of one tensor and one event.
  bool is_same(NodeId one, NodeId other) {
    const Form &a = *forms_[rewriter_.output(one)], &b = *forms_[rewriter_.output(other)];
    const auto close = [](const Ways& x, const Ways& y) { return is_close(x[0], y[0]) && is_close(x[1], y[1]); };
    return a.event == b.event && a.base == b.base && close(a.slope, b.slope) && close(a.offset, b.offset);
  }

  // The nodes that make dropouts by these numbers, in order, if nothing else depends on them; otherwise none. What is a
  // dropout already is one after zeros have been added, as tf2onnx does where it spells out a choice.
  std::set<NodeId> dropouts_of(NodeId draw) {
    std::vector<NodeId> whole;
    for (const NodeId n : rewriter_.ids()) {
      if (rewriter_.node(n).outputs.size() == 1 && is_dropout(n, draw)) whole.push_back(n);
    }
    const auto drops = [&](NodeId n) {
      return std::any_of(whole.begin(), whole.end(), [&](NodeId each) { return each == n || is_same(each, n); });
    };
    std::set<NodeId> found;
    std::vector<ValueId> follow = {rewriter_.output(draw)};
    for (size_t i = 0; i < follow.size(); ++i) {
      if (rewriter_.readers(follow[i]).empty()) return {};  // it may be asked for by its name
      for (const NodeId reader : rewriter_.readers(follow[i])) {
        if (reader == kNone) return {};
        if (rewriter_.is(reader, op::CastLike) && rewriter_.input(reader) != follow[i]) continue;  // reads the type
        const ValueId made = rewriter_.output(reader);
        if (made != kNone && rewriter_.value(made).content) continue;  // such as the shape
        const Form* of = form(made);
        if (!of || of->draw != draw) return {};
        if (drops(reader)) {
          found.insert(reader);
          continue;
        }
        if (std::find(follow.begin(), follow.end(), made) == follow.end()) follow.push_back(made);
      }
    }
    return found;
  }

  // Replaces what is computed by these numbers if they are drawn for dropouts alone.
  void take_out(NodeId draw) {
    const std::set<NodeId> found = dropouts_of(draw);
    if (found.empty()) return;
    const NodeId first = *found.begin();
    const Form& of = *forms_[rewriter_.output(first)];
    if (dropped_from(first, false) == kNone) return;
    bool same = true, moved = false;
    for (const NodeId id : found) {
      const ValueId y = rewriter_.output(id);
      const Form& other = *forms_[y];
      const bool agrees =
          other.event == of.event && kept_way(other) == kept_way(of) && shares_of(id) == shares_of(first);
      if (!agrees || rewriter_.value(y).type.dtype != rewriter_.value(rewriter_.output(first)).type.dtype) return;
      const ValueId from = dropped_from(id, false);
      same &= is_same(first, id);
      moved |= from == kNone || (from == other.base && !is_close(factor_of(other), 1));
    }
    if (same) {
      const Shape shares = *shares_of(first);
      drop(first, dropped_from(first, true), shares, 1 - kept_share(of), draw);
      for (const NodeId id : found) {
        if (id != first) drop_nothing(id, rewriter_.output(first));
      }
    } else if (!moved) {
      drop_alike(found, draw);
    } else {
      return;
    }
    changed_ = true;
  }

  // A dropout is the tensor times this, dropped and scaled as Dropout does.
  static double factor_of(const Form& form) { return form.slope[kept_way(form)] * kept_share(form); }

  // Dropout takes this tensor for the dropout that the node makes; kNone if there is none. `moves`: as in unscaled().
  ValueId dropped_from(NodeId id, bool moves) {
    const Form& of = *forms_[rewriter_.output(id)];
    return unscaled(id, of.base, factor_of(of), moves);
  }

  // The axes along which the values of a model have the samples that it is called with, if it was exported for one.
  // They are those that have as many elements as the model's operand, in batches of another size as well.
  void find_batch_axes() {
    const auto of_one = [](const Node& node) { return exported_batch(node.where.file) == 1; };
    if (std::none_of(graph_.nodes.begin(), graph_.nodes.end(), of_one)) return;
    Graph other = graph_;
    const auto enlarge = [&](ValueId value) {
      if (value != kNone && !other.values[value].type.shape.empty()) other.values[value].type.shape[0] *= 2;
    };
    for (const ValueId input : graph_.inputs) enlarge(input);
    for (const NodeId n : graph_.nodes.ids()) {
      if (rewriter_.is(n, op::Prefetch)) {
        for (const ValueId output : rewriter_.node(n).outputs) enlarge(output);
        continue;
      }
      try {
        infer(other, n);
      } catch (const GraphError&) {  // it takes no other batch
        break;
      }
    }
    batch_axis_.resize(graph_.values.size());
    for (const NodeId n : graph_.nodes.ids()) {
      const Node& node = rewriter_.node(n);
      if (!of_one(node)) continue;
      for (const ValueId y : node.outputs) {
        if (y != kNone) batch_axis_[y] = batch_axis(y, samples_of(node.where.file, other), other);
      }
    }
  }

  // As many as an operand of the file's models has, here and in `other`; none if no operand has other ones there.
  std::optional<std::pair<int64_t, int64_t>> samples_of(const std::string& file, const Graph& other) const {
    for (const NodeId n : graph_.nodes.ids()) {
      if (rewriter_.node(n).where.file != file) continue;
      for (const ValueId operand : rewriter_.node(n).inputs) {
        if (operand == kNone || rewriter_.shape(operand).empty()) continue;
        const NodeId producer = rewriter_.value(operand).producer;
        if (producer != kNone && rewriter_.node(producer).where.file == file) continue;
        const int64_t here = rewriter_.shape(operand)[0], there = other.values[operand].type.shape[0];
        if (here != there) return std::pair(here, there);
      }
    }
    return std::nullopt;
  }

  std::optional<size_t> batch_axis(ValueId y, std::optional<std::pair<int64_t, int64_t>> samples,
                                   const Graph& other) const {
    const Shape &here = rewriter_.shape(y), &there = other.values[y].type.shape;
    if (!samples || here.size() != there.size()) return std::nullopt;
    for (size_t axis = 0; axis < here.size(); ++axis) {
      if (here[axis] == samples->first && there[axis] == samples->second) return axis;
    }
    return std::nullopt;
  }

  // The extents of what is dropped as one: 1 along an axis whose elements share their fate.
  std::optional<Shape> shares_of(NodeId id) const {
    const ValueId made = rewriter_.output(id);
    const Shape &y = rewriter_.shape(made), &drawn = forms_[made]->drawn;
    if (drawn.size() > y.size()) return std::nullopt;
    Shape shares(y.size() - drawn.size(), 1);
    shares.insert(shares.end(), drawn.begin(), drawn.end());
    // A file for batches of 1 has numbers for the one sample.
    if (batch_axis_.contains(made) && batch_axis_[made]) {
      int64_t& samples = shares[*batch_axis_[made]];
      if (samples == 1) samples = y[*batch_axis_[made]];
    }
    for (size_t axis = 0; axis < y.size(); ++axis) {
      if (shares[axis] != 1 && shares[axis] != y[axis]) return std::nullopt;
    }
    return shares;
  }

  // The attributes of a Dropout by these numbers; none if it drops nothing.
  std::optional<Attributes> dropping(double ratio, NodeId draw) const {
    const Node& by = rewriter_.node(draw);
    if (ratio == 0 || int_attribute(by, "training_mode") == 0) return std::nullopt;
    const float seed = float(float_attribute(by, "seed"));
    return Attributes{{"ratio", ratio}, {"seed", int64_t(seed == 0 ? 0 : std::bit_cast<uint32_t>(seed))}};
  }

  void drop(NodeId id, ValueId x, const Shape& shares, double ratio, NodeId draw) {
    std::optional<Attributes> attributes = dropping(ratio, draw);
    if (!attributes) return drop_nothing(id, x);
    const ValueId y = rewriter_.output(id);
    const Shape& shape = rewriter_.shape(x);
    const bool samples = std::all_of(shares.begin() + !shares.empty(), shares.end(), [](int64_t n) { return n == 1; });
    if (shares != shape && samples && shares[0] == shape[0])
      return rewriter_.become(id, op::StochasticDepth, {x}, {y}, std::move(*attributes));
    attributes->set("training_mode", int64_t{1});
    if (shares == shape) return rewriter_.become(id, op::Dropout, {x}, {y}, std::move(*attributes));
    const ValueId noise =
        rewriter_.add_before(id, op::Dropout, name_of(id, "noise"), {ones(id, x, shares)}, *attributes);
    rewriter_.become(id, op::Mul, {x, noise}, {y}, {});
  }

  // Several tensors that are dropped from alike are multiplied by one noise.
  void drop_alike(const std::set<NodeId>& found, NodeId draw) {
    const NodeId first = *found.begin();
    std::optional<Attributes> attributes = dropping(1 - kept_share(*forms_[rewriter_.output(first)]), draw);
    ValueId noise = kNone;
    if (attributes) {
      attributes->set("training_mode", int64_t{1});
      const ValueId like = ones(first, dropped_from(first, false), *shares_of(first));
      noise = rewriter_.add_before(first, op::Dropout, name_of(first, "noise"), {like}, *attributes);
    }
    for (const NodeId id : found) {
      const ValueId x = dropped_from(id, false);
      if (noise == kNone) {
        drop_nothing(id, x);
      } else {
        rewriter_.become(id, op::Mul, {x, noise}, {rewriter_.output(id)}, {});
      }
    }
  }

  void drop_nothing(NodeId id, ValueId x) { rewriter_.become(id, op::Identity, {x}, {rewriter_.output(id)}, {}); }

  std::string name_of(NodeId id, const char* label) const { return rewriter_.node(id).name + "." + label; }

  // Ones of the extents `shares`, those that are not 1 being the extents that x has in the loop.
  ValueId ones(NodeId id, ValueId x, const Shape& shares) {
    std::vector<uint8_t> is_own;
    for (const int64_t extent : shares) is_own.push_back(extent != 1);
    const int64_t rank = int64_t(shares.size());
    const ValueId own = constant(name_of(id, "own"), {DataType::Bool, {rank}}, data_of(is_own));
    const ValueId one = constant(name_of(id, "one"), {DataType::Int64, {}}, data_of(std::vector<int64_t>{1}));
    const ValueId shape = rewriter_.add_before(id, op::Shape, name_of(id, "shape"), {x});
    const ValueId extents = rewriter_.add_before(id, op::Where, name_of(id, "extents"), {own, shape, one});
    const DataType type = rewriter_.value(x).type.dtype;
    const bool wide = type == DataType::Float64;
    const Initializer number = wide ? data_of(std::vector<double>{1}) : data_of(std::vector<float>{1});
    return rewriter_.add_before(id, op::Expand, name_of(id, "ones"),
                                {constant(name_of(id, "kept"), {type, {}}, number), extents});
  }

  ValueId constant(std::string name, const TensorType& type, Initializer content) {
    const ValueId id = graph_.add_value(std::move(name), type, Role::Constant);
    graph_.values[id].initializer = std::move(content);
    return id;
  }

  bool is_alike(ValueId a, ValueId b) const {
    return rewriter_.shape(a) == rewriter_.shape(b) && rewriter_.value(a).type.dtype == rewriter_.value(b).type.dtype;
  }
  static bool is_close(double a, double b) { return std::abs(a - b) <= 1e-4 * std::abs(b); }

  // The tensor that is `factor` times `x`, which `reader` reads: x itself, or what x is scaled from. If x was moved
  // since it was scaled, it is x again, which is moved without the scale from then on if `moves`.
  ValueId unscaled(NodeId reader, ValueId x, double factor, bool moves) {
    if (is_close(factor, 1)) return x;
    const NodeId producer = rewriter_.value(x).producer;
    if (rewriter_.is(producer, op::Transpose) || rewriter_.reshapes(producer)) {
      const ValueId moved = rewriter_.input(producer);
      const bool alone = rewriter_.only_reader(x) == reader && rewriter_.only_reader(moved) == producer;
      const ValueId from = alone ? unscaled(producer, moved, factor, moves) : kNone;
      if (from == kNone) return kNone;
      if (moves) rewriter_.set_input(producer, from);
      return x;
    }
    const bool divides = rewriter_.is(producer, op::Div);
    if (!divides && !rewriter_.is(producer, op::Mul)) return kNone;
    for (const auto& [from, other] : both_orders(rewriter_.node(producer))) {
      const std::optional<double> by = number(other);
      if (by && is_alike(from, x) && is_close(divides ? factor / *by : factor * *by, 1)) return from;
      if (divides) break;
    }
    return kNone;
  }

  Graph& graph_;
  Rewriter rewriter_;
  Table<ValueId, std::optional<Form>> forms_;         // of values that follow from draws
  Table<ValueId, std::optional<size_t>> batch_axis_;  // of models that were exported for one sample
  bool changed_ = false;
};

}  // namespace

void find_dropouts(Graph& graph) {
  Dropouts(graph).run();
}

}  // namespace arbalest
