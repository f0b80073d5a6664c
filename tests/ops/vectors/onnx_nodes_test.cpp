// SPDX-License-Identifier: Apache-2.0

// ONNX's own test vectors: for each operator models of one node, with inputs and the outputs that the standard asks
// for. tools/setup fetches them; ARBALEST_ONNX_NODES names another folder of them.
//
// A vector is "refused" if the graph reader or type inference says that we do not support it, and otherwise has to give
// the right numbers. The file onnx_nodes.txt states how many vectors of each operator pass, so that none is refused
// that passed before. After adding operators: ARBALEST_UPDATE_GOLDEN=1 build/tests/test_ops -tc='*node vectors*'. With
// ARBALEST_LIST_REFUSED=1 every refused vector is listed with its reason.

#include <doctest/doctest.h>

#ifdef ARBALEST_ONNX

#include <fmt/format.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "graph/file/graph_file.h"
#include "graph/file/graph_source.h"
#include "graph/file/float_types.h"
#include "graph/file/onnx_file.h"
#include "ops/builtin_ops.h"
#include "ops/check/compare.h"
#include "tests/io/test_folder.h"
#include "tests/ops/vectors/run_graph.h"

using namespace arbalest;
using namespace arbalest::test;

namespace onnx_nodes_test {
namespace {

namespace fs = std::filesystem;

// Their expected values are sums in float as well, so both sides round.
constexpr Tolerance kFloatTolerance{2e-6, 2e-5}, kFloat16Tolerance{1e-3, 2e-3}, kBfloat16Tolerance{1e-3, 8e-3};
constexpr double kNormTolerance = 1e-5, kFloat16NormTolerance = 1e-3, kBfloat16NormTolerance = 8e-3;
// Vectors whose expected values were copied with four digits, and how far those may be off.
const std::set<std::string> kFourDigits = {"test_averagepool_2d_ceil_last_window_starts_on_pad",
                                           "test_gridsample_bicubic"};
constexpr Tolerance kFourDigitTolerance{1e-4, 0};
// Vectors that contradict the standard's text, by which corners meet if align_corners is asked for: theirs divide by
// in · scale − 1, which is no length if it is not whole. PyTorch and ONNX Runtime do as the text says.
const std::set<std::string> kAgainstText = {"test_resize_downsample_scales_cubic_align_corners",
                                            "test_resize_downsample_scales_linear_align_corners"};

fs::path source_root() {
  const char* root = std::getenv("ARBALEST_SOURCE");
  return root ? root : ".";
}

fs::path vectors_folder() {
  if (const char* folder = std::getenv("ARBALEST_ONNX_NODES")) return folder;
  return source_root() / ".deps/onnx_nodes";
}

template <typename Proto>
bool parse(const fs::path& path, Proto& proto) {
  const std::string content = read_whole_file(path.string());
  return proto.ParseFromString(content);
}

bool is_float16(const fs::path& path) {
  onnx::TensorProto proto;
  return parse(path, proto) && proto.data_type() == onnx::TensorProto::FLOAT16;
}

// A tensor of the data set, in float if it is stored in float16; nothing if we have no such type.
std::optional<Logical> read_tensor(const fs::path& path) {
  onnx::TensorProto proto;
  if (!parse(path, proto)) return std::nullopt;  // a sequence or an optional value
  const bool halves = proto.data_type() == onnx::TensorProto::FLOAT16;
  const auto dtype = halves ? DataType::Float32 : type_of_onnx(proto.data_type());
  if (!dtype) return std::nullopt;
  Tensor tensor{{*dtype, Shape(proto.dims().begin(), proto.dims().end())}, {}};
  if (!checked_element_count(tensor.type.shape)) return std::nullopt;  // another kind of message, read as a tensor
  const auto* raw = reinterpret_cast<const std::byte*>(proto.raw_data().data());
  tensor.bytes.assign(raw, raw + proto.raw_data().size());
  if (halves) tensor.bytes = widened_float16(tensor.bytes);
  if (int64_t(tensor.bytes.size()) != tensor.type.bytes()) return std::nullopt;
  return Logical{tensor.type, values_of(tensor)};
}

// One folder of the vectors. `refused` says why we do not support it; `fault` what is wrong.
struct Vector {
  std::string name;
  std::set<std::string> operators;
  std::string refused, fault;
  bool passed() const { return refused.empty() && fault.empty(); }
};

std::set<std::string> operators_of(const onnx::ModelProto& model) {
  std::set<std::string> names;
  for (const onnx::NodeProto& node : model.graph().node()) {
    const bool standard = node.domain().empty() || node.domain() == "ai.onnx";
    names.insert(standard ? node.op_type() : node.domain() + "." + node.op_type());
  }
  return names;
}

std::string compare(const std::string& name, const Logical& found, const Logical& expected, bool four_digits,
                    bool float16) {
  if (!(found.type == expected.type)) {
    return fmt::format("output '{}' is {}, expected {}", name, to_string(found.type), to_string(expected.type));
  }
  Tolerance tolerance;
  double norm_tolerance = 0;
  if (expected.type.dtype == DataType::Bfloat16) {
    tolerance = kBfloat16Tolerance, norm_tolerance = kBfloat16NormTolerance;
  } else if (float16 && is_floating(expected.type.dtype)) {  // which they compute in
    tolerance = kFloat16Tolerance, norm_tolerance = kFloat16NormTolerance;
  } else if (is_floating(expected.type.dtype)) {
    tolerance = kFloatTolerance, norm_tolerance = kNormTolerance;
  }
  if (four_digits) tolerance = kFourDigitTolerance, norm_tolerance = 1e-3;
  const std::string worst = worst_element(expected.type.shape, found.values, expected.values, tolerance);
  if (!worst.empty()) return fmt::format("output '{}': {}", name, worst);
  std::vector<double> differences;
  for (size_t i = 0; i < found.values.size(); ++i) differences.push_back(found.values[i] - expected.values[i]);
  const double error = root_mean_square(differences), norm = root_mean_square(expected.values);
  if (error <= norm_tolerance * norm + (norm == 0 ? tolerance.absolute : 0)) return "";
  return fmt::format("output '{}': the error's norm is {:.3g} of the output's, expected at most {:.3g}", name,
                     error / norm, norm_tolerance);
}

// Operands that have to be known when the graph is read (OperandSpec::constant) are inputs of the vectors' models: they
// become initialisers with the values of the data set. Returns whether there were any.
bool state_constants(onnx::ModelProto& model, const fs::path& data) {
  onnx::GraphProto& graph = *model.mutable_graph();
  std::set<std::string> constants;
  for (const onnx::NodeProto& node : graph.node()) {
    const bool filled = node.op_type() == "ConstantOfShape" && node.input_size() == 1;
    if (filled) constants.insert(node.input(0));  // which the reader makes Expand of
    const Op* op = builtin_ops().find(node.op_type());
    for (int i = 0; op && i < node.input_size(); ++i) {
      const OperandSpec* spec = op->input_spec(size_t(i));
      if (spec && spec->constant) constants.insert(node.input(i));
    }
  }
  const int before = graph.initializer_size();
  for (int i = 0; i < graph.input_size(); ++i) {
    if (constants.count(graph.input(i).name()) == 0) continue;
    onnx::TensorProto content;
    if (!parse(data / fmt::format("input_{}.pb", i), content)) continue;
    content.set_name(graph.input(i).name());
    *graph.add_initializer() = std::move(content);
  }
  return graph.initializer_size() > before;
}

// Vectors whose numbers NumPy drew at random.
bool is_random(const std::string& name) {
  return name.starts_with("test_bernoulli") || name == "test_training_dropout" ||
         name == "test_training_dropout_default" || name == "test_training_dropout_mask" ||
         name == "test_training_dropout_default_mask";
}

// The reason without the place, which differs from vector to vector.
std::string reason(const GraphError& error) {
  const std::string text = error.what();
  const size_t place = text.find(": ");
  return place == std::string::npos ? text : text.substr(place + 2);
}

// `doubles`: whether the device's kernels take them; those of CUDA do not.
Vector try_vector(const fs::path& folder, TestDevice& device, bool doubles) {
  Vector vector{.name = folder.filename(), .operators = {}, .refused = {}, .fault = {}};
  onnx::ModelProto model;
  REQUIRE_MESSAGE(parse(folder / "model.onnx", model), folder.string());
  vector.operators = operators_of(model);
  if (is_random(vector.name)) {
    vector.refused = "random numbers";
    return vector;
  }
  const fs::path data = folder / "test_data_set_0";
  std::map<std::string, Logical> inputs, expected;
  bool float16 = false;
  const auto read = [&](const auto& infos, const char* kind, std::map<std::string, Logical>& tensors) {
    for (int i = 0; i < infos.size(); ++i) {
      const fs::path file = data / fmt::format("{}_{}.pb", kind, i);
      auto tensor = read_tensor(file);
      float16 = float16 || is_float16(file);
      const bool taken = tensor && (doubles || tensor->type.dtype != DataType::Float64);
      if (!taken) vector.refused = fmt::format("the element type of '{}'", infos.Get(i).name());
      if (tensor) tensors.emplace(infos.Get(i).name(), std::move(*tensor));
    }
  };
  read(model.graph().input(), "input", inputs);
  read(model.graph().output(), "output", expected);
  if (!vector.refused.empty()) return vector;
  Graph graph;
  try {
    fs::path file = folder / "model.onnx";
    const TestFolder own;
    if (state_constants(model, data)) {
      file = own / "model.onnx";
      std::ofstream(file, std::ios::binary) << model.SerializeAsString();
    }
    graph = read_onnx(file.string(), builtin_ops());
    verify(graph);
    make_runnable(graph);
  } catch (const GraphError& error) {
    vector.refused = reason(error);
    return vector;
  }
  std::vector<std::string> outputs;  // layers may have put other values in their place
  for (const ValueId output : graph.outputs) outputs.push_back(graph.values[output].name);
  try {
    const std::map<std::string, Logical> found = run_graph(device, graph, inputs);
    for (size_t i = 0; i < outputs.size() && vector.fault.empty(); ++i) {
      const std::string& name = model.graph().output(int(i)).name();
      if (kAgainstText.contains(vector.name)) vector.refused = "contradicts the standard's text";
      if (!vector.refused.empty()) break;
      vector.fault = compare(name, found.at(outputs[i]), expected.at(name), kFourDigits.contains(vector.name), float16);
    }
  } catch (const RunError& error) {
    // Arithmetic of integers is for constants, which the CPU computes.
    const bool type = !doubles && std::string(error.what()).find("CUDA kernels take") != std::string::npos;
    (type ? vector.refused : vector.fault) = error.what();
  }
  return vector;
}

struct Count {
  int passed = 0, all = 0;
};

// By operator; vectors of several operators, most of them functions expanded into simpler ones, count as "several".
std::map<std::string, Count> count_by_operator(const std::vector<Vector>& vectors) {
  std::map<std::string, Count> counts;
  for (const Vector& vector : vectors) {
    Count& count = counts[vector.operators.size() == 1 ? *vector.operators.begin() : "several"];
    ++count.all;
    if (vector.passed()) ++count.passed;
  }
  std::erase_if(counts, [](const auto& entry) {
    if (entry.first == "Constant" || entry.first == "ConstantOfShape") return false;  // the reader knows them
    return entry.first != "several" && (!builtin_ops().find(entry.first) || builtin_ops().find(entry.first)->internal);
  });
  return counts;
}

std::map<std::string, Count> read_baseline(const fs::path& path) {
  std::istringstream lines(read_whole_file(path.string()));
  std::map<std::string, Count> counts;
  std::string name, of;
  Count count;
  while (lines >> name >> count.passed >> of >> count.all) counts[name] = count;
  return counts;
}

std::vector<Vector> try_vectors(TestDevice& device, bool doubles) {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(vectors_folder())) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  std::vector<Vector> vectors;
  for (const fs::path& folder : folders) vectors.push_back(try_vector(folder, device, doubles));
  return vectors;
}

bool vectors_are_here() {
  if (fs::exists(vectors_folder())) return true;
  MESSAGE("SKIP: ONNX's node vectors are not in " << vectors_folder().string() << "; tools/setup fetches them");
  return false;
}

void check_no_fault(const std::vector<Vector>& vectors) {
  for (const Vector& vector : vectors) CHECK_MESSAGE(vector.fault.empty(), vector.name, ": ", vector.fault);
}

}  // namespace

