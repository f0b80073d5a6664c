// SPDX-License-Identifier: Apache-2.0

// csv: photos that a table lists, with a class or several labels each.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <climits>
#include <filesystem>
#include <functional>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/process.h"
#include "base/random.h"
#include "io/formats/csv_reader.h"
#include "io/photos/csv_columns.h"
#include "io/photos/csv_labels.h"
#include "io/photos/empty_classes.h"
#include "io/photos/file_source.h"
#include "io/photos/held_out.h"
#include "io/photos/photo_files.h"
#include "io/photos/schemes.h"
#include "io/sources/schemes.h"
#include "io/sources/split_part.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

enum class RowSplit : uint8_t { Train, Test, Validation };
constexpr std::array kSplitNames = {"train", "test", "validation"};

// All rows, of all splits.
struct Table {
  PathList paths;
  std::vector<int64_t> lines;
  std::unique_ptr<CsvLabels> labels;
  std::vector<RowSplit> splits;  // by a column, or because a part is held out
  std::vector<int32_t> groups;   // of each row, if there is a column of groups
  std::vector<std::string> group_names;
};

class CsvSource final : public FileSource, public SampleGroups {
 public:
  // `rows`: those of this split.
  CsvSource(std::string file, const std::string& root, Table table, std::vector<int64_t> rows, std::string label,
            bool check)
      : FileSource(std::move(label)),
        file_(std::move(file)),
        photos_(root, std::move(table.paths)),
        lines_(std::move(table.lines)),
        labels_(std::move(table.labels)),
        groups_(std::move(table.groups)),
        rows_(std::move(rows)),
        check_(check) {}

  std::vector<Field> fields() const override { return {{"image", DataType::String, {}}, labels_->field()}; }
  int64_t size() const override { return int64_t(rows_.size()); }

  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    if (fields[1] == nullptr) return;
    const int64_t bytes = labels_->field().sample().bytes();
    std::byte* to = fields[1];
    for (const SampleRef& sample : samples) {
      labels_->write(row(sample.index), to);
      to += bytes;
    }
  }
  void read(int64_t index, size_t /*field*/, std::vector<std::byte>& bytes) const override {
    photos_.read(row(index), bytes);
  }
  std::string locate(int64_t index) const override {
    return fmt::format("{} ({}, line {})", name(index), file_, lines_[size_t(row(index))]);
  }
  std::string name(int64_t index) const override { return photos_.path(row(index)); }
  std::vector<std::string> class_names() const override { return labels_->names(); }
  std::vector<int64_t> groups() const override {
    std::vector<int64_t> of_samples;
    for (const int64_t row : rows_) {
      if (!groups_.empty()) of_samples.push_back(groups_[size_t(row)]);
    }
    return of_samples;
  }
  double microseconds_per_sample() const override { return kMicrosecondsToReadPhoto; }
  std::string describe() const override {
    return fmt::format("{}: {} samples of {}", label(), size(), to_string(fields()));
  }

 protected:
  std::string fault(int64_t index) const override { return check_ ? fault_of_file(name(index)) : ""; }

 private:
  int64_t row(int64_t index) const {
    assert(index >= 0 && index < size());
    return rows_[size_t(index)];
  }

  std::string file_;
  PhotoFiles photos_;
  std::vector<int64_t> lines_;
  std::unique_ptr<CsvLabels> labels_;
  std::vector<int32_t> groups_;  // by row
  std::vector<int64_t> rows_;
  bool check_;
};

RowSplit split_of(const CsvReader& row, size_t column) {
  std::string name(without_blanks(row[column]));
  std::transform(name.begin(), name.end(), name.begin(), [](char c) { return char(std::tolower(uint8_t(c))); });
  if (name == "train" || name == "training") return RowSplit::Train;
  if (name == "test" || name == "testing") return RowSplit::Test;
  if (name == "validation" || name == "val" || name == "valid") return RowSplit::Validation;
  row.fail(column, "train, test or validation (or training, testing, val, valid)");
}

Table read_table(const SourceSpec& spec, CsvReader& reader, const CsvColumns& columns) {
  Table table;
  table.labels = csv_labels(spec, reader, columns);
  std::unordered_map<std::string, int32_t> groups;
  while (reader.next()) {
    const size_t length = reader[columns.path].size();
    if (length == 0 || length >= PATH_MAX) {
      reader.fail(columns.path, fmt::format("the path of an image, less than {} bytes", PATH_MAX));
    }
    table.paths.add(reader[columns.path]);
    table.lines.push_back(reader.line());
    table.labels->add(reader);
    if (columns.split) table.splits.push_back(split_of(reader, *columns.split));
    if (!columns.group) continue;
    if (reader[*columns.group].empty() || strcasecmp(std::string(reader[*columns.group]).c_str(), "nan") == 0) {
      reader.fail(*columns.group, "a group");
    }
    const auto [at, added] = groups.try_emplace(std::string(reader[*columns.group]), int32_t(groups.size()));
    if (added) table.group_names.push_back(at->first);
    table.groups.push_back(at->second);
  }
  if (table.lines.empty()) throw RunError(fmt::format("{}: found no rows below the names of columns", reader.path()));
  table.labels->finish();
  return table;
}

