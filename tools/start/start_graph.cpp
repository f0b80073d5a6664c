// SPDX-License-Identifier: Apache-2.0
#include "tools/start/start_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/process.h"
#include "graph/graph.h"
#include "io/open/open_source.h"
#include "io/sources/data_order.h"
#include "io/sources/field_values.h"
#include "io/sources/source.h"
#include "tools/start/graph_text.h"
#include "tools/start/model_ends.h"
#include "tools/start/templates.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSourceSeed = 1;

const Template& find_template(const std::string& name) {
  std::vector<std::string> names;
  for (const Template& each : kTemplates) {
    if (each.name == name) return each;
    names.emplace_back(each.name);
  }
  const std::string found = name.empty() ? "" : fmt::format("unknown graph '{}'{}; ", name, did_you_mean(name, names));
  throw GraphError(fmt::format("init: {}expected one of\n{}", found, describe_templates()));
}

std::string file_of(const StartOptions& options) {
  return options.file.empty() ? options.name + ".onnxtxt" : options.file;
}

// Prefetch's outputs take the field of their name, or else the one at their place.
const Field& field_of(const std::vector<Field>& fields, const char* name, size_t place, const std::string& what) {
  for (const Field& field : fields) {
    if (field.name == name) return field;
  }
  if (place < fields.size()) return fields[place];
  throw GraphError(fmt::format("{}: found {}, expected an image and a label", what, to_string(fields)));
}

// How arrays as others store them become [channels, height, width].
std::string turned(const Field& image) {
  if (image.shape.size() == 2) return "; NumPy puts grey ones so: images[:, None]";
  const bool last = image.shape.size() == 3 && image.shape[0] > 4 && image.shape[2] <= 4;
  if (last) return "; NumPy turns channels that come last: images.transpose(0, 3, 1, 2)";
  const bool whole = image.dtype == DataType::Int32 || image.dtype == DataType::Int64;
  return whole ? "; NumPy scales numbers beyond 255: (images / images.max()).astype('float32')" : "";
}

constexpr std::string_view kMirrored = "Half of the photos are mirrored. ";

// Digits and letters, which grey arrays often are, are others if they are mirrored.
void do_not_mirror(GraphText& graph) {
  graph.set("x", "flip", "0");
  graph.replace(kMirrored, "");
}

// Arrays go to the model as they are; photos in files become what it takes.
void check_channels(const GraphText& graph, const Field& image, const std::string& what) {
  if (!graph.has("model.trunk") || graph.number("pixels", "channels") == image.shape[0]) return;
  throw GraphError(fmt::format("{}: found field {}, expected as many channels as the model takes, {}", what,
                               to_string(image), graph.number("pixels", "channels")));
}

// Files are brought to one size on the host; arrays are there in theirs, and those of floats are not augmented.
void take_images(GraphText& graph, const Field& image, const std::string& what) {
  const bool files = image.dtype == DataType::String, prepared = !graph.has("\n  # pixels = ");
  const bool floats = image.dtype == DataType::Float32;
  if (!files && ((image.dtype != DataType::Uint8 && !floats) || image.shape.size() != 3 || !turned(image).empty())) {
    throw GraphError(
        fmt::format("{}: found field {}, expected images: files, or [channels, height, width] of uint8 or "
                    "float32{}",
                    what, to_string(image),
                    floats && image.shape.size() == 1 ? "; 'arbalest init vectors' takes vectors" : turned(image)));
  }
  if (files && !prepared) {
    graph.uncomment("pixels");
    graph.replace("> (image)\n\n", "> (pixels)\n\n");
  } else if (!files && prepared) {
    check_channels(graph, image, what);
    graph.comment_out("pixels");
    graph.replace("> (pixels)\n\n", "> (image)\n\n");
    graph.replace("# Training sees a random part of each photo",
                  "# Photos in files: training sees a random part of each");
    if (graph.has(kMirrored) && image.shape[0] == 1) do_not_mirror(graph);
    if (graph.has(kMirrored)) {
      graph.replace(kMirrored, "Half of the images are mirrored; digits and text need flip = 0.\n  # ");
    }
  }
  if (!files && graph.has("<pad = ")) {  // an eighth of small images, as of 32 × 32
    const int64_t eighth = std::min(image.shape[1], image.shape[2]) / 8;
    graph.set("x", "pad", std::to_string(std::min(graph.number("x", "pad"), eighth)));
  }
  if (floats) {
    graph.comment_out("x");
    graph.replace("(x)\n", "(image)\n");
  }
}

