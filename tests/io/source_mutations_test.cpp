// SPDX-License-Identifier: Apache-2.0

// Files of sources that are changed at random: they are read, or refused with a GraphError or a RunError.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <sstream>

#include "base/error.h"
#include "base/random.h"
#include "io/open/open_source.h"
#include "io/sources/source.h"
#include "tests/io/read_everything.h"
#include "tests/io/tar_writer.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace source_mutations_test {
namespace {

// A number made of one of the file's, or of digits, signs and structure that formats are made of.
uint8_t changed(uint8_t before, const Random4& draw) {
  static constexpr std::string_view kTelling = "0179-,;\"'\n\r {}()[]:/\\.|";
  switch (draw.word[1] % 4) {
    case 0: return uint8_t(draw.word[2]);
    case 1: return uint8_t(kTelling[draw.word[2] % kTelling.size()]);
    case 2: return uint8_t(before ^ (1u << draw.word[2] % 8));
    default: return draw.word[2] % 2 == 0 ? 0 : 0xff;
  }
}

std::string mutated(std::string file, uint64_t key) {
  const Random4 choice = philox(11, key, 0);
  for (uint32_t change = 0; change < 1 + choice.word[0] % 5 && !file.empty(); ++change) {
    const Random4 draw = philox(11, key, 1 + change);
    const uint32_t reach =
        draw.word[3] % 2 == 0 ? uint32_t(file.size()) : std::min<uint32_t>(160, uint32_t(file.size()));
    const size_t at = below(draw.word[0], reach);
    switch (draw.word[3] % 7) {
      case 0: file.insert(at, file.substr(at, 1 + draw.word[2] % 40)); break;
      case 1: file.erase(at, 1 + draw.word[2] % 40); break;
      default: file[at] = char(changed(uint8_t(file[at]), draw));
    }
  }
  if (choice.word[1] % 8 == 0) file.resize(below(choice.word[2], uint32_t(file.size()) + 1));
  return file;
}

void read_all(const Source& source) {
  test::read_everything(source);
  for (int64_t i = 0; i < std::min<int64_t>(source.size(), 64); ++i) CHECK_FALSE(source.locate(i).empty());
  CHECK(source.class_names().size() < 1000);
}

// ARBALEST_SOURCE_MUTATIONS=N makes it as many.
void survive(const TestFolder& folder, const std::string& file, const std::string& good,
             const std::vector<std::string>& specs, const std::function<void()>& before = {}) {
  const char* wanted = std::getenv("ARBALEST_SOURCE_MUTATIONS");
  const uint64_t mutations = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 600;
  uint64_t read = 0;
  for (uint64_t k = 0; k < mutations; ++k) {
    CAPTURE(k);
    if (before) before();
    folder.write(file, mutated(good, k));
    try {
      read_all(*open_source(specs[k % specs.size()], "train", 1));
      ++read;
    } catch (const GraphError&) {
    } catch (const RunError&) {
    }
  }
  folder.write(file, good);
  for (const std::string& spec : specs) read_all(*open_source(spec, "train", 1));
  CHECK(read > 0);
  CHECK(read < mutations);
}

}  // namespace

TEST_CASE("sources: mutations of tables never do harm") {
  const TestFolder folder;
  std::string table = "path,split,kind,cough,fever,findings,patient\n";
  for (int i = 0; i < 12; ++i) {
    folder.write(fmt::format("{}.jpg", i), fmt::format("photo {}", i));
    table +=
        fmt::format("{}.jpg,{},\"{}, \"\"so\"\"\",{},{},{},p{}\n", i, i % 4 == 3 ? "test" : "train",
                    i % 2 == 0 ? "cat" : "dog", i % 2, i % 3 == 0 ? "" : "1", i % 2 == 0 ? "cough|fever" : "none", i);
  }
  const std::string csv = "csv:" + (folder / "t.csv").string();
  survive(folder, "t.csv", table,
          {csv + "?label=kind", csv + "?labels=cough,fever", csv + "?list=findings&separator=|&none=none",
           csv + "?label=kind&group=patient&check=0"});
}

TEST_CASE("sources: mutations of shards and of their indices never do harm") {
  const TestFolder folder;
  std::string archive;
  for (int i = 0; i < 9; ++i) {
    archive += tar_member(fmt::format("{:03}.jpg", i), fmt::format("photo {}", i));
    archive += tar_member(fmt::format("{:03}.cls", i), std::to_string(i % 3));
  }
  archive += tar_end();
  const std::string spec = "tar:" + (folder / "s.tar").string();
  const auto forget = [&] { std::filesystem::remove(folder / "s.tar.index"); };
  survive(folder, "s.tar", archive, {spec}, forget);

  folder.write("s.tar", archive);
  forget();
  open_source(spec, "train", 1);
  std::ifstream stream(folder / "s.tar.index", std::ios::binary);
  const std::string index{std::istreambuf_iterator<char>(stream), {}};
  REQUIRE_FALSE(index.empty());
  for (uint64_t k = 0; k < 300; ++k) {  // an index that is not what was written is made again
    CAPTURE(k);
    folder.write("s.tar.index", mutated(index, k));
    const std::unique_ptr<Source> source = open_source(spec, "train", 1);
    CHECK(source->size() == 9);
    std::vector<std::byte> bytes;
    source->read(8, 0, bytes);
    CHECK(bytes.size() == 7);
  }
  std::istringstream lines(index);
  std::string empty, line;
  for (int number = 0; std::getline(lines, line); ++number) {
    empty += (number < 2 || line == "end" ? line : "0 0 0 0") + "\n";
  }
  folder.write("s.tar.index", empty);
  CHECK(open_source(spec, "train", 1)->block() == 9);

  const std::string most = "18446744073709551615";
  const std::string none = "tar:" + (folder / ("{" + most + ".." + most + "}.tar")).string();
  CHECK(message_of<RunError>([&] { open_source(none, "train", 1); }).find(most + ".tar") != std::string::npos);
}

TEST_CASE("sources: mutations of arrays never do harm") {
  const TestFolder folder;
  const std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (6, 1, 2, 2), }";
  const std::string image =
      std::string("\x93NUMPY\x01\0", 8) + char(header.size() + 1) + '\0' + header + "\n" + std::string(24, 'x');
  const std::string labels = "{'descr': '<i8', 'fortran_order': False, 'shape': (6,), }";
  folder.write("train_label.npy", std::string("\x93NUMPY\x01\0", 8) + char(labels.size() + 1) + '\0' + labels + "\n" +
                                      std::string(48, '\0'));
  survive(folder, "train_image.npy", image, {"npy:" + folder.string()});
}

}  // namespace source_mutations_test
