// SPDX-License-Identifier: Apache-2.0
#include "io/sources/field_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace arbalest {
namespace {

template <typename T>
std::vector<double> widened(std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    T element{};
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<double>(element);
  }
  return values;
}

bool is_whole(DataType type) {
  return type == DataType::Uint8 || type == DataType::Int32 || type == DataType::Int64;
}

}  // namespace

std::vector<double> numbers(DataType type, std::span<const std::byte> bytes) {
  switch (type) {
    case DataType::Float32: return widened<float>(bytes);
    case DataType::Float64: return widened<double>(bytes);
    case DataType::Bfloat16: return widened<bfloat16>(bytes);
    case DataType::Int32: return widened<int32_t>(bytes);
    case DataType::Int64: return widened<int64_t>(bytes);
    case DataType::Uint8: return widened<uint8_t>(bytes);
    default: return {};
  }
}

std::string not_finite(const Field& field, std::span<const std::byte> sample) {
  if (!is_floating(field.dtype)) return "";
  const std::vector<double> values = numbers(field.dtype, sample);
  const auto bad = std::find_if(values.begin(), values.end(), [](double value) { return !std::isfinite(value); });
  if (bad == values.end()) return "";
  const std::string kind = std::isnan(*bad) ? "nan" : "an infinity";
  return values.size() == 1 ? kind : fmt::format("{} at element {} of {}", kind, bad - values.begin(), values.size());
}

void FieldRange::add(std::span<const double> values) {
  FieldRange added;
  double sum = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    added.least = added.count == 0 ? value : std::min(added.least, value);
    added.most = added.count == 0 ? value : std::max(added.most, value);
    sum += value;
    ++added.count;
  }
  if (added.count == 0) return;
  added.mean = sum / double(added.count);
  for (const double value : values) {
    if (std::isfinite(value)) added.squares += (value - added.mean) * (value - added.mean);
  }
  add(added);
}

void FieldRange::add(const FieldRange& other) {
  if (other.count == 0) return;
  if (count == 0) {
    *this = other;
    return;
  }
  const double all = double(count + other.count), apart = other.mean - mean;
  least = std::min(least, other.least);
  most = std::max(most, other.most);
  squares += other.squares + apart * apart * double(count) * double(other.count) / all;
  mean += apart * double(other.count) / all;
  count += other.count;
}

double FieldRange::deviation() const {
  return count == 0 ? 0 : std::sqrt(squares / double(count));
}

int label_field(const std::vector<Field>& fields) {
  const auto is_index = [](const Field& field) { return is_whole(field.dtype) && field.shape.empty(); };
  for (size_t f = 0; f < fields.size(); ++f) {
    const bool named = fields[f].name == "label" || fields[f].name == "y" || fields[f].name == "target";
    if (is_index(fields[f]) && (fields[f].classes > 0 || named)) return int(f);
  }
  return -1;
}

void each_chunk(const Source& source, int field, const std::function<void(std::span<const std::byte>)>& use) {
  constexpr int64_t kChunk = 4096;  // samples
  const std::vector<Field> fields = source.fields();
  std::vector<std::byte> chunk;
  std::vector<SampleRef> samples;
  std::vector<std::byte*> places(fields.size(), nullptr);
  for (int64_t first = 0; first < source.size(); first += kChunk) {
    const int64_t end = std::min(first + kChunk, source.size());
    samples.clear();
    for (int64_t i = first; i < end; ++i) samples.push_back({i, 0, uint64_t(i)});
    chunk.resize(samples.size() * size_t(fields[size_t(field)].sample().bytes()));
    places[size_t(field)] = chunk.data();
    source.fill(samples, places);
    use(chunk);
  }
}

CountedLabels count_labels(const Source& source, int field) {
  constexpr double kMostClasses = 1 << 20;  // that are counted if their number is not stated
  const Field stated = source.fields()[size_t(field)];
  CountedLabels counted;
  counted.samples.resize(size_t(stated.classes));
  bool too_large = false;
  int64_t sample = 0;
  each_chunk(source, field, [&](std::span<const std::byte> chunk) {
    for (const double label : numbers(stated.dtype, chunk)) {
      const bool beyond = stated.classes > 0 && label >= double(stated.classes);
      if (label < 0 || beyond) {
        counted.faulty.emplace_back(sample, int64_t(label));
      } else if (label >= kMostClasses && stated.classes == 0) {
        too_large = true;
      } else {
        if (size_t(label) >= counted.samples.size()) counted.samples.resize(size_t(label) + 1);
        ++counted.samples[size_t(label)];
      }
      ++sample;
    }
  });
  if (too_large) counted.samples.clear();
  return counted;
}

std::string fault_of_label(const Field& field, int64_t label) {
  const std::string classes = field.classes > 0 ? fmt::format("0 to {}", field.classes - 1) : "a class from 0 on";
  return fmt::format("'{}' is {}, expected {}; a loss and metrics pass it over with the attribute ignore_index = {}",
                     field.name, label, classes, label);
}

std::string counted_from_one(const std::map<int64_t, int64_t>& samples, int64_t classes, const Source& source) {
  if (samples.size() < 2 || samples.begin()->first != 1 || !source.class_names().empty()) return "";
  const int64_t most = samples.rbegin()->first;
  if (most != int64_t(samples.size()) || (classes > 0 && most < classes - 1)) return "";
  const std::string data = source.describe();
  const bool arrays = data.starts_with("npy:") || data.starts_with("tensors:");
  return fmt::format(
      "labels are 1 to {}, and none is 0: classes are counted from 0, so that one has no sample; if "
      "yours are counted from 1, take 1 from each{}",
      most, arrays ? " (in NumPy: labels - 1)" : "");
}

std::string counted_from_one(std::span<const int64_t> samples, const Source& source) {
  std::map<int64_t, int64_t> seen;
  for (size_t label = 0; label < samples.size(); ++label) {
    if (samples[label] > 0) seen.emplace(int64_t(label), samples[label]);
  }
  return counted_from_one(seen, int64_t(samples.size()), source);
}

}  // namespace arbalest
