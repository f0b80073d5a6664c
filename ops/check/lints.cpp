// SPDX-License-Identifier: Apache-2.0
#include "ops/check/lints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "graph/constants.h"
#include "graph/measures.h"
#include "graph/op.h"
#include "ops/check/model_lints.h"
#include "ops/names.h"

namespace arbalest {
namespace {

using Notes = std::vector<std::string>;

constexpr size_t kMostNotes = 8;  // notes of a kind

std::string note(const Node& node, const std::string& text) {
  return fmt::format("node '{}' ({}): {}", node.name, node.op->qualified_name(), text);
}

// The nodes of the graph's own file, as its Train is, and of no model that it calls.
std::vector<const Node*> own_nodes(const Graph& graph) {
  const Node* train = graph.find_op("arbalest.Train");
  std::vector<const Node*> own;
  for (const Node& node : graph.nodes) {
    if (train && node.where.file == train->where.file) own.push_back(&node);
  }
  return own;
}

const Value& value(const Graph& graph, ValueId id) {
  return graph.values[id];
}

const Node* maker(const Graph& graph, ValueId id) {
  const NodeId producer = value(graph, id).producer;
  return producer == kNone ? nullptr : &graph.nodes[producer];
}

// The value of an integer operand, or of the attribute of its name.
int64_t constant(const Graph& graph, const Node& node, std::string_view name) {
  const std::optional<size_t> operand = constant_operand(node, name);
  return operand ? std::get<int64_t>(content_as(graph, node, *operand, AttributeKind::Int)) : int_attribute(node, name);
}

Notes idle_dropouts(const Graph& graph) {
  Notes notes;
  for (const Node* node : own_nodes(graph)) {
    if (!node->is("Dropout") || constant(graph, *node, "training_mode") != 0) continue;
    notes.push_back(note(*node, "drops nothing, as its training_mode is 0; arbalest.Dropout drops in training"));
  }
  return notes;
}

Notes idle_norms(const Graph& graph) {
  Notes notes;
  for (const Node* node : own_nodes(graph)) {
    if (!node->is("BatchNormalization") || int_attribute(*node, "training_mode") != 0) continue;
    notes.push_back(note(*node,
                         "trains by the running statistics, which stay as they are, as its training_mode is 0; "
                         "arbalest.BatchNorm trains by each batch's"));
  }
  return notes;
}

// The classes whose scores an Accuracy compares with labels.
int64_t class_count(const Graph& graph, const Node& accuracy) {
  const Shape& shape = value(graph, accuracy.input()).type.shape;
  return shape[normalized_axis(int_attribute(accuracy, "axis"), shape.size())];
}

// Metrics and losses whose attributes leave nothing of what they compare.
Notes empty_comparisons(const Graph& graph) {
  Notes notes;
  for (const Node& node : graph.nodes) {
    const std::string op = node.op->qualified_name();
    if (op == "arbalest.Accuracy" && int_attribute(node, "top_k") == class_count(graph, node)) {
      notes.push_back(note(
          node, fmt::format("is 1 whatever the logits are, as top_k is all {} classes", int_attribute(node, "top_k"))));
    }
    if (op == "arbalest.SoftmaxCrossEntropy" && float_attribute(node, "label_smoothing") == 1) {
      notes.push_back(note(node, "depends on no label, as label_smoothing is 1"));
    }
  }
  return notes;
}

// Whether a node reads each value, or the graph hands it out.
Table<ValueId, bool> read_values(const Graph& graph) {
  Table<ValueId, bool> read(graph.values.size(), false);
  for (const ValueId output : graph.outputs) read[output] = true;
  for (const Carry& carry : graph.carries) read[carry.next] = true;
  for (const Node& node : graph.nodes) {
    for (const ValueId input : node.inputs) {
      if (input != kNone) read[input] = true;
    }
  }
  return read;
}

Notes unread_nodes(const Graph& graph) {
  const Table<ValueId, bool> read = read_values(graph);
  Notes notes;
  for (const Node* node : own_nodes(graph)) {
    const bool used = std::any_of(node->outputs.begin(), node->outputs.end(),
                                  [&](ValueId output) { return output != kNone && read[output]; });
    if (used || node->op->side_effect || node->is("arbalest.Prefetch")) continue;
    notes.push_back(note(*node, node->op->metric
                                    ? "nothing reads it, so that it is not measured; Validate lists metrics"
                                    : "nothing reads it: training and validation leave it out"));
  }
  return notes;
}

Notes unread_fields(const Graph& graph) {
  const Table<ValueId, bool> read = read_values(graph);
  Notes notes;
  for (const Node& node : graph.nodes) {
    if (!node.is("arbalest.Prefetch")) continue;
    for (const ValueId output : node.outputs) {
      if (output == kNone || read[output]) continue;
      notes.push_back(note(node, fmt::format("nothing reads '{}', so that no loss and no metric depends on it",
                                             value(graph, output).name)));
    }
  }
  return notes;
}

// Whether the operator passes numbers on unchanged.
bool passes_on(const Node& node) {
  static const std::set<std::string_view> ops = {
      "arbalest.AsStated", "arbalest.StopGradient", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast",
      "Transpose"};
  return ops.contains(node.op->qualified_name());
}

// The node that made the value, past what passes numbers on; nullptr: none did.
const Node* numbers_from(const Graph& graph, ValueId id) {
  const Node* node = maker(graph, id);
  while (node && passes_on(*node)) node = maker(graph, node->inputs[0]);
  return node;
}

Notes doubled_activations(const Graph& graph) {
  Notes notes;
  for (const Node& loss : graph.nodes) {
    if (!is_loss_of_classes(*loss.op) && !is_loss_of_labels(*loss.op)) continue;
    const std::string_view activation = is_loss_of_classes(*loss.op) ? op::Softmax : op::Sigmoid;
    const Node* node = numbers_from(graph, loss.inputs[0]);
    if (!node || !node->is(activation)) continue;
    notes.push_back(note(loss, fmt::format("takes logits and applies {0} itself, and node '{1}' has applied one "
                                           "already; expected what '{1}' reads",
                                           activation, node->name)));
  }
  return notes;
}

// Whether a loss takes the value for logits, to which it applies a Sigmoid.
bool are_logits(const Graph& graph, ValueId id) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [&](const Node& node) { return is_loss_of_labels(*node.op) && node.inputs[0] == id; });
}