TEST_CASE("ONNX's node vectors on the CPU: none is wrong, and none is refused that passed before") {
  if (!vectors_are_here()) return;
  const auto device = make_cpu_device();
  const std::vector<Vector> vectors = try_vectors(*device, true);
  check_no_fault(vectors);
  const std::map<std::string, Count> counts = count_by_operator(vectors);
  Count sum;
  std::string table;
  for (const auto& [name, count] : counts) {
    sum.passed += count.passed, sum.all += count.all;
    table += fmt::format("{} {} of {}\n", name, count.passed, count.all);
  }
  if (std::getenv("ARBALEST_LIST_REFUSED")) {
    for (const Vector& vector : vectors) {
      if (!vector.refused.empty()) MESSAGE(vector.name << ": " << vector.refused);
    }
  }
  const fs::path baseline = source_root() / "tests/ops/vectors/onnx_nodes.txt";
  if (std::getenv("ARBALEST_UPDATE_GOLDEN")) std::ofstream(baseline) << table;
  for (const auto& [name, before] : read_baseline(baseline)) {
    const auto now = counts.find(name);
    CHECK_MESSAGE((now != counts.end() && now->second.passed >= before.passed), name, ": ", before.passed,
                  " vectors passed before, now ", now == counts.end() ? 0 : now->second.passed);
  }
  MESSAGE(sum.passed << " of ONNX's " << vectors.size() << " node vectors pass; the operators of this build have "
                     << sum.all);
}

TEST_CASE("ONNX's node vectors on a CUDA device: what the CPU supports is right there too") {
  std::string why_not;
  const auto device = make_cuda_device(why_not);
  if (!device) {
    MESSAGE("SKIP: " << why_not);
    return;
  }
  if (!vectors_are_here()) return;
  const std::vector<Vector> vectors = try_vectors(*device, false);
  check_no_fault(vectors);
  MESSAGE(std::count_if(vectors.begin(), vectors.end(), [](const Vector& v) { return v.passed(); })
          << " of ONNX's " << vectors.size() << " node vectors pass");
}

#endif

}  // namespace onnx_nodes_test
