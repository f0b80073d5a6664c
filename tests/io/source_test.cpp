// SPDX-License-Identifier: Apache-2.0

// Sources: specs, mnist and cifar10 from files made here, malformed and real, synthetic noise.

#include <doctest/doctest.h>
#include <zlib.h>

#include <chrono>
#include <cstdlib>
#include <numeric>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/process.h"
#include "io/open/open_source.h"
#include "io/sources/field_values.h"
#include "io/sources/source.h"
#include "tests/io/batch.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

namespace source_test {
namespace {

using Bytes = std::vector<uint8_t>;

// An idx file: magic and extents big-endian, then data bytes 0, 1, 2, … modulo `modulus`.
Bytes idx(std::vector<uint32_t> header, size_t data, int modulus) {
  Bytes bytes;
  for (const uint32_t number : header)
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(uint8_t(number >> shift));
  for (size_t i = 0; i < data; ++i) bytes.push_back(uint8_t(i % size_t(modulus)));
  return bytes;
}
Bytes idx_images(uint32_t count) {
  return idx({0x803, count, 2, 3}, count * 6, 251);
}
Bytes idx_labels(uint32_t count) {
  return idx({0x801, count}, count, 10);
}

Bytes gzipped(const TestFolder& folder, const Bytes& bytes) {
  const std::string path = (folder / "gzipped").string();
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), unsigned(bytes.size()));
  gzclose(file);
  std::ifstream in(path, std::ios::binary);
  Bytes result((std::istreambuf_iterator<char>(in)), {});
  std::filesystem::remove(path);
  return result;
}

using Batch = test::ImageBatch;
Batch batch_of(const Source& source, const std::vector<int64_t>& samples) {
  return test::image_batch(source, samples);
}

Shape image_shape(const Source& source) {
  return source.fields()[0].shape;
}
int64_t label_classes(const Source& source) {
  return source.fields()[1].classes;
}

std::string graph_error(const std::string& spec, const std::string& split = "train") {
  return message_of<GraphError>([&] { open_source(spec, split, 1); });
}
std::string run_error(const std::string& spec, const std::string& split = "train") {
  return message_of<RunError>([&] { open_source(spec, split, 1); });
}

Bytes cifar_records(int count, int first_label) {
  Bytes bytes;
  for (int i = 0; i < count; ++i) {
    bytes.push_back(uint8_t((first_label + i) % 10));
    for (int plane = 0; plane < 3; ++plane)
      for (int pixel = 0; pixel < 1024; ++pixel) bytes.push_back(uint8_t(plane * 80 + pixel % 80));
  }
  return bytes;
}

}  // namespace

TEST_CASE("source: wrong specs name what is valid and what is near") {
  check_parts(
      graph_error("minst:data"),
      {"unknown scheme 'minst'", "glyphs, mnist, cifar10, cifar100, folder, csv, tar, npy, tensors, synthetic, memory",
       "did you mean 'mnist'"});
  check_parts(graph_error("glyphs"), {"expected a colon", "'glyphs:'"});
  check_parts(graph_error(""), {"unknown scheme ''"});
  check_parts(graph_error("mnist:"), {"'mnist:PATH'"});
  check_parts(graph_error("glyphs:data"), {"found 'data' after the colon"});
  check_parts(graph_error("glyphs:", "tests"), {"unknown split 'tests'", "train or test", "did you mean 'test'"});
  check_parts(graph_error("glyphs:?trian=3"),
              {"unknown option 'trian'", "train, test, size, limit", "did you mean 'train'"});
  check_parts(graph_error("mnist:data?size=3"), {"unknown option 'size'", "expected limit"});
  check_parts(graph_error("glyphs:?train"), {"found option 'train'", "key=value"});
  check_parts(graph_error("glyphs:?train=1&train=2"), {"'train' is given twice"});
  for (const char* number : {"", "x", "0", "3x", "1.5", "99999999999999999999"})
    check_parts(graph_error(std::string("glyphs:?train=") + number), {"option 'train' is '", "from 1 to"});
  for (const char* shape : {"3x4", "3x4x5x6", "3x4x0", "x4x5", "axbxc", "3x4x-5", ""})
    check_parts(graph_error(std::string("synthetic:?shape=") + shape),
                {"option 'shape' is '", "CHANNELSxHEIGHTxWIDTH"});
}

