// SPDX-License-Identifier: Apache-2.0
#include "tools/data/survey_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "io/sources/passed_over.h"

namespace arbalest {
namespace {

constexpr size_t kMostClasses = 12;  // that are listed one by one; of more, half as many from either end
constexpr size_t kMostFaulty = 20;   // that are listed

int64_t median(const std::vector<int64_t>& ascending) {
  return ascending[ascending.size() / 2];
}

std::string line(const char* what, const std::string& text) {
  return fmt::format("  {:<12} {}\n", what, text);
}

std::string range(const std::vector<int64_t>& ascending) {
  return fmt::format("{} … {} … {}", ascending.front(), median(ascending), ascending.back());
}

std::string number(double value) {
  return fmt::format("{:.4f}", value);
}

// Those that there are: "1998 colour, 22 grey".
std::string counted(const std::vector<std::pair<int64_t, const char*>>& counts) {
  std::vector<std::string> parts;
  for (const auto& [count, what] : counts) {
    if (count > 0) parts.push_back(fmt::format("{} {}", count, what));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string classes_text(const SplitSurvey& survey) {
  const std::vector<int64_t>& counts = survey.class_counts;
  std::vector<size_t> order(counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto name = [&](size_t c) { return fmt::format("{} {}", printable(survey.class_names[c]), counts[c]); };
  const auto list = [&](size_t first, size_t last) {
    std::vector<std::string> names;
    for (size_t i = first; i < last; ++i) names.push_back(name(order[i]));
    return fmt::format("{}", fmt::join(names, ", "));
  };
  std::string text = line("classes", std::to_string(counts.size()));
  if (counts.size() <= kMostClasses) return text + line("  samples", list(0, order.size()));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return counts[a] > counts[b]; });
  if (counts[order.front()] == counts[order.back()]) {
    return text + line("  samples", fmt::format("{} of each", counts[order.front()]));
  }
  text += line("  most", list(0, kMostClasses / 2));
  text += line("  fewest", list(order.size() - kMostClasses / 2, order.size()));
  const auto empty = std::count(counts.begin(), counts.end(), 0);
  if (empty > 0) text += line("  empty", fmt::format("{} have no sample", empty));
  return text;
}

std::string labels_text(const SplitSurvey& survey) {
  std::string text = line("labels", std::to_string(survey.labels.size()));
  for (size_t i = 0; i < survey.labels.size(); ++i) {
    const LabelSurvey& label = survey.labels[i];
    text += line("", fmt::format("{}: {} positive, {} negative{}", printable(survey.class_names[i]), label.positive,
                                 label.negative, label.missing ? fmt::format(", {} missing", label.missing) : ""));
  }
  return text;
}

std::string speed_text(const SplitSurvey& survey, int threads) {
  const double looked = double(survey.looked_at), busy = survey.read_seconds + survey.decode_seconds;
  const auto each = [&](double seconds) { return fmt::format("{:.0f} µs", seconds / looked * 1e6); };
  std::string text = fmt::format("{:.0f} images/s with {} thread{}, {:.0f} a thread", looked / survey.seconds, threads,
                                 threads == 1 ? "" : "s", looked / busy);
  return text + fmt::format("; an image takes {} to read, {} to decode whole", each(survey.read_seconds),
                            each(survey.decode_seconds));
}

std::string images_text(const SplitSurvey& survey, int threads) {
  const ImageSurvey& images = survey.images;
  std::vector<std::pair<int64_t, const char*>> counts;
  for (size_t f = 0; f < kImageFormats; ++f) counts.emplace_back(images.files[f], name_of(ImageFormat(f)));
  counts.insert(counts.end(), {{images.arrays, "arrays"},
                               {images.grey, "grey"},
                               {images.colour, "colour"},
                               {images.deep, "of 16 bits"},
                               {images.transparent, "with alpha"},
                               {images.turned, "turned by EXIF"},
                               {images.several, "of several frames or pages, of which the first is taken"}});
  std::string text = line("images", counted(counts));
  if (images.widths.front() == images.widths.back() && images.heights.front() == images.heights.back()) {
    text += line("size", fmt::format("{} × {} pixels", images.widths.front(), images.heights.front()));
  } else {
    text += line("width", range(images.widths) + " pixels (least, median, most)");
    text += line("height", range(images.heights));
    text += line("shorter side", range(images.shorter));
  }
  if (!images.bytes.empty()) {
    const double all = double(std::accumulate(images.bytes.begin(), images.bytes.end(), int64_t{0}));
    text += line("file", fmt::format("{} bytes, {:.1f} MiB in all", range(images.bytes), all / (1 << 20)));
  }
  std::vector<std::string> mean, deviation;
  for (const double value : images.mean) mean.push_back(number(value));
  for (const double value : images.deviation) deviation.push_back(number(value));
  text += line("Augment", fmt::format("mean = [{}], std = [{}]", fmt::join(mean, ", "), fmt::join(deviation, ", ")));
  return images.bytes.empty() ? text : text + line("speed", speed_text(survey, threads));
}

// A line that says so if a field seems to hold images as NumPy does (height, width, channels); otherwise "".
std::string channels_last_text(const SplitSurvey& survey) {
  for (const Field& field : survey.fields) {
    const Shape& shape = field.shape;
    if (field.dtype != DataType::Uint8 || shape.size() != 3 || (shape[2] != 1 && shape[2] != 3)) continue;
    return line("images",
                fmt::format("none that are channels, height, width; '{}' seems to be height, width, channels: "
                            "in NumPy, transpose(0, 3, 1, 2) of all samples",
                            printable(field.name)));
  }
  return "";
}

std::string faulty_text(const char* what, const std::vector<FaultySample>& samples) {
  if (samples.empty()) return "";
  std::string text = line(what, std::to_string(samples.size()));
  const size_t shown = std::min(samples.size(), kMostFaulty);
  for (size_t i = 0; i < shown; ++i) {
    text += fmt::format("    {}: {}\n", printable(samples[i].where), printable(samples[i].why));
  }
  return shown == samples.size() ? text : text + fmt::format("    and {} more\n", samples.size() - shown);
}

nlohmann::ordered_json faulty_json(const std::vector<FaultySample>& samples) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const FaultySample& sample : samples) json.push_back({{"sample", sample.where}, {"why", sample.why}});
  return json;
}

std::string values_text(const SplitSurvey& survey) {
  std::string text;
  for (const auto& [name, range] : survey.values) {
    if (range.count == 0) continue;  // no number is finite, which is reported for each sample
    text += line(text.empty() ? "values" : "",
                 fmt::format("{}: {:g} … {:g} (least, most), mean {:g}, deviation {:g}", printable(name), range.least,
                             range.most, range.mean, range.deviation()));
  }
  return text;
}

nlohmann::ordered_json range_json(const std::vector<int64_t>& ascending) {
  return {{"min", ascending.front()}, {"median", median(ascending)}, {"max", ascending.back()}};
}

nlohmann::ordered_json images_json(const ImageSurvey& images) {
  nlohmann::ordered_json json;
  for (size_t f = 0; f < kImageFormats; ++f) {
    std::string name = name_of(ImageFormat(f));
    std::transform(name.begin(), name.end(), name.begin(), [](char c) { return char(std::tolower(uint8_t(c))); });
    json[name] = images.files[f];
  }
  json.update({{"arrays", images.arrays},
               {"grey", images.grey},
               {"colour", images.colour},
               {"deep", images.deep},
               {"transparent", images.transparent},
               {"turned", images.turned},
               {"several", images.several},
               {"width", range_json(images.widths)},
               {"height", range_json(images.heights)},
               {"shorter_side", range_json(images.shorter)},
               {"mean", images.mean},
               {"std", images.deviation}});
  if (!images.bytes.empty()) json["bytes"] = range_json(images.bytes);
  return json;
}

}  // namespace

