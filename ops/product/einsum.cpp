// SPDX-License-Identifier: Apache-2.0

// Einsum, ONNX's: sums of products over axes that letters name. It becomes matrix products, by transpositions that
// bring the axes in order.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "ops/definition.h"

namespace arbalest {
namespace {

using Axes = std::vector<int>;  // an axis each: its letter, or, of the axes that "..." stands for, kFirstOther and on

constexpr int kFirstOther = 256;

bool has(const Axes& axes, int axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// "bij,bjk->bik" for the ranks of the operands. Throws GraphError at the node.
class Equation {
 public:
  std::vector<Axes> operands;
  Axes result;

  Equation(const Node& node, const std::vector<size_t>& ranks) : node_(node) {
    std::string text = string_attribute(node, "equation");
    std::erase(text, ' ');
    text_ = text;
    const size_t arrow = text.find("->");
    const std::vector<std::string> terms = split(text.substr(0, arrow));
    if (terms.size() != ranks.size()) {
      refuse(fmt::format("has {} operands, and there are {} inputs", terms.size(), ranks.size()));
    }
    for (size_t i = 0; i < terms.size(); ++i) operands.push_back(operand(terms[i], i, ranks[i]));
    result = arrow == text.npos ? implied() : stated(text.substr(arrow + 2));
  }

  [[noreturn]] void refuse(const std::string& why) const {
    fail(node_, fmt::format("attribute 'equation', \"{}\", {}", text_, why));
  }

 private:
  static std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> terms(1);
    for (const char each : text) each == ',' ? (void)terms.emplace_back() : terms.back().push_back(each);
    return terms;
  }

  // Letters of a term, with `others` axes in the place of "...", the last of them the last of all. An operand that
  // names one twice is its diagonal.
  Axes axes(const std::string& term, size_t others, bool repeats) const {
    Axes axes;
    for (size_t at = 0; at < term.size(); ++at) {
      const auto letter = static_cast<unsigned char>(term[at]);
      if (term.compare(at, 3, "...") == 0) {
        for (size_t i = 0; i < others; ++i) axes.push_back(kFirstOther + int(most_others_ - others + i));
        at += 2;
      } else if (!std::isalpha(letter)) {
        refuse(fmt::format("has '{}'; expected letters, commas, '->' and '...'", term[at]));
      } else if (has(axes, letter) && !repeats) {
        refuse(fmt::format("names '{}' twice in its result", term[at]));
      } else {
        axes.push_back(letter);
      }
    }
    return axes;
  }

  Axes operand(const std::string& term, size_t input, size_t rank) {
    const bool open = term.find("...") != term.npos;
    const size_t named = term.size() - (open ? 3 : 0);
    if (rank < named || (rank > named && !open)) {
      refuse(fmt::format("has {} axes for input {}, which has {}", named, input, rank));
    }
    if (open && most_others_ == 0) most_others_ = rank - named;
    if (open && most_others_ != rank - named) refuse("has different numbers of axes for '...'");
    return axes(term, rank - named, true);
  }

  // Axes of a result that is not stated: those of "...", then the letters that occur once, in alphabetical order.
  Axes implied() const {
    std::map<int, int> times;
    for (const Axes& each : operands) {
      for (const int axis : each) ++times[axis];
    }
    Axes others, letters;
    for (const auto& [axis, count] : times) {
      if (axis >= kFirstOther) others.push_back(axis);
      if (axis < kFirstOther && count == 1) letters.push_back(axis);
    }
    others.insert(others.end(), letters.begin(), letters.end());
    return others;
  }

  Axes stated(const std::string& term) const {
    Axes stated = axes(term, term.find("...") != term.npos ? most_others_ : 0, false);
    for (const int axis : stated) {
      if (std::none_of(operands.begin(), operands.end(), [&](const Axes& each) { return has(each, axis); }))
        refuse(fmt::format("has '{}' in its result, and in no operand", char(axis)));
    }
    return stated;
  }

  const Node& node_;
  std::string text_;
  size_t most_others_ = 0;
};

void infer_einsum(InferContext& context) {
  std::vector<size_t> ranks;
  for (size_t i = 0; i < context.input_count(); ++i) ranks.push_back(context.input(i).shape.size());
  const Equation equation(context.node(), ranks);
  const DataType type = context.input(0).dtype;
  if (!is_floating(type)) context.fail(fmt::format("input 0 is {}; expected floats", to_string(context.input(0))));
  std::map<int, int64_t> extents;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const TensorType& input = context.input(i);
    if (input.dtype != type) expect_input(context, i, {type, input.shape}, "the element type of the first input");
    for (size_t axis = 0; axis < ranks[i]; ++axis) {
      const auto [known, added] = extents.emplace(equation.operands[i][axis], input.shape[axis]);
      if (known->second == input.shape[axis]) continue;
      equation.refuse(
          fmt::format("has an axis of {} and of {} elements in one place", known->second, input.shape[axis]));
    }
  }
  Shape shape;
  for (const int axis : equation.result) shape.push_back(extents.at(axis));
  context.set_output(0, {type, shape});
}

// A value and what its axes are called.
struct EinsumOperand {
  ValueId value;
  Axes axes;
};

class Expansion {
 public:
  explicit Expansion(ExpandContext& context) : context_(context) {}

