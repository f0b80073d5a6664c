// cifar10: the official binary layout (Krizhevsky): records of one label byte and three planes of 32x32 bytes, R, G, B.

#include <fmt/format.h>

#include "io/formats/file.h"
#include "io/formats/layout.h"
#include "io/sources/memory_source.h"
#include "io/sources/schemes.h"

namespace arbalest {

namespace {

constexpr int64_t kClasses = 10;
constexpr int64_t kChannels = 3, kSide = 32;
constexpr size_t kPixels = kChannels * kSide * kSide;
constexpr size_t kRecord = 1 + kPixels;

// Appends a file's records; planes become channels-last.
void read_batch(const std::filesystem::path& path, std::vector<uint8_t>& images, std::vector<int32_t>& labels) {
  const TensorType image = TensorType{DataType::Uint8, {1, kChannels, kSide, kSide}}.in(Layout::ChannelsLast);
  InputFile file(path);
  const uint64_t bytes = std::filesystem::file_size(path);
  if (bytes == 0 || bytes % kRecord != 0)
    file.fail(bytes / kRecord * kRecord, fmt::format("a whole number of records of {} bytes", kRecord),
              fmt::format("a file of {} bytes", bytes));
  const size_t records = size_t(bytes / kRecord), first = labels.size();
  const std::vector<uint8_t> content = file.read(bytes, "records");
  labels.resize(first + records);
  images.resize((first + records) * kPixels);
  for (size_t i = 0; i < records; ++i) {
    const uint8_t label = content[i * kRecord];
    if (label >= kClasses)
      file.fail(i * kRecord, fmt::format("a label from 0 to {}", kClasses - 1), fmt::format("{}", label));
    labels[first + i] = label;
    to_memory_order(image, content.data() + i * kRecord + 1, images.data() + (first + i) * kPixels);
  }
}

}  // namespace

std::unique_ptr<Source> open_cifar10(const SourceSpec& spec) {
  const std::filesystem::path folder = spec.path;
  const std::filesystem::path folders[] = {folder, folder / "cifar-10-batches-bin"};
  std::vector<std::filesystem::path> paths;
  const auto find = [&](const std::string& name) {
    paths.push_back(find_file(fmt::format("source '{}'", spec.label()), folders, std::span(&name, 1)));
  };
  if (spec.split == "test") find("test_batch.bin");
  for (int batch = 1; batch <= 5 && spec.split == "train"; ++batch) find(fmt::format("data_batch_{}.bin", batch));

  std::vector<uint8_t> images;
  std::vector<int32_t> labels;
  for (const std::filesystem::path& path : paths) read_batch(path, images, labels);
  return image_source(spec, {kChannels, kSide, kSide}, kClasses, std::move(images), std::move(labels));
}

}  // namespace arbalest
