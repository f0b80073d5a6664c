// SPDX-License-Identifier: Apache-2.0
#include "io/photos/csv_columns.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "base/number.h"

namespace arbalest {
namespace {

class Finder {
 public:
  Finder(const SourceSpec& spec, const CsvReader& table) : spec_(spec), table_(table) {}

  [[noreturn]] void refuse(const std::string& message) const {
    throw GraphError(fmt::format("source '{}': {}; '{}' has the columns {}", spec_.text, message, table_.path(),
                                 fmt::join(table_.columns(), ", ")));
  }

  size_t column(const std::string& option, std::string_view name) const {
    const std::vector<std::string>& names = table_.columns();
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      refuse(fmt::format("option '{}' names column '{}'{}", option, name, did_you_mean(name, names)));
    }
    if (std::find(found + 1, names.end(), name) != names.end()) {
      refuse(fmt::format(
          "option '{}' names column '{}', which is there twice; expected that one of them is renamed in the file",
          option, name));
    }
    return size_t(found - names.begin());
  }

  // The column that an option names; none if the option was left out.
  std::optional<size_t> named(const std::string& option) const {
    const std::string* name = spec_.find(option);
    return name ? std::optional(column(option, *name)) : std::nullopt;
  }

  // The column of the first of these names, in letters of any case, that is there. `option` names another.
  std::optional<size_t> usual(const char* option, std::span<const std::string_view> names) const {
    for (const std::string_view name : names) {
      std::optional<size_t> found;
      for (size_t c = 0; c < table_.columns().size(); ++c) {
        if (strcasecmp(table_.columns()[c].c_str(), std::string(name).c_str()) != 0) continue;
        if (found && table_.columns()[*found] == table_.columns()[c]) {
          refuse(fmt::format("found two columns '{}'; expected that one of them is renamed in the file",
                             table_.columns()[c]));
        }
        if (found) {
          refuse(fmt::format("found the columns '{}' and '{}', expected one; option '{}' names a column",
                             table_.columns()[*found], table_.columns()[c], option));
        }
        found = c;
      }
      if (found) return found;
    }
    return std::nullopt;
  }

 private:
  const SourceSpec& spec_;
  const CsvReader& table_;
};

constexpr std::array<std::string_view, 9> kPaths = {"path", "file",       "filename", "file_name",  "image",
                                                    "img",  "image_path", "filepath", "image index"};
constexpr std::array<std::string_view, 2> kLabels = {"label", "class"};
constexpr std::array<std::string_view, 1> kSplits = {"split"};

std::vector<size_t> label_columns(const Finder& finder, const CsvReader& table, const CsvColumns& columns,
                                  std::string_view text) {
  std::vector<size_t> found;
  if (text == "*") {
    const std::optional<size_t> split = columns.split ? columns.split : finder.usual("split", kSplits);
    for (size_t c = 0; c < table.columns().size(); ++c) {
      if (c == columns.path || c == split || c == columns.group) continue;
      finder.column("labels", table.columns()[c]);  // is there once
      found.push_back(c);
    }
    if (found.empty()) finder.refuse("labels=*: found no column besides path, split and group");
    return found;
  }
  while (true) {
    const size_t comma = text.find(',');
    const size_t column = finder.column("labels", text.substr(0, comma));
    if (std::find(found.begin(), found.end(), column) != found.end()) {
      finder.refuse(fmt::format("option 'labels' names column '{}' twice", table.columns()[column]));
    }
    found.push_back(column);
    if (comma == text.npos) return found;
    text.remove_prefix(comma + 1);
  }
}

// A hint for an error message: the labels option for columns that hold only 0, 1 and empty cells. "" if there are fewer
// than 2 such columns or more than 20.
std::string labels_hint(const CsvReader& table, const CsvColumns& columns) {
  constexpr int kRows = 1000, kMostNamed = 20;
  CsvReader rows(table.path());
  std::vector<bool> binary(table.columns().size(), true);
  int count = 0;
  for (; count < kRows && rows.next(); ++count) {
    for (size_t c = 0; c < binary.size(); ++c) {
      const std::string_view cell = rows[c];
      binary[c] = binary[c] && (cell.empty() || cell == "0" || cell == "1" || cell == "0.0" || cell == "1.0");
    }
  }
  std::vector<std::string> names;
  for (size_t c = 0; c < binary.size(); ++c) {
    if (binary[c] && c != columns.path && c != columns.group && c != columns.split) names.push_back(table.columns()[c]);
  }
  if (count == 0 || names.size() < 2 || names.size() > kMostNamed) return "";
  return fmt::format("; found {} columns of 0 and 1: labels={}", names.size(), fmt::join(names, ","));
}

// A hint for an error message that points to sources of numeric data if most cells of the first row are numbers.
std::string numbers_hint(const CsvReader& table) {
  CsvReader rows(table.path());
  if (!rows.next()) return "";
  size_t numbers = 0;
  for (size_t c = 0; c < table.columns().size(); ++c) numbers += read_number<double>(rows[c]).has_value();
  return 2 * numbers > table.columns().size()
             ? ". csv: lists files of photos; numbers to train on come as npy: or tensors:, see 'arbalest sources npy'"
             : "";
}

void find_labels(const SourceSpec& spec, const Finder& finder, const CsvReader& table, CsvColumns& columns) {
  columns.label = finder.named("label");
  columns.list = finder.named("list");
  const std::string* const labels = spec.find("labels");
  if (labels) columns.labels = label_columns(finder, table, columns, *labels);
  if (columns.label.has_value() + columns.list.has_value() + (labels != nullptr) > 1) {
    finder.refuse("found several of the options 'label', 'labels' and 'list', expected one");
  }
  const bool stated = columns.label || columns.list || labels;
  if (!stated) columns.label = finder.usual("label", kLabels);
  if (!stated && !columns.label) {
    finder.refuse("found no column 'label' or 'class', expected label=COLUMN, labels=COLUMN,COLUMN,… or list=COLUMN" +
                  labels_hint(table, columns));
  }
  for (const char* option : {"separator", "none"}) {
    if (spec.find(option) && !columns.list) finder.refuse(fmt::format("option '{}' goes with 'list'", option));
  }
  if (spec.find("missing") && !labels) finder.refuse("option 'missing' goes with 'labels'");
  if (spec.find("classes") && !columns.label) finder.refuse("option 'classes' goes with 'label'");
}

}  // namespace

CsvColumns find_columns(const SourceSpec& spec, const CsvReader& table) {
  const Finder finder(spec, table);
  CsvColumns columns;
  const std::optional<size_t> path = spec.find("path") ? finder.named("path") : finder.usual("path", kPaths);
  if (!path) {
    const std::string& first = table.columns().front();
    const bool others = table.columns().size() == 1 && first.find_first_of(";\t") != first.npos;
    finder.refuse(fmt::format("found no column {}, expected path=COLUMN{}{}", fmt::join(kPaths, ", "),
                              others ? ", and commas between columns" : "", numbers_hint(table)));
  }
  columns.path = *path;
  columns.group = finder.named("group");
  columns.split = finder.named("split");
  if (!columns.split && !spec.find("test")) columns.split = finder.usual("split", kSplits);
  if (columns.split) {
    for (const char* option : {"test", "seed"}) {
      if (!spec.find(option)) continue;
      finder.refuse(fmt::format("option '{}' divides a table without splits, and column '{}' says them", option,
                                table.columns()[*columns.split]));
    }
  }
  find_labels(spec, finder, table, columns);
  return columns;
}

}  // namespace arbalest