TEST_CASE("source: synthetic noise with a delay is read batch by batch, and no faster") {
  const auto source = open_source("synthetic:?delay=20000", "train", 3);
  CHECK_FALSE(source->resident());
  check_parts(source->describe(), {"noise, 20000 µs or more a batch"});
  const auto began = std::chrono::steady_clock::now();
  const auto slow = batch_of(*source, {5, 6});
  CHECK(std::chrono::steady_clock::now() - began >= std::chrono::milliseconds(20));
  CHECK(slow.images == batch_of(*open_source("synthetic:", "train", 3), {5, 6}).images);
  check_parts(graph_error("synthetic:?delay=-1"), {"delay", "-1"});
}

TEST_CASE("source: synthetic noise stays on the device and is a function of the seed") {
  const auto source = open_source("synthetic:?shape=3x5x7&classes=17&size=1000", "train", 3);
  CHECK(source->resident());
  CHECK(image_shape(*source) == Shape{3, 5, 7});
  CHECK(label_classes(*source) == 17);
  CHECK(source->size() == 1000);
  std::vector<int64_t> all(1000);
  std::iota(all.begin(), all.end(), 0);
  const Batch batch = batch_of(*source, all);
  std::vector<int> seen(17);
  for (const int32_t label : batch.labels) {
    REQUIRE(label >= 0);
    REQUIRE(label < 17);
    ++seen[size_t(label)];
  }
  for (const int count : seen) CHECK(count > 20);  // 59 are expected
  const double mean = std::accumulate(batch.images.begin(), batch.images.end(), 0.0) / double(batch.images.size());
  CHECK(mean == doctest::Approx(127.5).epsilon(0.01));
  const Batch again = batch_of(*source, {999, 0});
  CHECK(std::equal(again.images.begin(), again.images.begin() + 105, batch.images.end() - 105));
  CHECK(again.labels[1] == batch.labels[0]);
  CHECK(batch_of(*open_source("synthetic:", "train", 3), {5}).images !=
        batch_of(*open_source("synthetic:", "train", 4), {5}).images);
  CHECK(image_shape(*open_source("synthetic:", "test", 3)) == Shape{3, 32, 32});
  CHECK(open_source("synthetic:", "test", 3)->size() == 10000);
  CHECK(open_source("synthetic:?size=700", "test", 3)->size() == 700);
  CHECK(open_source("synthetic:?size=700&test=30", "test", 3)->size() == 30);
  CHECK(open_source("synthetic:?size=700&test=30", "train", 3)->size() == 700);
}

TEST_CASE("source: mnist under all its names, plain and gzipped") {
  for (const char* separator : {"-", "."})
    for (const bool gzip : {false, true}) {
      TestFolder folder;
      const auto write = [&](const std::string& name, const Bytes& bytes) {
        folder.write(name + (gzip ? ".gz" : ""), gzip ? gzipped(folder, bytes) : bytes);
      };
      write(std::string("t10k-images") + separator + "idx3-ubyte", idx_images(20));
      write(std::string("t10k-labels") + separator + "idx1-ubyte", idx_labels(20));
      const auto source = open_source("mnist:" + folder.string(), "test", 1);
      CHECK(source->size() == 20);
      CHECK(label_classes(*source) == 10);
      CHECK(image_shape(*source) == Shape{1, 2, 3});
      CHECK_FALSE(source->resident());
      check_parts(source->describe(),
                  {folder.string(), "test", "20 samples of image uint8[1,2,3]", "label int32[] of 10 classes"});
      const Batch batch = batch_of(*source, {13, 1, 1});
      CHECK(batch.labels == std::vector<int32_t>{3, 1, 1});
      CHECK(batch.images == Bytes{78, 79, 80, 81, 82, 83, 6, 7, 8, 9, 10, 11, 6, 7, 8, 9, 10, 11});
    }
}

