// SPDX-License-Identifier: Apache-2.0
#include "io/photos/csv_labels.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/number.h"
#include "base/process.h"
#include "io/sources/schemes.h"

namespace arbalest {
namespace {

// Cells that programs write for a missing number: no class of that name is meant.
bool is_nan(std::string_view name) {
  return name.size() == 3 && strncasecmp(name.data(), "nan", 3) == 0;
}

// Words that stand for a class that is missing if all others are numbers.
bool is_missing_word(std::string_view name) {
  constexpr std::array<std::string_view, 8> kWords = {"na", "n/a", "<na>", "#n/a", "null", "none", "?", "-"};
  return std::any_of(kWords.begin(), kWords.end(), [name](std::string_view word) {
    return word.size() == name.size() && strncasecmp(word.data(), name.data(), name.size()) == 0;
  });
}

// Names by numbers in the order in which they are met; sorted at the end.
class NameTable {
 public:
  int32_t number(std::string_view name) {
    const auto [at, added] = numbers_.try_emplace(std::string(name), int32_t(names_.size()));
    if (added) names_.push_back(at->first);
    return at->second;
  }
  const std::vector<std::string>& names() const { return names_; }

  // Puts the names into byte order. Returns the new number of each old one.
  std::vector<int32_t> sort() {
    std::sort(names_.begin(), names_.end());
    std::vector<int32_t> moved(names_.size());
    for (size_t i = 0; i < names_.size(); ++i) moved[size_t(numbers_.at(names_[i]))] = int32_t(i);
    return moved;
  }

 private:
  std::unordered_map<std::string, int32_t> numbers_;
  std::vector<std::string> names_;
};

// The number that "1" is, or "1.0", as programs write columns that once had a gap.
std::optional<int64_t> whole_number(std::string_view text) {
  if (const size_t point = text.find('.'); point != text.npos && point + 1 < text.size()) {
    if (text.find_first_not_of('0', point + 1) == text.npos) text = text.substr(0, point);
  }
  const auto number = read_number<int64_t>(text);
  return number && std::to_string(*number) == text ? number : std::nullopt;
}

// A number in any spelling, such as 01 or +1.
std::optional<double> any_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  return finite_number(text);
}

// A class a sample.
class ClassLabels final : public CsvLabels {
 public:
  // `classes`: how many, if classes are whole numbers; 0: as many as there are in the table.
  ClassLabels(const CsvReader& table, size_t column, int64_t classes)
      : place_(fmt::format("{}: column '{}'", table.path(), table.columns()[column])),
        column_(column),
        classes_(classes) {}

  void add(const CsvReader& row) override {
    constexpr size_t kLongestName = 1000;
    const std::string_view name = without_blanks(row[column_]);
    if (name.empty() || name.size() > kLongestName)
      row.fail(column_, fmt::format("a class of at most {} bytes", kLongestName));
    if (is_nan(name)) row.fail(column_, "a class; take rows without one out of the table");
    labels_.push_back(table_.number(name));
    if (table_.names().size() > lines_.size()) lines_.push_back(row.line());
  }

  void finish() override {
    std::vector<int64_t> numbers;
    std::optional<size_t> missing;  // the first such word
    size_t words = 0;
    for (size_t i = 0; i < table_.names().size(); ++i) {
      const std::string& name = table_.names()[i];
      if (const std::optional<int64_t> number = whole_number(name)) numbers.push_back(*number);
      if (!is_missing_word(name)) continue;
      if (++words == 1) missing = i;
    }
    if (missing && !numbers.empty() && numbers.size() + words == table_.names().size()) {
      throw RunError(
          fmt::format("{} has '{}' (line {}), and whole numbers besides; take rows without a class out of the "
                      "table",
                      place_, table_.names()[*missing], lines_[*missing]));
    }
    std::vector<int32_t> moved;
    if (numbers.size() == table_.names().size()) {
      moved.assign(numbers.begin(), numbers.end());
      check_numbers(numbers);
    } else {
      check_names();
      tell_of_equal_numbers();
      tell_of_fractions();
      moved = table_.sort();
      names_ = table_.names();
      classes_ = int64_t(names_.size());
    }
    for (int32_t& label : labels_) label = moved[size_t(label)];
  }