// The name of the only vector of floats besides the label.
std::string vector_of(const std::vector<Field>& fields, const std::string& what) {
  const auto is_vector = [](const Field& field) {
    return field.name != "label" && field.dtype == DataType::Float32 && field.shape.size() == 1;
  };
  const auto found = std::find_if(fields.begin(), fields.end(), is_vector);
  if (found == fields.end() || std::count_if(fields.begin(), fields.end(), is_vector) > 1) {
    throw GraphError(
        fmt::format("{}: found {}, expected one vector of floats a sample, and a label; in NumPy: "
                    "numpy.stack(columns, 1).astype('float32')",
                    what, to_string(fields)));
  }
  return found->name;
}

// The graph's value is called as the field is.
void take_vectors(GraphText& graph, const std::vector<Field>& fields, const std::string& what) {
  const std::string name = vector_of(fields, what);
  graph.replace("  x, label = ", fmt::format("  {}, label = ", name));
  graph.replace("(x)\n", fmt::format("({})\n", name));
}

// One more than the greatest label, if the source does not say how many classes there are.
int64_t count_classes(const Source& source, int field) {
  const CountedLabels counted = count_labels(source, field);
  if (const std::string note = counted_from_one(counted.samples, source); !note.empty()) {
    warn(fmt::format("{}: {}", source.describe(), note));
  }
  return int64_t(counted.samples.size());
}

// Whether each sample's label is a single 1 among zeros: the number of a class, written as a float for each.
bool is_one_hot(const Source& source, int field) {
  const Field stated = source.fields()[size_t(field)];
  const auto classes = ptrdiff_t(stated.shape[0]);
  bool all = classes > 1;
  each_chunk(source, field, [&](std::span<const std::byte> chunk) {
    const std::vector<double> values = numbers(stated.dtype, chunk);
    for (auto row = values.begin(); all && row != values.end(); row += classes) {
      all = std::count(row, row + classes, 1) == 1 && std::count(row, row + classes, 0) == classes - 1;
    }
  });
  return all;
}

// The loss takes the classes that one-hot labels are of.
void take_one_hot(GraphText& graph, const Source& source, const Field& label) {
  graph.replace_all("(logits, label)", "(logits, class)");
  graph.replace(
      "  loss = ",
      "  # A label is a single 1 among zeros (one-hot), which becomes the number of its class. For labels of\n"
      "  # which several may hold: arbalest.SigmoidCrossEntropy and arbalest.AUC instead of the loss and\n"
      "  # Accuracy below, both of (logits, label).\n"
      "  place = ArgMax <axis = 1, keepdims = 0> (label)\n"
      "  class = Cast <to = 6> (place)\n\n"
      "  loss = ");
  warn(
      fmt::format("{}: '{}' is one-hot, a single 1 among zeros in each sample, and taken as one of {} classes; a "
                  "comment in the graph says how it becomes several labels",
                  source.describe(), label.name, label.shape[0]));
}

