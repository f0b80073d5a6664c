// SPDX-License-Identifier: Apache-2.0
#include "tools/data/survey.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <mutex>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "io/images/image.h"
#include "io/sources/bad_samples.h"

namespace arbalest {
namespace {

using SurveyClock = std::chrono::steady_clock;

double seconds_since(SurveyClock::time_point start) {
  return std::chrono::duration<double>(SurveyClock::now() - start).count();
}

// Sums over images of the means of a channel's values, and of their squares.
struct ChannelSums {
  double mean = 0, square = 0;
};

// The findings of one thread.
struct Findings {
  ImageSurvey images;
  ChannelSums grey, colour[3];
  std::vector<std::pair<int64_t, FaultySample>> unreadable, faulty;  // with the sample's index
  std::vector<FieldValues> values;                                   // as Examiner's fields of numbers
  std::vector<std::pair<FilePrint, int64_t>> prints;
  double read_seconds = 0, decode_seconds = 0;
};

FilePrint print_of(std::span<const std::byte> file) {
  const auto* const bytes = reinterpret_cast<const Bytef*>(file.data());
  return {int64_t(file.size()), uint32_t(crc32_z(0, bytes, file.size())), uint32_t(adler32_z(1, bytes, file.size()))};
}

ChannelSums sums_of(const uint8_t* values, int64_t pixels, int stride) {
  uint64_t sum = 0, square = 0;
  for (int64_t i = 0; i < pixels; ++i) {
    const uint32_t value = values[i * stride];
    sum += value;
    square += value * value;
  }
  return {double(sum) / double(pixels) / 255, double(square) / double(pixels) / (255.0 * 255)};
}

void add_pixels(const uint8_t* pixels, int64_t width, int64_t height, int channels, Findings& found) {
  ChannelSums* sums = channels == 1 ? &found.grey : found.colour;
  for (int c = 0; c < channels; ++c) {
    const ChannelSums added = sums_of(pixels + c, width * height, channels);
    sums[c].mean += added.mean;
    sums[c].square += added.square;
  }
  (channels == 1 ? found.images.grey : found.images.colour) += 1;
  found.images.widths.push_back(width);
  found.images.heights.push_back(height);
  found.images.shorter.push_back(std::min(width, height));
}

// Looks at samples one after the other.
class Examiner {
 public:
  // `image`: image_field(), or -1; `of_numbers`: fields whose values are summed up.
  Examiner(const Source& source, int image, std::span<const int> of_numbers)
      : source_(source), fields_(source.fields()), image_(image), numbers_(of_numbers.begin(), of_numbers.end()) {
    content_.resize(fields_.size());
    for (const int f : numbers_) {
      content_[size_t(f)].resize(size_t(fields_[size_t(f)].sample().bytes()));
      found_.values.push_back({fields_[size_t(f)].name, {}});
    }
  }

  void examine(int64_t index) {
    try {
      if (image_ >= 0 && fields_[size_t(image_)].dtype == DataType::String) examine_file(index);
      if (!numbers_.empty()) examine_numbers(index);
    } catch (const RunError& error) {
      found_.unreadable.push_back({index, {source_.locate(index), fault_of_sample(source_, index, error.what())}});
    }
  }

  Findings& found() { return found_; }

 private:
  void examine_file(int64_t index) {
    const auto start = SurveyClock::now();
    source_.read(index, size_t(image_), file_);
    const auto read = SurveyClock::now();
    found_.read_seconds += std::chrono::duration<double>(read - start).count();
    found_.prints.emplace_back(print_of(file_), index);
    const ImageInfo info = decoder_.open(file_);
    pixels_.resize(size_t(info.width * info.height * info.channels));
    PreparationTimes times;
    decoder_.decode({0, 0, double(info.width), double(info.height)}, info.height, info.width, info.channels,
                    pixels_.data(), times);
    found_.decode_seconds += seconds_since(read);
    ImageSurvey& images = found_.images;
    images.files[size_t(info.format)] += 1;
    images.turned += info.orientation != 1;
    images.deep += info.bits > 8;
    images.transparent += info.alpha;
    images.several += info.several;
    images.bytes.push_back(int64_t(file_.size()));
    add_pixels(pixels_.data(), info.width, info.height, info.channels, found_);
  }

  void examine_numbers(int64_t index) {
    const auto start = SurveyClock::now();
    std::vector<std::byte*> places;
    for (std::vector<std::byte>& content : content_) places.push_back(content.empty() ? nullptr : content.data());
    const SampleRef sample{index, 0, uint64_t(index)};
    source_.fill({&sample, 1}, places);
    found_.read_seconds += seconds_since(start);
    for (size_t n = 0; n < numbers_.size(); ++n) {
      const Field& field = fields_[size_t(numbers_[n])];
      const std::vector<std::byte>& content = content_[size_t(numbers_[n])];
      found_.values[n].range.add(numbers(field.dtype, content));
      const std::string fault = not_finite(field, content);
      if (fault.empty()) continue;
      found_.faulty.push_back({index, {source_.locate(index), fmt::format("field '{}' holds {}", field.name, fault)}});
    }
    if (image_ < 0 || content_[size_t(image_)].empty()) return;
    const Shape& shape = fields_[size_t(image_)].shape;
    found_.images.arrays += 1;
    add_pixels(reinterpret_cast<const uint8_t*>(content_[size_t(image_)].data()), shape[2], shape[1], int(shape[0]),
               found_);
  }