TEST_CASE("source: mnist files that are missing or malformed") {
  TestFolder folder;
  const std::string spec = "mnist:" + folder.string();
  check_parts(run_error(spec + "/none"),
              {"train-images-idx3-ubyte,", "train-images.idx3-ubyte.gz", "which does not exist"});
  check_parts(run_error(spec), {"images", folder.string(), "which is empty"});
  folder.write("train-images-idx3-ubyte", idx_images(20));
  check_parts(run_error(spec), {"train-labels-idx1-ubyte", "which holds train-images-idx3-ubyte"});

  const auto labels = [&](const Bytes& bytes, std::vector<std::string> parts) {
    parts.push_back(folder.write("train-labels-idx1-ubyte", bytes).string());
    check_parts(run_error(spec), parts);
  };
  labels(idx_images(20), {"at byte 0", "0x00000801", "found 0x00000803"});
  labels({}, {"at byte 0", "expected 4 bytes of magic number", "found 0"});
  labels(idx({0x801, 19}, 19, 10), {"at byte 4", "20 labels", "found 19"});
  labels(idx({0x801, 20}, 19, 10), {"at byte 8", "expected 20 bytes", "found 19, then the end"});
  labels(idx({0x801, 20}, 21, 10), {"at byte 28", "the end of the file", "more bytes"});
  labels(idx({0x801, 20}, 20, 11), {"at byte 18", "a label from 0 to 9", "found 10"});
  folder.write("train-labels-idx1-ubyte", idx_labels(20));
  CHECK(open_source(spec, "train", 1)->size() == 20);

  const auto images = [&](const Bytes& bytes, std::vector<std::string> parts) {
    parts.push_back(folder.write("train-images-idx3-ubyte", bytes).string());
    check_parts(run_error(spec), parts);
  };
  images(idx({0x803, 20, 2, 3}, 119, 251), {"at byte 16", "expected 120 bytes of 20 images of 1x2x3", "found 119"});
  images(idx({0x803, 20, 0, 3}, 0, 251), {"at byte 8", "height from 1", "found 0"});
  images(idx({0x803, 20, 2, 0xffffffff}, 0, 251), {"at byte 12", "width", "found 4294967295"});
  images(idx({0x803, 0x7fffffff, 4096, 4096}, 5, 251), {"found 5, then the end"});  // and no attempt to take the memory
  Bytes cut = gzipped(folder, idx_images(20));
  cut.resize(cut.size() - 12);
  images(cut, {"end of the"});
  Bytes corrupt = gzipped(folder, idx_images(20));
  corrupt[corrupt.size() - 6] ^= 0x55;  // the checksum
  images(corrupt, {"cannot be read"});
}

TEST_CASE("source: cifar10 turns planes into channels-last") {
  for (const char* inside : {"", "cifar-10-batches-bin/"}) {
    TestFolder folder;
    const std::string prefix = inside;
    for (int b = 1; b <= 5; ++b) folder.write(prefix + "data_batch_" + std::to_string(b) + ".bin", cifar_records(b, b));
    folder.write(prefix + "test_batch.bin", cifar_records(3, 4));
    const auto train = open_source("cifar10:" + folder.string(), "train", 1);
    CHECK(train->size() == 15);
    CHECK(image_shape(*train) == Shape{3, 32, 32});
    const Batch batch = batch_of(*train, {14, 0});
    CHECK(batch.labels == std::vector<int32_t>{9, 1});
    int wrong = 0;
    for (int i = 0; i < 2; ++i)
      for (int pixel = 0; pixel < 1024; ++pixel)
        for (int c = 0; c < 3; ++c) wrong += batch.images[size_t((i * 1024 + pixel) * 3 + c)] != c * 80 + pixel % 80;
    CHECK(wrong == 0);
    CHECK(batch_of(*open_source("cifar10:" + folder.string(), "test", 1), {0}).labels[0] == 4);
  }
}

TEST_CASE("source: cifar10 files that are missing or malformed") {
  TestFolder folder;
  const std::string spec = "cifar10:" + folder.string();
  folder.write("cifar-10-python.tar.gz", Bytes{1});
  check_parts(run_error(spec, "test"),
              {"test_batch.bin", folder.string(), "which holds cifar-10-python.tar.gz", "cifar-10-batches-bin"});
  const std::string file = folder.write("test_batch.bin", Bytes(3073 * 2 + 1)).string();
  check_parts(run_error(spec, "test"), {file, "at byte 6146", "records of 3073 bytes", "6147 bytes"});
  folder.write("test_batch.bin", Bytes{});
  check_parts(run_error(spec, "test"), {file, "a file of 0 bytes"});
  Bytes records = cifar_records(3, 0);
  records[3073] = 10;
  folder.write("test_batch.bin", records);
  check_parts(run_error(spec, "test"), {file, "at byte 3073", "a label from 0 to 9", "found 10"});
  folder.write("data_batch_1.bin", cifar_records(1, 0));
  check_parts(run_error(spec), {"data_batch_2.bin", "which holds cifar-10-python.tar.gz, data_batch_1.bin"});
}