  // Takes the diagonal of axes of one name: the matrix of the two as one row, and every element that is one more than
  // its width from the one before.
  EinsumOperand diagonal(const EinsumOperand& x) {
    const auto twice = std::find_if(x.axes.begin(), x.axes.end(),
                                    [&](int axis) { return std::count(x.axes.begin(), x.axes.end(), axis) > 1; });
    if (twice == x.axes.end()) return x;
    const int64_t first = twice - x.axes.begin();
    const int64_t second = std::find(twice + 1, x.axes.end(), *twice) - x.axes.begin();
    std::vector<int64_t> order;
    Axes left;
    for (int64_t i = 0; i < int64_t(x.axes.size()); ++i) {
      if (i == first || i == second) continue;
      order.push_back(i);
      left.push_back(x.axes[size_t(i)]);
    }
    left.push_back(*twice);
    const size_t last = order.size();
    order.insert(order.end(), {first, second});
    const ValueId square = add("Transpose", "square", {x.value}, {{"perm", order}});
    const ValueId row = reshaped(square, "row", {extents(square, 0, last), product_of(square, last, 2)});
    const ValueId width = extents(square, last, 1), one = context_.constant("one", DataType::Int64, std::vector{1.0});
    const auto list = [](int64_t number) { return std::vector<int64_t>{number}; };
    const ValueId taken =
        add("Slice", "diagonal", {row, kNone, kNone, kNone, add("Add", "step", {width, one}, {})},
            {{"starts", list(0)}, {"ends", list(std::numeric_limits<int64_t>::max())}, {"axes", list(int64_t(last))}});
    return diagonal({taken, left});
  }

  // Sums over all axes that are in none of `kept`.
  EinsumOperand without(EinsumOperand x, const std::vector<const Axes*>& kept) {
    std::vector<int64_t> summed;
    Axes left;
    for (size_t i = 0; i < x.axes.size(); ++i) {
      const auto keeps = [&](const Axes* axes) { return has(*axes, x.axes[i]); };
      std::any_of(kept.begin(), kept.end(), keeps) ? left.push_back(x.axes[i]) : summed.push_back(int64_t(i));
    }
    if (summed.empty()) return x;
    return {add("ReduceSum", "sum", {x.value}, {{"axes", summed}, {"keepdims", int64_t{0}}}), left};
  }

  ValueId transposed(const EinsumOperand& x, const Axes& order) {
    if (x.axes == order) return x.value;
    std::vector<int64_t> perm;
    for (const int axis : order) {
      perm.push_back(std::find(x.axes.begin(), x.axes.end(), axis) - x.axes.begin());
    }
    return add("Transpose", "transposed", {x.value}, {{"perm", perm}});
  }