  const Source& source_;
  const std::vector<Field> fields_;
  const int image_;
  const std::vector<int> numbers_;
  std::vector<std::vector<std::byte>> content_;  // of a sample, by field; empty: not read
  ImageDecoder decoder_;
  std::vector<std::byte> file_;
  std::vector<uint8_t> pixels_;
  Findings found_;
};

void append(std::vector<int64_t>& to, const std::vector<int64_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void merge(const Findings& from, Findings& into) {
  ImageSurvey& images = into.images;
  for (size_t f = 0; f < kImageFormats; ++f) images.files[f] += from.images.files[f];
  images.arrays += from.images.arrays;
  images.grey += from.images.grey;
  images.colour += from.images.colour;
  images.turned += from.images.turned;
  images.deep += from.images.deep;
  images.transparent += from.images.transparent;
  images.several += from.images.several;
  append(images.widths, from.images.widths);
  append(images.heights, from.images.heights);
  append(images.shorter, from.images.shorter);
  append(images.bytes, from.images.bytes);
  const auto add = [](ChannelSums& to, const ChannelSums& sums) {
    to.mean += sums.mean;
    to.square += sums.square;
  };
  add(into.grey, from.grey);
  for (int c = 0; c < 3; ++c) add(into.colour[c], from.colour[c]);
  into.unreadable.insert(into.unreadable.end(), from.unreadable.begin(), from.unreadable.end());
  into.faulty.insert(into.faulty.end(), from.faulty.begin(), from.faulty.end());
  if (into.values.empty()) into.values.resize(from.values.size());
  for (size_t n = 0; n < from.values.size(); ++n) {
    into.values[n].name = from.values[n].name;
    into.values[n].range.add(from.values[n].range);
  }
  into.prints.insert(into.prints.end(), from.prints.begin(), from.prints.end());
  into.read_seconds += from.read_seconds;
  into.decode_seconds += from.decode_seconds;
}

void finish(Findings& found, SplitSurvey& result) {
  ImageSurvey& images = result.images = std::move(found.images);
  for (std::vector<int64_t>* list : {&images.widths, &images.heights, &images.shorter, &images.bytes}) {
    std::sort(list->begin(), list->end());
  }
  for (int c = 0; images.size() > 0 && c < (images.colour > 0 ? 3 : 1); ++c) {
    const double mean = (found.grey.mean + found.colour[c].mean) / double(images.size());
    const double square = (found.grey.square + found.colour[c].square) / double(images.size());
    images.mean.push_back(mean);
    images.deviation.push_back(std::sqrt(std::max(0.0, square - mean * mean)));
  }
  const auto take = [](auto& indexed, std::vector<FaultySample>& samples) {
    std::stable_sort(indexed.begin(), indexed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [index, sample] : indexed) samples.push_back(std::move(sample));
  };
  take(found.unreadable, result.unreadable);
  take(found.faulty, result.faulty);
  result.values = std::move(found.values);
  std::sort(found.prints.begin(), found.prints.end());
  result.prints = std::move(found.prints);
  result.read_seconds = found.read_seconds;
  result.decode_seconds = found.decode_seconds;
}

void look(const Source& source, std::span<const int> of_numbers, const SurveyOptions& options,
          const SurveyProgress& progress, SplitSurvey& result) {
  const int64_t size = source.size();
  const int64_t total = options.limit > 0 ? std::min(options.limit, size) : size;
  std::atomic<int64_t> next{0}, done{0};
  const auto work = [&] {
    Examiner examiner(source, image_field(result.fields), of_numbers);
    for (int64_t i = next++; i < total; i = next++) {
      // Evenly spread: the k-th of `total` in a split of `size`.
      examiner.examine(int64_t(floor_of({__int128{i} * size, total})));
      ++done;
    }
    return std::move(examiner.found());
  };
  const auto start = SurveyClock::now();
  std::vector<std::future<Findings>> threads;
  for (int t = 0; t < options.threads; ++t) threads.push_back(std::async(std::launch::async, work));
  Findings all;
  for (std::future<Findings>& thread : threads) {
    while (thread.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) progress(done, total);
    merge(thread.get(), all);
  }
  progress(total, total);
  result.seconds = seconds_since(start);
  result.looked_at = total;
  finish(all, result);
}

// The field of several labels: a float for each, which the source has names for, or which is called 'label'. -1: none.
int labels_field(const std::vector<Field>& fields, size_t names) {
  for (size_t f = 0; f < fields.size(); ++f) {
    const Field& field = fields[f];
    if (field.dtype != DataType::Float32 || field.shape.size() != 1) continue;
    if (names > 0 ? field.shape[0] == int64_t(names) : field.name == "label") return int(f);
  }
  return -1;
}

void count_classes(const Source& source, int field, SplitSurvey& result) {
  CountedLabels counted = count_labels(source, field);
  const Field& stated = result.fields[size_t(field)];
  result.class_note = counted_from_one(counted.samples, source);
  result.class_counts = std::move(counted.samples);
  for (const auto& [sample, label] : counted.faulty) {
    result.faulty.push_back({source.locate(sample), fault_of_label(stated, label)});
  }
  for (size_t c = result.class_names.size(); c < result.class_counts.size(); ++c) {
    result.class_names.push_back(std::to_string(c));
  }
}

// Returns false, and counts nothing, if there are numbers that are neither 0 nor 1 nor missing.
bool count_several(const Source& source, int field, SplitSurvey& result) {
  const auto count = size_t(result.fields[size_t(field)].shape[0]);
  std::vector<LabelSurvey> labels(count);
  bool others = false;
  each_chunk(source, field, [&](std::span<const std::byte> chunk) {
    const std::vector<double> values = numbers(DataType::Float32, chunk);
    for (size_t i = 0; i < values.size(); ++i) {
      const bool missing = values[i] == -1 || std::isnan(values[i]);
      others = others || !(missing || values[i] == 0 || values[i] == 1);
      LabelSurvey& label = labels[i % count];
      (missing ? label.missing : values[i] > 0.5 ? label.positive : label.negative) += 1;
    }
  });
  if (others) return false;
  result.labels = std::move(labels);
  for (size_t i = result.class_names.size(); i < count; ++i) result.class_names.push_back(std::to_string(i));
  return true;
}

// Fields of numbers but those in which something else is counted.
std::vector<int> fields_of_numbers(const std::vector<Field>& fields, int counted) {
  std::vector<int> found;
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].dtype != DataType::String && int(f) != counted) found.push_back(int(f));
  }
  return found;
}

}  // namespace

