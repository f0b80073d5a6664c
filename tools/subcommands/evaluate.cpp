// SPDX-License-Identifier: Apache-2.0

// arbalest evaluate: the graph's metrics for a model on a split.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/process.h"
#include "executor/inference/classification.h"
#include "executor/inference/inference.h"
#include "executor/inference/label_counts.h"
#include "io/sources/field_values.h"
#include "tools/answers/class_names.h"
#include "tools/answers/label_table.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/session_setup.h"
#include "tools/command/subcommand.h"
#include "tools/command/trained_graph.h"
#include "tools/command/world_setup.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

struct Evaluated {
  Validated measured;
  std::optional<ConfusionMatrix> confusion;
  std::optional<LabelCounts> labels;  // or of several labels a sample
  std::vector<std::string> names;     // of its classes, or of these
  bool of_places = false;             // a sample has several classes, such as one for each pixel
  std::string scores, others;         // what classes are counted by, and alternatives to that; "": there are none
};

// The axis of the classes in the scores of a sample.
size_t class_axis_of_sample(const Head& head, const Shape& scores) {
  return normalized_axis(head.axis, scores.size() + 1) - 1;
}

// The number of classes if output 0 has scores along the head's axis and output 1 a class number for each place;
// otherwise none.
std::optional<int64_t> classes_of(const Head& head, const Inference& inference) {
  const TensorType scores = inference.output_type(0), label = inference.output_type(1);
  const size_t axis = class_axis_of_sample(head, scores.shape);
  if (axis >= scores.shape.size() || is_floating(label.dtype)) return std::nullopt;
  Shape places = scores.shape;
  places.erase(places.begin() + std::ptrdiff_t(axis));
  if (label.shape != places) return std::nullopt;
  return scores.shape[axis];
}

// The number of labels if output 0 is a row of scores per sample and output 1 a row as long, one label per score;
// otherwise none.
std::optional<int64_t> labels_of(const Inference& inference) {
  const Shape scores = inference.output_type(0).shape;
  if (scores.size() != 1 || inference.output_type(1).shape != scores) return std::nullopt;
  return scores[0];
}

std::optional<int64_t> counted_by(const std::optional<Head>& head, const Inference& inference) {
  if (!head) return std::nullopt;
  return head->labels ? labels_of(inference) : classes_of(*head, inference);
}

// Names the classes or labels, of which there are `classes`, by the lines of a file.
void name_classes(Inference& inference, const std::string& file, std::optional<int64_t> classes) {
  if (!classes) {
    throw GraphError(
        "--class-names: the graph has neither SoftmaxCrossEntropy over classes of samples or their places nor "
        "SigmoidCrossEntropy over a row of labels a sample");
  }
  inference.name_classes(ClassNames(file, {}, *classes).all());
}

// The class of the greatest of scores that lie `step` apart; of equal ones the first.
int64_t greatest(const float* scores, int64_t step, int64_t classes) {
  int64_t best = 0;
  for (int64_t k = 1; k < classes; ++k) {
    if (scores[best * step] < scores[k * step]) best = k;
  }
  return best;
}

void count(ConfusionMatrix& confusion, const Head& head, const Inference& inference, const InferredBatch& batch) {
  const TensorType scores = inference.output_type(0), label = inference.output_type(1);
  const int64_t places = label.elements(), classes = confusion.classes();
  const auto axis = std::ptrdiff_t(class_axis_of_sample(head, scores.shape));
  const int64_t step = element_count({scores.shape.begin() + axis + 1, scores.shape.end()});
  for (int64_t n = 0; n < int64_t(batch.rows.size()); ++n) {
    const auto* of_sample = reinterpret_cast<const float*>(batch.values[0]) + n * scores.elements();
    const std::span row(batch.values[1] + n * label.bytes(), size_t(label.bytes()));
    const std::vector<double> labels = numbers(label.dtype, row);
    for (int64_t p = 0; p < places; ++p) {
      const auto of_place = int64_t(labels[size_t(p)]);
      // A label that is no class is ignored, or ends the pass.
      if (head.ignored == of_place || of_place < 0 || of_place >= classes) continue;
      confusion.add(of_place, greatest(of_sample + p / step * step * classes + p % step, step, classes));
    }
  }
}