// A group in two splits would let a model be judged by what it was trained on.
void check_groups(const SourceSpec& spec, const Table& table) {
  std::vector<size_t> first(table.group_names.size(), table.lines.size());
  for (size_t row = 0; row < table.groups.size(); ++row) {
    size_t& seen = first[size_t(table.groups[row])];
    if (seen == table.lines.size()) seen = row;
    if (table.splits[seen] == table.splits[row]) continue;
    throw RunError(fmt::format("source '{}': group '{}' is in {} (line {}) and in {} (line {})", spec.label(),
                               table.group_names[size_t(table.groups[row])], kSplitNames[size_t(table.splits[seen])],
                               table.lines[seen], kSplitNames[size_t(table.splits[row])], table.lines[row]));
  }
}

// The split that a name stands for. Test and validation stand for each other if only one of them exists.
RowSplit meant(const std::string& name, const std::vector<RowSplit>& splits) {
  if (name == "train") return RowSplit::Train;
  const RowSplit asked = name == "test" ? RowSplit::Test : RowSplit::Validation;
  const RowSplit other = name == "test" ? RowSplit::Validation : RowSplit::Test;
  return std::find(splits.begin(), splits.end(), asked) == splits.end() ? other : asked;
}

// Whether each row is held out: by groups, or within each class.
std::vector<bool> divide(const HeldOut& part, const Table& table) {
  std::vector<bool> held(table.lines.size());
  if (!table.groups.empty()) {
    std::vector<int64_t> sizes(table.group_names.size());
    for (const int32_t group : table.groups) ++sizes[size_t(group)];
    const auto groups =
        hold_out_groups(part, sizes, [&](size_t g) -> std::string_view { return table.group_names[g]; });
    for (size_t row = 0; row < held.size(); ++row) held[row] = groups[size_t(table.groups[row])];
    return held;
  }
  std::map<int64_t, std::vector<size_t>> strata;
  for (size_t row = 0; row < held.size(); ++row) {
    strata[int64_t(table.labels->stratum(int64_t(row)))].push_back(row);
  }
  for (const auto& stratum : strata) {
    const std::vector<size_t>& rows = stratum.second;
    const auto chosen = hold_out(part, rows.size(), [&](size_t i) { return table.paths[rows[i]]; });
    for (size_t i = 0; i < rows.size(); ++i) held[rows[i]] = chosen[i];
  }
  return held;
}

// Divides a table that has no column for the split: the held-out part is the test split.
void divide_table(const SourceSpec& spec, Table& table) {
  const std::vector<bool> held = divide(held_out_option(spec), table);
  for (const bool each : held) table.splits.push_back(each ? RowSplit::Test : RowSplit::Train);
}

std::vector<int64_t> rows_of_split(const SourceSpec& spec, const Table& table) {
  const RowSplit split = meant(spec.split, table.splits);
  std::vector<int64_t> rows;
  for (size_t row = 0; row < table.splits.size(); ++row) {
    if (table.splits[row] == split) rows.push_back(int64_t(row));
  }
  return rows;
}

// Whether the rows have the same label, or the same labels.
bool same_labels(const Table& table, size_t row, size_t other) {
  const auto bytes = size_t(table.labels->field().sample().bytes());
  std::vector<std::byte> one(bytes), two(bytes);
  table.labels->write(int64_t(row), one.data());
  table.labels->write(int64_t(other), two.data());
  return one == two;
}

