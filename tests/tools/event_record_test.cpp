// SPDX-License-Identifier: Apache-2.0

// TensorBoard's event files: read back by a reader of the wire format, and by TensorBoard if it is installed.

#include <doctest/doctest.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "tests/io/test_folder.h"
#include "tests/tools/redirected.h"
#include "tools/watch/event_record.h"
#include "tools/watch/tensorboard_log.h"

using namespace arbalest;

namespace event_record_test {
namespace {

template <typename Unsigned>
Unsigned little_endian(std::string_view bytes) {
  REQUIRE(bytes.size() >= sizeof(Unsigned));
  Unsigned value = 0;
  for (size_t i = 0; i < sizeof value; ++i) value |= Unsigned(uint8_t(bytes[i])) << 8 * i;
  return value;
}

// Castagnoli's check bit by bit, and TFRecord's mask.
uint32_t masked(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= uint8_t(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

std::vector<std::string> records_of(std::string_view file) {
  std::vector<std::string> records;
  while (!file.empty()) {
    const auto size = little_endian<uint64_t>(file);
    REQUIRE(file.size() >= size + 16);
    CHECK(little_endian<uint32_t>(file.substr(8)) == masked(file.substr(0, 8)));
    records.emplace_back(file.substr(12, size));
    CHECK(little_endian<uint32_t>(file.substr(12 + size)) == masked(records.back()));
    file.remove_prefix(size + 16);
  }
  return records;
}

uint64_t varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    REQUIRE_FALSE(bytes.empty());
    const auto byte = uint8_t(bytes[0]);
    bytes.remove_prefix(1);
    value |= uint64_t(byte & 127) << shift;
    if (byte < 128) return value;
  }
}

// A message's fields: number, and its value as bytes.
std::multimap<int, std::string> fields(std::string_view bytes) {
  std::multimap<int, std::string> all;
  while (!bytes.empty()) {
    const uint64_t key = varint(bytes);
    const std::string_view before = bytes;
    size_t size = 0;
    switch (key & 7) {
      case 0:
        varint(bytes);
        all.emplace(int(key >> 3), before.substr(0, before.size() - bytes.size()));
        continue;
      case 1: size = 8; break;
      case 2: size = varint(bytes); break;
      case 5: size = 4; break;
      default: FAIL("how a field is written: ", key & 7);
    }
    REQUIRE(bytes.size() >= size);
    all.emplace(int(key >> 3), bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return all;
}

std::string only(const std::multimap<int, std::string>& all, int field) {
  REQUIRE(all.count(field) == 1);
  return all.find(field)->second;
}

double real(const std::string& bytes) {
  return std::bit_cast<double>(little_endian<uint64_t>(bytes));
}

struct Scalar {
  int64_t step;
  float value;
};

// By tag; a step that is left out is 0, as protobuf has it.
std::map<std::string, std::vector<Scalar>> scalars_of(const std::vector<std::string>& records) {
  std::map<std::string, std::vector<Scalar>> scalars;
  for (const std::string& record : records) {
    const auto event = fields(record);
    CHECK(real(only(event, 1)) > 1.6e9);
    if (event.count(5) == 0) continue;
    int64_t step = 0;
    if (event.count(2)) {
      std::string_view bytes = event.find(2)->second;
      step = int64_t(varint(bytes));
    }
    const auto summary = fields(only(event, 5));
    for (auto [value, end] = summary.equal_range(1); value != end; ++value) {
      const auto parts = fields(value->second);
      if (parts.count(2)) {
        scalars[only(parts, 1)].push_back({step, std::bit_cast<float>(little_endian<uint32_t>(only(parts, 2)))});
      }
    }
  }
  return scalars;
}

std::string content(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::filesystem::path only_file(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator entry(folder);
  REQUIRE(entry != std::filesystem::directory_iterator());
  CHECK(entry->path().filename().string().starts_with("events.out.tfevents."));
  return entry->path();
}

RunSettings settings() {
  RunSettings settings;
  settings.hyperparameters = {
      {"seed", 7.0}, {"train.schedule", "cosine"}, {"deterministic", true}, {"strategy", "none"}};
  return settings;
}

RunStarted started() {
  RunStarted event;
  event.graph = "net";
  event.devices = {"cpu:0"};
  event.strategy = "sma";
  event.precision = "fp32";
  event.batch = 64;
  return event;
}

RunProgress progress(int64_t iteration, double loss) {
  RunProgress event;
  event.iteration = iteration;
  event.loss = loss;
  event.learning_rate = 0.5;
  event.metrics = {{"accuracy", 0.25}, {"auc", std::nan("")}};
  return event;
}

// A run that failed or not, in `folder`.
void log_run(const std::string& folder, bool fails) {
  TensorBoardLog log(folder, settings());
  log.started(started());
  log.progress(progress(10, 2.5));
  log.progress(progress(1'000'000, 1.25));
  Validated validated;
  validated.iteration = 300;
  validated.loss = 0.75;
  validated.metrics = {{"acc\xff", 0.5}};
  validated.parts = {{"auc/cat", 0.625}};
  log.validation(validated);
  if (fails) {
    log.failed({"boom", 1, 100, 3.0});
  } else {
    log.finished({});
  }
}

}  // namespace

TEST_CASE("Castagnoli's check of known bytes") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
}

TEST_CASE("scalars come back from an event file with their steps") {
  const TestFolder folder;
  log_run((folder / "runs/a").string(), false);
  const std::vector<std::string> records = records_of(content(only_file(folder / "runs/a")));
  CHECK(only(fields(records.at(0)), 3) == "brain.Event:2");
  const auto scalars = scalars_of(records);
  REQUIRE(scalars.contains("loss/train"));
  REQUIRE(scalars.at("loss/train").size() == 2);
  CHECK(scalars.at("loss/train")[0].step == 10);
  CHECK(scalars.at("loss/train")[0].value == 2.5f);
  CHECK(scalars.at("loss/train")[1].step == 1'000'000);
  CHECK(scalars.at("accuracy/train").size() == 2);
  CHECK_FALSE(scalars.contains("auc/train"));  // undefined
  CHECK(scalars.at("loss/validation")[0].step == 300);
  CHECK(scalars.at("acc\\xff/validation")[0].value == 0.5f);  // tags are UTF-8
  CHECK(scalars.at("auc/cat/validation")[0].value == 0.625f);
  CHECK(scalars.at("learning_rate")[0].value == 0.5f);
}

TEST_CASE("what an event file holds is there while the run goes on") {
  const TestFolder folder;
  TensorBoardLog log(folder.string(), settings());
  log.started(started());
  log.progress(progress(10, 2.5));
  CHECK(scalars_of(records_of(content(only_file(folder.string())))).at("loss/train").size() == 1);
}

TEST_CASE("hyperparameters and the end come back from an event file") {
  for (const bool fails : {false, true}) {
    const TestFolder folder;
    log_run(folder.string(), fails);
    std::map<std::string, std::string> plugin;  // content by tag
    for (const std::string& record : records_of(content(only_file(folder.string())))) {
      const auto event = fields(record);
      if (event.count(5) == 0) continue;
      const auto value = fields(fields(only(event, 5)).find(1)->second);
      if (value.count(9) == 0) continue;
      const auto data = fields(only(fields(only(value, 9)), 1));
      CHECK(only(data, 1) == "hparams");
      plugin[only(value, 1)] = only(data, 2);
    }
    std::map<std::string, std::multimap<int, std::string>> parameters;
    const auto info = fields(only(fields(plugin.at("_hparams_/session_start_info")), 3));
    for (auto [entry, end] = info.equal_range(1); entry != end; ++entry) {
      const auto pair = fields(entry->second);
      parameters[only(pair, 1)] = fields(only(pair, 2));
    }
    CHECK(real(only(parameters.at("seed"), 2)) == 7);
    CHECK(real(only(parameters.at("batch"), 2)) == 64);
    CHECK(only(parameters.at("train.schedule"), 3) == "cosine");
    CHECK(only(parameters.at("deterministic"), 4) == "\1");
    CHECK(only(parameters.at("strategy"), 3) == "sma");  // as it came to be
    CHECK(only(fields(only(fields(plugin.at("_hparams_/session_end_info")), 4)), 1) == (fails ? "\2" : "\1"));
  }
}

TEST_CASE("event files that cannot be created or written") {
  const TestFolder folder;
  folder.write("file", std::string("x"));
  CHECK_THROWS_AS(TensorBoardLog((folder / "file/runs").string(), settings()), RunError);
  if (!std::filesystem::exists("/dev/full")) {
    MESSAGE("SKIP: no /dev/full to fail on");
    return;
  }
  const test::Redirected said((folder / "said").string(), stderr);
  EventStream full("/dev/full", "event file");
  CHECK_FALSE(full.failed());
  full.write("x");
  full.write("y");
  CHECK(full.failed());
  const std::vector<std::string> lines = said.lines();
  REQUIRE(lines.size() == 1);
  check_parts(lines[0], {"/dev/full: cannot be written: ", "the event file ends here, training goes on"});
}

TEST_CASE("a second run in a folder is warned of") {
  const TestFolder folder;
  log_run((folder / "runs").string(), false);
  const test::Redirected said((folder / "said").string(), stderr);
  log_run((folder / "runs").string(), false);
  REQUIRE(said.lines().size() == 1);
  check_parts(said.lines()[0], {"holds events of another run"});
}

// ARBALEST_TENSORBOARD_PYTHON: a Python with the package, if the system's has none.
TEST_CASE("TensorBoard reads scalars and hyperparameters") {
  const char* given = std::getenv("ARBALEST_TENSORBOARD_PYTHON");
  const std::string python = given ? given : "python3";
  if (std::system((python + " -c 'import tensorboard' 2>/dev/null").c_str()) != 0) {
    MESSAGE("SKIP: " << python << " has no package tensorboard");
    return;
  }
  const TestFolder folder;
  log_run((folder / "run").string(), false);
  const auto script = folder.write("read.py", std::string(R"(
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
events = EventAccumulator(sys.argv[1])
events.Reload()
assert [(e.step, e.value) for e in events.Scalars("loss/train")] == [(10, 2.5), (1000000, 1.25)], events.Tags()
assert [(e.step, e.value) for e in events.Scalars("loss/validation")] == [(300, 0.75)]
def content(tag):
    data = plugin_data_pb2.HParamsPluginData()
    data.ParseFromString(events.SummaryMetadata(tag).plugin_data.content)
    return data
start = content("_hparams_/session_start_info").session_start_info
assert start.hparams["seed"].number_value == 7 and start.hparams["train.schedule"].string_value == "cosine", start
assert start.hparams["deterministic"].bool_value and start.hparams["strategy"].string_value == "sma"
assert content("_hparams_/session_end_info").session_end_info.status == 1
)"));
  CHECK(std::system((python + " " + script.string() + " " + (folder / "run").string()).c_str()) == 0);
}

}  // namespace event_record_test
