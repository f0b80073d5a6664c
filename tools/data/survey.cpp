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

#include "graph/checked.h"
#include "graph/error.h"
#include "io/images/image.h"
#include "io/sources/bad_samples.h"

namespace arbalest {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Sums over images of the means of a channel's values, and of their squares.
struct ChannelSums {
  double mean = 0, square = 0;
};

// What one thread has found.
struct Findings {
  ImageSurvey images;
  ChannelSums grey, colour[3];
  std::vector<std::pair<int64_t, UnreadableSample>> unreadable;  // with the sample's index
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
  Examiner(const Source& source, int field) : source_(source), field_(field), stated_(source.fields()[size_t(field)]) {}

  void examine(int64_t index) {
    try {
      stated_.dtype == DataType::String ? examine_file(index) : examine_array(index);
    } catch (const RunError& error) {
      found_.unreadable.push_back({index, {source_.locate(index), fault_of_sample(source_, index, error.what())}});
    }
  }

  Findings& found() { return found_; }

 private:
  void examine_file(int64_t index) {
    const auto start = Clock::now();
    source_.read(index, size_t(field_), file_);
    const auto read = Clock::now();
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

  void examine_array(int64_t index) {
    const auto start = Clock::now();
    pixels_.resize(size_t(stated_.sample().bytes()));
    std::vector<std::byte*> fields(source_.fields().size(), nullptr);
    fields[size_t(field_)] = reinterpret_cast<std::byte*>(pixels_.data());
    const SampleRef sample{index, 0, uint64_t(index)};
    source_.fill({&sample, 1}, fields);
    found_.read_seconds += seconds_since(start);
    found_.images.arrays += 1;
    add_pixels(pixels_.data(), stated_.shape[2], stated_.shape[1], int(stated_.shape[0]), found_);
  }

  const Source& source_;
  int field_;
  Field stated_;
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
  std::sort(found.unreadable.begin(), found.unreadable.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [index, sample] : found.unreadable) result.unreadable.push_back(std::move(sample));
  std::sort(found.prints.begin(), found.prints.end());
  result.prints = std::move(found.prints);
  result.read_seconds = found.read_seconds;
  result.decode_seconds = found.decode_seconds;
}

void look(const Source& source, int field, const SurveyOptions& options, const SurveyProgress& progress,
          SplitSurvey& result) {
  const int64_t size = source.size();
  const int64_t total = options.limit > 0 ? std::min(options.limit, size) : size;
  std::atomic<int64_t> next{0}, done{0};
  const auto work = [&] {
    Examiner examiner(source, field);
    for (int64_t i = next++; i < total; i = next++) {
      // Evenly spread: the k-th of `total` in a split of `size`.
      examiner.examine(int64_t(floor_of({__int128{i} * size, total})));
      ++done;
    }
    return std::move(examiner.found());
  };
  const auto start = Clock::now();
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

constexpr int64_t kChunk = 4096;  // samples whose labels are asked for at once

// Calls with the numbers of the field of each chunk of samples.
template <typename T, typename Use>
void each_chunk(const Source& source, int field, int64_t numbers, Use use) {
  std::vector<T> chunk;
  std::vector<SampleRef> samples;
  std::vector<std::byte*> fields(source.fields().size(), nullptr);
  for (int64_t first = 0; first < source.size(); first += kChunk) {
    const int64_t count = std::min(kChunk, source.size() - first);
    samples.clear();
    for (int64_t i = first; i < first + count; ++i) samples.push_back({i, 0, uint64_t(i)});
    chunk.resize(size_t(count * numbers));
    fields[size_t(field)] = reinterpret_cast<std::byte*>(chunk.data());
    source.fill(samples, fields);
    use(chunk);
  }
}

// The field of several labels: a float for each, which the source has names for.
int labels_field(const std::vector<Field>& fields, size_t names) {
  for (size_t f = 0; f < fields.size(); ++f) {
    const Field& field = fields[f];
    if (field.dtype == DataType::Float32 && field.shape.size() == 1 && names > 0 && field.shape[0] == int64_t(names)) {
      return int(f);
    }
  }
  return -1;
}

void count_labels(const Source& source, SplitSurvey& result) {
  if (const int field = class_field(result.fields); field >= 0) {
    const int64_t classes = result.fields[size_t(field)].classes;
    result.class_counts.resize(size_t(classes));
    for (const int32_t label : classes_of(source, field)) {
      if (label >= 0 && label < classes) ++result.class_counts[size_t(label)];
    }
    for (int64_t c = int64_t(result.class_names.size()); c < classes; ++c) {
      result.class_names.push_back(std::to_string(c));
    }
  } else if (const int several = labels_field(result.fields, result.class_names.size()); several >= 0) {
    const size_t count = result.class_names.size();
    result.labels.resize(count);
    each_chunk<float>(source, several, int64_t(count), [&](const std::vector<float>& chunk) {
      for (size_t i = 0; i < chunk.size(); ++i) {
        LabelSurvey& label = result.labels[i % count];
        (chunk[i] < 0 || std::isnan(chunk[i]) ? label.missing : chunk[i] > 0.5f ? label.positive : label.negative) += 1;
      }
    });
  }
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
  each_chunk<int32_t>(source, field, 1,
                      [&](const std::vector<int32_t>& chunk) { all.insert(all.end(), chunk.begin(), chunk.end()); });
  return all;
}

SharedFiles shared_files(const SplitSurvey& one, const Source& first, const SplitSurvey& other, const Source& second) {
  constexpr size_t kNamed = 5;
  SharedFiles shared{one.split, other.split, 0, {}};
  for (const auto& [print, index] : other.prints) {
    const auto same = std::lower_bound(one.prints.begin(), one.prints.end(), std::pair(print, int64_t{0}));
    if (same == one.prints.end() || same->first != print) continue;
    ++shared.files;
    if (shared.named.size() < kNamed) shared.named.emplace_back(first.name(same->second), second.name(index));
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
  count_labels(source, result);
  if (const int field = image_field(result.fields); field >= 0) look(source, field, options, progress, result);
  return result;
}

}  // namespace arbalest
