// SPDX-License-Identifier: Apache-2.0
#include "io/sources/memory_source.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cassert>
#include <cstring>

namespace arbalest {
namespace {

class MemorySource final : public Source {
 public:
  MemorySource(std::vector<FieldArray> arrays, std::string name, std::vector<std::string> class_names, int64_t size)
      : arrays_(std::move(arrays)), name_(std::move(name)), class_names_(std::move(class_names)), size_(size) {}

  std::vector<Field> fields() const override { return fields_of_arrays(arrays_); }
  int64_t size() const override { return size_; }

  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    for (size_t f = 0; f < arrays_.size(); ++f) {
      if (fields[f] != nullptr) copy(arrays_[f], samples, fields[f]);
    }
  }

  std::vector<std::string> class_names() const override { return class_names_; }
  std::string describe() const override {
    std::string text = fmt::format("{}: {} samples of {}", name_, size_, to_string(fields()));
    for (const FieldArray& array : arrays_) {
      if (array.stored_as.empty()) continue;
      text += fmt::format("; {} is {} in its file, read as {}", array.field.name, array.stored_as,
                          name_of(array.field.dtype));
    }
    return text;
  }

  uint32_t checksum() const override {
    constexpr size_t kMost = size_t{1} << 26;  // bytes of a field
    uLong sum = crc32_z(0, nullptr, 0);
    for (const FieldArray& array : arrays_) {
      const auto* bytes = reinterpret_cast<const Bytef*>(array.bytes.data());
      sum = crc32_z(sum, bytes, std::min(kMost, array.bytes.size()));
    }
    return uint32_t(sum);
  }

  static std::vector<Field> fields_of_arrays(const std::vector<FieldArray>& arrays) {
    std::vector<Field> fields;
    for (const FieldArray& array : arrays) fields.push_back(array.field);
    return fields;
  }

 private:
  void copy(const FieldArray& array, std::span<const SampleRef> samples, std::byte* to) const {
    const size_t bytes = array.bytes.size() / size_t(size_);
    for (const SampleRef& sample : samples) {
      assert(sample.index >= 0 && sample.index < size_);
      std::memcpy(to, array.bytes.data() + size_t(sample.index) * bytes, bytes);
      to += bytes;
    }
  }

  std::vector<FieldArray> arrays_;
  std::string name_;
  std::vector<std::string> class_names_;
  int64_t size_;
};

template <typename T>
void check_values(const FieldArray& array, const std::string& name) {
  const size_t count = array.bytes.size() / sizeof(T), per_sample = size_t(array.field.sample().elements());
  for (size_t i = 0; i < count; ++i) {
    T value;  // the bytes may be aligned in any way
    std::memcpy(&value, array.bytes.data() + i * sizeof(T), sizeof(T));
    if (int64_t(value) >= 0 && int64_t(value) < array.field.classes) continue;
    throw GraphError(fmt::format("{}: field '{}' of sample {} is {}, expected 0 to {}", name, array.field.name,
                                 i / per_sample, value, array.field.classes - 1));
  }
}

void check_classes(const FieldArray& array, const std::string& name) {
  if (array.field.classes == 0) return;
  switch (array.field.dtype) {
    case DataType::Uint8: return check_values<uint8_t>(array, name);
    case DataType::Int32: return check_values<int32_t>(array, name);
    case DataType::Int64: return check_values<int64_t>(array, name);
    default: return;  // check_fields() has refused classes of floating fields
  }
}

}  // namespace

std::unique_ptr<Source> memory_source(std::vector<FieldArray> arrays, std::string name,
                                      std::vector<std::string> class_names) {
  check_fields(MemorySource::fields_of_arrays(arrays), name);
  for (const FieldArray& array : arrays) {
    if (array.field.dtype != DataType::String) continue;
    throw GraphError(fmt::format("{}: field '{}' is bytes of any length, expected elements of an array", name,
                                 to_string(array.field)));
  }
  const auto samples_in = [&](const FieldArray& array) {
    const auto bytes = int64_t(array.bytes.size()), sample = array.field.sample().bytes();
    if (bytes == 0 || bytes % sample != 0) {
      throw GraphError(
          fmt::format("{}: the array of field '{}' holds {} bytes, expected a multiple of the {} of a sample", name,
                      to_string(array.field), bytes, sample));
    }
    return bytes / sample;
  };
  const int64_t size = samples_in(arrays.front());
  for (const FieldArray& array : arrays) {
    if (const int64_t samples = samples_in(array); samples != size) {
      throw GraphError(fmt::format("{}: field '{}' holds {} samples, field '{}' {}", name, arrays.front().field.name,
                                   size, array.field.name, samples));
    }
    check_classes(array, name);
  }
  return std::make_unique<MemorySource>(std::move(arrays), std::move(name), std::move(class_names), size);
}

}  // namespace arbalest
