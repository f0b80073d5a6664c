// SPDX-License-Identifier: Apache-2.0

// Sources over arrays of the caller's.

#include <doctest/doctest.h>

#include <array>
#include <cstring>

#include "base/error.h"
#include "io/sources/memory_source.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

namespace memory_source_test {
namespace {

const std::vector<float> kVectors = {0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32};
const std::vector<uint8_t> kClass = {0, 1, 2, 1};
const std::vector<double> kWeight = {0.5, 1.5, 2.5, 3.5};

std::string refusal(std::vector<FieldArray> arrays) {
  return message_of<GraphError>([&] { memory_source(std::move(arrays), "arrays"); });
}

}  // namespace

TEST_CASE("memory source: any typed fields, in the order asked for, only those that are read") {
  const auto source = memory_source({field_array("vector", {3}, kVectors), field_array("class", {}, kClass, 3),
                                     field_array("weight", {}, std::span<const double>(kWeight))});
  CHECK(source->size() == 4);
  CHECK(to_string(source->fields()) == "vector float[3], class uint8[] of 3 classes, weight double[]");
  CHECK(source->describe() == "memory: 4 samples of vector float[3], class uint8[] of 3 classes, weight double[]");
  const std::vector<SampleRef> samples = {{2, 0, 0}, {0, 0, 1}};
  std::array<float, 6> vectors{};
  std::array<double, 2> weights{};
  std::byte* const fields[] = {reinterpret_cast<std::byte*>(vectors.data()), nullptr,
                               reinterpret_cast<std::byte*>(weights.data())};
  source->fill(samples, fields);
  CHECK(vectors == std::array<float, 6>{20, 21, 22, 0, 1, 2});
  CHECK(weights == std::array<double, 2>{2.5, 0.5});
}

TEST_CASE("memory source: the caller's array is read, not a copy; one that the source owns lives with it") {
  std::vector<int64_t> values = {1, 2, 3};
  const auto borrowed = memory_source({field_array("x", {}, values)});
  const auto owned = memory_source({owned_array("x", {}, values)});
  values[1] = 7;
  const auto second = [](const Source& source) {
    int64_t value = 0;
    const SampleRef sample{1, 0, 0};
    std::byte* const field = reinterpret_cast<std::byte*>(&value);
    source.fill({&sample, 1}, {&field, 1});
    return value;
  };
  CHECK(second(*borrowed) == 7);
  CHECK(second(*owned) == 2);
}

TEST_CASE("memory: a field of bytes of any length is refused") {
  const std::vector<uint8_t> bytes(10);
  FieldArray array = field_array("image", {}, bytes);
  array.field = {"image", DataType::String, {}};
  CHECK(message_of<GraphError>([&] { memory_source({array}); }).find("bytes of any length") != std::string::npos);
}

TEST_CASE("memory source: arrays that do not fit are refused with what was found") {
  check_parts(refusal({}), {"arrays has no fields"});
  check_parts(refusal({field_array("x", {5}, kVectors)}), {"'x float[5]' holds 48 bytes", "multiple of the 20"});
  check_parts(refusal({field_array("x", {3}, std::vector<float>{})}), {"holds 0 bytes"});
  check_parts(refusal({field_array("x", {3}, kVectors), field_array("y", {2}, kWeight)}),
              {"field 'x' holds 4 samples, field 'y' 2"});
  check_parts(refusal({field_array("x", {3}, kVectors), field_array("class", {}, kClass, 2)}),
              {"field 'class' of sample 2 is 2, expected 0 to 1"});
  const std::vector<int32_t> negative = {0, -1};
  check_parts(refusal({field_array("class", {}, negative, 2)}), {"of sample 1 is -1"});
  check_parts(refusal({field_array("x", {3}, kVectors), field_array("x", {3}, kVectors)}),
              {"field 2", "each name once"});
  check_parts(refusal({field_array("an x", {3}, kVectors)}), {"a name of letters"});
  check_parts(refusal({field_array("x", {0}, kVectors)}), {"extents from 1"});
  check_parts(refusal({field_array("x", {}, kWeight, 3)}), {"whole numbers where there are classes"});
}

}  // namespace memory_source_test