// Metrics that take probabilities for logits, or the reverse: a threshold, and the order of samples under a softmax,
// depend on that.
Notes mistaken_scores(const Graph& graph) {
  Notes notes;
  for (const Node& node : graph.nodes) {
    if (!node.op->metric || node.inputs.size() < 2) continue;
    const bool labels_are_classes = value(graph, node.input(MetricInput::Labels)).type.shape.size() <
                                    value(graph, node.input(MetricInput::Scores)).type.shape.size();
    const Node* from = numbers_from(graph, node.input(MetricInput::Scores));
    const std::string made = from ? from->op->qualified_name() : "";
    if (node.op->attribute_spec("logits") && !labels_are_classes) {
      const bool logits = int_attribute(node, "logits") != 0;
      if (logits && (made == "Sigmoid" || made == "Softmax")) {
        notes.push_back(note(node, fmt::format("takes logits, and node '{0}' has made probabilities; expected what "
                                               "'{0}' reads, or logits = 0",
                                               from->name)));
      } else if (!logits && are_logits(graph, node.input(MetricInput::Scores))) {
        notes.push_back(note(node, "takes probabilities as logits is 0, and a loss takes its scores for logits"));
      }
    }
    if (node.op->attribute_spec("softmax") && labels_are_classes && int_attribute(node, "softmax") != 0 &&
        made == "Softmax") {
      notes.push_back(note(node, fmt::format("compares the softmax of its scores, and node '{0}' has applied one "
                                             "already; expected what '{0}' reads, or softmax = 0",
                                             from->name)));
    }
  }
  return notes;
}

// Norms whose running statistics stay as they are initialised, though they are validated by them.
Notes still_statistics(const Graph& graph) {
  Notes notes;
  for (const Node& node : graph.nodes) {
    const std::string op = node.op->qualified_name();
    const bool trains =
        op == "arbalest.BatchNorm" || (op == "BatchNormalization" && int_attribute(node, "training_mode") != 0);
    if (!trains || float_attribute(node, "momentum") != 1) continue;
    notes.push_back(note(node,
                         "keeps the running statistics that it starts from, by which it is validated, as momentum "
                         "is 1 (the weight of the old ones, as in ONNX)"));
  }
  return notes;
}

// Norms that share scale and bias, as where a module is applied several times, and count statistics for each place.
Notes parted_statistics(const Graph& graph) {
  constexpr size_t kScale = 1, kMean = 3;
  std::map<ValueId, const Node*> first;  // by scale
  Notes notes;
  for (const Node& node : graph.nodes) {
    const bool trains = node.is("BatchNormalization") && int_attribute(node, "training_mode") != 0;
    if (!trains || node.inputs.size() <= kMean) continue;
    const auto [known, added] = first.emplace(node.inputs[kScale], &node);
    if (added || known->second->inputs[kMean] == node.inputs[kMean]) continue;
    notes.push_back(note(node, fmt::format("has the scale of '{}' and running statistics of its own, '{}': where a "
                                           "model applies a batch norm several times, each place counts by itself",
                                           known->second->name, value(graph, node.inputs[kMean]).name)));
  }
  return notes;
}

