// SPDX-License-Identifier: Apache-2.0

// Checkpoints that are damaged, foreign or hostile, and folders that checkpoints cannot be written to.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/files/file.h"
#include "base/random.h"
#include "executor/training/checkpoint_folder.h"
#include "io/open/open_source.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/slow_source.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace fs = std::filesystem;

namespace checkpoint_faults_test {
namespace {

using Json = nlohmann::json;

constexpr const char* kSource = "glyphs:?train=96&test=50&size=16";

TinyNet net() {
  TinyNet net;
  net.source = kSource;
  net.train = "lr = 0.05, momentum = 0.9, ema = 0.9, accumulate = 2";
  net.synchronize = "strategy = \"sma\", every = 2";
  return net;
}

SessionOptions options_of(const std::string& folder) {
  SessionOptions options = on_cpus(1, 2);
  options.length.epochs = 2;
  options.checkpoints.folder = folder;
  options.checkpoints.resume = true;
  options.checkpoints.iterations = 1;
  options.sources.training =
      std::make_shared<SlowSource>(open_source(kSource, "train", 1), 10);  // so the disk keeps up
  return options;
}

// A folder with the checkpoints of a short run, and the newest two of them.
struct Written {
  const TestFolder folder;
  const std::string path = (folder / "c").string();
  fs::path newest, before;

