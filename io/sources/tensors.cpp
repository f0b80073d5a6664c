// tensors: a folder with a safetensors file for each split, DIR/train.safetensors, DIR/test.safetensors, …. A tensor is
// a field, and its first dimension counts samples: what Python writes with two calls.

#include <fmt/format.h>

#include <cstring>

#include "graph/error.h"
#include "io/formats/file.h"
#include "io/formats/layout.h"
#include "io/formats/safetensors.h"
#include "io/sources/schemes.h"

namespace arbalest {
namespace {

constexpr int64_t kMostClasses = 1 << 30;

// The samples of a tensor as Source::fill() writes them.
std::vector<std::byte> read_samples(const SafetensorsReader& file, const SafetensorsReader::Entry& entry,
                                    const TensorType& sample) {
  std::vector<std::byte> samples(size_t(sample.bytes() * entry.shape[0]));
  file.read(entry, entry.dtype, samples);
  if (sample.shape.size() != 3) return samples;
  TensorType image = sample;
  image.shape.insert(image.shape.begin(), 1);
  image.layout = Layout::ChannelsLast;
  std::vector<std::byte> planes(size_t(sample.bytes()));
  for (int64_t i = 0; i < entry.shape[0]; ++i) {
    std::byte* at = samples.data() + i * sample.bytes();
    std::memcpy(planes.data(), at, planes.size());
    to_memory_order(image, planes.data(), at);
  }
  return samples;
}

// One int64 a sample, as Python has class indices, becomes an int32, as losses and metrics take them.
std::vector<std::byte> narrowed(const SafetensorsReader& file, const std::string& name,
                                const std::vector<std::byte>& wide) {
  std::vector<std::byte> narrow(wide.size() / 2);
  for (size_t i = 0; i < narrow.size() / sizeof(int32_t); ++i) {
    int64_t number = 0;
    std::memcpy(&number, wide.data() + i * sizeof number, sizeof number);
    const auto fitting = int32_t(number);
    if (fitting != number) {
      throw RunError(fmt::format("{}: sample {} of tensor '{}' is {}, which an int32 does not hold", file.path(), i,
                                 name, number));
    }
    std::memcpy(narrow.data() + i * sizeof fitting, &fitting, sizeof fitting);
  }
  return narrow;
}

FieldArray read_field(const SafetensorsReader& file, const SafetensorsReader::Entry& entry, int64_t classes) {
  if (entry.shape.empty() || entry.shape[0] < 1) {
    throw RunError(fmt::format("{}: tensor '{}' is {}, expected samples along its first dimension, at least one",
                               file.path(), entry.name, to_string(TensorType{entry.dtype, entry.shape})));
  }
  FieldArray array{{entry.name, entry.dtype, {entry.shape.begin() + 1, entry.shape.end()}}, {}, nullptr};
  check_fields({array.field}, file.path());
  std::vector<std::byte> samples = read_samples(file, entry, array.field.sample());
  if (entry.dtype == DataType::Int64 && entry.shape.size() == 1) {
    samples = narrowed(file, entry.name, samples);
    array.field.dtype = DataType::Int32;
  }
  if (entry.name == "label" && !is_floating(entry.dtype)) array.field.classes = classes;
  const auto kept = std::make_shared<const std::vector<std::byte>>(std::move(samples));
  array.bytes = *kept;
  array.owner = kept;
  return array;
}

}  // namespace

std::unique_ptr<Source> open_tensors(const SourceSpec& spec) {
  const int64_t classes = spec.integer("classes", 0, 1, kMostClasses);
  const std::filesystem::path folders[] = {spec.path};
  const std::string names[] = {spec.split + ".safetensors"};
  const SafetensorsReader file(find_file(fmt::format("source '{}'", spec.label()), folders, names));
  std::vector<FieldArray> arrays;
  for (const SafetensorsReader::Entry& entry : file.entries()) arrays.push_back(read_field(file, entry, classes));
  return memory_source(std::move(arrays), spec.label());
}

}  // namespace arbalest