int image_field(const std::vector<Field>& fields) {
  for (size_t f = 0; f < fields.size(); ++f) {
    const Field& field = fields[f];
    const bool array =
        field.dtype == DataType::Uint8 && field.shape.size() == 3 && (field.shape[0] == 1 || field.shape[0] == 3);
    if (array || field.dtype == DataType::String) return int(f);
  }
  return -1;
}

int class_field(const std::vector<Field>& fields) {
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].dtype == DataType::Int32 && fields[f].shape.empty() && fields[f].classes > 0) return int(f);
  }
  return -1;
}

std::vector<int32_t> classes_of(const Source& source, int field) {
  std::vector<int32_t> all;
  each_chunk(source, field, [&](std::span<const std::byte> chunk) {
    for (const double label : numbers(DataType::Int32, chunk)) all.push_back(int32_t(label));
  });
  return all;
}

constexpr size_t kMostShared = 5;  // that are named

SharedFiles shared_files(const SplitSurvey& one, const Source& first, const SplitSurvey& other, const Source& second) {
  SharedFiles shared{one.split, other.split, 0, {}};
  for (const auto& [print, index] : other.prints) {
    const auto same = std::lower_bound(one.prints.begin(), one.prints.end(), std::pair(print, int64_t{0}));
    if (same == one.prints.end() || same->first != print) continue;
    ++shared.files;
    if (shared.named.size() < kMostShared) shared.named.emplace_back(first.name(same->second), second.name(index));
  }
  return shared;
}

SharedFiles files_of_two_classes(const SplitSurvey& split, const Source& source) {
  SharedFiles shared{split.split, split.split, 0, {}};
  const int field = class_field(split.fields);
  if (field < 0) return shared;
  const std::vector<int32_t> classes = classes_of(source, field);
  for (size_t i = 1; i < split.prints.size(); ++i) {
    const auto& [before, first] = split.prints[i - 1];
    const auto& [print, second] = split.prints[i];
    if (before != print || classes[size_t(first)] == classes[size_t(second)]) continue;
    ++shared.files;
    if (shared.named.size() < kMostShared) shared.named.emplace_back(source.name(first), source.name(second));
  }
  return shared;
}

SplitSurvey survey(const Source& source, const std::string& split, const SurveyOptions& options,
                   const SurveyProgress& progress) {
  SplitSurvey result;
  result.split = split;
  result.fields = source.fields();
  result.samples = source.size();
  result.class_names = source.class_names();
  result.passed_over = source.passed_over();
  int counted = label_field(result.fields);
  if (counted >= 0) {
    count_classes(source, counted, result);
    if (result.class_counts.empty()) counted = -1;
  } else if (counted = labels_field(result.fields, result.class_names.size()); counted >= 0) {
    if (!count_several(source, counted, result)) counted = -1;
  }
  const std::vector<int> of_numbers = fields_of_numbers(result.fields, counted);
  if (image_field(result.fields) >= 0 || !of_numbers.empty()) look(source, of_numbers, options, progress, result);
  return result;
}

}  // namespace arbalest