  Written() {
    run(tiny(net()), options_of(path));
    const std::vector<fs::path> all = checkpoints_in(path);
    REQUIRE(all.size() > 1);
    newest = all[0];
    before = all[1];
  }
};

std::string content_of(const fs::path& path) {
  const std::vector<uint8_t> bytes = read_file(path);
  return {bytes.begin(), bytes.end()};
}

void put(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

std::string refused(const fs::path& path) {
  return message_of([&] { read_checkpoint(path); });
}

}  // namespace

TEST_CASE("of damaged checkpoints none is taken for whole, and the one before is taken") {
  const Written written;
  const std::string whole = content_of(written.newest);
  const auto expect_before = [&] {
    const auto taken = newest_checkpoint(written.path);
    REQUIRE(taken);
    CHECK(taken->path == written.before.string());
  };
  REQUIRE(newest_checkpoint(written.path)->path == written.newest.string());
  for (const size_t length :
       {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    put(written.newest, whole.substr(0, length));
    CHECK(refused(written.newest) != "");
    expect_before();
  }
  put(written.newest, whole + "x");
  expect_before();
  for (uint64_t key = 0; key < 400; ++key) {  // a bit anywhere, half of the time in the header
    std::string damaged = whole;
    const Random4 draw = philox(5, key, 0);
    const size_t reach = draw.word[1] % 2 == 0 ? whole.size() : std::min<size_t>(whole.size(), 6000);
    const size_t at = draw.word[0] % reach;
    damaged[at] = char(damaged[at] ^ (1 << draw.word[2] % 8));
    put(written.newest, damaged);
    CAPTURE(at);
    CHECK(refused(written.newest) != "");
  }
  expect_before();
  put(written.newest, "not a checkpoint");
  expect_before();
  TensorFile other;  // weights, under the name of a checkpoint
  other.tensors.push_back({"w", DataType::Float32, {1}, std::vector<uint8_t>(4)});
  write_safetensors(written.newest, other);
  CHECK(contains(refused(written.newest), "no checkpoint: its metadata has no 'arbalest.checkpoint'"));
  expect_before();
  fs::remove(written.newest);
  fs::create_directory(written.newest);
  expect_before();
  fs::remove(written.newest);
  fs::create_symlink("nowhere", written.newest);
  expect_before();
}

TEST_CASE("where every checkpoint is damaged none is taken for a fresh start, and each is named") {
  const Written written;
  const std::vector<fs::path> all = checkpoints_in(written.path);
  for (const fs::path& path : all) put(path, "");
  const std::string message = message_of<GraphError>([&] { newest_checkpoint(written.path); });
  CHECK(contains(message, fmt::format("{}: {} checkpoints are there, and none can be read", written.path, all.size())));
  for (const fs::path& path : all) CHECK(contains(message, path.string() + ": "));
  CHECK(contains(message, "another folder starts afresh"));
  for (const fs::path& path : all) fs::remove(path);
  CHECK(newest_checkpoint(written.path) == nullptr);
  fs::create_symlink("nowhere", all[0]);
  CHECK(contains(message_of<GraphError>([&] { newest_checkpoint(written.path); }), "1 checkpoint is there"));
}

TEST_CASE("a damaged checkpoint of a later iteration takes no other's place") {
  const TestFolder folder;
  const std::string path = (folder / "c").string(), damaged = path + "/checkpoint-000000099999.safetensors";
  fs::create_directories(path);
  put(damaged, "");
  SessionOptions options = options_of(path);
  options.checkpoints.keep = 1;
  run(tiny(net()), options);
  const auto taken = newest_checkpoint(path);
  REQUIRE(taken);
  CHECK(taken->checkpoint.ended == RunEnd::Complete);
  CHECK(fs::exists(damaged));
}

TEST_CASE("other files in the folder of checkpoints stay, and what a killed run left goes") {
  const TestFolder folder;
  const std::string path = (folder / "c").string();
  fs::create_directories(path);
  const std::vector<std::string> foreign = {"checkpoint-1.safetensors",
                                            "checkpoint-000000000001.safetensors.bak",
                                            "xcheckpoint-000000000001.safetensors",
                                            "notes.txt",
                                            "checkpoint-00000000000a.safetensors",
                                            ".checkpoint.tmp-0123456789abcdef"};
  for (const std::string& name : foreign) put(path + "/" + name, name);
  const std::string left = path + "/.checkpoint-000000000003.safetensors.tmp-0123456789abcdef";
  put(left, "half of a checkpoint");
  SessionOptions options = options_of(path);
  options.checkpoints.keep = 1;
  run(tiny(net()), options);
  for (const std::string& name : foreign) CHECK(content_of(path + "/" + name) == name);
  CHECK_FALSE(fs::exists(left));
  CHECK(checkpoints_in(path).size() <= 2);  // the newest, and that of the best validation
}

TEST_CASE("one run at a time keeps its checkpoints in a folder") {
  const TestFolder folder;
  const std::string path = (folder / "c").string();
  const CheckpointFolder held(path);
  CHECK(contains(message_of([&] { run(tiny(net()), options_of(path)); }), "another run keeps its checkpoints here"));
}

TEST_CASE("a checkpoint is of the names of classes, in their order, and one without names goes on") {
  class Named final : public Source {
   public:
    explicit Named(std::vector<std::string> names) : names_(std::move(names)) { names_.resize(10, "more"); }
    int64_t size() const override { return source_->size(); }
    std::vector<Field> fields() const override { return source_->fields(); }
    void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
      source_->fill(samples, fields);
    }
    std::string describe() const override { return source_->describe(); }
    std::vector<std::string> class_names() const override { return names_; }

   private:
    const std::unique_ptr<Source> source_ = open_source(kSource, "train", 1);
    std::vector<std::string> names_;
  };
  const TestFolder folder;
  const std::string path = (folder / "c").string();
  const auto with = [&](const std::vector<std::string>& names, int64_t epochs) {
    SessionOptions options = options_of(path);
    options.length.epochs = epochs;
    options.sources.training = std::make_shared<Named>(names);
    options.checkpoints.from = newest_checkpoint(path);
    return options;
  };
  run(tiny(net()), with({"bird", "c\xff", "dog"}, 1));
  const size_t written = checkpoints_in(path).size();
  const std::string error = message_of([&] { run(tiny(net()), with({"bird", "dog", "c\xff"}, 2)); });
  CHECK(contains(error, "of another run:\n  training data: class 1 was 'c\uFFFD', and is 'dog'\na run goes on with"));
  CHECK(checkpoints_in(path).size() == written);
  run(tiny(net()), with({"bird", "c\xff", "dog"}, 2));
  CheckpointFile newest = *newest_checkpoint(path);
  CHECK(newest.checkpoint.position.epoch == 2);
  CHECK(newest.checkpoint.identity.class_names.at(2) == "dog");
  Json state = to_json(newest.checkpoint);
  state.erase("class_names");  // as earlier versions wrote it
  newest.checkpoint = checkpoint_from_json(state);
  CHECK(newest.checkpoint.identity.class_names.empty());
  SessionOptions later = with({"dog", "bird"}, 3);
  later.checkpoints.from = std::make_shared<const CheckpointFile>(std::move(newest));
  run(tiny(net()), later);
  CHECK(newest_checkpoint(path)->checkpoint.position.epoch == 3);
}

TEST_CASE("a run whose checkpoints cannot be written goes on, and says so at its end") {
  class Remover final : public Recorder {
   public:
    explicit Remover(std::string path) : path_(std::move(path)) {}
    void started(const RunStarted&) override {
      fs::remove_all(path_);
      put(path_, "a file in the folder's place");
    }

   private:
    const std::string path_;
  };
  const TestFolder folder;
  Remover story((folder / "c").string());
  run_training(tiny(net()), options_of((folder / "c").string()), story);
  REQUIRE(story.ends.size() == 1);
  CHECK(story.ends[0].reason == RunEnd::Complete);
  CHECK(contains(story.ends[0].checkpoint_error, "cannot be created"));
}

namespace {

// Calls `visit` for every number, text and flag within.
void for_leaves(Json& json, const std::function<void(Json&)>& visit) {
  if (!json.is_structured()) return visit(json);
  for (Json& each : json) for_leaves(each, visit);
}

}  // namespace

// Its sum is right, so what it says is believed as far as it can be true.
TEST_CASE("a checkpoint that says what cannot be is refused, or trains on") {
  const Written written;
  CheckpointFile file = read_checkpoint(written.before);
  const Json state = to_json(file.checkpoint);
  CHECK(to_json(checkpoint_from_json(state)) == state);
  size_t leaves = 0, tried = 0, ended = 0;
  Json counted = state;
  for_leaves(counted["segment"], [&](Json&) { ++leaves; });
  for_leaves(counted["monitor"], [&](Json&) { ++leaves; });
  for_leaves(counted["held"], [&](Json&) { ++leaves; });
  REQUIRE(leaves > 50);
  const std::vector<Json> values = {-1,    0,     3,      int64_t{1} << 49, INT64_MAX,
                                    1e300, "nan", "text", nullptr,          Json::array()};
  for (size_t leaf = 0; leaf < leaves; ++leaf) {
    for (const Json& value : values) {
      Json altered = state;
      size_t at = 0;
      const auto alter = [&](Json& each) {
        if (at++ == leaf) each = value;
      };
      for (const char* part : {"segment", "monitor", "held"}) for_leaves(altered[part], alter);
      if (altered == state) continue;
      ++tried;
      seal(file.tensors, altered.dump());
      const TestFolder folder;
      const fs::path path = folder / "checkpoint-000000000001.safetensors";
      CAPTURE(leaf);
      CAPTURE(value.dump());
      CAPTURE(Json::diff(state, altered).dump());
      message_of([&] {
        write_safetensors(path, file.tensors);
        SessionOptions options = options_of("");
        options.sources = {};
        options.checkpoints.from = std::make_shared<CheckpointFile>(read_checkpoint(path));
        run(tiny(net()), options);
        ++ended;
      });
    }
  }
  CHECK(tried > 400);
  CHECK(ended < tried / 2);
}

TEST_CASE("a checkpoint with other tensors than the run's is refused") {
  const Written written;
  const auto taken = [&](const std::function<void(TensorFile&)>& alter) {
    CheckpointFile file = read_checkpoint(written.before);
    alter(file.tensors);
    seal(file.tensors, to_json(file.checkpoint).dump());
    SessionOptions options = options_of("");
    const TestFolder folder;
    const fs::path path = folder / "checkpoint-000000000001.safetensors";
    write_safetensors(path, file.tensors);
    options.checkpoints.from = std::make_shared<CheckpointFile>(read_checkpoint(path));
    return message_of([&] { run(tiny(net()), options); });
  };
  CHECK(taken([](TensorFile&) {}) == "");
  CHECK(contains(taken([](TensorFile& file) { file.tensors.pop_back(); }), "the checkpoint has no '"));
  CHECK(contains(taken([](TensorFile& file) {
                   file.tensors.push_back({"more", DataType::Uint8, {1}, std::vector<uint8_t>(1)});
                 }),
                 "tensors that are not of this run"));
  const std::string shape = taken([](TensorFile& file) {
    for (NamedTensor& tensor : file.tensors) {
      if (tensor.name == "learner 0/weights/logits.bias") tensor.shape = {5, 2};
    }
  });
  CHECK(contains(shape, "'learner 0/weights/logits.bias': found "));
  CHECK(contains(shape, "(5, 2) in the checkpoint, expected "));
  CHECK(contains(shape, "(10)"));
}

}  // namespace checkpoint_faults_test
