// SPDX-License-Identifier: Apache-2.0
#include "tools/watch/fitted_text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "executor/console/terminal.h"

namespace arbalest {
namespace {

constexpr size_t kIndent = 2;        // of a row
constexpr size_t kContinuation = 4;  // of what belongs to it
constexpr size_t kWidestCell = 14;   // what is wider and ends below a heading is text

// A part of a line between stretches of two blanks or more.
struct Fitted {
  std::string text;
  size_t begin = 0, end = 0;  // columns
};

std::vector<Fitted> fields_of(std::string_view line) {
  std::vector<Fitted> fields;
  for (size_t at = line.find_first_not_of(' '); at != line.npos;) {
    const size_t end = std::min(line.find("  ", at), line.size());
    const std::string_view text = line.substr(at, end - at);
    const size_t begin = columns_of(line.substr(0, at));
    fields.push_back({std::string(text), begin, begin + columns_of(text)});
    at = line.find_first_not_of(' ', end);
  }
  return fields;
}

std::string joined(const std::vector<Fitted>& fields) {
  std::string text;
  for (const Fitted& field : fields) text += (text.empty() ? "" : "  ") + field.text;
  return text;
}

class Fitting {
 public:
  explicit Fitting(size_t width) : width_(width) {}

  std::string run(const std::string& report) {
    std::vector<std::string> lines;
    std::istringstream stream(report);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    for (size_t i = 0; i < lines.size();) {
      size_t end = i + 1;
      const bool heads = !lines[i].empty() && lines[i][0] != ' ' && fields_of(lines[i]).size() > 1;
      while (heads && end < lines.size() && lines[end].starts_with(' ')) ++end;
      if (heads && end > i + 1) {
        table({lines.begin() + std::ptrdiff_t(i), lines.begin() + std::ptrdiff_t(end)});
      } else {
        put_line(lines[i]);
      }
      i = end;
    }
    return std::move(text_);
  }

 private:
  void put(const std::string& line) { text_ += line + '\n'; }

  void put_line(const std::string& line) {
    if (columns_of(line) <= width_) return put(line);
    const std::vector<Fitted> fields = fields_of(line);
    if (fields.empty()) return put("");
    if (fields[0].begin == 0) return put(wrapped(joined(fields), width_, 0));
    const size_t indent = std::min(fields[0].begin, kContinuation);
    put(wrapped(std::string(indent, ' ') + joined(fields), width_, indent + kIndent));
  }

  struct Row {
    std::string name, note;          // at the beginning and at the end; "": none
    std::vector<std::string> cells;  // by column of the heading; "": empty

    bool has_no_cells() const {
      return std::all_of(cells.begin(), cells.end(), [](const std::string& cell) { return cell.empty(); });
    }
  };

  struct Table {
    std::string title, remark;  // `remark`: said of the whole table; "": none
    std::vector<std::string> names;
    std::vector<size_t> widths;  // of columns
    std::vector<Row> rows;
  };

  static Row row_of(const std::vector<Fitted>& fields, const std::vector<Fitted>& heading) {
    Row row{"", "", std::vector<std::string>(heading.size() - 1)};
    for (size_t i = 0; i < fields.size(); ++i) {
      const auto column = std::find_if(heading.begin() + 1, heading.end(),
                                       [&](const Fitted& field) { return field.end == fields[i].end; });
      const bool short_one = fields[i].end - fields[i].begin <= kWidestCell;
      if (column != heading.end() && short_one && row.note.empty()) {
        row.cells[size_t(column - heading.begin() - 1)] = fields[i].text;
      } else if (i == 0 && fields[i].begin <= kIndent) {
        row.name = fields[i].text;
      } else {
        row.note += (row.note.empty() ? "" : "  ") + fields[i].text;
      }
    }
    return row;
  }

