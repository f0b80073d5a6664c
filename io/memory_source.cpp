#include "io/memory_source.h"

#include <fmt/format.h>

#include <cassert>
#include <cstring>

namespace arbalest {

MemorySource::MemorySource(std::string name, SampleShape shape, int64_t classes, std::vector<uint8_t> images,
                           std::vector<uint8_t> labels)
    : name_(std::move(name)), shape_(shape), classes_(classes), images_(std::move(images)), labels_(std::move(labels)) {
  assert(images_.size() == labels_.size() * size_t(shape_.bytes()));
}

void MemorySource::fill(std::span<const int64_t> samples, uint8_t* images, int32_t* labels) const {
  const size_t bytes = size_t(shape_.bytes());
  for (const int64_t sample : samples) {
    assert(sample >= 0 && sample < size());
    std::memcpy(images, images_.data() + size_t(sample) * bytes, bytes);
    images += bytes;
    *labels++ = labels_[size_t(sample)];
  }
}

std::string MemorySource::describe() const {
  return fmt::format("{}: {} samples of {}, {} classes", name_, size(), to_string(shape_), classes_);
}

}  // namespace arbalest
