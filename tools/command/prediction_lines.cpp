#include "tools/command/prediction_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "executor/inference/classification.h"
#include "tools/command/class_names.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;
using Format = PredictOptions::Format;

// Fields that hold a comma, a quote or the end of a line are quoted, as RFC 4180 says.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

// JSON that files of any names and classes fit in.
std::string dump(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// How a sample is called in a line of the format: by its file, or by its number.
std::string called(Format format, const PredictedSample& sample) {
  if (format == Format::Csv) return sample.file.empty() ? std::to_string(sample.index) : csv_field(sample.file);
  return sample.file.empty() ? fmt::format("{:>7}", sample.index) : printable(sample.file);
}

Json described(const PredictedSample& sample) {
  Json object = {{"sample", sample.index}};
  if (!sample.file.empty()) object["file"] = sample.file;
  return object;
}

class ClassLines final : public PredictionLines {
 public:
  ClassLines(const PredictOptions& options, const std::vector<std::string>& names, int64_t classes, Scores scores)
      : format_(options.format),
        classes_(classes),
        scores_(scores),
        all_labels_(scores == Scores::OfLabels && options.top == 0),
        top_(size_t(std::min<int64_t>(options.top > 0              ? options.top
                                      : scores == Scores::OfLabels ? classes
                                                                   : 1,
                                      classes))),
        names_(options.class_names, names, classes) {}

  std::string head() const override {
    if (format_ != Format::Csv) return "";
    std::string text = "sample";
    if (each_label()) {
      for (int64_t label = 0; label < classes_; ++label) text += fmt::format(",{}", csv_field(names_[label]));
      return text + "\n";
    }
    if (scores_ == Scores::OfClassesWithLabel) text += ",label";
    for (size_t i = 1; i <= top_; ++i) text += fmt::format(",class_{0},probability_{0}", i);
    return text + "\n";
  }

  std::string line(const PredictedSample& sample, const InferredBatch& batch, int64_t n) const override {
    const std::span<const float> scores(reinterpret_cast<const float*>(batch.values[0]) + n * classes_,
                                        size_t(classes_));
    const std::vector<Prediction> predictions =
        scores_ == Scores::OfLabels ? most_probable_labels(scores, top_) : most_probable(scores, top_);
    const int64_t label = label_of(batch, n);
    switch (format_) {
      case Format::Json: {
        Json all = Json::array();
        for (const Prediction& each : predictions) {
          all.push_back({{"class", names_[each.label]}, {"probability", each.probability}});
        }
        Json object = described(sample);
        object["label"] = label >= 0 ? Json(names_[label]) : Json(nullptr);
        object["predictions"] = all;
        return dump(object);
      }
      case Format::Csv: {
        std::string text = called(format_, sample);
        if (each_label()) {
          std::vector<double> probabilities(predictions.size());
          for (const Prediction& each : predictions) probabilities[size_t(each.label)] = each.probability;
          for (const double probability : probabilities) text += fmt::format(",{:.6g}", probability);
          return text + "\n";
        }
        if (scores_ == Scores::OfClassesWithLabel) {
          text += fmt::format(",{}", label >= 0 ? csv_field(names_[label]) : "");
        }
        for (const Prediction& each : predictions) {
          text += fmt::format(",{},{:.6g}", csv_field(names_[each.label]), each.probability);
        }
        return text + "\n";
      }
      case Format::Lines: break;
    }
    std::string text = called(format_, sample);
    for (const Prediction& each : predictions) {
      text += fmt::format("  {} {:.1f} %", printable(names_[each.label]), 100 * each.probability);
    }
    if (label >= 0 && label != predictions.front().label) text += fmt::format("  (is {})", printable(names_[label]));
    return text + "\n";
  }

 private:
  // A column for each of several labels, in their order.
  bool each_label() const { return format_ == Format::Csv && all_labels_; }

  // Its class, where that is known; otherwise −1.
  int64_t label_of(const InferredBatch& batch, int64_t n) const {
    if (scores_ != Scores::OfClassesWithLabel) return -1;
    int32_t label = 0;
    std::memcpy(&label, batch.values[1] + size_t(n) * sizeof label, sizeof label);
    return label < classes_ ? std::max(label, -1) : -1;
  }

  const Format format_;
  const int64_t classes_;
  const Scores scores_;
  const bool all_labels_;  // not the most probable ones alone
  const size_t top_;
  const ClassNames names_;
};

class NumberLines final : public PredictionLines {
 public:
  NumberLines(const PredictOptions& options, const TensorType& of_sample)
      : format_(options.format), name_(options.value), count_(of_sample.elements()), type_(of_sample.dtype) {}

  std::string head() const override {
    if (format_ != Format::Csv) return "";
    std::string text = "sample";
    for (int64_t i = 0; i < count_; ++i) text += fmt::format(",{}", csv_field(fmt::format("{}_{}", name_, i)));
    return text + "\n";
  }

  std::string line(const PredictedSample& sample, const InferredBatch& batch, int64_t n) const override {
    const char* between = format_ == Format::Lines ? " " : ",";
    std::string text = called(format_, sample) + between;
    if (format_ == Format::Json) {
      text = described(sample).dump(-1, ' ', false, Json::error_handler_t::replace);
      text.back() = ',';  // the object's end
      text += "\"value\":[";
    }
    for (int64_t i = 0; i < count_; ++i) {
      if (i > 0) text += between;
      text += number(batch.values[0], n * count_ + i);
    }
    return text + (format_ == Format::Json ? "]}\n" : "\n");
  }

 private:
  template <typename T>
  static T element(const std::byte* values, int64_t i) {
    T value;
    std::memcpy(&value, values + size_t(i) * sizeof value, sizeof value);
    return value;
  }
  // JSON has no numbers that are not finite.
  std::string floating(double value, int digits) const {
    if (format_ == Format::Json && !std::isfinite(value)) return "null";
    return fmt::format("{:.{}g}", value, digits);
  }
  std::string number(const std::byte* values, int64_t i) const {
    switch (type_) {
      case DataType::Float64: return floating(element<double>(values, i), 17);
      case DataType::Int64: return std::to_string(element<int64_t>(values, i));
      case DataType::Int32: return std::to_string(element<int32_t>(values, i));
      case DataType::Uint8:
      case DataType::Bool: return std::to_string(element<uint8_t>(values, i));
      default: return floating(element<float>(values, i), 9);
    }
  }

  const Format format_;
  const std::string name_;
  const int64_t count_;
  const DataType type_;
};

}  // namespace

std::unique_ptr<PredictionLines> class_lines(const PredictOptions& options, const std::vector<std::string>& names,
                                             int64_t classes, Scores scores) {
  return std::make_unique<ClassLines>(options, names, classes, scores);
}

std::unique_ptr<PredictionLines> number_lines(const PredictOptions& options, const TensorType& of_sample) {
  return std::make_unique<NumberLines>(options, of_sample);
}

}  // namespace arbalest
