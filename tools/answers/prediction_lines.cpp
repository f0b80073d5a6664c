// SPDX-License-Identifier: Apache-2.0
#include "tools/answers/prediction_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "executor/inference/classification.h"
#include "executor/inference/label_counts.h"
#include "io/formats/csv_field.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

// JSON that files of any names and classes fit in.
std::string dump(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// How a sample is called in a line of the format: by its file, or by its number.
std::string called(LineFormat format, const PredictedSample& sample) {
  if (format == LineFormat::Csv) return sample.file.empty() ? std::to_string(sample.index) : csv_field(sample.file);
  return sample.file.empty() ? fmt::format("{:>7}", sample.index) : printable(sample.file);
}

Json described(const PredictedSample& sample) {
  Json object = {{"sample", sample.index}};
  if (!sample.file.empty()) object["file"] = sample.file;
  return object;
}

class ClassLines final : public PredictionLines {
 public:
  ClassLines(ClassFormat format, Scores scores)
      : format_(std::move(format)),
        classes_(format_.names.size()),
        labels_(scores == Scores::OfLabels || scores == Scores::OfLabelsWithTruth),
        known_(scores == Scores::OfClassesWithLabel || scores == Scores::OfLabelsWithTruth),
        top_(std::min(format_.top > 0                 ? size_t(format_.top)
                      : labels_ || format_.each_class ? classes_
                                                      : 1,
                      classes_)) {
    if (format_.format == LineFormat::Csv && each_label()) check_columns();
  }

  std::string head() const override {
    if (format_.format != LineFormat::Csv) return "";
    std::string text = "sample";
    if (each_label()) {
      for (const std::string& name : format_.names) text += fmt::format(",{}", csv_field(name));
      for (const std::string& name : format_.names) {
        if (known_) text += fmt::format(",{}", csv_field("label_" + name));
      }
      return text + "\n";
    }
    if (known_) text += labels_ ? ",labels" : ",label";
    if (format_.each_class) {
      text += ",class";
      for (const std::string& name : format_.names) text += fmt::format(",{}", csv_field("probability_" + name));
      return text + "\n";
    }
    for (size_t i = 1; i <= top_; ++i) text += fmt::format(",class_{0},probability_{0}", i);
    return text + "\n";
  }

  std::string line(const PredictedSample& sample, const InferredBatch& batch, int64_t n) const override {
    const std::span<const float> scores(reinterpret_cast<const float*>(batch.values[0]) + size_t(n) * classes_,
                                        classes_);
    const std::vector<Prediction> predictions =
        labels_ ? most_probable_labels(scores, top_) : most_probable(scores, top_);
    const Truth truth = truth_of(batch, n);
    switch (format_.format) {
      case LineFormat::Json: return json_line(sample, predictions, truth);
      case LineFormat::Csv: return csv_line(sample, predictions, truth);
      case LineFormat::Lines: break;
    }
    std::string text = called(format_.format, sample);
    for (const Prediction& each : predictions) {
      text += fmt::format("  {} {:.1f} %", printable(format_.names[size_t(each.label)]), 100 * each.probability);
    }
    return text + remark(scores, predictions, truth) + "\n";
  }

 private:
  // Throws GraphError if two columns have one name.
  void check_columns() const {
    std::set<std::string> columns = {"sample"};
    for (const char* before : {"", "label_"}) {
      if (*before != 0 && !known_) continue;
      for (const std::string& name : format_.names) {
        if (columns.insert(before + name).second) continue;
        throw GraphError(
            fmt::format("--format csv: two columns are called '{}{}'; --format json has no columns, and "
                        "--class-names FILE gives labels other names",
                        before, name));
      }
    }
  }

  // The truth about a sample, if it is known.
  struct Truth {
    int64_t label = -1;          // its class; −1: unknown
    std::vector<float> targets;  // or of each label: 1, 0, or −1 if that is unknown
  };

  Truth truth_of(const InferredBatch& batch, int64_t n) const {
    Truth truth;
    if (known_ && labels_) {
      const TensorType row = {format_.label, {int64_t(classes_)}};
      truth.targets = targets_of(batch.values[1] + n * row.bytes(), format_.label, classes_);
    } else if (known_) {
      int32_t label = 0;
      std::memcpy(&label, batch.values[1] + size_t(n) * sizeof label, sizeof label);
      truth.label = label < int64_t(classes_) ? std::max(label, -1) : -1;
      if (truth.label >= 0 && !format_.classes.empty()) {
        truth.label = label < int64_t(format_.classes.size()) ? format_.classes[size_t(label)] : -1;
      }
    }
    return truth;
  }

  std::string json_line(const PredictedSample& sample, const std::vector<Prediction>& predictions,
                        const Truth& truth) const {
    Json all = Json::array();
    for (const Prediction& each : predictions) {
      all.push_back({{"class", format_.names[size_t(each.label)]}, {"probability", each.probability}});
    }
    Json object = described(sample);
    object["label"] = truth.label >= 0 ? Json(format_.names[size_t(truth.label)]) : Json(nullptr);
    for (size_t label = 0; label < truth.targets.size(); ++label) {
      const float target = truth.targets[label];
      object["labels"][format_.names[label]] = target < 0 ? Json(nullptr) : Json(target);
    }
    object["predictions"] = all;
    return dump(object);
  }

  std::string csv_line(const PredictedSample& sample, const std::vector<Prediction>& predictions,
                       const Truth& truth) const {
    std::string text = called(format_.format, sample);
    std::string in_order;
    if (each_label() || format_.each_class) {
      std::vector<double> probabilities(predictions.size());
      for (const Prediction& each : predictions) probabilities[size_t(each.label)] = each.probability;
      for (const double probability : probabilities) in_order += fmt::format(",{:.6g}", probability);
    }
    if (each_label()) {
      text += in_order;
      for (const float target : truth.targets) text += target < 0 ? "," : fmt::format(",{:g}", target);
      return text + "\n";
    }
    if (known_ && labels_) text += fmt::format(",{}", csv_field(holding(truth, "|")));
    if (known_ && !labels_) {
      text += fmt::format(",{}", truth.label >= 0 ? csv_field(format_.names[size_t(truth.label)]) : "");
    }
    if (format_.each_class) {
      return text + "," + csv_field(format_.names[size_t(predictions.front().label)]) + in_order + "\n";
    }
    for (const Prediction& each : predictions) {
      text += fmt::format(",{},{:.6g}", csv_field(format_.names[size_t(each.label)]), each.probability);
    }
    return text + "\n";
  }

  // The true class or labels in parentheses if the prediction is wrong; otherwise "".
  std::string remark(std::span<const float> scores, const std::vector<Prediction>& predictions,
                     const Truth& truth) const {
    if (truth.label >= 0 && truth.label != predictions.front().label) {
      return fmt::format("  (is {})", printable(format_.names[size_t(truth.label)]));
    }
    for (size_t label = 0; label < truth.targets.size(); ++label) {
      const float target = truth.targets[label];
      if (target < 0 || (scores[label] > 0) == (target > 0)) continue;
      const std::string all = holding(truth, ", ");
      return fmt::format("  (is {})", all.empty() ? "none of them" : printable(all));
    }
    return "";
  }

  // The names of the labels that are true.
  std::string holding(const Truth& truth, const char* between) const {
    std::string text;
    for (size_t label = 0; label < truth.targets.size(); ++label) {
      if (truth.targets[label] > 0) text += (text.empty() ? "" : between) + format_.names[label];
    }
    return text;
  }

  // A column for each of several labels, in their order.
  bool each_label() const { return labels_ && format_.top == 0; }

  const ClassFormat format_;
  const size_t classes_;
  const bool labels_, known_;
  const size_t top_;
};

class NumberLines final : public PredictionLines {
 public:
  NumberLines(LineFormat format, std::vector<NumbersOf> values) : format_(format), values_(std::move(values)) {}

  std::string head() const override {
    if (format_ != LineFormat::Csv) return "";
    std::string text = "sample";
    for (const NumbersOf& each : values_) {
      for (int64_t i = 0; i < each.of_sample.elements(); ++i) {
        text += fmt::format(",{}", csv_field(fmt::format("{}_{}", each.value, i)));
      }
    }
    return text + "\n";
  }

  std::string line(const PredictedSample& sample, const InferredBatch& batch, int64_t n) const override {
    const char* between = format_ == LineFormat::Lines ? " " : ",";
    std::string text = called(format_, sample) + between;
    if (format_ == LineFormat::Json) {
      text = described(sample).dump(-1, ' ', false, Json::error_handler_t::replace);
      text.back() = ',';  // the object's end
      text += "\"value\":[";
    }
    for (size_t v = 0; v < (format_ == LineFormat::Json ? 1 : values_.size()); ++v) {
      const TensorType& type = values_[v].of_sample;
      for (int64_t i = 0; i < type.elements(); ++i) {
        if (v > 0 || i > 0) text += between;
        text += number(type.dtype, batch.values[v], n * type.elements() + i);
      }
    }
    return text + (format_ == LineFormat::Json ? "]}\n" : "\n");
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
    if (format_ == LineFormat::Json && !std::isfinite(value)) return "null";
    return fmt::format("{:.{}g}", value, digits);
  }
  std::string number(DataType type, const std::byte* values, int64_t i) const {
    switch (type) {
      case DataType::Float64: return floating(element<double>(values, i), 17);
      case DataType::Int64: return std::to_string(element<int64_t>(values, i));
      case DataType::Int32: return std::to_string(element<int32_t>(values, i));
      case DataType::Uint8:
      case DataType::Bool: return std::to_string(element<uint8_t>(values, i));
      default: return floating(element<float>(values, i), 9);
    }
  }

  const LineFormat format_;
  const std::vector<NumbersOf> values_;
};

}  // namespace

std::unique_ptr<PredictionLines> class_lines(ClassFormat format, Scores scores) {
  return std::make_unique<ClassLines>(std::move(format), scores);
}

std::unique_ptr<PredictionLines> number_lines(LineFormat format, std::vector<NumbersOf> values) {
  return std::make_unique<NumberLines>(format, std::move(values));
}

}  // namespace arbalest
