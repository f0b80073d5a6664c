// SPDX-License-Identifier: Apache-2.0

// Parameters chosen by name: patterns, frozen ones, groups with a decay or a rate of their own.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>

#include "graph/file/overrides.h"
#include "graph/name_patterns.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace parameters_test {
namespace {

const std::string kBlock =
    "a = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (x)\n"
    "b = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (a)\n"
    "logits = arbalest.Linear <units = 3> (b)\n" +
    std::string(kLoss);

Program program_of(const std::vector<std::string>& assignments, bool bf16 = false, const std::string& body = kBlock) {
  Graph graph = net(body);
  for (const std::string& assignment : assignments) apply_override(graph, assignment);
  verify(graph);
  ProgramOptions options;
  options.bf16 = bf16;
  return make_program(graph, options);
}

std::string refusal(const std::vector<std::string>& assignments) {
  try {
    program_of(assignments);
  } catch (const GraphError& error) {
    return error.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

// Decay and factor of the rate of each parameter, as the update's kernel finds them.
std::map<std::string, std::pair<double, double>> groups_of(const Program& program) {
  const Loop& loop = program.training();
  const Node& update = loop.graph.nodes.at(loop.graph.find_node("update"));
  const UpdateOperands place(*update.op->optimizer);
  std::map<std::string, std::pair<double, double>> found;
  for (const Value& member : loop.graph.values) {
    if (member.view.base != loop.arenas.weights) continue;
    if (update.inputs.size() <= place.groups()) {
      found[member.name] = {float_attribute(update, "weight_decay"), 1};
      continue;
    }
    const ValueId table = update.inputs[place.groups()];
    const int64_t begin = member.view.offset_bytes / int64_t(sizeof(float));
    const auto group_at = [&](int64_t element) {
      const int64_t block = element / kParameterAlignment;
      for (const Value& part : loop.graph.values) {
        const int64_t first = part.view.offset_bytes;
        if (part.view.base != table || block < first || block >= first + part.type.elements()) continue;
        return size_t(part.initializer.a);
      }
      return size_t{0};
    };
    const size_t group = group_at(begin);
    CHECK(group_at(begin + member.type.elements() - 1) == group);
    found[member.name] = {floats_attribute(update, "decays").at(group),
                          floats_attribute(update, "rate_factors").at(group)};
  }
  return found;
}

}  // namespace

TEST_CASE("a pattern fits whole names, and * any characters") {
  CHECK(fits("a.weight", "a.weight"));
  CHECK(fits("a.weight", "*"));
  CHECK(fits("a.weight", "a.*"));
  CHECK(fits("a.weight", "*.weight"));
  CHECK(fits("stage1/block2/bn.bias", "stage1/*bn.*"));
  CHECK(fits("aXbXb", "a*b"));
  CHECK(fits("a", "a*"));
  CHECK(fits("", "**"));
  CHECK_FALSE(fits("a.weight", "a"));
  CHECK_FALSE(fits("a.weight", "weight"));
  CHECK_FALSE(fits("a.weight", "*.bias"));
  CHECK_FALSE(fits("a.weight", "a.weight*x"));
  CHECK_FALSE(fits("a.weight", ""));
}

TEST_CASE("a pattern that no parameter fits is refused with the nearest") {
  CHECK(contains(refusal({"train.frozen=[\"aa.*\"]"}),
                 "node 'trained' (arbalest.Train): attribute 'frozen': no parameter is called \"aa.*\""));
  CHECK(contains(refusal({"train.no_decay=[\"*.biass\"]"}), "did you mean '*.bias'?"));
  CHECK(contains(refusal({"train.no_decay=[\"a.running_mean\"]"}), "'no_decay': no parameter is called"));
  CHECK(contains(refusal({"train.rate_patterns=[\"logit.weight\"]", "train.rate_factors=[2]"}),
                 "did you mean 'logits.weight'?"));
  CHECK(
      contains(refusal({"train.rate_patterns=[\"a.*\"]"}), "'rate_factors' has 0 numbers; expected one for each of 1"));
  CHECK(contains(refusal({"train.rate_patterns=[\"a.*\"]", "train.rate_factors=[0]"}), "'rate_factors' holds 0"));
  CHECK(contains(refusal({"train.clip_norm=-1"}), "'clip_norm' is -1"));
  CHECK(contains(refusal({"train.frozen=[\"*\"]"}), "all parameters are frozen"));
  CHECK(contains(refusal({"train.frozen=[\"a.bn.running_mean\"]"}),
                 "'frozen' has 'a.bn.running_mean' without 'a.bn.running_var'"));
}

TEST_CASE("groups of huge layers take no memory before a run does") {
  const std::string layer = "f = Flatten (x) h = arbalest.Linear <units = 1000000000> (f)\n";
  Graph graph = net(layer + "logits = arbalest.Linear <units = 3> (h)\n" + kLoss);
  graph.find_op("arbalest.Train")->attributes.set("decay_norms", int64_t{0});
  const Program program = make_program(std::move(graph), {});
  const auto groups = program.training().graph.find_value("parameter_groups");
  REQUIRE(groups != kNone);
  CHECK(program.training().graph.values[groups].type.bytes() > 1'000'000'000);
  for (const Value& value : program.training().graph.values) {
    INFO(value.name);
    CHECK((!value.initializer.data || value.initializer.data->size() < 1000));
  }
}

TEST_CASE("without groups the update has neither a table nor a factor") {
  const Program program = program_of({});
  const Loop& loop = program.training();
  CHECK(loop.graph.nodes.at(loop.graph.find_node("update")).inputs.size() == 3);
  CHECK(loop.arenas.frozen == kNone);
  // All of one kind is no group of its own either.
  const auto none = groups_of(program_of({"train.no_decay=[\"*\"]"}));
  REQUIRE(none.size() == 8);
  for (const auto& [name, numbers] : none) CHECK(numbers == std::pair{0.0, 1.0});
}

TEST_CASE("groups give parameters a decay and a rate of their own") {
  const auto groups = groups_of(program_of({"train.decay_norms=0", "train.no_decay=[\"b.conv.*\"]",
                                            "train.rate_patterns=[\"logits.weight\", \"logits.*\", \"a.bn.*\"]",
                                            "train.rate_factors=[10, 2, 0.5]"}));
  const std::map<std::string, std::pair<double, double>> expected = {
      {"a.conv.weight", {0.001, 1}},  {"a.bn.weight", {0, 0.5}}, {"a.bn.bias", {0, 0.5}},
      {"b.conv.weight", {0, 1}},      {"b.bn.weight", {0, 1}},   {"b.bn.bias", {0, 1}},
      {"logits.weight", {0.001, 10}}, {"logits.bias", {0, 2}}};
  CHECK(groups == expected);
}

TEST_CASE("an optimiser by matrix knows rows, columns and outputs, and which parameters are vectors") {
  const std::string body =
      "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\nflat = Flatten (x)\nu = MatMul (flat, w)\n"
      "t = Gemm <transB = 1> (u, v)\nf = Flatten (c)\nr = Reshape <shape = [0, 2, 1, 36]> (x)\n"
      "p = MatMul (r, e)\nq = Flatten (p)\nm = Concat <axis = 1> (t, f, q)\n"
      "logits = arbalest.Linear <units = 3> (m)\n" +
      std::string(kLoss) + "#initial float[72, 8] w = {" + numbers(72 * 8) + "}, float[5, 8] v = {" + numbers(40) +
      "}, float[2, 36, 4] e = {" + numbers(288) + "}";
  const Program program =
      program_of({"train.optimizer=muon", "train.momentum_only=[\"logits.*\"]", "train.momentum_only_factor=0.25",
                  "train.rate_patterns=[\"*.bias\"]", "train.rate_factors=[2]"},
                 false, body);
  const Graph& graph = program.training().graph;
  const std::vector<int64_t> numbers = ints_attribute(graph.nodes.at(graph.find_node("update")), "matrices");
  std::map<int64_t, std::vector<int64_t>> by_place;  // parameters lie in the order of `matrices`
  std::map<std::string, std::vector<int64_t>> found;
  for (const Value& value : graph.values) {
    if (value.view.base == program.training().arenas.weights) by_place[value.view.offset_bytes] = {};
  }
  REQUIRE(numbers.size() == 3 * by_place.size());
  size_t at = 0;
  for (auto& [place, matrix] : by_place) {
    matrix.assign(numbers.begin() + int64_t(at), numbers.begin() + int64_t(at) + 3);
    at += 3;
  }
  for (const Value& value : graph.values) {
    if (value.view.base == program.training().arenas.weights) found[value.name] = by_place[value.view.offset_bytes];
  }
  const int64_t features = value(graph, "logits.weight").type.shape[1];
  const std::map<std::string, std::vector<int64_t>> expected = {
      {"c.weight", {4, 18, 0}},  {"c.bias", {4, 1, 0}}, {"w", {72, 8, 1}},
      {"v", {5, 8, 0}},          {"e", {2, 144, 0}},    {"logits.weight", {3 * features, 1, 0}},
      {"logits.bias", {3, 1, 0}}};
  CHECK(found == expected);
  const auto groups = groups_of(program);
  CHECK(groups.at("w") == std::pair{0.001, 1.0});
  CHECK(groups.at("c.bias") == std::pair{0.001, 0.5});
  CHECK(groups.at("logits.weight") == std::pair{0.001, 0.25});
  CHECK(contains(refusal({"train.optimizer=muon", "train.momentum_only=[\"heads.*\"]"}),
                 "'momentum_only': no parameter is called"));
  CHECK(contains(refusal({"train.momentum_only_factor=2"}), "belongs to optimizer \"muon\""));
}

TEST_CASE("parameter groups are counted, and too many are refused") {
  const auto groups = [](int count) {
    std::string body = "l0 = arbalest.Linear <units = 2> (x)\n", patterns, factors;
    for (int i = 0; i < count; ++i) {
      if (i > 0) body += fmt::format("l{} = arbalest.Linear <units = 2> (l{})\n", i, i - 1);
      patterns += fmt::format("{}\"l{}.*\"", i ? ", " : "", i);
      factors += fmt::format("{}{}", i ? ", " : "", i + 2);
    }
    body += fmt::format("logits = arbalest.Linear <units = 3> (l{})\n", count - 1) + kLoss;
    return program_of({"train.rate_patterns=[" + patterns + "]", "train.rate_factors=[" + factors + "]"}, false, body);
  };
  const Program most = groups(63);  // and one of all others
  CHECK(groups_of(most).at("l62.weight") == std::pair{0.001, 64.0});
  CHECK(groups_of(most).at("logits.weight") == std::pair{0.001, 1.0});
  std::string message;
  try {
    groups(300);
  } catch (const GraphError& error) {
    message = error.what();
  }
  CHECK(contains(message,
                 "node 'trained' (arbalest.Train): 301 groups of parameters with a decay or a rate of their "
                 "own; expected at most 64"));
}

TEST_CASE("frozen layers have neither gradients nor an update, and their batch norms run by their statistics") {
  for (const bool bf16 : {false, true}) {
    const Program program = program_of({"train.frozen=[\"a.*\"]"}, bf16);
    const Loop &loop = program.training(), &validation = *program.find(LoopRole::Validate);
    const ArenaValues& arenas = loop.arenas;
    REQUIRE(arenas.frozen != kNone);
    for (const char* name : {"a.conv.weight", "a.bn.weight", "a.bn.bias", "a.bn.running_mean", "a.bn.running_var"}) {
      INFO(name);
      CHECK(value(loop.graph, name).role == Role::Frozen);
      CHECK(value(loop.graph, name).view.base == arenas.frozen);
      CHECK(value(validation.graph, name).view.base == validation.arenas.frozen);
      CHECK(value(validation.graph, name).view.offset_bytes == value(loop.graph, name).view.offset_bytes);
      CHECK(loop.graph.find_value(name + std::string(".gradient")) == kNone);
    }
    CHECK(value(loop.graph, "b.conv.weight").view.base == arenas.weights);
    CHECK(count_ops(loop.graph, "arbalest.BatchNormTraining") == 1);
    CHECK(count_ops(loop.graph, "arbalest.BatchNormInference") == 1);
    // Nothing flows back into what is frozen.
    CHECK(count_ops(loop.graph, "arbalest.BatchNormInferenceGrad") == 0);
    CHECK(count_ops(loop.graph, "arbalest.BatchNormGrad") == 1);
    for (const Carry& carry : loop.graph.carries) CHECK(loop.graph.values[carry.current].role != Role::Frozen);
    CHECK((arenas.frozen_lowered != kNone) == bf16);
    if (bf16) CHECK(value(loop.graph, "a.conv.weight.bf16").view.base == arenas.frozen_lowered);
  }
}

TEST_CASE("the statistics of a batch norm may be frozen alone") {
  const Program program = program_of({"train.frozen=[\"b.bn.running_*\"]"});
  const Loop& loop = program.training();
  CHECK(count_ops(loop.graph, "arbalest.BatchNormInferenceGrad") == 1);
  CHECK(value(loop.graph, "b.bn.weight").view.base == loop.arenas.weights);
  CHECK(value(loop.graph, "b.bn.running_var").view.base == loop.arenas.frozen);
  CHECK(value(loop.graph, "a.bn.running_var").view.base == loop.arenas.statistics);
}

TEST_CASE("clipping is one factor of all gradients") {
  const Program program = program_of({"train.clip_norm=2", "train.accumulate=3"});
  const Graph& graph = program.training().graph;
  const Node& update = graph.nodes.at(graph.find_node("update"));
  const Node& clip = graph.nodes.at(graph.find_node("clip_factor"));
  CHECK(float_attribute(clip, "norm") == 2);
  CHECK(clip.inputs[0] == update.inputs[0]);  // the mean gradient of three batches
  CHECK(graph.nodes.at(graph.values.at(clip.inputs[0]).producer).op->name == "Accumulate");
  CHECK(update.inputs.at(UpdateOperands(*update.op->optimizer).clip()) == clip.outputs[0]);
}

}  // namespace parameters_test