// The loss and the metric are those of labels that hold or not, each by itself.
void take_several(GraphText& graph, const Source& source, const Field& label) {
  graph.replace("SoftmaxCrossEntropy", "SigmoidCrossEntropy");
  graph.replace("accuracy = arbalest.Accuracy", "auc = arbalest.AUC");
  graph.replace("loss, accuracy)", "loss, auc)");
  graph.replace("A unit for each class. The loss takes these scores as they are, without a Softmax.",
                "A unit for each label. The loss takes these scores as they are, without a Sigmoid.");
  warn(
      fmt::format("{}: '{}' is taken as {} label{} of which several may hold; for one class a sample, give the class "
                  "as a whole number or one-hot",
                  source.describe(), label.name, label.shape[0], label.shape[0] == 1 ? "" : "s"));
}

void take_labels(GraphText& graph, const Source& source, const Field& label, int64_t classes) {
  const std::vector<Field> fields = source.fields();
  const auto at = std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == label.name; });
  const int field = int(at - fields.begin());
  if (is_floating(label.dtype) && label.shape.size() == 1) {
    if (classes > 0 && classes != label.shape[0]) {
      throw GraphError(
          fmt::format("--classes {}: {} has {} labels a sample", classes, source.describe(), label.shape[0]));
    }
    classes = label.shape[0];
    is_one_hot(source, field) ? take_one_hot(graph, source, label) : take_several(graph, source, label);
  } else if (label.dtype != DataType::Int32 || !label.shape.empty()) {
    throw GraphError(
        fmt::format("{}: found field {}, expected a class (a whole number), or a float for each of several labels; in "
                    "NumPy: {}",
                    source.describe(), to_string(label),
                    is_floating(label.dtype)  ? "labels.astype('int64')"
                    : label.shape.size() == 1 ? "labels.argmax(1) of one-hot labels, else labels.astype('float32')"
                                              : "an array (samples) or (samples, labels)"));
  }
  if (classes > 0 && label.classes > classes) {
    throw GraphError(fmt::format("--classes {}: {} has {} classes", classes, source.describe(), label.classes));
  }
  if (classes == 0) classes = label.classes;
  if (classes == 0) classes = count_classes(source, field);
  if (classes == 0) {
    throw GraphError(fmt::format("{}: '{}' has no label from 0 to a million, expected classes from 0 on",
                                 source.describe(), label.name));
  }
  graph.set("logits", "units", std::to_string(classes));
}

// No batch is larger than its split.
void take_batch(GraphText& graph, std::string_view node, int64_t batch, int64_t samples) {
  graph.set(node, "batch", std::to_string(std::min(batch, samples)));
}

// The usual batch, or one of at least half of it of which an epoch leaves out fewer samples: for photos any such, and
// otherwise where the usual one leaves out many.
int64_t training_batch(int64_t usual, int64_t samples, bool photos) {
  constexpr double kMany = 0.05;  // of the samples
  const bool many = double(samples % usual) >= kMany * double(samples);
  return photos || many ? whole_batch(samples, usual / 2, usual) : usual;
}

void take_validation(GraphText& graph, const std::string& data, int64_t usual_batch) {
  for (const char* split : {"test", "validation"}) {
    try {
      const std::unique_ptr<Source> source = open_source(data, split, kSourceSeed);
      graph.set("report", "split", fmt::format("\"{}\"", split));
      return take_batch(graph, "report", usual_batch, source->size());
    } catch (const MissingSplit&) {  // the other may be there
    } catch (const UnknownSplit&) {
    }
  }
  graph.comment_out("report");
  warn(fmt::format("'{}' has no split test or validation: Validate is a comment in the graph, and nothing is measured",
                   data));
}

void take_data(GraphText& graph, const StartOptions& options) {
  const std::unique_ptr<Source> source = open_source(options.data, "train", kSourceSeed);
  const std::vector<Field> fields = source->fields();
  const std::string what = source->describe();
  const bool vectors = options.name == "vectors";
  graph.set(vectors ? "x" : "image", "source", to_string(Attribute(options.data)));
  const size_t begin = graph.text().find("# Data: "), end = graph.text().find(" 'arbalest sources'", begin);
  graph.replace(graph.text().substr(begin, end - begin), "# Data, as --data named it.");
  vectors ? take_vectors(graph, fields, what) : take_images(graph, field_of(fields, "image", 0, what), what);
  take_labels(graph, *source, field_of(fields, "label", 1, what), options.classes);
  const bool photos = !vectors && field_of(fields, "image", 0, what).dtype == DataType::String;
  const std::string prefetch = vectors ? vector_of(fields, what) : "image";
  const int64_t batch = training_batch(graph.number(prefetch, "batch"), source->size(), photos);
  take_batch(graph, prefetch, batch, source->size());
  take_validation(graph, options.data, graph.number("report", "batch"));
}