  // The product of both, summed over what neither `result` nor one of `later` has.
  EinsumOperand product(EinsumOperand a, EinsumOperand b, const std::vector<const Axes*>& kept) {
    std::vector<const Axes*> kept_of_a = kept, kept_of_b = kept;
    const Axes all_of_a = a.axes, all_of_b = b.axes;
    kept_of_a.push_back(&all_of_b);
    kept_of_b.push_back(&all_of_a);
    a = without(a, kept_of_a);
    b = without(b, kept_of_b);
    Axes batch, contracted, own_of_a, own_of_b;
    for (const int axis : a.axes) {
      const bool wanted = std::any_of(kept.begin(), kept.end(), [&](const Axes* axes) { return has(*axes, axis); });
      (!has(b.axes, axis) ? own_of_a : wanted ? batch : contracted).push_back(axis);
    }
    for (const int axis : b.axes) {
      if (!has(a.axes, axis)) own_of_b.push_back(axis);
    }
    const ValueId left = ordered(a, {&batch, &own_of_a, &contracted}),
                  right = ordered(b, {&batch, &contracted, &own_of_b});
    const size_t batches = batch.size(), middle = contracted.size();
    const ValueId product =
        add("MatMul", "product",
            {matrices(left, batches, own_of_a.size(), middle), matrices(right, batches, middle, own_of_b.size())}, {});
    Axes axes = batch;
    axes.insert(axes.end(), own_of_a.begin(), own_of_a.end());
    const size_t of_left = axes.size();
    axes.insert(axes.end(), own_of_b.begin(), own_of_b.end());
    if (own_of_a.size() == 1 && own_of_b.size() == 1) return {product, axes};
    const ValueId of_right = extents(right, batches + middle, axes.size() - of_left);
    return {reshaped(product, "apart", {extents(left, 0, of_left), of_right}), axes};
  }

 private:
  ValueId add(const char* op, const char* label, std::vector<ValueId> inputs, Attributes attributes) {
    return context_.add(op, label, std::move(inputs), 1, std::move(attributes))[0];
  }

  ValueId ordered(const EinsumOperand& x, const std::vector<const Axes*>& parts) {
    Axes order;
    for (const Axes* part : parts) order.insert(order.end(), part->begin(), part->end());
    return transposed(x, order);
  }

  // Extents are taken from values, not written as numbers: validation has other batches.
  ValueId extents(ValueId x, size_t first, size_t count) {
    return add("Shape", "extents", {x}, {{"start", int64_t(first)}, {"end", int64_t(first + count)}});
  }

  ValueId product_of(ValueId x, size_t first, size_t count) {
    return add("ReduceProd", "extent", {extents(x, first, count)}, {{"axes", std::vector<int64_t>{0}}});
  }

  ValueId reshaped(ValueId x, const char* label, std::vector<ValueId> extents) {
    return add("Reshape", label, {x, add("Concat", "shape", std::move(extents), {{"axis", int64_t{0}}})}, {});
  }

  // Reshapes to matrices after `batches` axes: the next `rows` axes as one, and the `columns` axes after them as one.
  ValueId matrices(ValueId x, size_t batches, size_t rows, size_t columns) {
    if (rows == 1 && columns == 1) return x;
    return reshaped(x, "matrices",
                    {extents(x, 0, batches), product_of(x, batches, rows), product_of(x, batches + rows, columns)});
  }

  ExpandContext& context_;
};

void expand_einsum(ExpandContext& context) {
  std::vector<size_t> ranks;
  for (const ValueId input : context.node().inputs) ranks.push_back(context.type(input).shape.size());
  const Equation equation(context.node(), ranks);
  Expansion expansion(context);
  EinsumOperand product = expansion.diagonal({context.input(0), equation.operands[0]});
  for (size_t i = 1; i < ranks.size(); ++i) {
    std::vector<const Axes*> kept = {&equation.result};
    for (size_t later = i + 1; later < ranks.size(); ++later) kept.push_back(&equation.operands[later]);
    product = expansion.product(product, expansion.diagonal({context.input(i), equation.operands[i]}), kept);
  }
  product = expansion.without(product, {&equation.result});
  context.replace_output(0, expansion.transposed(product, equation.result));
}

}  // namespace

void register_product_einsum(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Einsum",
                .doc = "sums of products over axes that letters name, \"bij,bjk->bik\"",
                .inputs = {{.name = "Inputs", .arity = OperandSpec::Variadic}},
                .outputs = {{.name = "Output"}},
                .attributes = {required_spec("equation", AttributeKind::String,
                                             "the letters of each input's axes, and after an arrow the output's")},
                .infer = infer_einsum,
                .expand = expand_einsum});
}

}  // namespace arbalest