  Field field() const override { return {"label", DataType::Int32, {}, classes_}; }
  std::vector<std::string> names() const override { return names_; }
  void write(int64_t row, std::byte* to) const override { std::memcpy(to, &labels_[size_t(row)], sizeof(int32_t)); }
  int32_t stratum(int64_t row) const override { return labels_[size_t(row)]; }

 private:
  void check_names() const {
    if (classes_ == 0) return;
    const auto name = std::find_if(table_.names().begin(), table_.names().end(),
                                   [](const std::string& each) { return !whole_number(each); });
    throw RunError(fmt::format("{} has '{}' (line {}), and the option 'classes' is for whole numbers", place_, *name,
                               lines_[size_t(name - table_.names().begin())]));
  }

  // Names are other classes if they are written otherwise, as '1' and '01' are.
  void tell_of_equal_numbers() const {
    std::map<double, size_t> seen;
    for (size_t i = 0; i < table_.names().size(); ++i) {
      const std::optional<double> number = any_number(table_.names()[i]);
      if (!number) continue;
      const auto [first, added] = seen.emplace(*number, i);
      if (added) continue;
      warn(fmt::format("{} has '{}' (line {}) and '{}' (line {}), which are one number and two classes", place_,
                       table_.names()[first->second], lines_[first->second], table_.names()[i], lines_[i]));
      return;
    }
  }

  // Numbers that are not whole are rather measured than classes.
  void tell_of_fractions() const {
    for (size_t i = 0; i < table_.names().size(); ++i) {
      const std::optional<double> number = any_number(table_.names()[i]);
      if (!number || *number == std::floor(*number)) continue;
      warn(fmt::format("{} has '{}' (line {}), a number that is not whole and becomes the name of a class", place_,
                       table_.names()[i], lines_[i]));
      return;
    }
  }

  // Without the option each class has to be there: a number that is missing may be a mistake. The same number may be
  // there in two spellings.
  void check_numbers(const std::vector<int64_t>& numbers) {
    const auto count = int64_t(std::set<int64_t>(numbers.begin(), numbers.end()).size());
    const int64_t most = classes_ > 0 ? classes_ : count;
    const auto [least, greatest] = std::minmax_element(numbers.begin(), numbers.end());
    if (count > 1 && *least == 1 && *greatest == count && most <= count) {
      throw RunError(fmt::format(
          "{} has classes 1 to {}, and none is 0; expected 0 to {}: take 1 from each, or classes={} leaves class "
          "0 without a sample",
          place_, count, most - 1, count + 1));
    }
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] >= 0 && numbers[i] < most) continue;
      throw RunError(fmt::format(
          "{} has class {} (line {}), expected 0 to {}{}", place_, numbers[i], lines_[i], most - 1,
          classes_ > 0
              ? ""
              : fmt::format(", as there are {} classes; classes=N takes whole numbers below N as they are", count)));
    }
    classes_ = most;
  }

  std::string place_;
  size_t column_;
  int64_t classes_;
  NameTable table_;
  std::vector<int64_t> lines_;   // where each name is met first
  std::vector<int32_t> labels_;  // of each row
  std::vector<std::string> names_;
};

void write_floats(std::span<const float> values, std::byte* to) {
  std::memcpy(to, values.data(), values.size_bytes());
}

// Several labels a sample, a column each: 0, 1, or -1 if it is missing.
class ColumnLabels final : public CsvLabels {
 public:
  ColumnLabels(const CsvReader& table, std::vector<size_t> columns, std::string missing)
      : columns_(std::move(columns)), missing_(std::move(missing)) {
    for (const size_t column : columns_) names_.push_back(table.columns()[column]);
  }

  void add(const CsvReader& row) override {
    for (const size_t column : columns_) values_.push_back(value(row, column));
  }
  void finish() override {}

  Field field() const override { return {"label", DataType::Float32, {int64_t(columns_.size())}}; }
  std::vector<std::string> names() const override { return names_; }
  void write(int64_t row, std::byte* to) const override {
    const auto first = values_.begin() + ptrdiff_t(size_t(row) * columns_.size());
    write_floats(std::vector<float>(first, first + ptrdiff_t(columns_.size())), to);
  }
  int32_t stratum(int64_t /*row*/) const override { return 0; }

