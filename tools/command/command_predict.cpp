// arbalest predict: what a model makes of each sample of a split.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "executor/inference/classification.h"
#include "executor/inference/inference.h"
#include "tools/command/class_names.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/session_setup.h"

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

// Lines of samples in the order of the split, whatever the order in which they come.
class OrderedLines {
 public:
  void add(int64_t first, std::string lines, int64_t samples) {
    waiting_.emplace(first, std::pair{std::move(lines), samples});
    for (auto next = waiting_.find(next_); next != waiting_.end(); next = waiting_.find(next_)) {
      std::fwrite(next->second.first.data(), 1, next->second.first.size(), stdout);
      next_ += next->second.second;
      waiting_.erase(next);
    }
  }

 private:
  std::map<int64_t, std::pair<std::string, int64_t>> waiting_;  // lines and how many samples they are of
  int64_t next_ = 0;
};

// A sample's line.
class Writer {
 public:
  virtual ~Writer() = default;
  virtual std::string head() const { return ""; }
  virtual std::string line(int64_t sample, const InferredBatch& batch, int64_t n) const = 0;
};

class ClassWriter final : public Writer {
 public:
  ClassWriter(const PredictOptions& options, const std::vector<std::string>& names, int64_t classes)
      : format_(options.format),
        classes_(classes),
        top_(size_t(std::min<int64_t>(options.top, classes))),
        names_(options.class_names, names, classes) {}

  std::string head() const override {
    if (format_ != Format::Csv) return "";
    std::string text = "sample,label";
    for (size_t i = 1; i <= top_; ++i) text += fmt::format(",class_{0},probability_{0}", i);
    return text + "\n";
  }

  std::string line(int64_t sample, const InferredBatch& batch, int64_t n) const override {
    const auto* logits = reinterpret_cast<const float*>(batch.values[0]) + n * classes_;
    int32_t label = 0;
    std::memcpy(&label, batch.values[1] + size_t(n) * sizeof label, sizeof label);
    const bool known = label >= 0 && label < classes_;
    const std::vector<Prediction> predictions = most_probable({logits, size_t(classes_)}, top_);
    switch (format_) {
      case Format::Json: {
        Json all = Json::array();
        for (const Prediction& each : predictions) {
          all.push_back({{"class", names_[each.label]}, {"probability", each.probability}});
        }
        const Json object = {
            {"sample", sample}, {"label", known ? Json(names_[label]) : Json(nullptr)}, {"predictions", all}};
        return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
      }
      case Format::Csv: {
        std::string text = fmt::format("{},{}", sample, known ? csv_field(names_[label]) : "");
        for (const Prediction& each : predictions) {
          text += fmt::format(",{},{:.6g}", csv_field(names_[each.label]), each.probability);
        }
        return text + "\n";
      }
      case Format::Lines: break;
    }
    std::string text = fmt::format("{:>7}", sample);
    for (const Prediction& each : predictions) {
      text += fmt::format("  {} {:.1f} %", printable(names_[each.label]), 100 * each.probability);
    }
    if (known && label != predictions.front().label) text += fmt::format("  (is {})", printable(names_[label]));
    return text + "\n";
  }

 private:
  const Format format_;
  const int64_t classes_;
  const size_t top_;
  const ClassNames names_;
};

class NumberWriter final : public Writer {
 public:
  NumberWriter(const PredictOptions& options, const TensorType& of_sample)
      : format_(options.format), name_(options.value), count_(of_sample.elements()), type_(of_sample.dtype) {}

  std::string head() const override {
    if (format_ != Format::Csv) return "";
    std::string text = "sample";
    for (int64_t i = 0; i < count_; ++i) text += fmt::format(",{}", csv_field(fmt::format("{}_{}", name_, i)));
    return text + "\n";
  }

  std::string line(int64_t sample, const InferredBatch& batch, int64_t n) const override {
    const char* between = format_ == Format::Lines ? " " : ",";
    std::string text = format_ == Format::Json ? fmt::format("{{\"sample\":{},\"value\":[", sample)
                                               : fmt::format("{}{}", sample, between);
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

std::unique_ptr<Writer> writer_of(const PredictOptions& options, const Inference& inference) {
  const TensorType first = inference.output_type(0);
  if (!options.value.empty()) return std::make_unique<NumberWriter>(options, first);
  const TensorType label = inference.output_type(1);
  if (first.shape.size() != 1 || !label.shape.empty() || label.dtype != DataType::Int32) {
    throw GraphError("the graph's SoftmaxCrossEntropy does not take one class a sample; name a value with --value");
  }
  return std::make_unique<ClassWriter>(options, inference.class_names(), first.shape[0]);
}

}  // namespace

int command_predict(const PredictOptions& options) {
  Graph graph = load_with_overrides(options);
  InferenceRequest asked{options.split, {}};
  if (!options.value.empty()) {
    if (!options.class_names.empty()) throw GraphError("--class-names: --value prints numbers, not classes");
    asked.outputs = {options.value};
  } else {
    const auto classified = classified_values(graph);
    if (!classified)
      throw GraphError("the graph has no SoftmaxCrossEntropy, whose classes are printed; name a value with --value");
    asked.outputs = {classified->logits, classified->label};
  }
  Inference inference(std::move(graph), session_options(options), asked);
  const std::unique_ptr<Writer> writer = writer_of(options, inference);
  const std::string head = writer->head();
  std::fwrite(head.data(), 1, head.size(), stdout);
  OrderedLines lines;
  const InterruptHandler interrupt;
  inference.run(
      [&](const InferredBatch& batch) {
        std::string text;
        for (int64_t n = 0; n < batch.samples; ++n) text += writer->line(batch.first + n, batch, n);
        lines.add(batch.first, std::move(text), batch.samples);
      },
      InterruptHandler::requested());
  return kDone;
}

}  // namespace arbalest