void count(LabelCounts& counts, DataType type, const InferredBatch& batch) {
  const size_t labels = counts.labels();
  const int64_t row = TensorType{type, {int64_t(labels)}}.bytes();
  for (size_t n = 0; n < batch.rows.size(); ++n) {
    const std::span<const float> scores(reinterpret_cast<const float*>(batch.values[0]) + n * labels, labels);
    counts.add(scores, targets_of(batch.values[1] + int64_t(n) * row, type, labels));
  }
}

Evaluated evaluate(Inference& inference, const std::optional<Head>& head) {
  Evaluated evaluated;
  const auto classes = counted_by(head, inference);
  if (classes && head->labels) evaluated.labels.emplace(size_t(*classes));
  if (classes && !head->labels) {
    evaluated.confusion.emplace(*classes);
    evaluated.of_places = inference.output_type(1).elements() > 1;
  }
  if (classes) evaluated.names = names_for(inference.graph(), inference.class_names(), *classes);
  std::function<void(const InferredBatch&)> each;  // none: nothing is counted, so that no answers are kept
  if (classes) {
    each = [&](const InferredBatch& batch) {
      if (evaluated.confusion) count(*evaluated.confusion, *head, inference, batch);
      if (evaluated.labels) count(*evaluated.labels, inference.output_type(1).dtype, batch);
    };
  }
  const InterruptHandler interrupt;
  evaluated.measured = inference.run(each, interrupt.token());
  return evaluated;
}

Json fraction(double value) {
  return std::isnan(value) ? Json(nullptr) : Json(value);
}

// Keys of the report that are no metrics. `loss` is one.
const std::vector<std::string> kKeys = {"graph",       "weights", "source",   "samples",   "left_out",
                                        "seconds",     "scores",  "labels",   "confusion", "mean_precision",
                                        "mean_recall", "mean_f1", "mean_iou", "classes",   "confusion_cells"};

// The key of the value that Train minimises: its name if a metric called loss is another value.
std::string name_of_loss(const Inference& inference, const Validated& measured) {
  const bool other = std::any_of(measured.metrics.begin(), measured.metrics.end(),
                                 [](const auto& metric) { return metric.first == "loss"; });
  return other ? inference.loss() : "loss";
}

Json to_json(const EvaluateOptions& options, const Inference& inference, const Evaluated& evaluated) {
  const Validated& measured = evaluated.measured;
  Json report = {{"graph", options.graph},
                 {"weights", options.session.files.weights},
                 {"source", inference.source().describe()},
                 {"samples", measured.samples},
                 {"left_out", measured.left_out},
                 {"seconds", measured.seconds},
                 {name_of_loss(inference, measured), fraction(measured.loss)}};
  for (const auto& [name, value] : measured.metrics) report[name] = fraction(value);
  for (const auto& [name, value] : measured.parts) report[name] = fraction(value);
  if (evaluated.labels || evaluated.confusion) report["scores"] = evaluated.scores;
  if (evaluated.labels) {
    const ClassNames names("", evaluated.names, int64_t(evaluated.labels->labels()));
    report["labels"] = label_rates(*evaluated.labels, names.all(), options.threshold);
  }
  if (!evaluated.confusion) return report;
  constexpr int64_t kMostRows = 1000;
  const ConfusionMatrix& confusion = *evaluated.confusion;
  const ClassNames names("", evaluated.names, confusion.classes());
  report["mean_precision"] = fraction(confusion.mean_precision());
  report["mean_recall"] = fraction(confusion.mean_recall());
  report["mean_f1"] = fraction(confusion.mean_f1());
  report["mean_iou"] = fraction(confusion.mean_iou());
  Json classes = Json::array();
  for (int64_t label = 0; label < confusion.classes(); ++label) {
    classes.push_back({{"class", names[label]},
                       {"samples", confusion.samples(label)},
                       {"precision", fraction(confusion.precision(label))},
                       {"recall", fraction(confusion.recall(label))},
                       {"f1", fraction(confusion.f1(label))},
                       {"iou", fraction(confusion.iou(label))}});
  }
  report["classes"] = std::move(classes);
  if (confusion.classes() <= kMostRows) {  // rows: the samples' class; columns: what they were taken for
    std::vector<std::vector<int64_t>> rows(size_t(confusion.classes()),
                                           std::vector<int64_t>(size_t(confusion.classes())));
    for (const auto& cell : confusion.cells()) rows[size_t(cell.label)][size_t(cell.predicted)] = cell.count;
    report["confusion"] = rows;
  } else {
    Json& cells = report["confusion_cells"] = Json::array();
    for (const auto& cell : confusion.cells()) cells.push_back({cell.label, cell.predicted, cell.count});
  }
  return report;
}