 private:
  int8_t value(const CsvReader& row, size_t column) const {
    const std::string text(without_blanks(row[column]));
    const auto is = [&text](const char* word) { return strcasecmp(text.c_str(), word) == 0; };
    if (text.empty() || text == missing_) return -1;
    if (is("0") || is("0.0") || is("false")) return 0;
    if (is("1") || is("1.0") || is("true")) return 1;
    row.fail(column, missing_.empty()
                         ? "0, 1, 0.0, 1.0, false, true, or nothing for a label that is missing"
                         : fmt::format("0, 1, 0.0, 1.0, false, true, or nothing or '{}' for a label that is missing",
                                       missing_));
  }

  std::vector<size_t> columns_;
  std::string missing_;
  std::vector<std::string> names_;
  std::vector<int8_t> values_;  // of row after row
};

// Several labels a sample, of which one column lists those that hold.
class ListedLabels final : public CsvLabels {
 public:
  ListedLabels(const CsvReader& table, size_t column, std::string separator, std::string none)
      : place_(fmt::format("{}: column '{}'", table.path(), table.columns()[column])),
        column_(column),
        separator_(std::move(separator)),
        none_(std::move(none)) {}

  void add(const CsvReader& row) override {
    std::string_view rest = without_blanks(row[column_]);
    if (rest == none_) rest = {};
    while (!rest.empty()) {
      const size_t end = rest.find(separator_);
      const std::string_view name = without_blanks(rest.substr(0, end));
      if (name.empty() || name == none_) {
        row.fail(column_, fmt::format("labels with '{}' between them{}", separator_,
                                      none_.empty() ? "" : fmt::format(", or '{}' alone", none_)));
      }
      if (is_nan(name)) row.fail(column_, "labels; none=TEXT names what stands for no label");
      held_.push_back(table_.number(name));
      rest.remove_prefix(end == rest.npos ? rest.size() : end + separator_.size());
      if (end != std::string_view::npos && rest.empty()) row.fail(column_, "a label after the last separator");
    }
    ends_.push_back(held_.size());
  }

  void finish() override {
    if (table_.names().empty()) throw RunError(fmt::format("{} has no label in any row", place_));
    const std::vector<int32_t> moved = table_.sort();
    for (int32_t& label : held_) label = moved[size_t(label)];
  }

  Field field() const override { return {"label", DataType::Float32, {int64_t(table_.names().size())}}; }
  std::vector<std::string> names() const override { return table_.names(); }
  void write(int64_t row, std::byte* to) const override {
    std::vector<float> values(table_.names().size());
    for (size_t i = row == 0 ? 0 : ends_[size_t(row) - 1]; i < ends_[size_t(row)]; ++i) values[size_t(held_[i])] = 1;
    write_floats(values, to);
  }
  int32_t stratum(int64_t /*row*/) const override { return 0; }

 private:
  std::string place_;
  size_t column_;
  std::string separator_, none_;
  NameTable table_;
  std::vector<int32_t> held_;  // of row after row
  std::vector<size_t> ends_;   // of each row in them
};

}  // namespace

std::unique_ptr<CsvLabels> csv_labels(const SourceSpec& spec, const CsvReader& table, const CsvColumns& columns) {
  const auto text = [&spec](const char* option, const char* otherwise) {
    const std::string* value = spec.find(option);
    return value ? *value : std::string(otherwise);
  };
  if (columns.list) {
    const std::string separator = text("separator", "|");
    if (separator.empty()) throw GraphError(fmt::format("source '{}': option 'separator' is empty", spec.text));
    return std::make_unique<ListedLabels>(table, *columns.list, separator, text("none", ""));
  }
  if (!columns.labels.empty()) return std::make_unique<ColumnLabels>(table, columns.labels, text("missing", ""));
  return std::make_unique<ClassLabels>(table, *columns.label, spec.integer("classes", 0, 1, kMostClasses));
}

}  // namespace arbalest
