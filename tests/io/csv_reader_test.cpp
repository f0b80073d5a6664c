// SPDX-License-Identifier: Apache-2.0

// Tables as text: quoting, line ends, and what is no table.

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "base/error.h"
#include "io/formats/csv_reader.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

namespace csv_reader_test {
namespace {

using Row = std::vector<std::string>;

// The header, then all records.
std::vector<Row> read(const std::string& text) {
  TestFolder folder;
  CsvReader reader(folder.write("table.csv", text));
  std::vector<Row> rows = {reader.columns()};
  while (reader.next()) {
    Row& row = rows.emplace_back();
    for (size_t column = 0; column < reader.columns().size(); ++column) row.emplace_back(reader[column]);
  }
  return rows;
}

std::string error_of(const std::string& text) {
  return message_of<RunError>([&] { read(text); });
}

}  // namespace

TEST_CASE("csv reader: cells, quotes and line ends") {
  const std::vector<Row> plain = {{"a", "b"}, {"1", ""}, {"", "x y"}};
  CHECK(read("a,b\n1,\n,x y\n") == plain);
  CHECK(read("a,b\n1,\n,x y") == plain);
  CHECK(read("a,b\r\n1,\r\n,x y\r\n") == plain);
  CHECK(read("\xef\xbb\xbf"
             "a,b\n\n1,\n\r\n,x y\n\n") == plain);
  CHECK(read("\xef\xbb\xbf\"a\",\"b\"\n\"1\",\"\"\n\"\",\"x y\"") == plain);
  CHECK(read("a,b\n\"1,2\",\"say \"\"x\"\"\"\n\"two\r\nlines\",\"\"\"\"\n") ==
        std::vector<Row>{{"a", "b"}, {"1,2", "say \"x\""}, {"two\nlines", "\""}});
  CHECK(read("a,b\r1,\r,x y\r") == plain);  // as old Macs end lines
  CHECK(read("a,b\r1,\r\r,x y") == plain);
  CHECK(read("\xef\xbb\xbf"
             "a,b\r1,\r\n,x y\n") == plain);
  CHECK(read("a\r\"1\r2\"\r") == std::vector<Row>{{"a"}, {"1\r2"}});  // within quotes it is part of the cell
  CHECK(read("a,b") == std::vector<Row>{{"a", "b"}});
  CHECK(read("a,b\n\xff\xc3\xa4,\xff") == std::vector<Row>{{"a", "b"}, {"\xff\xc3\xa4", "\xff"}});
  CHECK(read("a\n") == std::vector<Row>{{"a"}});
  CHECK(read("\xef") == std::vector<Row>{{"\xef"}});
}

TEST_CASE("csv reader: records longer than any buffer") {
  const std::string cell(300'000, 'x');
  CHECK(read("a,b\n" + cell + ",\"" + cell + "\"\n") == std::vector<Row>{{"a", "b"}, {cell, cell}});
}

TEST_CASE("csv reader: what is no table says the line") {
  check_parts(error_of(""), {"table.csv: line 1: ", "expected the names of columns, found the end"});
  check_parts(error_of("\n\n"), {"expected the names of columns"});
  check_parts(error_of("a,b\n1,2\n3\n"), {"line 3: found 1 cell, expected 2"});
  check_parts(error_of("a,b\r1,2\r3\r"), {"line 3: found 1 cell, expected 2"});
  check_parts(error_of("a,b\n\"1\n\n\",2\n3,4,5\n"), {"line 5: found 3 cells, expected 2"});
  check_parts(error_of("a,b\n1,\"2\n3,4\n"), {"line 2: found a quote that opens a cell, and none that closes it"});
  check_parts(error_of("a,b\n1,\"2\" \n"), {"line 2: expected a comma or the line's end after a cell in quotes"});
  check_parts(error_of("a,b\n1,2\n1,5\" pipe\n"), {"line 3: found a quote inside a cell, expected the whole cell in"});
  check_parts(error_of(std::string("a,b\n1,\0\n", 8)), {"line 2: found a NUL byte, expected text in UTF-8"});
  check_parts(error_of(std::string("\xff\xfe"
                                   "a\0",
                                   4)),
              {"found UTF-16, expected text in UTF-8"});
  check_parts(error_of(std::string("\xfe\xff\0a", 4)), {"found UTF-16"});
  check_parts(message_of<RunError>([] { CsvReader("/none/table.csv"); }), {"cannot be opened: No such file"});
  check_parts(message_of<RunError>([] { CsvReader("/tmp"); }), {"/tmp: cannot be read: Is a directory"});
  const TestFolder folder;
  const std::string pipe = (folder / "pipe").string();
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  check_parts(message_of<RunError>([&] { CsvReader reader(pipe); }), {"pipe: found a pipe, expected a file"});
}

TEST_CASE("csv reader: an error of a cell has its line and column") {
  TestFolder folder;
  CsvReader reader(folder.write("table.csv", std::string("a,b\n\"1\n2\",3\n4," + std::string(100, 'z') + "\n")));
  REQUIRE(reader.next());
  CHECK(reader.line() == 2);
  check_parts(message_of<RunError>([&] { reader.fail(1, "a letter"); }),
              {"table.csv: line 2, column 'b': expected a letter, found '3'"});
  REQUIRE(reader.next());
  CHECK(reader.line() == 4);
  check_parts(message_of<RunError>([&] { reader.fail(1, "a letter"); }), {"line 4", std::string(80, 'z') + "…'"});
  CHECK_FALSE(reader.next());
}

}  // namespace csv_reader_test