// A rate that is 0 as a float: nothing is trained.
Notes idle_rates(const Graph& graph) {
  const Node* train = graph.find_op("arbalest.Train");
  if (!train || float(float_attribute(*train, "lr")) != 0) return {};
  return {note(*train, fmt::format("trains nothing, as lr is {:g}", float_attribute(*train, "lr")))};
}

// The numbers of an operand that are known before anything runs: a constant's, or a weight's initial values.
std::vector<double> known_numbers(const Graph& graph, ValueId id) {
  const Value& operand = value(graph, id);
  constexpr int64_t kMost = 16;  // channels
  if (operand.type.elements() > kMost || operand.type.dtype != DataType::Float32) return {};
  auto content = content_of(graph, id);
  if (!content && operand.role == Role::Parameter && operand.initializer.kind == Initializer::Kind::Data) {
    content = operand.initializer.data;
  }
  if (!content) return {};
  std::vector<float> numbers(size_t(operand.type.elements()));
  std::memcpy(numbers.data(), content->data(), content->size());
  return {numbers.begin(), numbers.end()};
}

// Subtracts means or divides by deviations, of images that have been normalised, or brings pixels to 0 … 1 that are
// there already.
bool normalises(const Graph& graph, const Node& node, bool normalised) {
  const std::string op = node.op->qualified_name();
  if (op != "Sub" && op != "Div" && op != "Mul") return false;
  constexpr double kPixels = 100;  // factors and divisors beyond this are for pixels of 0 to 255
  const std::vector<double> numbers = known_numbers(graph, node.input(BinaryInput::B));
  return std::any_of(numbers.begin(), numbers.end(), [&](double number) {
    if (op == "Mul") return number != 0 && std::abs(number) <= 1 / kPixels;
    return normalised || (op == "Div" && number >= kPixels);
  });
}

Notes normalised_twice(const Graph& graph) {
  Notes notes;
  Table<ValueId, const Node*> source(graph.values.size(), nullptr);  // by value: the Augment whose images it holds
  for (const Node& node : graph.nodes) {
    if (node.is("arbalest.Augment")) {
      source[node.outputs[0]] = &node;
      continue;
    }
    const Node* augment = node.inputs.empty() || node.inputs[0] == kNone ? nullptr : source[node.inputs[0]];
    if (!augment || node.outputs.size() != 1) continue;
    const bool normalised = !floats_attribute(*augment, "mean").empty() || !floats_attribute(*augment, "std").empty();
    if (normalises(graph, node, normalised)) {
      notes.push_back(note(node, fmt::format("normalises images a second time: node '{}' (arbalest.Augment) has made "
                                             "(image / 255 − mean) / std of them",
                                             augment->name)));
    } else if (passes_on(node)) {
      source[node.outputs[0]] = augment;
    }
  }
  return notes;
}

// Notes a validation on the split that is trained on: its metrics say nothing about other samples.
Notes validated_on_training(const Graph& graph) {
  const Node *prefetch = graph.find_op("arbalest.Prefetch"), *validate = graph.find_op("arbalest.Validate");
  if (!prefetch || !validate) return {};
  const std::string split = string_attribute(*validate, "split");
  if (split != string_attribute(*prefetch, "split")) return {};
  const std::string other =
      split == "test" ? fmt::format("that node '{}' (arbalest.Prefetch) has split = \"train\"", prefetch->name)
                      : "another, such as split = \"test\"";
  return {note(*validate,
               fmt::format("measures on '{}', which is the split that is trained on; expected {}", split, other))};
}

// Crops that zeros fill, or may fill as a whole.
Notes empty_crops(const Graph& graph) {
  Notes notes;
  for (const Node& node : graph.nodes) {
    if (!node.is("arbalest.Augment")) continue;
    const Shape& image = value(graph, node.inputs[0]).type.shape;
    if (image.size() != 4) continue;
    const bool scales = !floats_attribute(node, "area").empty();
    std::vector<int64_t> crop = ints_attribute(node, "crop");
    if (crop.empty() || scales) crop = {image[2], image[3]};
    const int64_t pad = int_attribute(node, "pad"), least = std::min(crop[0], crop[1]);
    const std::string images = fmt::format("images of {} × {}", image[2], image[3]);
    if (pad > 0 && pad >= least) {
      notes.push_back(
          note(node, fmt::format("pads {} by {}, so that a crop may show zeros alone; expected a pad below {}", images,
                                 pad, least)));
    } else if (double(crop[0]) * double(crop[1]) > 2 * double(image[2]) * double(image[3])) {
      notes.push_back(
          note(node, fmt::format("makes crops of {} × {} of {}, so that most of a crop is zeros; ResizeCrop "
                                 "and 'area' scale images",
                                 crop[0], crop[1], images)));
    }
  }
  return notes;
}