std::string ratio_text(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.4f}", value);
}

void print_classes(const ConfusionMatrix& confusion, const ClassNames& names, bool of_places) {
  const size_t width = std::max<size_t>(5, names.width());
  const char* const counted = of_places ? "places" : "samples";
  fmt::print("{:<{}}  {:>8}  {:>9}  {:>7}  {:>7}\n", "class", width, counted, "precision", "recall", "F1");
  const auto line = [&](const std::string& name, int64_t samples, double precision, double recall, double f1) {
    fmt::print("{:<{}}  {:>8}  {:>9}  {:>7}  {:>7}\n", printable(name), width, samples, ratio_text(precision),
               ratio_text(recall), ratio_text(f1));
  };
  for (int64_t label = 0; label < confusion.classes(); ++label) {
    line(names[label], confusion.samples(label), confusion.precision(label), confusion.recall(label),
         confusion.f1(label));
  }
  line("mean", confusion.samples(), confusion.mean_precision(), confusion.mean_recall(), confusion.mean_f1());
  if (of_places) fmt::print("mean intersection over union {}\n", ratio_text(confusion.mean_iou()));
}

// Prints a table if it fits a terminal, else the pairs that are confused most often.
void print_confusion(const ConfusionMatrix& confusion, const ClassNames& names) {
  constexpr int64_t kMostColumns = 12;
  constexpr size_t kMostPairs = 10;
  const size_t width = std::max<size_t>(5, names.width());
  if (confusion.classes() <= kMostColumns) {
    fmt::print("taken for (a row a class)\n{:<{}}", "", width);
    for (int64_t of = 0; of < confusion.classes(); ++of) fmt::print("  {:>6.6}", printable(names[of]));
    fmt::print("\n");
    for (int64_t label = 0; label < confusion.classes(); ++label) {
      fmt::print("{:<{}}", printable(names[label]), width);
      for (int64_t of = 0; of < confusion.classes(); ++of) fmt::print("  {:>6}", confusion.count(label, of));
      fmt::print("\n");
    }
    return;
  }
  using Pair = ConfusionMatrix::Cell;
  std::vector<Pair> pairs = confusion.cells();
  std::erase_if(pairs, [](const Pair& pair) { return pair.label == pair.predicted; });
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.count > b.count; });
  if (pairs.size() > kMostPairs) pairs.resize(kMostPairs);
  fmt::print("most often confused\n");
  for (const Pair& pair : pairs) {
    fmt::print("  {:>6} × {} taken for {}\n", pair.count, printable(names[pair.label]),
               printable(names[pair.predicted]));
  }
}