  void table(const std::vector<std::string>& lines) {
    const bool fits = std::all_of(lines.begin(), lines.end(), [&](auto& line) { return columns_of(line) <= width_; });
    if (fits) {
      for (const std::string& line : lines) put(line);
      return;
    }
    const std::vector<Fitted> heading = fields_of(lines[0]);
    Table table{heading[0].text, "", {}, {}, {}};
    for (size_t i = 1; i < heading.size(); ++i) {
      table.names.push_back(heading[i].text);
      table.widths.push_back(columns_of(heading[i].text));
    }
    for (size_t i = 1; i < lines.size(); ++i) {
      const Row row = table.rows.emplace_back(row_of(fields_of(lines[i]), heading));
      for (size_t k = 0; k < row.cells.size(); ++k)
        table.widths[k] = std::max(table.widths[k], columns_of(row.cells[k]));
    }
    if (std::all_of(table.rows.begin(), table.rows.end(), [](const Row& row) { return row.cells.back().empty(); })) {
      table.remark = "  " + table.names.back();
      table.names.pop_back();
    }
    if (!put_compact(table)) put_narrow(table);
  }

  // A line for each row, columns no wider than they have to be, with notes below if they do not fit; false if the
  // cells alone do not.
  bool put_compact(const Table& table) {
    size_t most = columns_of(table.title);
    for (const Row& row : table.rows) most = std::max(most, kIndent + columns_of(row.name));
    const auto line_of = [&](std::string line, const std::vector<std::string>& cells) {
      line.resize(line.size() + most - columns_of(line), ' ');
      for (size_t k = 0; k < table.names.size(); ++k) {
        line += std::string(2 + table.widths[k] - columns_of(cells[k]), ' ') + cells[k];
      }
      return line;
    };
    const bool has_room = columns_of(table.title + table.remark) <= most;
    const std::string heading = line_of(table.title + (has_room ? table.remark : ""), table.names);
    if (columns_of(heading) > width_) return false;
    put(heading);
    if (!has_room) put_note(table.remark.substr(2));
    for (const Row& row : table.rows) {
      const bool alone = row.name.empty() && row.has_no_cells();  // a note
      std::string line = alone ? "" : line_of(std::string(kIndent, ' ') + row.name, row.cells);
      const bool beside = !alone && columns_of(line) + 2 + columns_of(row.note) <= width_;
      if (beside && !row.note.empty()) line += "  " + row.note;
      line.resize(line.find_last_not_of(' ') + 1);
      if (!line.empty()) put(line);
      if (!beside && !row.note.empty()) put_note(row.note);
    }
    return true;
  }

  void put_narrow(const Table& table) {
    put(wrapped(table.title + table.remark, width_, 0));
    put_cells(table.names, table.widths);
    for (const Row& row : table.rows) {
      if (!row.name.empty()) put(wrapped(std::string(kIndent, ' ') + row.name, width_, kContinuation));
      put_cells(row.cells, table.widths);
      if (!row.note.empty()) put_note(row.note);
    }
  }

  void put_note(const std::string& note) {
    put(wrapped(std::string(kContinuation, ' ') + note, width_, kContinuation + kIndent));
  }

  void put_cells(const std::vector<std::string>& cells, const std::vector<size_t>& widths) {
    std::string line(kIndent - 1, ' ');  // and a blank before each cell
    for (size_t k = 0; k < cells.size(); ++k) {
      line += std::string(1 + widths[k] - columns_of(cells[k]), ' ') + cells[k];
    }
    line.resize(line.find_last_not_of(' ') + 1);
    if (!line.empty()) put(wrapped(line, width_, kContinuation));
  }

  const size_t width_;
  std::string text_;
};

}  // namespace

std::string fitted(const std::string& report, size_t width) {
  return Fitting(width).run(report);
}

void put_report(std::FILE* out, const std::string& report) {
  std::string text = isatty(fileno(out)) ? fitted(report, terminal_width(out)) : report;
  if (shows_colours(out)) text = with_bold_headings(text);
  std::fwrite(text.data(), 1, text.size(), out);
}

}  // namespace arbalest
