// SPDX-License-Identifier: Apache-2.0
#include "io/sources/sample_array.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "io/formats/layout.h"

namespace arbalest {
namespace {

void to_channels_last(const TensorType& sample, int64_t count, std::vector<std::byte>& samples) {
  TensorType image = sample;
  image.shape.insert(image.shape.begin(), 1);
  image.layout = Layout::ChannelsLast;
  std::vector<std::byte> planes(size_t(sample.bytes()));
  for (int64_t i = 0; i < count; ++i) {
    std::byte* at = samples.data() + i * sample.bytes();
    std::memcpy(planes.data(), at, planes.size());
    to_memory_order(image, planes.data(), at);
  }
}

int64_t whole_number(const StoredArray& array, size_t i) {
  int64_t number = 0;
  if (array.dtype == DataType::Int64) {
    std::memcpy(&number, array.bytes.data() + i * sizeof number, sizeof number);
  } else if (array.dtype == DataType::Int32) {
    int32_t narrow = 0;
    std::memcpy(&narrow, array.bytes.data() + i * sizeof narrow, sizeof narrow);
    number = narrow;
  } else {
    number = int64_t(array.bytes[i]);
  }
  return number;
}

std::vector<std::byte> to_int32(const StoredArray& array) {
  const size_t count = array.bytes.size() / size_of(array.dtype);
  std::vector<std::byte> made(count * sizeof(int32_t));
  for (size_t i = 0; i < count; ++i) {
    const int64_t number = whole_number(array, i);
    const auto fitting = int32_t(number);
    if (fitting != number) {
      throw RunError(fmt::format("{}: sample {} of tensor '{}' is {}, which an int32 does not hold", array.file, i,
                                 array.name, number));
    }
    std::memcpy(made.data() + i * sizeof fitting, &fitting, sizeof fitting);
  }
  return made;
}

// Makes bytes of an image's whole numbers if all of them are some.
void to_bytes(StoredArray& array) {
  const size_t count = array.bytes.size() / size_of(array.dtype);
  std::vector<std::byte> made(count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t number = whole_number(array, i);
    if (number < 0 || number > 255) return;
    made[i] = std::byte(number);
  }
  array.bytes = std::move(made);
  array.dtype = DataType::Uint8;
}

// As floats, which graphs compute with: NumPy's arrays are doubles unless another type is asked for.
template <typename T>
std::vector<std::byte> to_floats(const StoredArray& array) {
  const size_t count = array.bytes.size() / sizeof(T), per_sample = count / size_t(array.shape[0]);
  std::vector<std::byte> floats(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    T number{};
    std::memcpy(&number, array.bytes.data() + i * sizeof number, sizeof number);
    const auto fitting = static_cast<float>(number);
    if (std::isinf(fitting) && !std::isinf(static_cast<double>(number))) {
      throw RunError(fmt::format("{}: element {} of sample {} of tensor '{}' is {}, which a float does not hold",
                                 array.file, i % per_sample, i / per_sample, array.name, double(number)));
    }
    std::memcpy(floats.data() + i * sizeof fitting, &fitting, sizeof fitting);
  }
  return floats;
}

}  // namespace

FieldArray sample_array(StoredArray array, int64_t classes) {
  const Shape& shape = array.shape;
  if (shape.empty() || shape[0] < 1) {
    throw RunError(fmt::format("{}: tensor '{}' is {}, expected samples along its first dimension, at least one",
                               array.file, array.name, to_string(TensorType{array.dtype, shape})));
  }
  const bool whole = !is_floating(array.dtype);
  // A column of uint8 stays one: it may be a single label of several, of which 255 means a missing one.
  const bool column = array.name == "label" && shape.size() == 2 && shape[1] == 1;
  if (whole && column && array.dtype != DataType::Uint8) array.shape.pop_back();
  if (whole && array.name == "image" && shape.size() == 4 && array.dtype != DataType::Uint8) to_bytes(array);
  FieldArray made{{array.name, array.dtype, {shape.begin() + 1, shape.end()}}, {}, nullptr};
  check_fields({made.field}, array.file);
  if (array.stored_as == "bool" && shape.size() > 1) {
    array.bytes = to_floats<uint8_t>(array);
    made.stored_as = array.stored_as;
    made.field.dtype = array.dtype = DataType::Float32;
  } else if (is_floating(array.dtype) && array.dtype != DataType::Float32) {
    array.bytes = array.dtype == DataType::Float64 ? to_floats<double>(array) : to_floats<bfloat16>(array);
    made.stored_as = name_of(array.dtype);
    made.field.dtype = array.dtype = DataType::Float32;
  }
  if (made.field.shape.size() == 3) to_channels_last(made.field.sample(), shape[0], array.bytes);
  if (whole && shape.size() == 1 && array.dtype != DataType::Int32) {
    array.bytes = to_int32(array);
    made.field.dtype = DataType::Int32;
  }
  if (array.name == "label" && !is_floating(array.dtype)) made.field.classes = classes;
  const auto kept = std::make_shared<const std::vector<std::byte>>(std::move(array.bytes));
  made.bytes = *kept;
  made.owner = kept;
  return made;
}

}  // namespace arbalest