void print(const EvaluateOptions& options, const Inference& inference, const Evaluated& evaluated) {
  const Validated& measured = evaluated.measured;
  fmt::print("{}\n{} samples in {:.1f} s ({:.0f} a second){}\n", printable(inference.source().describe()),
             measured.samples, measured.seconds, double(measured.samples) / measured.seconds,
             measured.left_out > 0 ? fmt::format("; {} that cannot be read left out", measured.left_out) : "");
  size_t width = 4;
  for (const auto& [name, value] : measured.metrics) width = std::max(width, printable(name).size());
  for (const auto& [name, value] : measured.parts) width = std::max(width, printable(name).size());
  const auto line = [&](const std::string& name, double value) {
    fmt::print("  {:<{}}  {}\n", printable(name), width,
               std::isnan(value) ? "undefined" : fmt::format("{:.6g}", value));
  };
  if (inference.measures_loss()) line(name_of_loss(inference, measured), measured.loss);
  for (const auto& [name, value] : measured.metrics) line(name, value);
  for (const auto& [name, value] : measured.parts) line(name, value);
  if (!evaluated.others.empty() && (evaluated.labels || evaluated.confusion)) {
    fmt::print("{}; --value NAME counts those of {}\n",
               evaluated.labels ? fmt::format("labels by '{}'", printable(evaluated.scores))
                                : fmt::format("classes by '{}', accuracy {:.6g}", printable(evaluated.scores),
                                              evaluated.confusion->accuracy()),
               printable(evaluated.others));
  }
  if (evaluated.labels) {
    const ClassNames names("", evaluated.names, int64_t(evaluated.labels->labels()));
    fmt::print("{}", label_table(*evaluated.labels, names.all(), options.threshold));
  }
  if (!evaluated.confusion) return;
  const ClassNames names("", evaluated.names, evaluated.confusion->classes());
  print_classes(*evaluated.confusion, names, evaluated.of_places);
  print_confusion(*evaluated.confusion, names);
}

int evaluate_as_rank(const EvaluateOptions& options, const std::shared_ptr<Ranks>& ranks) {
  const bool tells = !ranks || ranks->first();
  std::optional<WarningsOfFirst> quiet(ranks.get());
  Graph graph = load_as_trained(options);
  std::optional<Head> head;
  if (!options.value.empty() || !heads_of(graph).empty()) head = head_of(graph, options.value, "leave --value out");
  const std::string others = head ? other_heads(graph, *head) : "";
  if (options.json) check_metric_names(graph, kKeys, "--json");
  InferenceRequest asked{options.split, {}};
  if (head) asked.outputs = {head->scores, head->label};
  SessionOptions session = session_options(options);
  take_as_trained(session, options, graph);
  if (ranks) share_session(ranks, options.devices, session);
  Inference inference(std::move(graph), session, asked);
  const Source& source = inference.source();
  if (options.class_names.empty()) {
    refuse_other_classes(inference.class_names(), source.class_names(), source.describe());
  }
  if (!options.class_names.empty()) name_classes(inference, options.class_names, counted_by(head, inference));
  if (tells) tell_of_fresh_weights(options.session.files);
  for (const std::string& note : inference.notes()) {
    if (tells) warn(note);
  }
  quiet.reset();
  Evaluated evaluated = evaluate(inference, head);
  if (!tells) return kDone;
  if (head) {
    evaluated.scores = head->scores;
    evaluated.others = others;
  }
  if (options.json) {
    fmt::print("{}\n", to_json(options, inference, evaluated).dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print(options, inference, evaluated);
  }
  return kDone;
}

}  // namespace

int command_evaluate(const EvaluateOptions& options) {
  const std::shared_ptr<Ranks> ranks = join_world(options.world);
  return run_as_rank(ranks.get(), [&] { return evaluate_as_rank(options, ranks); });
}

void declare_evaluate(Subcommands& commands) {
  const auto command =
      commands.add<EvaluateOptions>("evaluate", "measure a trained model on a split", command_evaluate);
  CLI::App& app = command.app;
  EvaluateOptions& options = command.options;
  bind_inference(app, options, options.split, options.class_names);
  bind_world(app, options.world);
  app.add_option("--value", options.value,
                 "the scores that classes are counted by, where several losses compare some; otherwise the first's")
      ->type_name("NAME")
      ->check(not_empty());
  app.add_option("--threshold", options.threshold,
                 "the probability above which one of several labels a sample counts as predicted")
      ->capture_default_str()
      ->type_name("P")
      ->check(real(0, 1));
  app.add_flag("--json", options.json, "as JSON; above 1000 classes [class, taken for, samples] in place of a table");
  app.footer(
      "Measures what the graph's Validate lists and, for a model with a class for each sample, pixel or token,\n"
      "precision, recall and F1 of each class and which classes are taken for which; for one with several labels,\n"
      "sensitivity and specificity of each, at --threshold and where their sum is greatest. Nothing is trained, and\n"
      "no file changes.");
}

}  // namespace arbalest