TEST_CASE("source: cifar100 has fine labels and their names") {
  for (const char* inside : {"", "cifar-100-binary/"}) {
    TestFolder folder;
    const std::string prefix = inside, spec = "cifar100:" + folder.string();
    Bytes records;
    for (const uint8_t fine : {99, 3}) {
      records.push_back(7);  // the coarse one
      records.push_back(fine);
      for (int pixel = 0; pixel < 3072; ++pixel) records.push_back(uint8_t(pixel % 100 + fine % 2));
    }
    folder.write(prefix + "train.bin", records);
    const auto train = open_source(spec, "train", 1);
    CHECK(train->size() == 2);
    CHECK(label_classes(*train) == 100);
    CHECK(train->class_names().empty());
    const Batch batch = batch_of(*train, {1, 0});
    CHECK(batch.labels == std::vector<int32_t>{3, 99});
    CHECK(batch.images[1] == 1024 % 100 + 1);  // green of the first pixel
    check_parts(run_error(spec, "test"), {"test.bin", "cifar-100-binary"});
    std::string names;
    for (int i = 0; i < 100; ++i) names += "class " + std::to_string(i) + "\n";
    folder.write(prefix + "fine_label_names.txt", names + "\n");
    CHECK(open_source(spec, "train", 1)->class_names().at(99) == "class 99");
    folder.write(prefix + "fine_label_names.txt", names + "one more\n");
    check_parts(run_error(spec), {"fine_label_names.txt: found 101 names, expected one for each of the 100 classes"});
    records[1] = 100;
    folder.write(prefix + "train.bin", records);
    check_parts(run_error(spec), {"train.bin", "at byte 1", "a label from 0 to 99", "found 100"});
    records.pop_back();
    folder.write(prefix + "train.bin", records);
    check_parts(run_error(spec), {"at byte 3074", "records of 3074 bytes", "6147 bytes"});
  }
}

TEST_CASE("source: cifar10 has the names of its meta file") {
  TestFolder folder;
  folder.write("test_batch.bin", cifar_records(3, 4));
  folder.write("batches.meta.txt",
               std::string("airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n"));
  CHECK(open_source("cifar10:" + folder.string(), "test", 1)->class_names().at(9) == "truck");
}

TEST_CASE("source: a limit leaves some samples of any split, the same ones whatever the seed") {
  const auto all = open_source("synthetic:?size=500&test=20", "train", 3);
  std::vector<int64_t> everything(500);
  std::iota(everything.begin(), everything.end(), 0);
  const Batch whole = batch_of(*all, everything);
  const auto indices = [&](int64_t limit, uint64_t seed = 3) {
    const auto some = open_source("synthetic:?size=500&test=20&limit=" + std::to_string(limit), "train", seed);
    REQUIRE(some->size() == limit);
    std::vector<int64_t> found;
    for (int64_t i = 0; i < limit; ++i) {
      const std::string place = some->locate(i);
      CHECK(place.starts_with("sample "));
      found.push_back(std::stoll(place.substr(7)));
      CHECK(batch_of(*open_source("synthetic:?size=500&test=20", "train", seed), {found.back()}).images ==
            batch_of(*some, {i}).images);
    }
    return found;
  };
  const std::vector<int64_t> hundred = indices(100), thirty = indices(30);
  CHECK(std::is_sorted(hundred.begin(), hundred.end()));
  CHECK(std::includes(hundred.begin(), hundred.end(), thirty.begin(), thirty.end()));
  CHECK(indices(30, 8) == thirty);
  for (int64_t part = 0; part < 5; ++part) {  // they come from all over the split
    const auto inside = [&](int64_t index) { return index / 100 == part; };
    CHECK(std::count_if(hundred.begin(), hundred.end(), inside) > 8);
  }
  const auto some = open_source("synthetic:?size=500&limit=30", "train", 3);
  CHECK(some->fields() == all->fields());
  CHECK(some->resident());
  CHECK(some->microseconds_per_sample() == all->microseconds_per_sample());
  check_parts(some->describe(), {"500 samples of image", "; limited to 30 of these"});
  CHECK(open_source("synthetic:?test=20&limit=30", "test", 3)->size() == 20);
  for (const char* number : {"0", "-1", "x"})
    check_parts(graph_error(std::string("glyphs:?limit=") + number), {"option 'limit' is '", "an integer from 1"});
}

