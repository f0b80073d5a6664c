// SPDX-License-Identifier: Apache-2.0

// Members of tar archives: names of any length, and archives that are malformed.

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>

#include "base/error.h"
#include "io/formats/tar_reader.h"
#include "tests/io/tar_writer.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace tar_reader_test {
namespace {

struct Read {
  TarMember member;
  std::string content;
};

std::vector<Read> read_file(const std::filesystem::path& path) {
  const RandomAccessFile file(path, "a tar archive");
  TarReader tar(file);
  std::vector<Read> all;
  while (const auto member = tar.next()) {
    std::string content(member->size, '\0');
    file.read(member->offset, std::as_writable_bytes(std::span(content)));
    all.push_back({*member, content});
  }
  return all;
}

std::vector<Read> read(const std::string& archive) {
  const TestFolder folder;
  return read_file(folder.write("a.tar", archive));
}

std::string error_of(const std::string& archive) {
  return message_of<RunError>([&] { read(archive); });
}

// With the sum of its bytes in place.
std::string summed(std::string header) {
  header.replace(148, 8, 8, ' ');
  uint32_t sum = 0;
  for (const char byte : header) sum += uint8_t(byte);
  return header.replace(148, 7, fmt::format("{:06o}", sum) + '\0');
}

}  // namespace

TEST_CASE("tar reader: members, their names and content") {
  const std::string long_name = std::string(120, 'd') + "/" + std::string(90, 'f') + ".jpg";
  const std::string archive =
      tar_member("a.jpg", "photo") + tar_member("folder/", "", '5') + tar_member("folder/empty", "") +
      tar_header("b.cls", 2, '0', false, "some/prefix") + padded("12") +  //
      tar_member("././@LongLink", long_name + '\0', 'L') + tar_member(long_name.substr(0, 100), "gnu") +
      tar_member("PaxHeader", pax_record("mtime", "1.5") + pax_record("path", long_name + "x"), 'x') +
      tar_member("short", "pax") + tar_member("global", pax_record("comment", "z"), 'g') + tar_header("link", 7, '1') +
      tar_header("symbolic", 0, '2') + tar_member("last", std::string(512, 'z'));
  const std::vector<Read> all = read(archive + tar_end() + std::string(10240, '\0'));
  std::vector<std::string> names;
  for (const Read& each : all) names.push_back(each.member.name);
  CHECK(names == std::vector<std::string>{"a.jpg", "folder/", "folder/empty", "some/prefix/b.cls", long_name,
                                          long_name + "x", "link", "symbolic", "last"});
  REQUIRE(all.size() == 9);
  CHECK(all[0].content == "photo");
  CHECK(all[0].member.offset == 512);
  CHECK(all[1].member.type == TarMember::Type::Folder);
  CHECK(all[2].content.empty());
  CHECK(all[3].content == "12");
  CHECK(all[4].content == "gnu");
  CHECK(all[4].member.begin == all[4].member.offset - 3 * 512);  // with the header and the content of its name
  CHECK(all[5].content == "pax");
  CHECK(all[6].member.type == TarMember::Type::Link);
  CHECK(all[7].member.type == TarMember::Type::Link);
  CHECK(all[8].content == std::string(512, 'z'));
  CHECK(read(tar_end()).empty());
  CHECK(read(std::string(512, '\0')).empty());
}

TEST_CASE("tar reader: sizes of pax and of GNU tar") {
  const std::string pax = tar_member("p", pax_record("size", "5"), 'x') + tar_header("a", 0) + padded("12345");
  CHECK(read(pax + tar_end()).at(0).content == "12345");
  std::string header = tar_header("a", 0, '0', true);
  header.replace(124, 12, std::string("\x80\0\0\0\0\0\0\0\0\0\0\5", 12));
  CHECK(read(summed(header) + padded("12345") + tar_end()).at(0).content == "12345");
}

