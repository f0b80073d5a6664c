// SPDX-License-Identifier: Apache-2.0

// The source tar: photos in archives of many.

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <deque>

#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "base/error.h"
#include "io/open/open_source.h"
#include "io/sources/data_order.h"
#include "io/sources/source.h"
#include "tests/io/batch.h"
#include "tests/io/tar_writer.h"
#include "tests/io/test_folder.h"
#include "tests/tools/redirected.h"

using namespace arbalest;
using namespace arbalest::test;

namespace tar_test {
namespace {

using Strings = std::vector<std::string>;

std::string sample(const std::string& base, const std::string& photo, const std::string& label) {
  return tar_member(base + ".jpg", photo) + tar_member(base + ".cls", label);
}

// Samples "PREFIX first" … of classes 0, 1, 2, 0, ….
std::string shard(int first, int count, const std::string& prefix = "photo") {
  std::string archive;
  for (int i = first; i < first + count; ++i)
    archive += sample(fmt::format("{:06}", i), fmt::format("{} {}", prefix, i), std::to_string(i % 3));
  return archive + tar_end();
}

std::unique_ptr<Source> open(const std::string& pattern, const char* split = "train") {
  return open_source("tar:" + pattern, split, 1);
}

std::string error_of(const std::string& archive, const std::string& options = "") {
  const TestFolder folder;
  folder.write("a.tar", archive);
  return message_of<RunError>([&] { open((folder / "a.tar").string() + options); });
}

std::string content(const Source& source, int64_t index) {
  std::vector<std::byte> bytes;
  source.read(index, 0, bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("tar: samples of several shards") {
  const TestFolder folder;
  for (int s = 0; s < 3; ++s) folder.write(fmt::format("train-{:04}.tar", s), shard(s * 4, 4));
  folder.write("val.tar", shard(100, 2));
  const std::string path = folder.string();
  for (const char* pattern :
       {"/train-{0000..0002}.tar", "/train-*.tar", "/train-000[012].tar", "/train-000{0,1,2}.tar"}) {
    const auto train = open(path + pattern + "?test=" + path + "/val.tar");
    CHECK(to_string(train->fields()) == "image string[], label int32[] of 3 classes");
    REQUIRE(train->size() == 12);
    CHECK(labels(*train) == std::vector<int32_t>{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2});
    for (int i = 0; i < 12; ++i) CHECK(content(*train, i) == fmt::format("photo {}", i));
    CHECK(train->class_names().empty());
    CHECK(train->block() == 12);
  }
  const auto test = open(path + "/train-*.tar?test=" + path + "/val.tar", "test");
  CHECK(content(*test, 1) == "photo 101");
  CHECK(test->fields()[1].classes == 3);  // of all splits
  CHECK(content(*open(path + "/train-*.tar?test=" + path + "/val.tar", "validation"), 1) == "photo 101");
  const auto train = open(path + "/train-*.tar");
  CHECK(train->locate(5) == path + "/train-0001.tar: '000005.jpg' at byte 2560");
  CHECK(
      train->describe() ==
      "tar:" + path +
          "/train-*.tar train: 12 samples of image string[], label int32[] of 3 classes in 3 shards, in blocks of 12");
}

TEST_CASE("tar: of a limited split neighbours are read") {
  const TestFolder folder;
  for (int s = 0; s < 8; ++s) {
    std::string archive;
    for (int i = s * 8; i < s * 8 + 8; ++i)
      archive += sample(std::to_string(i), std::string(3 << 20, char('0' + i)), "0");
    folder.write(std::to_string(s) + ".tar", archive + tar_end());
  }
  const auto all = open(folder.string() + "/*.tar?keep=0"), some = open(folder.string() + "/*.tar?limit=40&keep=0");
  CHECK(all->block() == 2);
  CHECK(some->block() == 2);
  REQUIRE(some->size() == 40);
  std::vector<int64_t> blocks(20);
  for (size_t b = 0; b < blocks.size(); ++b) blocks[b] = int64_t(b);
  some->will_read(blocks);
  std::set<char> blocks_read;
  for (int64_t i = 0; i < 40; ++i) blocks_read.insert(char((content(*some, i).at(0) - '0') / 2));
  CHECK(blocks_read.size() < 26);  // of 32; twenty if they are read whole
}

TEST_CASE("tar: {split} stands for the split's name, or for one that is there") {
  const TestFolder folder;
  folder.write("train/train-0.tar", shard(0, 3));
  folder.write("val/val-0.tar", shard(50, 3));
  const std::string pattern = (folder / "{split}/{split}-*.tar").string();
  CHECK(open(pattern)->size() == 3);
  for (const char* split : {"test", "validation"}) CHECK(content(*open(pattern, split), 0) == "photo 50");
  folder.write("test/test-0.tar", shard(70, 3));
  CHECK(content(*open(pattern, "test"), 0) == "photo 70");
  CHECK(content(*open(pattern, "validation"), 0) == "photo 50");
  check_parts(message_of<GraphError>([&] { open(pattern + "?test=x.tar"); }),
              {"option 'test' and {split} in the pattern"});
  check_parts(message_of<MissingSplit>([&] { open((folder / "train/*.tar").string(), "test"); }),
              {"shards for training alone", "expected ?test=PATTERN, or {split}"});
}

TEST_CASE("tar: what a sample may have besides, and endings in capitals") {
  const TestFolder folder;
  folder.write("a.tar", tar_member("./", "", '5') + tar_member("./._0.jpg", "apple") + tar_member("README", "read") +
                            tar_member("./x/0.JSON", "{}") + tar_member("./x/0.CLS", "1\n") +
                            tar_member("./x/0.JPEG", "zero") + tar_member("./x/0.seg.png", "mask") +
                            tar_member("./y/0.webp", "one") + tar_member("./y/0.cls", " 0") +
                            tar_member("z.json", "{}") + tar_end());
  const auto source = open((folder / "a.tar").string());
  CHECK(labels(*source) == std::vector<int32_t>{1, 0});
  CHECK(content(*source, 0) == "zero");
  const PassedOver others = {{"", 1}, {".json", 2}, {".png", 1}};
  CHECK(source->passed_over() == others);
  CHECK(open((folder / "a.tar").string())->passed_over() == others);  // by the index
}

TEST_CASE("tar: dots in names divide no samples and fold none into one") {
  const TestFolder folder;
  std::string archive;
  for (int i = 0; i < 3; ++i)
    archive += sample(fmt::format("IMG_{}", i), fmt::format("photo {}", i), std::to_string(i));
  for (int i = 3; i < 6; ++i) {  // a class comes before or after its image
    const std::string base = fmt::format("x/scan.2023.{:02}", i),
                      label = tar_member(base + ".cls", std::to_string(i % 3));
    const std::string photo = tar_member(base + ".png", fmt::format("photo {}", i));
    archive += (i == 4 ? label + photo : photo + label) + tar_member(base + ".json", "{}");
  }
  // Both rules: a sample without dots in its name, and one with dots next to it.
  archive += sample("y", "photo 6", "0") + sample("y.left", "photo 7", "1") + tar_member("y.mask.png", "mask");
  folder.write("a.tar", archive + tar_end());
  for (int i = 0; i < 2; ++i) {  // by the headers, then by the index
    std::unique_ptr<Source> source;
    Strings told;
    {
      const Redirected errors(folder / "errors.txt", stderr);
      source = open((folder / "a.tar").string());
      told = errors.lines();
    }
    CHECK(labels(*source) == std::vector<int32_t>{0, 1, 2, 0, 1, 2, 0, 1});
    for (int64_t k = 0; k < source->size(); ++k) CHECK(content(*source, k) == fmt::format("photo {}", k));
    CHECK(source->passed_over() == PassedOver{{".json", 3}, {".png", 1}});
    REQUIRE(told.size() == 1);
    check_parts(told[0], {"4 of 8 samples have dots in their names, which are cut at the last one; readers that follow "
                          "WebDataset's rule cut at the first"});
  }
  // If such names are samples, one of them without a class is an error; masks alone are passed over.
  check_parts(error_of(sample("scan.1", "x", "0") + tar_member("scan.2.jpg", "x") + tar_end()),
              {"at byte 2048: expected 'scan.2.cls' next to 'scan.2.jpg', found none"});
  check_parts(error_of(sample("scan.1", "x", "0") + tar_member("scan.2.cls", "1") + tar_end()),
              {"at byte 2048: expected an image 'scan.2.jpg', or with another of .jpg, .jpeg, "});
  check_parts(error_of(sample("a.b", "x", "0") + tar_member("a.b.png", "x") + tar_end()),
              {"expected one image of 'a.b'"});
  folder.write("b.tar", sample("0", "x", "0") + tar_member("mask.seg.png", "x") + tar_member("1.coarse.cls", "many") +
                            tar_end());
  CHECK(open((folder / "b.tar").string())->passed_over() == PassedOver{{".cls", 1}, {".png", 1}});
}

TEST_CASE("tar: a byte order mark before a class or its name is none of it") {
  const TestFolder folder;
  folder.write("a.tar", sample("0", "x",
                               "\xef\xbb\xbf"
                               "1\r\n") +
                            sample("1", "y", "0") + tar_end());
  folder.write("classes.txt", std::string("\xef\xbb\xbf"
                                          "cat\rdog\r"));
  const auto source = open((folder / "a.tar").string());
  CHECK(labels(*source) == std::vector<int32_t>{1, 0});
  CHECK(source->class_names() == Strings{"cat", "dog"});
}

TEST_CASE("tar: a shard in train and in test is reported") {
  const TestFolder folder;
  for (const char* name : {"train-0.tar", "train-1.tar", "test-0.tar"}) folder.write(name, shard(0, 6));
  const auto told = [&](const std::string& patterns, const char* split) {
    const Redirected errors(folder / "errors.txt", stderr);
    open(folder.string() + patterns, split);
    return errors.lines();
  };
  const Strings lines = told("/*.tar?test=" + folder.string() + "/./test-*.tar", "train");
  REQUIRE(lines.size() == 1);
  check_parts(lines[0], {"1 shard is in train and in test, the first one is '", "test-0.tar'"});
  CHECK(told("/*.tar?test=" + folder.string() + "/test-*.tar", "test").empty());
  CHECK(told("/{split}-*.tar", "train").empty());
}

TEST_CASE("tar: shards are held against the list that packing keeps") {
  const TestFolder folder;
  const std::string line = R"({"source":"folder:x","split":"train","samples":12})";
  std::string list = line + "\n";
  for (int s = 0; s < 3; ++s) {
    const std::string archive = shard(s * 4, 4), name = fmt::format("train-000{}.tar", s);
    folder.write(name, archive);
    list += fmt::format(R"({{"shard":"{}","samples":4,"next":{},"skipped":0,"bytes":{},"crc32":"00000000"}})", name,
                        4 * (s + 1), archive.size()) +
            "\n";
  }
  const std::string path = folder.string(), wild = path + "/{split}-*.tar", named = path + "/train-{0000..0001}.tar";
  const auto error = [&] { return message_of<RunError>([&] { open(wild); }); };
  const auto told = [&](const std::string& pattern) {
    const Redirected errors(folder / "errors.txt", stderr);
    open(pattern);
    return errors.lines();
  };
  CHECK(open(wild)->size() == 12);  // no list, as of others' shards
  folder.write("train.shards", list);
  CHECK(open(wild)->size() == 12);
  CHECK(told(wild).empty());
  CHECK(told(named).empty());  // some of them, by their names

  const std::string half = list.substr(0, list.rfind('\n', list.size() - 2) + 1);
  folder.write("train.shards", half);
  check_parts(error(), {"source 'tar:" + wild + " train': '" + path +
                        "/train.shards' lists 2 shards with 8 of 12 samples: "
                        "packing was not finished; the same 'arbalest data pack' again goes on with it"});
  check_parts(told(named).at(0), {"lists 2 shards with 8 of 12 samples"});
  folder.write("train.shards", line + "\n");
  check_parts(error(), {"lists 0 shards with 0 of 12 samples"});
  folder.write("train.shards", std::string("{"));
  check_parts(error(), {"train.shards:1: expected a line of JSON as 'arbalest data pack' writes them"});

  folder.write("train.shards", list);
  folder.write("train-0007.tar", shard(0, 4));
  check_parts(error(), {"lists 3 shards, and 'train-0007.tar' is none of them; move it elsewhere"});
  std::filesystem::remove(folder / "train-0007.tar");
  folder.write("train-0001.tar", shard(4, 3));
  check_parts(error(), {"has 'train-0001.tar' with ", "and the file has ", "again makes it anew"});
  std::filesystem::remove(folder / "train-0001.tar");
  check_parts(error(), {"lists 3 shards, of which 1 is missing, the first one is 'train-0001.tar'"});
}

TEST_CASE("tar: names of classes, and how many there are") {
  const TestFolder folder;
  folder.write("a.tar", shard(0, 6));
  const std::string path = (folder / "a.tar").string();
  CHECK(open(path + "?classes=7")->fields()[1].classes == 7);
  check_parts(message_of<RunError>([&] { open(path + "?classes=2"); }),
              {"a.tar: '000002.jpg' at byte", "found class 2, expected 0 to 1"});
  folder.write("classes.txt", std::string("cat\r\ndog\nemu\nfox\n\n"));
  CHECK(open(path)->class_names() == Strings{"cat", "dog", "emu", "fox"});
  CHECK(open(path)->fields()[1].classes == 4);
  CHECK(open(path + "?classes=4")->fields()[1].classes == 4);
  check_parts(message_of<GraphError>([&] { open(path + "?classes=7"); }),
              {"option 'classes' is 7", "classes.txt next to the shards has 4 names"});
  folder.write("classes.txt", std::string("cat\ndog\n"));
  check_parts(message_of<RunError>([&] { open(path); }), {"found class 2, expected 0 to 1"});
}

TEST_CASE("tar: the index next to a shard is used as long as the shard is the same") {
  const TestFolder folder;
  const std::string path = folder.write("a.tar", shard(0, 5)).string(), index = path + ".index";
  open(path);
  const auto text = [&] {
    std::ifstream file(index);
    return std::string((std::istreambuf_iterator<char>(file)), {});
  };
  const std::string made = text();
  CHECK(made.starts_with("arbalest tar index 2\n"));
  CHECK(made.ends_with("\nend\n"));

  // It is what is read: another label in it is another label.
  std::string changed = made;
  const size_t second = changed.find(" 1\n", changed.find('\n', changed.find('\n') + 1));
  changed[second + 1] = '2';
  folder.write("a.tar.index", changed);
  CHECK(labels(*open(path)) == std::vector<int32_t>{0, 2, 2, 0, 1});
  CHECK(text() == changed);

  // A file that is no index of this shard is replaced.
  Strings wrong = {"", "arbalest tar index 1" + made.substr(20), made.substr(0, made.size() - 4), made + "x",
                   made.substr(0, 60)};
  for (const char* number : {" -1\n", " x\n", "\n", " 99999999999\n", " 0 0\n"}) {
    wrong.push_back(made);
    wrong.back().replace(second, 3, number);
  }
  std::string far = made;
  far.replace(far.find("\n512 ") + 1, 3, "99999999");
  wrong.push_back(far);
  for (const std::string& each : wrong) {
    CAPTURE(each);
    folder.write("a.tar.index", each);
    CHECK(labels(*open(path)) == std::vector<int32_t>{0, 1, 2, 0, 1});
    CHECK(text() == made);
  }
  // The same holds for the index of a shard that has changed.
  folder.write("a.tar", shard(1, 5));
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(2));
  CHECK(labels(*open(path)) == std::vector<int32_t>{1, 2, 0, 1, 2});
  CHECK(text() != made);
}

TEST_CASE("tar: an index that cannot be kept") {
  const TestFolder folder;
  const std::string path = folder.write("a.tar", shard(0, 5)).string();
  std::filesystem::create_directory(path + ".index");  // in the way, even if root runs the test
  const auto source = open(path);
  CHECK(labels(*source) == std::vector<int32_t>{0, 1, 2, 0, 1});
  CHECK(content(*source, 3) == "photo 3");
}

TEST_CASE("tar: shards that are malformed say where") {
  const std::string good = sample("0", "x", "1");
  check_parts(error_of(good), {"a.tar: at byte 2048: expected a header"});
  check_parts(error_of(good + sample("../1", "x", "1") + tar_end()),
              {"at byte 2048: expected a name below a folder, found '../1.jpg'"});
  check_parts(error_of(sample("/1", "x", "1") + tar_end()), {"expected a name below a folder, found '/1.jpg'"});
  check_parts(error_of(good + tar_member("1.jpg", "x") + tar_end()),
              {"at byte 2048: expected '1.cls' next to '1.jpg', found none"});
  check_parts(error_of(good + tar_member("1.cls", "1") + sample("2", "x", "1") + tar_end()),
              {"at byte 2048: expected an image '1.jpg', or with another of .jpg, .jpeg, .jpe"});
  check_parts(error_of(tar_member("1.png", "x") + sample("1", "x", "1") + tar_end()),
              {"at byte 1024: expected one image of '1', found another, '1.jpg'"});
  check_parts(error_of(good + tar_member("0.cls", "1") + tar_end()), {"expected one class of '0', found another"});
  check_parts(error_of(good + sample("1", "x", "1") + good + tar_member("1.cls", "3") + tar_end()),
              {"expected an image '1.jpg'"});
  check_parts(error_of(tar_header("1.jpg", 0, '2') + tar_member("1.cls", "1") + tar_end()),
              {"expected a file, found '1.jpg', a link"});
  for (const char* label : {"", "cat", "-1", "1.0", "99999999999", "1000000000", "1 2"})
    check_parts(error_of(sample("0", "x", label) + tar_end()),
                {"expected the number of a class in '0.cls', below 10000000, found '"});
  check_parts(error_of(tar_member("readme", "x") + tar_end()), {"1 shard without a sample", "NAME.jpg"});
}

TEST_CASE("tar: patterns that name nothing") {
  const TestFolder folder;
  folder.write("a-1.tar", shard(0, 2));
  const std::string path = folder.string();
  const auto graph_error = [&](const std::string& name) { return message_of<GraphError>([&] { open(path + name); }); };
  const auto run_error = [&](const std::string& name) { return message_of<RunError>([&] { open(path + name); }); };
  check_parts(run_error("/b-*.tar"), {"found no shards; folder '" + path + "', which holds a-1.tar"});
  check_parts(run_error("/a-{1..3}.tar"), {"2 of 3 shards are missing, the first one is '" + path + "/a-2.tar'"});
  check_parts(
      graph_error("/"),
      {"is a folder, which holds a-1.tar; expected a pattern of archives, such as tar:" + path + "/{split}-*.tar"});
  check_parts(run_error("/{split}/*.tar"), {"found no shards; folder '" + path + "', which holds a-1.tar"});
  for (const char* pattern : {"/a-{1..x}.tar", "/a-{3..1}.tar", "/a-{..}.tar"})
    check_parts(graph_error(pattern), {"expected a number and one that is not less"});
  check_parts(graph_error("/a-{1}.tar"), {"found '{1}', expected {FIRST..LAST} or {ONE,OTHER}"});
  check_parts(graph_error("/a-{1.tar"), {"a brace has no other"});
  check_parts(graph_error("/a-}1{.tar"), {"a brace has no other"});
  check_parts(graph_error("/a-{0..99999999}.tar"), {"expected at most 1000000 files"});
  check_parts(graph_error("/a-{0..999}{0..9999}.tar"), {"expected at most 1000000 files"});
}

namespace {

// A shard of `count` photos of a MiB each that take no room on the disk: holes are read as zeros.
void write_sparse(const std::filesystem::path& path, int64_t count) {
  constexpr int64_t kPhoto = 1 << 20;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  REQUIRE(file >= 0);
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    const std::string header = tar_header(fmt::format("{}.jpg", i), kPhoto);
    REQUIRE(pwrite(file, header.data(), header.size(), at) == 512);
    const std::string label = tar_member(fmt::format("{}.cls", i), "0");
    REQUIRE(pwrite(file, label.data(), label.size(), at + 512 + kPhoto) == 1024);
    at += 512 + kPhoto + 1024;
  }
  REQUIRE(ftruncate(file, at + 1024) == 0);
  fsync(file);
  close(file);
}

// Bytes of a file that are in the system's memory.
int64_t cached_bytes(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  const auto size = size_t(std::filesystem::file_size(path)), page = size_t(sysconf(_SC_PAGESIZE));
  void* const memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  REQUIRE(memory != MAP_FAILED);
  std::vector<unsigned char> pages((size + page - 1) / page);
  REQUIRE(mincore(memory, size, pages.data()) == 0);
  munmap(memory, size);
  close(file);
  int64_t cached = 0;
  for (const unsigned char each : pages) cached += (each & 1) * int64_t(page);
  return cached;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

bool in_memory_only(const std::filesystem::path& path) {
  constexpr long kTmpfs = 0x01021994;
  struct statfs status = {};
  return statfs(path.c_str(), &status) == 0 && long(status.f_type) == kTmpfs;
}

}  // namespace

TEST_CASE("tar: memory stays flat over a set that is larger than what may stay in it") {
  constexpr int64_t kShards = 4, kPhotos = 256;
  const TestFolder folder;
  if (in_memory_only(folder.string())) {
    MESSAGE("SKIP: the folder for temporary files is in memory");
    return;
  }
  for (int64_t s = 0; s < kShards; ++s) write_sparse(folder / fmt::format("{}.tar", s), kPhotos);
  const auto cached = [&] {
    int64_t bytes = 0;
    for (int64_t s = 0; s < kShards; ++s) bytes += cached_bytes(folder / fmt::format("{}.tar", s));
    return bytes;
  };
  const auto source = open(folder.string() + "/*.tar?keep=0");
  REQUIRE(source->size() == kShards * kPhotos);
  CHECK(source->block() == 7);  // 8 MiB
  const DataOrder order(1, source->size(), true, source->block());
  std::vector<std::byte> bytes;
  int64_t before = 0, most = 0, most_cached = 0;
  std::vector<int64_t> batch(32);
  // In the second epoch a window is announced only after a thread that is ahead has read some of it.
  std::deque<std::vector<int64_t>> late(6);
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    for (int64_t first = 0; first < source->size(); first += 32) {
      std::vector<int64_t> ahead = order.blocks_ahead(epoch, first, 32);
      if (epoch == 1) {
        late.push_back(std::move(ahead));
        ahead = std::move(late.front());
        late.pop_front();
      }
      source->will_read(ahead);
      order.range(epoch, first, first, batch);
      for (const int64_t index : batch) source->read(index, 0, bytes);
      if (before == 0) before = resident_bytes();
      most = std::max(most, resident_bytes());
      if (first % 128 == 0) most_cached = std::max(most_cached, cached());
    }
  }
  CHECK(bytes == std::vector<std::byte>(1 << 20));
  CHECK(most - before < 8 << 20);
  CHECK(most_cached > 100 << 20);        // a window has 112 MiB
  CHECK(most_cached < 4 * (120 << 20));  // two, what of the last one was not read to its end, and one told of late
}

TEST_CASE("tar: a class of a number that is far too large takes no time") {
  const TestFolder folder;
  folder.write("a.tar", tar_member("0.jpg", "photo") + tar_member("0.cls", "9999999") + tar_end());
  const test::Redirected errors(folder / "errors", stderr);
  CHECK(open(folder.string() + "/a.tar")->fields()[1].classes == 10'000'000);
  CHECK(errors.lines().at(0).ends_with("9999999 of 10000000 classes have no sample: 0, 1, 2, 3, 4 and 9999994 more"));
}

TEST_CASE("tar: several threads read at once") {
  const TestFolder folder;
  for (int s = 0; s < 200; ++s) folder.write(fmt::format("{:03}.tar", s), shard(s * 3, 3));  // more than stay open
  const auto source = open(folder.string() + "/*.tar?keep=0");
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t i = 0; i < source->size(); ++i) {
          const int64_t index = (i * 7 + t * 31) % source->size();
          wrong += content(*source, index) != fmt::format("photo {}", index);
        }
      });
    }
  }
  CHECK(wrong == 0);
}

}  // namespace tar_test