// Warns of files that are in two splits, because a model would be judged by what it was trained on, and of files that
// have other labels in another row of their split. Only the training split warns, so that it is said once.
void warn_of_shared_files(const SourceSpec& spec, const Table& table) {
  struct Named {
    uint64_t name;  // a hash of it
    size_t row;
    bool operator<(const Named& other) const { return name != other.name ? name < other.name : row < other.row; }
  };
  std::vector<Named> rows;
  for (size_t row = 0; row < table.paths.size(); ++row) {
    const std::string_view path = table.paths[row];
    const bool plain = !path.starts_with("./") && path.find("/.") == path.npos && path.find("//") == path.npos;
    rows.push_back({hash_name(plain ? std::string(path) : fs::path(path).lexically_normal().string()), row});
  }
  std::sort(rows.begin(), rows.end());
  // Warns of files of which a row differs from the first in this way.
  const auto warn_of = [&](const char* fault, const std::function<bool(size_t first, size_t other)>& differs) {
    constexpr size_t kShown = 3;
    std::vector<std::string> shown;
    size_t files = 0;
    for (size_t first = 0, end = 0; first < rows.size(); first = end) {
      while (end < rows.size() && rows[end].name == rows[first].name) ++end;
      const auto other = std::find_if(rows.begin() + int64_t(first), rows.begin() + int64_t(end),
                                      [&](const Named& each) { return differs(rows[first].row, each.row); });
      if (other == rows.begin() + int64_t(end) || ++files > kShown) continue;
      shown.push_back(fmt::format("{} (lines {} and {})", table.paths[other->row], table.lines[rows[first].row],
                                  table.lines[other->row]));
    }
    if (files == 0) return;
    warn(fmt::format("source '{}': {} file{} {}: {}{}", spec.text, files, files == 1 ? "" : "s", fault,
                     fmt::join(shown, ", "), files > kShown ? fmt::format(" and {} more", files - kShown) : ""));
  };
  warn_of("in two splits", [&](size_t first, size_t other) { return table.splits[other] != table.splits[first]; });
  warn_of("with different labels in one split", [&](size_t first, size_t other) {
    return table.splits[other] == table.splits[first] && !same_labels(table, first, other);
  });
}

std::unique_ptr<Source> open_csv(const SourceSpec& spec) {
  CsvReader reader(spec.path);
  const CsvColumns columns = find_columns(spec, reader);
  const bool check = spec.integer("check", 1, 0, 1) != 0;
  Table table = read_table(spec, reader, columns);
  columns.split ? check_groups(spec, table) : divide_table(spec, table);
  if (spec.split == "train") warn_of_shared_files(spec, table);
  std::vector<int64_t> rows = rows_of_split(spec, table);
  if (rows.empty()) {
    throw MissingSplit(
        fmt::format("source '{}': none of the {} rows is in the split{}", spec.label(), table.lines.size(),
                    columns.split ? fmt::format(", by column '{}'", reader.columns()[*columns.split]) : ""));
  }
  const std::string* const root = spec.find("root");
  warn_of_one_class(spec, {table.labels->field()}, table.labels->names(),
                    "two classes or more in the column of labels, or another column by label=COLUMN");
  warn_of_empty_classes(spec, table.labels->field().classes, table.labels->names(), rows.size(),
                        [&](size_t i) { return table.labels->stratum(rows[i]); });
  return std::make_unique<CsvSource>(spec.path, root ? *root : fs::path(spec.path).parent_path().string(),
                                     std::move(table), std::move(rows), spec.label(), check);
}

}  // namespace

DescribedScheme csv_scheme() {
  return described(
      {.name = "csv", .needs_path = true, .splits = {"train", "test", "validation"}, .open = open_csv},
      {.path = "FILE",
       .text = "photos that a table lists, with a class or several labels for each",
       .more = "The table has the names of its columns in the first line, and commas between cells (RFC "
               "4180). Classes that are names are numbered in byte order. Several labels are a float for "
               "each, -1 where nothing is said. The table lists files; numbers to train on come as npy: or "
               "tensors:.",
       .options =
           {{"path", "COLUMN", "the photo's file", "path, file, filename, image, 'Image Index' and the like"},
            {"root", "DIR", "the folder that relative files are in", "the table's"},
            {"label", "COLUMN", "the photo's class: a name, or a whole number from 0", "label or class"},
            {"classes", "K", "how many classes there are, where they are numbers and not each is in the table"},
            {"labels", "COLUMN,COLUMN,…",
             "instead of a class several labels: 0 or 1 (0.0, 1.0, false, true); * stands for all columns besides "
             "path, split and group"},
            {"missing", "TEXT", "a cell of labels that says nothing, as an empty one does"},
            {"list", "COLUMN", "instead of a class a list of the labels that hold"},
            {"separator", "TEXT", "what divides the list", "|"},
            {"none", "TEXT", "a list that holds no label, as an empty one does"},
            {"split", "COLUMN", "train, test or validation", "split, where it is there"},
            held_out_part_option(),
            held_out_seed_option(),
            {"group", "COLUMN",
             "what stays in one split or fold together, such as a patient's photos: whole groups are held "
             "out then, not parts of classes"},
            {"check", "0", "0: runs do not look first whether all files are there", "1"}},
       .example = "csv:data/xrays/labels.csv?labels=pneumonia,virus&group=patient"});
}

}  // namespace arbalest
