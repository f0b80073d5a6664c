// SPDX-License-Identifier: Apache-2.0
#include "io/formats/csv_reader.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/files/file.h"

namespace arbalest {

std::string_view without_blanks(std::string_view cell) {
  const size_t first = cell.find_first_not_of(" \t"), last = cell.find_last_not_of(" \t");
  return first == cell.npos ? std::string_view() : cell.substr(first, last - first + 1);
}

void CsvReader::Close::operator()(FILE* file) const {
  fclose(file);
}

CsvReader::CsvReader(const std::filesystem::path& path) : path_(path.string()) {
  // A pipe waits for its writer, and holds the table once, but each split reads it.
  if (std::error_code error; std::filesystem::is_fifo(path, error)) {
    throw RunError(fmt::format("{}: found a pipe, expected a file", path_));
  }
  errno = 0;
  file_.reset(fopen(path.c_str(), "rbe"));
  if (!file_) fail_file("opened", path);
  skip_byte_order_mark();
  if (!read_record()) fail_at(1, "expected the names of columns, found the end of the file");
  for (size_t column = 0; column < ends_.size(); ++column) columns_.emplace_back(without_blanks((*this)[column]));
}

void CsvReader::skip_byte_order_mark() {
  std::string first(3, ' ');
  first.resize(fread(first.data(), 1, first.size(), file_.get()));
  if (is_utf16(first)) fail_at(1, "found UTF-16, expected text in UTF-8");
  if (utf8_mark(first) == 0) rewind(file_.get());
}

std::string_view CsvReader::operator[](size_t column) const {
  const size_t first = column == 0 ? 0 : ends_[column - 1];
  return std::string_view(characters_).substr(first, ends_[column] - first);
}

void CsvReader::fail_at(int64_t line, const std::string& message) const {
  throw RunError(fmt::format("{}: line {}: {}", path_, line, message));
}

void CsvReader::fail(size_t column, const std::string& expected) const {
  constexpr size_t kShown = 80;
  const std::string_view cell = (*this)[column];
  throw RunError(fmt::format("{}: line {}, column '{}': expected {}, found '{}{}'", path_, line_, columns_[column],
                             expected, cell.substr(0, kShown), cell.size() > kShown ? "…" : ""));
}

// The next character, with a line's end as one '\n': in quotes a carriage return alone is none. EOF after the last.
int CsvReader::take(bool quoted) {
  int character = getc_unlocked(file_.get());
  if (character == '\r') {
    const int next = getc_unlocked(file_.get());
    if (next != '\n') ungetc(next, file_.get());
    if (next == '\n' || !quoted) character = '\n';
  }
  if (character == '\n') ++next_line_;
  if (character == '\0') fail_at(next_line_, "found a NUL byte, expected text in UTF-8");
  if (character == EOF && ferror(file_.get())) fail_file("read", path_);
  return character;
}

// Ends the cell. False if what follows it ends the record as well.
bool CsvReader::end_cell(int next) {
  ends_.push_back(characters_.size());
  return next == ',';
}

bool CsvReader::read_quoted() {
  const int64_t opened = next_line_;
  while (true) {
    int character = take(true);
    if (character == EOF) fail_at(opened, "found a quote that opens a cell, and none that closes it");
    if (character == '"') {
      character = take();
      if (character == ',' || character == '\n' || character == EOF) return end_cell(character);
      if (character != '"') fail_at(next_line_, "expected a comma or the line's end after a cell in quotes");
    }
    characters_.push_back(char(character));
  }
}

bool CsvReader::read_record() {
  characters_.clear();
  ends_.clear();
  int character = take();
  while (character == '\n') character = take();
  if (character == EOF) return false;
  line_ = next_line_;
  while (true) {
    bool more = true;
    if (character == '"') {
      more = read_quoted();
    } else {
      while (character != ',' && character != '\n' && character != EOF) {
        if (character == '"') fail_at(next_line_, "found a quote inside a cell, expected the whole cell in quotes");
        characters_.push_back(char(character));
        character = take();
      }
      more = end_cell(character);
    }
    if (!more) return true;
    character = take();
  }
}

bool CsvReader::next() {
  if (!read_record()) return false;
  if (ends_.size() != columns_.size()) {
    fail_at(line_, fmt::format("found {} cell{}, expected {}, as many as there are columns", ends_.size(),
                               ends_.size() == 1 ? "" : "s", columns_.size()));
  }
  return true;
}

}  // namespace arbalest