TEST_CASE("tar reader: malformed archives say where") {
  const std::string member = tar_member("a.jpg", "photo");
  check_parts(error_of(""),
              {"a.tar: at byte 0: expected a header or the zeros that end an archive", "the end of the file"});
  check_parts(error_of(member), {"at byte 1024: expected a header or the zeros"});
  check_parts(error_of(member + member.substr(0, 100)), {"at byte 1024: expected a header"});
  check_parts(error_of(member + member.substr(0, 515)),
              {"at byte 1536: expected 5 bytes of 'a.jpg', found 3, then the end"});
  check_parts(error_of(member + member.substr(0, 600)), {"at byte 2048: expected a header"});  // the padding is cut off
  std::string wrong = member;
  wrong[10] = 'x';
  check_parts(error_of(member + wrong + tar_end()), {"at byte 1024: expected a header with checksum 7111, found 6721"});
  wrong = member;
  wrong.replace(148, 8, "zzzzzzzz");
  check_parts(error_of(wrong + tar_end()), {"at byte 0: expected a header with checksum", "found none"});
  check_parts(error_of(std::string("\x1f\x8b") + std::string(1000, 'g')),
              {"expected a tar archive that is not compressed, found a gzipped one"});
  wrong = member.substr(0, 512);
  wrong.replace(124, 11, "notoctal   ");
  check_parts(error_of(summed(wrong) + tar_end()), {"at byte 0: expected the size of a member, found 'notoctal"});
  wrong.replace(124, 12, std::string("\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12));
  check_parts(error_of(summed(wrong) + tar_end()), {"expected the size of a member"});
  wrong.replace(124, 12, std::string("\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", 12));
  check_parts(error_of(summed(wrong) + tar_end()), {"expected 9223372036854775807 bytes of 'a.jpg', found 1024"});
  check_parts(error_of(member + tar_end() + member + tar_end()),
              {"at byte 1024: expected nothing but zeros after", "found more data"});
  check_parts(error_of(tar_member("sparse", "x", 'S') + tar_end()),
              {"expected files that are stored whole, found a sparse one"});
  check_parts(error_of(tar_member("p", pax_record("GNU.sparse.major", "1"), 'x') + member + tar_end()),
              {"found a sparse one"});
  check_parts(error_of(tar_member("p", "12 path", 'x') + member + tar_end()),
              {"expected records 'LENGTH KEY=VALUE', found '12 path'"});
  check_parts(error_of(tar_member("p", "8 path\n\n", 'x') + member + tar_end()),
              {"expected records 'LENGTH KEY=VALUE'"});
  check_parts(error_of(tar_member("p", pax_record("size", "1x"), 'x') + member + tar_end()),
              {"expected a number of bytes, found 'size=1x'"});
  check_parts(error_of(tar_member("p", pax_record("path", "a"), 'x') + tar_end()),
              {"expected the header that a long name is of"});
  check_parts(error_of(tar_member("n", std::string((1 << 20) + 1, 'n'), 'L') + tar_end()),
              {"expected names of at most 1048576 bytes"});
}

TEST_CASE("tar reader: what tar itself writes") {
  const TestFolder folder;
  const std::string deep = std::string(90, 'a') + "/" + std::string(90, 'b') + "/" + std::string(90, 'c') + ".jpg";
  folder.write("in/" + deep, std::string("deep"));
  folder.write("in/x.jpg", std::string(100'000, 'x'));
  for (const char* format : {"gnu", "pax", "posix", "ustar"}) {
    const std::string archive = folder / (std::string(format) + ".tar");
    const std::string command =
        fmt::format("tar --format={} -C '{}' -cf '{}' . 2>/dev/null", format, (folder / "in").string(), archive);
    if (std::system(command.c_str()) != 0 && std::string(format) != "ustar") {  // which has no such long names
      MESSAGE("SKIP: no tar to write " << format);
      continue;
    }
    std::map<std::string, std::string> found;
    for (const Read& each : read_file(archive)) {
      if (each.member.type == TarMember::Type::File) found[each.member.name] = each.content;
    }
    CAPTURE(format);
    CHECK(found["./x.jpg"] == std::string(100'000, 'x'));
    if (std::string(format) != "ustar") CHECK(found["./" + deep] == "deep");
  }
}

}  // namespace tar_reader_test