void take_model(GraphText& graph, const StartOptions& options) {
  const ModelEnds ends = ends_of(options.model);
  const fs::path folder = fs::absolute(file_of(options)).parent_path();
  const std::string path = fs::proximate(fs::absolute(options.model), folder).string();
  graph.set("features", "file", to_string(Attribute(path)));
  if (ends.features.empty()) {
    graph.erase("features", "outputs");
    graph.replace("The model up to the value that its old head reads.", "The model, whose output the new head reads.");
  } else {
    graph.set("features", "outputs", to_string(Attribute(std::vector<std::string>{ends.features})));
  }
  if (ends.height > 0 && ends.width > 0) {
    graph.set("pixels", "size", fmt::format("[{}, {}]", ends.height, ends.width));
  }
  graph.set("pixels", "channels", std::to_string(ends.channels));
  if (ends.channels == 1) {
    do_not_mirror(graph);
    graph.replace(
        "; these are ImageNet's, which most of\n  # PyTorch's models were trained with. Keras' often take -1 to 1: "
        "mean = [0.5], std = [0.5].",
        ".");
    graph.set("x", "mean", "[0.5]");
    graph.set("x", "std", "[0.5]");
  }
  if (ends.channels_last) {
    graph.replace("> (x)\n", "> (turned)\n");
    graph.replace("  # The model",
                  "  # Channels come last, as the model takes them.\n"
                  "  turned = Transpose <perm = [0, 2, 3, 1]> (x)\n  # The model");
  }
}

}  // namespace

std::string describe_templates() {
  std::string text;
  for (const Template& each : kTemplates) {
    const std::string_view all = each.text;
    const size_t begin = all.find("# ") + 2;
    const size_t end = std::min({all.find(". ", begin), all.find("; ", begin), all.find('\n', begin)});
    const std::string line(all.substr(begin, end - begin));
    text += fmt::format("  {:<8}  {}\n", each.name, line);
  }
  return text;
}

std::string start_graph(const StartOptions& options) {
  GraphText graph(find_template(options.name).text);
  const bool calls_model = graph.has("model.trunk");
  if (calls_model && options.model.empty()) {
    throw GraphError(fmt::format("init {}: found no --model, expected --model FILE.onnx", options.name));
  }
  if (!calls_model && !options.model.empty()) {
    throw GraphError(fmt::format("init {}: --model goes with a graph that calls one: init finetune", options.name));
  }
  if (options.name == "vectors" && options.data.empty()) {
    throw GraphError(fmt::format("init {}: found no --data, expected --data SOURCE", options.name));
  }
  if (calls_model) take_model(graph, options);
  if (!options.data.empty()) {
    take_data(graph, options);
  } else if (options.classes > 0) {
    graph.set("logits", "units", std::to_string(options.classes));
  }
  return graph.text();
}

std::string write_start_graph(const StartOptions& options, const StartCheck& check) {
  const std::string file = file_of(options);
  find_template(options.name);
  std::error_code error;
  if (fs::exists(file, error)) {
    throw GraphError(fmt::format(
        "init: '{}' is there already and is left as it is; another name: arbalest init {} FILE", file, options.name));
  }
  const std::string text = start_graph(options);
  if (check && !options.data.empty()) check(text, file);
  AtomicFile out(file);
  out.write(text);
  out.commit();
  return file;
}

}  // namespace arbalest
