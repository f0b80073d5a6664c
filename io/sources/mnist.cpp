// SPDX-License-Identifier: Apache-2.0

// mnist: the idx files of LeCun et al.: a big-endian header (magic number, one extent a dimension), then bytes.

#include <fmt/format.h>

#include <algorithm>

#include "base/files/file.h"
#include "io/sources/memory_source.h"
#include "io/sources/schemes.h"

namespace arbalest {

namespace {

constexpr int64_t kDigits = 10;
constexpr uint32_t kImagesMagic = 0x00000803, kLabelsMagic = 0x00000801;  // unsigned bytes of rank 3 and 1

uint32_t read_big_endian(InputFile& file, const std::string& what) {
  const std::vector<uint8_t> b = file.read(4, what);
  return uint32_t(b[0]) << 24 | uint32_t(b[1]) << 16 | uint32_t(b[2]) << 8 | uint32_t(b[3]);
}

void expect_magic(InputFile& file, uint32_t magic, const char* content) {
  const uint32_t found = read_big_endian(file, "magic number");
  if (found != magic)
    file.fail(0, fmt::format("magic number 0x{:08x} of an idx file of {}", magic, content),
              fmt::format("0x{:08x}", found));
}

int64_t read_extent(InputFile& file, const char* what, uint32_t most) {
  const uint64_t at = file.offset();
  const uint32_t found = read_big_endian(file, what);
  if (found < 1 || found > most) file.fail(at, fmt::format("a {} from 1 to {}", what, most), fmt::format("{}", found));
  return found;
}

struct Images {
  Shape shape;  // (1, height, width)
  int64_t count = 0;
  std::vector<uint8_t> bytes;  // (count, height, width); the one channel is the last dimension as much as the first
};

Images read_images(const std::filesystem::path& path) {
  InputFile file(path);
  expect_magic(file, kImagesMagic, "images");
  Images images;
  images.count = read_extent(file, "number of images", INT32_MAX);
  const int64_t height = read_extent(file, "height", 4096), width = read_extent(file, "width", 4096);
  images.shape = {1, height, width};
  images.bytes = file.read(uint64_t(images.count * height * width),
                           fmt::format("{} images of {}", images.count, dimensions(images.shape)));
  file.expect_end();
  return images;
}

std::vector<int32_t> read_labels(const std::filesystem::path& path, int64_t images) {
  InputFile file(path);
  expect_magic(file, kLabelsMagic, "labels");
  const int64_t count = read_extent(file, "number of labels", INT32_MAX);
  if (count != images) file.fail(4, fmt::format("{} labels, one for each image", images), fmt::format("{}", count));
  const uint64_t start = file.offset();
  std::vector<uint8_t> labels = file.read(uint64_t(count), "labels");
  file.expect_end();
  const auto wrong = std::find_if(labels.begin(), labels.end(), [](uint8_t label) { return label >= kDigits; });
  if (wrong != labels.end())
    file.fail(start + uint64_t(wrong - labels.begin()), fmt::format("a label from 0 to {}", kDigits - 1),
              fmt::format("{}", *wrong));
  return {labels.begin(), labels.end()};
}

// Both spellings are about: "train-images-idx3-ubyte" and "train-images.idx3-ubyte", each with or without ".gz".
std::filesystem::path find(const SourceSpec& spec, const std::string& content, const std::string& type) {
  const std::string split = spec.split == "train" ? "train" : "t10k";
  std::vector<std::string> names;
  for (const char* separator : {"-", "."})
    for (const char* suffix : {"", ".gz"})
      names.push_back(split + "-" + content + separator + type + "-ubyte" + suffix);
  const std::filesystem::path folders[] = {spec.path};
  return find_split_file(fmt::format("source '{}': {}", spec.label(), content), folders, names);
}

std::unique_ptr<Source> open_mnist(const SourceSpec& spec) {
  // Both are looked for before either is read: a missing file should not take a second to be missed.
  const std::filesystem::path image_path = find(spec, "images", "idx3");
  const std::filesystem::path label_path = find(spec, "labels", "idx1");
  Images images = read_images(image_path);
  std::vector<int32_t> labels = read_labels(label_path, images.count);
  return image_source(spec, images.shape, kDigits, std::move(images.bytes), std::move(labels));
}

}  // namespace

DescribedScheme mnist_scheme() {
  return described(
      {.name = "mnist", .needs_path = true, .open = open_mnist},
      {.path = "DIR",
       .text = "MNIST's idx files, also gzipped",
       .more = "The files are train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
               "t10k-labels-idx1-ubyte; a dot may stand before idx, and .gz at the end. Fashion-MNIST and "
               "others have files of the same names.",
       .example = "mnist:data/mnist"});
}

}  // namespace arbalest