std::string survey_text(const SplitSurvey& survey, int threads) {
  std::string text = fmt::format("{}\n", survey.split);
  text += line("samples",
               std::to_string(survey.samples) + (survey.looked_at > 0 && survey.looked_at < survey.samples
                                                     ? fmt::format(", of which {} were looked at", survey.looked_at)
                                                     : ""));
  text += line("fields", to_string(survey.fields));
  if (!survey.passed_over.empty()) text += fmt::format("  {}\n", to_string(survey.passed_over));
  if (!survey.class_counts.empty()) text += classes_text(survey);
  if (!survey.labels.empty()) text += labels_text(survey);
  if (survey.images.size() > 0) text += images_text(survey, threads);
  if (image_field(survey.fields) < 0) text += channels_last_text(survey);
  text += values_text(survey);
  if (!survey.class_note.empty()) text += line("note", survey.class_note);
  text += faulty_text("unreadable", survey.unreadable);
  text += faulty_text("faulty", survey.faulty);
  return text;
}

std::string shared_text(const SharedFiles& shared) {
  if (shared.files == 0) return "";
  std::vector<std::string> named;
  for (const auto& [first, second] : shared.named) {
    named.push_back(first == second ? printable(first) : fmt::format("{} as {}", printable(second), printable(first)));
  }
  const int64_t more = shared.files - int64_t(named.size());
  return fmt::format("{} file{} of {} {} in {} as well: {}{}\n", shared.files, shared.files == 1 ? "" : "s",
                     shared.second, shared.files == 1 ? "is" : "are",
                     shared.first == shared.second ? "another class" : shared.first, fmt::join(named, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

nlohmann::ordered_json shared_json(const SharedFiles& shared) {
  return {{"splits", {shared.first, shared.second}}, {"files", shared.files}, {"names", shared.named}};
}

nlohmann::ordered_json survey_json(const SplitSurvey& survey, int threads) {
  nlohmann::ordered_json json = {{"split", survey.split},
                                 {"samples", survey.samples},
                                 {"looked_at", survey.looked_at},
                                 {"fields", to_string(survey.fields)},
                                 {"passed_over", survey.passed_over}};
  for (size_t c = 0; c < survey.class_counts.size(); ++c) {
    json["classes"].push_back({{"name", survey.class_names[c]}, {"samples", survey.class_counts[c]}});
  }
  for (size_t i = 0; i < survey.labels.size(); ++i) {
    const LabelSurvey& label = survey.labels[i];
    json["labels"].push_back({{"name", survey.class_names[i]},
                              {"positive", label.positive},
                              {"negative", label.negative},
                              {"missing", label.missing}});
  }
  if (survey.images.size() > 0) json["images"] = images_json(survey.images);
  if (survey.looked_at > 0) {
    json["speed"] = {{"threads", threads},
                     {"seconds", survey.seconds},
                     {"read_seconds", survey.read_seconds},
                     {"decode_seconds", survey.decode_seconds}};
    json["unreadable"] = faulty_json(survey.unreadable);
  }
  for (const auto& [name, range] : survey.values) {
    if (range.count == 0) continue;
    json["values"].push_back({{"field", name},
                              {"min", range.least},
                              {"max", range.most},
                              {"mean", range.mean},
                              {"deviation", range.deviation()}});
  }
  if (!survey.class_note.empty()) json["note"] = survey.class_note;
  if (!survey.faulty.empty()) json["faulty"] = faulty_json(survey.faulty);
  return json;
}

}  // namespace arbalest
