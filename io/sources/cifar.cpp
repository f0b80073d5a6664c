// SPDX-License-Identifier: Apache-2.0

// cifar10 and cifar100: the official binary layouts (Krizhevsky). A record is a label byte (cifar100: a coarse one,
// then the fine one, which is read) and three planes of 32x32 bytes, R, G, B.

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "io/formats/layout.h"
#include "io/sources/memory_source.h"
#include "io/sources/schemes.h"

namespace arbalest {

namespace {

constexpr int64_t kChannels = 3, kImageSide = 32;
constexpr size_t kPixels = kChannels * kImageSide * kImageSide;

struct CifarLayout {
  const char* folder;  // in which the archive has the files
  const char* names;   // the file of classes' names
  int64_t classes;
  size_t labels;  // bytes before the pixels, of which the last one counts
};
constexpr CifarLayout kCifar10 = {"cifar-10-batches-bin", "batches.meta.txt", 10, 1};
constexpr CifarLayout kCifar100 = {"cifar-100-binary", "fine_label_names.txt", 100, 2};

// Appends a file's records; planes become channels-last.
void read_batch(const CifarLayout& layout, const std::filesystem::path& path, std::vector<uint8_t>& images,
                std::vector<int32_t>& labels) {
  const TensorType image = TensorType{DataType::Uint8, {1, kChannels, kImageSide, kImageSide}}.in(Layout::ChannelsLast);
  const size_t record = layout.labels + kPixels;
  InputFile file(path);
  const uint64_t bytes = std::filesystem::file_size(path);
  if (bytes == 0 || bytes % record != 0)
    file.fail(bytes / record * record, fmt::format("a whole number of records of {} bytes", record),
              fmt::format("a file of {} bytes", bytes));
  const size_t records = size_t(bytes / record), first = labels.size();
  const std::vector<uint8_t> content = file.read(bytes, "records");
  labels.resize(first + records);
  images.resize((first + records) * kPixels);
  for (size_t i = 0; i < records; ++i) {
    const size_t pixels = i * record + layout.labels;
    const uint8_t label = content[pixels - 1];
    if (label >= layout.classes)
      file.fail(pixels - 1, fmt::format("a label from 0 to {}", layout.classes - 1), fmt::format("{}", label));
    labels[first + i] = label;
    to_memory_order(image, content.data() + pixels, images.data() + (first + i) * kPixels);
  }
}

// None if the file of names is not there.
std::vector<std::string> read_names(const CifarLayout& layout, const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return {};
  std::vector<std::string> names = read_lines(file);
  if (int64_t(names.size()) == layout.classes) return names;
  throw RunError(fmt::format("{}: found {} names, expected one for each of the {} classes", file.string(), names.size(),
                             layout.classes));
}

std::unique_ptr<Source> open_cifar(const SourceSpec& spec, const CifarLayout& layout,
                                   const std::vector<std::string>& files) {
  const std::filesystem::path folder = spec.path;
  const std::filesystem::path folders[] = {folder, folder / layout.folder};
  std::vector<uint8_t> images;
  std::vector<int32_t> labels;
  std::filesystem::path found;
  for (const std::string& name : files) {
    found = find_split_file(fmt::format("source '{}'", spec.label()), folders, std::span(&name, 1));
    read_batch(layout, found, images, labels);
  }
  return image_source(spec, {kChannels, kImageSide, kImageSide}, layout.classes, std::move(images), std::move(labels),
                      read_names(layout, found.parent_path() / layout.names));
}

std::unique_ptr<Source> open_cifar10(const SourceSpec& spec) {
  std::vector<std::string> files = {"test_batch.bin"};
  if (spec.split == "train") {
    files.clear();
    for (int batch = 1; batch <= 5; ++batch) files.push_back(fmt::format("data_batch_{}.bin", batch));
  }
  return open_cifar(spec, kCifar10, files);
}

std::unique_ptr<Source> open_cifar100(const SourceSpec& spec) {
  return open_cifar(spec, kCifar100, {spec.split + ".bin"});
}

}  // namespace

DescribedScheme cifar10_scheme() {
  return described(
      {.name = "cifar10", .needs_path = true, .open = open_cifar10},
      {.path = "DIR",
       .text = "CIFAR-10's binary files",
       .more = "The official binary layout, in DIR or in DIR/cifar-10-batches-bin. Classes have the names in "
               "batches.meta.txt, where it is there.",
       .example = "cifar10:data/cifar10"});
}

DescribedScheme cifar100_scheme() {
  return described({.name = "cifar100", .needs_path = true, .open = open_cifar100},
                   {.path = "DIR",
                    .text = "CIFAR-100's binary files, with the fine labels",
                    .more = "The official binary layout, in DIR or in DIR/cifar-100-binary. Classes have the names in "
                            "fine_label_names.txt, where it is there.",
                    .example = "cifar100:data/cifar100"});
}

}  // namespace arbalest