TEST_CASE("source: folds divide what is trained on, each class alike") {
  const auto all = open_source("glyphs:?train=503", "train", 7);
  const auto labels_of = [](const Source& source) {
    std::vector<int64_t> indices(static_cast<size_t>(source.size()));
    std::iota(indices.begin(), indices.end(), 0);
    return batch_of(source, indices).labels;
  };
  std::map<int32_t, int> by_class;
  for (const int32_t label : labels_of(*all)) ++by_class[label];
  std::vector<std::vector<uint8_t>> held;
  int64_t samples = 0;
  for (int fold = 1; fold <= 5; ++fold) {
    const std::string spec = "glyphs:?train=503&folds=5&fold=" + std::to_string(fold);
    const auto rest = open_source(spec, "train", 7), part = open_source(spec, "test", 7);
    CHECK(rest->size() + part->size() == 503);
    CHECK(std::abs(part->size() - 101) <= 1);
    samples += part->size();
    std::map<int32_t, int> here;
    for (const int32_t label : labels_of(*part)) ++here[label];
    for (const auto& [label, count] : by_class) CHECK(std::abs(here[label] - count / 5.0) < 1.01);
    for (int64_t i = 0; i < part->size(); ++i) held.push_back(batch_of(*part, {i}).images);
    check_parts(part->describe(), {"503 samples", fmt::format("fold {} of 5", fold)});
    check_parts(rest->describe(), {fmt::format("all but fold {} of 5", fold)});
    CHECK(rest->describe() != part->describe());
  }
  CHECK(samples == 503);
  std::sort(held.begin(), held.end());
  CHECK(std::unique(held.begin(), held.end()) == held.end());  // every sample is in one fold
}

TEST_CASE("source: samples with the same value of a field stay in one fold") {
  const std::string spec = "glyphs:?train=200&by=label&folds=3&fold=";
  std::set<int32_t> seen;
  for (int fold = 1; fold <= 3; ++fold) {
    const auto part = open_source(spec + std::to_string(fold), "test", 7);
    std::vector<int64_t> indices(static_cast<size_t>(part->size()));
    std::iota(indices.begin(), indices.end(), 0);
    const std::vector<int32_t> labels = batch_of(*part, indices).labels;
    for (const int32_t label : std::set<int32_t>(labels.begin(), labels.end())) CHECK(seen.insert(label).second);
  }
  CHECK(seen.size() == 10);
  check_parts(graph_error("glyphs:?folds=3"), {"folds=3 needs fold=N, from 1 to 3"});
  check_parts(graph_error("glyphs:?fold=3"), {"option 'fold' needs folds=K"});
  check_parts(graph_error("glyphs:?by=label"), {"option 'by' needs folds=K"});
  check_parts(graph_error("glyphs:?folds=3&fold=4"), {"option 'fold' is '4', expected an integer from 1 to 3"});
  check_parts(graph_error("glyphs:?folds=1&fold=1"), {"option 'folds' is '1'"});
  check_parts(graph_error("glyphs:?train=20&folds=3&fold=1&by=image"), {"by=image", "of which there are label"});
  check_parts(graph_error("glyphs:?train=20&folds=30&fold=1"), {"too few samples for 30 folds"});
  check_parts(graph_error("glyphs:?train=200&folds=11&fold=1&by=label"), {"too few values of 'label' for 11 folds"});
}

TEST_CASE("source: folds that keep whole classes together are told") {
  static std::vector<std::string> warned;
  const auto warnings_of = [](const std::string& spec, const char* split) {
    warned.clear();
    const MessageHandler before = set_warning_handler([](const std::string& message) { warned.push_back(message); });
    open_source(spec, split, 7);
    set_warning_handler(before);
    return warned;
  };
  const std::vector<std::string> found = warnings_of("glyphs:?train=200&by=label&folds=3&fold=2", "train");
  REQUIRE(found.size() == 1);
  check_parts(found[0],
              {"3 folds by 'label': all samples of 10 of 10 classes are held together in one fold, so that the model"});
  CHECK(warnings_of("glyphs:?train=200&by=label&folds=3&fold=3", "train") == found);  // once for all trials
  CHECK(warnings_of("glyphs:?train=200&by=label&folds=3&fold=2", "test").empty());
  CHECK(warnings_of("glyphs:?train=200&folds=3&fold=2", "train").empty());
}

TEST_CASE("source: several threads fill at once") {
  const auto source = open_source("glyphs:?train=500", "train", 1);
  std::vector<int64_t> all(500);
  std::iota(all.begin(), all.end(), 0);
  const Batch expected = batch_of(*source, all);
  std::vector<Batch> found(4);
  {
    std::vector<std::jthread> threads;
    for (Batch& batch : found) threads.emplace_back([&] { batch = batch_of(*source, all); });
  }
  for (const Batch& batch : found) {
    CHECK(batch.images == expected.images);
    CHECK(batch.labels == expected.labels);
  }
}