// Images whose channels are their last axis: NumPy's files often have them so.
Notes channels_last_images(const Graph& graph) {
  Notes notes;
  for (const Node& node : graph.nodes) {
    if (!node.is("arbalest.Augment")) continue;
    const Shape& image = value(graph, node.inputs[0]).type.shape;
    const auto are_channels = [](int64_t extent) { return extent == 1 || extent == 3 || extent == 4; };
    if (image.size() != 4 || are_channels(image[1]) || !are_channels(image[3])) continue;
    notes.push_back(
        note(node, fmt::format("takes images of {} channels, {} × {}: expected (N, C, H, W), and these seem to be (N, "
                               "H, W, C)",
                               image[1], image[2], image[3])));
  }
  return notes;
}

// A rate that never reaches lr, by the length that the graph states.
Notes endless_warmups(const Graph& graph) {
  const Node* train = graph.find_op("arbalest.Train");
  if (!train) return {};
  const double warmup = float_attribute(*train, "warmup"), epochs = float_attribute(*train, "epochs");
  if (warmup == 0 || epochs == 0 || warmup < epochs) return {};
  return {note(*train,
               fmt::format("warms up for {:g} epochs, and epochs = {:g}: the rate never reaches lr", warmup, epochs))};
}

// Calls of one model file: each has weights of its own, though a reader may take them for one model.
Notes models_of_one_file(const Graph& graph) {
  const Node* train = graph.find_op("arbalest.Train");
  std::map<std::string, std::vector<std::string>> calls;  // by file: what each call's values are named after
  for (const Node& node : graph.nodes) {
    const bool trains = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
      return input != kNone && value(graph, input).role == Role::Parameter;
    });
    if (!train || !trains || node.where.file == train->where.file) continue;
    std::vector<std::string>& names = calls[node.where.file];
    const std::string call = node.name.substr(0, node.name.find('/'));
    if (std::find(names.begin(), names.end(), call) == names.end()) names.push_back(call);
  }
  Notes notes;
  for (const auto& [file, names] : calls) {
    if (names.size() < 2) continue;
    notes.push_back(fmt::format("{} is called {} times, for '{}': these are models with weights of their own", file,
                                names.size(), fmt::join(names, "', '")));
  }
  return notes;
}

struct Lint {
  std::string_view finds;
  Notes (*find)(const Graph&);  // a note for each place
};

// The lints, in the order in which they report.
constexpr Lint kLints[] = {
    {"a Dropout of the graph's own that drops nothing", idle_dropouts},
    {"a BatchNormalization of the graph's own that trains by its running statistics", idle_norms},
    {"a metric or a loss that compares nothing", empty_comparisons},
    {"a node of the graph's own that nothing reads", unread_nodes},
    {"a field of Prefetch, such as the label, that nothing reads", unread_fields},
    {"Softmax or Sigmoid before a loss that applies it itself", doubled_activations},
    {"a metric that takes probabilities for logits, or the reverse", mistaken_scores},
    {"a batch norm whose running statistics never move", still_statistics},
    {"a batch norm that is applied several times", parted_statistics},
    {"a learning rate of 0", idle_rates},
    {"images that are normalised again after Augment", normalised_twice},
    {"validation on the split that is trained on", validated_on_training},
    {"crops of Augment that are mostly zeros", empty_crops},
    {"images whose channels seem to come last", channels_last_images},
    {"a warm-up as long as the run", endless_warmups},
    {"one file that is called as several models", models_of_one_file},
    {"a tensor that is trained and looks like a constant", constant_like_weights},
    {"a table with a row for padding that is trained", padded_tables},
};

}  // namespace

std::vector<std::string> lint(const Graph& graph) {
  Notes notes;
  for (const Lint& each : kLints) {
    Notes found = each.find(graph);
    const size_t more = found.size() > kMostNotes ? found.size() - kMostNotes : 0;
    found.resize(found.size() - more);
    std::move(found.begin(), found.end(), std::back_inserter(notes));
    if (more > 0) notes.push_back(fmt::format("and {} more: {}", more, each.finds));
  }
  return notes;
}

}  // namespace arbalest
