// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tables as text (RFC 4180): a header of names, then records of as many cells, which commas divide. Cells may be
// quoted, and then hold commas, line ends and doubled quotes. A byte order mark of UTF-8 is taken, and lines end with
// "\n", "\r\n" or "\r"; lines without anything on them are left out.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace arbalest {

// The cell without blanks around it.
std::string_view without_blanks(std::string_view cell);

// Reads one record after the other. All functions throw RunError with the file and the line if the text is no such
// table.
class CsvReader {
 public:
  explicit CsvReader(const std::filesystem::path& path);  // reads the header, whose names lose blanks around them

  const std::string& path() const { return path_; }
  const std::vector<std::string>& columns() const { return columns_; }

  bool next();  // goes to the next record; false if there is none

  // A cell of the current record, valid until the next call of next(), and the line on which the record begins, counted
  // from 1.
  std::string_view operator[](size_t column) const;
  int64_t line() const { return line_; }

  // Throws RunError: "FILE: line 7, column 'label': expected EXPECTED, found 'CELL'".
  [[noreturn]] void fail(size_t column, const std::string& expected) const;

 private:
  struct Close {
    void operator()(FILE* file) const;
  };
  void skip_byte_order_mark();
  bool read_record();
  bool read_quoted();  // false if the record ends with the cell
  bool end_cell(int next);
  int take(bool quoted = false);
  [[noreturn]] void fail_at(int64_t line, const std::string& message) const;

  std::string path_;
  std::unique_ptr<FILE, Close> file_;
  std::vector<std::string> columns_;
  std::string characters_;    // of the record's cells
  std::vector<size_t> ends_;  // of each cell in them
  int64_t line_ = 0;
  int64_t next_line_ = 1;  // of the next character
};

}  // namespace arbalest