TEST_CASE("source: the real MNIST") {
  const char* root = std::getenv("ARBALEST_SOURCE");
  const std::filesystem::path folder = std::filesystem::path(root ? root : ".") / "../shared/data/mnist";
  if (!std::filesystem::exists(folder)) {
    MESSAGE("SKIP: no MNIST in " << folder.string());
    return;
  }
  const auto train = open_source("mnist:" + folder.string(), "train", 1);
  CHECK(train->size() == 60000);
  CHECK(image_shape(*train) == Shape{1, 28, 28});
  CHECK(batch_of(*train, {0, 1, 2, 3, 4}).labels == std::vector<int32_t>{5, 0, 4, 1, 9});
  std::vector<int64_t> all(60000);
  std::iota(all.begin(), all.end(), 0);
  const Batch batch = batch_of(*train, all);
  const double mean = std::accumulate(batch.images.begin(), batch.images.end(), 0.0) / double(batch.images.size());
  CHECK(mean / 255 == doctest::Approx(0.1307).epsilon(0.001));
  const auto test = open_source("mnist:" + folder.string(), "test", 1);
  CHECK(test->size() == 10000);
  CHECK(batch_of(*test, {0, 1, 2}).labels == std::vector<int32_t>{7, 2, 1});
}

TEST_CASE("source: the real CIFAR-10") {
  const char* folder = std::getenv("ARBALEST_CIFAR10");
  if (!folder) {
    MESSAGE("SKIP: ARBALEST_CIFAR10 names no folder with the binary files");
    return;
  }
  const auto train = open_source(std::string("cifar10:") + folder, "train", 1);
  CHECK(train->size() == 50000);
  CHECK(open_source(std::string("cifar10:") + folder, "test", 1)->size() == 10000);
  std::vector<int64_t> all(50000);
  std::iota(all.begin(), all.end(), 0);
  const Batch batch = batch_of(*train, all);
  double sum[3] = {};
  for (size_t i = 0; i < batch.images.size(); ++i) sum[i % 3] += batch.images[i];
  const double expected[3] = {0.4914, 0.4822, 0.4465};
  for (int c = 0; c < 3; ++c) CHECK(sum[c] / (255.0 * 50000 * 1024) == doctest::Approx(expected[c]).epsilon(0.0005));
  std::vector<int> seen(10);
  for (const int32_t label : batch.labels) ++seen[size_t(label)];
  CHECK(seen == std::vector<int>(10, 5000));
}

TEST_CASE("labels that seem to count from 1 are told by the source's means, unless classes have names") {
  class Described final : public Source {
   public:
    Described(std::string text, std::vector<std::string> names) : text_(std::move(text)), names_(std::move(names)) {}
    std::vector<Field> fields() const override { return {{"label", DataType::Int32, {}}}; }
    int64_t size() const override { return 6; }
    void fill(std::span<const SampleRef> /*samples*/, std::span<std::byte* const> /*fields*/) const override {}
    std::vector<std::string> class_names() const override { return names_; }
    std::string describe() const override { return text_; }

   private:
    const std::string text_;
    const std::vector<std::string> names_;
  };
  const std::vector<int64_t> one = {0, 4, 2}, gap = {0, 4, 0, 2}, zero = {1, 4, 2};
  const std::string says =
      "labels are 1 to 2, and none is 0: classes are counted from 0, so that one has no sample; if yours are "
      "counted from 1, take 1 from each";
  CHECK(counted_from_one(one, Described("npy:d train: 6 samples", {})) == says + " (in NumPy: labels - 1)");
  CHECK(counted_from_one(one, Described("csv:d.csv train: 6 samples", {})) == says);
  CHECK(counted_from_one(one, Described("folder:d test: 6 samples", {"a", "b", "c"})).empty());
  CHECK(counted_from_one(gap, Described("npy:d", {})).empty());
  CHECK(counted_from_one(zero, Described("npy:d", {})).empty());
  CHECK(counted_from_one({{1, 4}, {2, 2}}, 3, Described("npy:d", {})) == says + " (in NumPy: labels - 1)");
  CHECK(counted_from_one({{1, 4}, {2, 2}}, 4, Described("npy:d", {})).empty());  // class 3 has no sample either
}

}  // namespace source_test
