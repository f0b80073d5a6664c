// SPDX-License-Identifier: Apache-2.0
#include "ops/check/model_lints.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "graph/name_patterns.h"
#include "graph/op.h"
#include "ops/names.h"

namespace arbalest {
namespace {

using Numbers = std::span<const float>;

Numbers numbers_of(const Value& value) {
  const std::vector<std::byte>& bytes = *value.initializer.data;
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

// "0 and 1" if these are all the numbers, and more than one; "" if there are more than three.
std::string few_numbers(Numbers numbers) {
  std::vector<float> found;
  for (const float number : numbers) {
    if (std::find(found.begin(), found.end(), number) != found.end()) continue;
    found.push_back(number);
    if (found.size() > 3) return "";
  }
  if (found.size() < 2 || numbers.size() < 3 * found.size()) return "";
  std::sort(found.begin(), found.end());
  std::string text = fmt::format("{:g}", found[0]);
  for (size_t i = 1; i < found.size(); ++i) {
    text += fmt::format("{}{:g}", i + 1 < found.size() ? ", " : " and ", found[i]);
  }
  return text;
}

// Whether neighbours differ by the same amount along each axis with three elements or more, one of which there is.
bool is_even(const Shape& shape, Numbers numbers) {
  const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
  if (*least == *most) return false;
  const float rounding = 1e-5f * std::max(std::abs(*least), std::abs(*most));
  bool any = false;
  size_t stride = numbers.size();
  for (const int64_t extent : shape) {
    stride /= size_t(extent);
    if (extent < 3) continue;
    any = true;
    for (size_t i = 0; i + 2 * stride < numbers.size(); ++i) {
      if (int64_t(i / stride) % extent + 2 >= extent) continue;
      if (!(std::abs(numbers[i] - 2 * numbers[i + stride] + numbers[i + 2 * stride]) <= rounding)) return false;
    }
  }
  return any;
}

// Whether rows of d numbers are d / 2 sines and cosines of the same angles: their squares sum up to d / 2. A row of
// zeros may stand for the class token.
bool is_of_sines(const Shape& shape, Numbers numbers) {
  const auto width = size_t(shape.back());
  if (width < 4 || width % 2 != 0) return false;
  size_t rows = 0;
  for (size_t row = 0; row < numbers.size(); row += width) {
    double squares = 0;
    for (const float number : numbers.subspan(row, width)) squares += double(number) * number;
    if (squares == 0) continue;
    if (std::abs(squares - double(width) / 2) > 1e-4 * double(width)) return false;
    ++rows;
  }
  return rows >= 3;
}

// The only row of a table that is zero; none if there is no such row, or several.
std::optional<size_t> only_zero_row(const Shape& shape, Numbers numbers) {
  const auto width = size_t(shape.back());
  std::optional<size_t> found;
  for (size_t row = 0; width > 0 && row < numbers.size() / width; ++row) {
    const Numbers of = numbers.subspan(row * width, width);
    if (std::any_of(of.begin(), of.end(), [](float number) { return number != 0; })) continue;
    if (found) return std::nullopt;
    found = row;
  }
  return found;
}

// Whether PyTorch's exporters have made up the name, of the operator that reads it or by counting.
bool is_made_up(std::string_view name) {
  name = name.substr(name.rfind('/') + 1);
  return name.starts_with("onnx::") || name.starts_with("val_");
}

// Why the value looks like a constant; "" if it does not.
std::string likeness(const Value& value, bool weight) {
  const Numbers numbers = numbers_of(value);
  if (numbers.empty()) return "";
  if (is_of_sines(value.type.shape, numbers)) return "its rows are sines and cosines, as those of positions are";
  if (const std::string few = few_numbers(numbers); !few.empty())
    return fmt::format("it has the numbers {} alone", few);
  if (is_even(value.type.shape, numbers)) return "its numbers are evenly spaced";
  const bool uniform = numbers.size() > 1 && std::equal(numbers.begin() + 1, numbers.end(), numbers.begin());
  if (!weight && uniform && is_made_up(value.name)) {
    return fmt::format("it has the number {:g} alone, and its name is the exporter's", numbers[0]);
  }
  return "";
}

}  // namespace

std::vector<std::string> padded_tables(const Graph& graph) {
  const Node* train = graph.find_op(op::Train);
  if (!train) return {};
  const std::vector<std::string> frozen = strings_attribute(*train, "frozen");
  const Table<ValueId, std::vector<NodeId>> readers = graph.consumers();
  std::vector<std::string> notes;
  for (const ValueId v : graph.values.ids()) {
    const Value& table = graph.values[v];
    const bool stored = table.role == Role::Parameter && table.initializer.kind == Initializer::Kind::Data &&
                        table.type.dtype == DataType::Float32 && table.type.shape.size() == 2;
    if (!stored || table.type.shape[0] < 2 || first_fit(table.name, frozen) < frozen.size()) continue;
    const auto looks_up = [&](NodeId n) {
      const Node& node = graph.nodes[n];
      return node.is("Gather") && node.inputs[0] == v && int_attribute(node, "axis") == 0 &&
             !node.attributes.find_named("padding_index");
    };
    if (std::none_of(readers[v].begin(), readers[v].end(), looks_up)) continue;
    const std::optional<size_t> row = only_zero_row(table.type.shape, numbers_of(table));
    if (!row) continue;
    notes.push_back(fmt::format(
        "'{}' ({}) is an embedding whose row {} is zero, and is trained as a whole: PyTorch leaves the row of "
        "padding_idx out, which its older exporter does not say; export with dynamo=True, optimize=False if it is one",
        table.name, to_string(table.type), *row));
  }
  return notes;
}

std::vector<std::string> constant_like_weights(const Graph& graph) {
  const Node* train = graph.find_op(op::Train);
  if (!train) return {};
  const std::vector<std::string> frozen = strings_attribute(*train, "frozen");
  const Table<ValueId, std::vector<NodeId>> readers = graph.consumers();
  std::vector<std::string> notes;
  for (const ValueId v : graph.values.ids()) {
    const Value& value = graph.values[v];
    const bool stored = value.role == Role::Parameter && value.initializer.kind == Initializer::Kind::Data &&
                        value.type.dtype == DataType::Float32 && !value.type.shape.empty();
    if (!stored || value.where.file == train->where.file || readers[v].empty()) continue;
    if (first_fit(value.name, frozen) < frozen.size()) continue;
    bool weight = false, other = false;  // other: a bias, a statistic, a state
    for (const NodeId n : readers[v]) {
      const Node& node = graph.nodes[n];
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const OperandSpec* spec = node.op->input_spec(i);
        if (node.inputs[i] != v || !spec || spec->part == OperandSpec::Any) continue;
        (spec->part == OperandSpec::Weight ? weight : other) = true;
      }
    }
    const std::string why = other ? "" : likeness(value, weight);
    if (why.empty()) continue;
    const Node& reader = graph.nodes[readers[v][0]];
    notes.push_back(
        fmt::format("'{0}' ({1}), which node '{2}' ({3}) reads, is trained and may be a constant: {4}; if it is one, "
                    "expected frozen = [\"{0}\"] of Train",
                    value.name, to_string(value.type), reader.name, reader.op->qualified_name(), why));
  }
  return notes;
}

}  // namespace arbalest
