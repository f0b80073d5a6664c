// SPDX-License-Identifier: Apache-2.0

// The maps of names next to the examples: every parameter and statistic of the example gets a tensor, and one each.

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>

#include "executor/weights/weights_map.h"
#include "ops/builtin_ops.h"
#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace maps_test {
namespace {

// A batch norm's tensors, as PyTorch names them.
void add_norm(const std::string& name, std::vector<std::string>& names) {
  for (const char* part : {"weight", "bias", "running_mean", "running_var"}) names.push_back(name + "." + part);
}

// Names of an example's parameters and statistics.
std::set<std::string> names_of_example(const std::string& example) {
  const char* source = std::getenv("ARBALEST_SOURCE");
  REQUIRE(source);
  const Prepared prepared =
      prepare(load_graph(fmt::format("{}/examples/{}.onnxtxt", source, example), builtin_ops()), on_cpus());
  const Loop& loop = prepared.program.training();
  std::set<std::string> names;
  for (const Value& value : loop.graph.values) {
    const bool stored = value.role == Role::Parameter || value.role == Role::State;
    const ValueId base = value.view.base;
    if (stored && base != kNone && (base == loop.arenas.weights || base == loop.arenas.statistics)) {
      names.insert(value.name);
    }
  }
  return names;
}

// The names into which the example's map turns `theirs`; no two may become the same name.
std::set<std::string> mapped_names(const std::string& file, const std::vector<std::string>& theirs) {
  const char* source = std::getenv("ARBALEST_SOURCE");
  REQUIRE(source);
  std::ifstream stream(fmt::format("{}/examples/transfer/{}", source, file));
  const std::string rules{std::istreambuf_iterator<char>(stream), {}};
  const WeightsMap map(rules, file);
  std::set<std::string> mapped;
  for (const std::string& name : theirs) mapped.insert(map(name).name);
  CHECK(mapped.size() == theirs.size());
  return mapped;
}

// Keras' names of layers' variables.
struct KerasNames {
  std::vector<std::string> names;
  void add(const std::string& layer, const std::vector<const char*>& variables) {
    for (const char* variable : variables) names.push_back(layer + "/" + variable);
  }
  void add_norm(const std::string& layer) { add(layer, {"gamma", "beta", "moving_mean", "moving_variance"}); }
};

}  // namespace

TEST_CASE("the maps next to the examples give torchvision's names") {
  struct Example {
    std::string name;
    std::vector<int> blocks;
    int convolutions;     // of a block
    bool first_projects;  // the first stage, too, begins with a projection
  };
  for (const Example& example :
       {Example{"resnet18", {2, 2, 2, 2}, 2, false}, Example{"resnet50", {3, 4, 6, 3}, 3, true},
        Example{"resnet101", {3, 4, 23, 3}, 3, true}}) {
    std::vector<std::string> theirs = {"conv1.weight", "fc.weight", "fc.bias"};
    add_norm("bn1", theirs);
    for (size_t stage = 0; stage < example.blocks.size(); ++stage) {
      for (int block = 0; block < example.blocks[stage]; ++block) {
        const std::string prefix = fmt::format("layer{}.{}.", stage + 1, block);
        for (int i = 1; i <= example.convolutions; ++i) {
          theirs.push_back(fmt::format("{}conv{}.weight", prefix, i));
          add_norm(fmt::format("{}bn{}", prefix, i), theirs);
        }
        if (block > 0 || (stage == 0 && !example.first_projects)) continue;
        theirs.push_back(prefix + "downsample.0.weight");
        add_norm(prefix + "downsample.1", theirs);
      }
    }
    CHECK(mapped_names(example.name + ".torchvision.map", theirs) == names_of_example(example.name));
  }

  std::vector<std::string> theirs = {"features.conv0.weight", "classifier.weight", "classifier.bias"};
  add_norm("features.norm0", theirs);
  add_norm("features.norm5", theirs);
  const std::vector<int> blocks = {6, 12, 24, 16};
  for (size_t block = 1; block <= blocks.size(); ++block) {
    for (int layer = 1; layer <= blocks[block - 1]; ++layer) {
      const std::string prefix = fmt::format("features.denseblock{}.denselayer{}.", block, layer);
      for (int i = 1; i <= 2; ++i) {
        theirs.push_back(fmt::format("{}conv{}.weight", prefix, i));
        add_norm(fmt::format("{}norm{}", prefix, i), theirs);
      }
    }
    if (block == blocks.size()) continue;
    theirs.push_back(fmt::format("features.transition{}.conv.weight", block));
    add_norm(fmt::format("features.transition{}.norm", block), theirs);
  }
  CHECK(mapped_names("densenet121.torchvision.map", theirs) == names_of_example("densenet121"));
}

TEST_CASE("the maps next to the examples give names of torchvision's and timm's newer models") {
  struct Names : std::vector<std::string> {
    void add(const std::string& module) {
      for (const char* part : {".weight", ".bias"}) push_back(module + part);
    }
    // A convolution without bias and its batch norm.
    void add(const std::string& convolution, const std::string& norm) {
      push_back(convolution + ".weight");
      add_norm(norm, *this);
    }
    void add_pair(const std::string& module) { add(module + ".0", module + ".1"); }
  };
  for (const bool with_norms : {false, true}) {
    Names names;
    int at = 0;
    for (const int convolutions : {2, 2, 3, 3, 3}) {
      for (int i = 0; i < convolutions; ++i, at += with_norms ? 3 : 2) {
        names.add(fmt::format("features.{}", at));
        if (with_norms) add_norm(fmt::format("features.{}", at + 1), names);
      }
      ++at;  // pooling
    }
    for (const int layer : {0, 3, 6}) names.add(fmt::format("classifier.{}", layer));
    const std::string example = with_norms ? "vgg16_bn" : "vgg16";
    CHECK(mapped_names(example + ".torchvision.map", names) == names_of_example(example));
  }

  Names mobile;
  mobile.add_pair("features.0");
  for (int block = 1; block <= 15; ++block) {
    const std::string prefix = fmt::format("features.{}.block.", block);
    int at = 0;
    for (int i = block == 1 ? 1 : 0; i < 2; ++i) mobile.add_pair(prefix + std::to_string(at++));
    if ((block >= 4 && block <= 6) || block >= 11) {
      for (const char* part : {"fc1", "fc2"}) mobile.add(fmt::format("{}{}.{}", prefix, at, part));
      ++at;
    }
    mobile.add_pair(prefix + std::to_string(at));
  }
  mobile.add_pair("features.16");
  for (const char* layer : {"classifier.0", "classifier.3"}) mobile.add(layer);
  CHECK(mapped_names("mobilenet_v3_large.torchvision.map", mobile) == names_of_example("mobilenet_v3_large"));

  Names efficient, efficient_of_timm;
  efficient.add_pair("features.0");
  efficient_of_timm.add("conv_stem", "bn1");
  const std::vector<int> repeats = {1, 2, 2, 3, 3, 4, 1};
  for (size_t stage = 0; stage < repeats.size(); ++stage) {
    for (int i = 0; i < repeats[stage]; ++i) {
      const std::string prefix = fmt::format("features.{}.{}.block.", stage + 1, i);
      const int squeeze = stage == 0 ? 1 : 2;
      for (int at = 0; at <= squeeze + 1; ++at) {
        if (at != squeeze) efficient.add_pair(prefix + std::to_string(at));
      }
      for (const char* part : {"fc1", "fc2"}) efficient.add(fmt::format("{}{}.{}", prefix, squeeze, part));
      const std::string block = fmt::format("blocks.{}.{}.", stage, i);
      const std::vector<const char*> layers = stage == 0 ? std::vector<const char*>{"conv_dw", "conv_pw"}
                                                         : std::vector<const char*>{"conv_pw", "conv_dw", "conv_pwl"};
      for (size_t at = 0; at < layers.size(); ++at) {
        efficient_of_timm.add(block + layers[at], fmt::format("{}bn{}", block, at + 1));
      }
      for (const char* part : {"se.conv_reduce", "se.conv_expand"}) efficient_of_timm.add(block + part);
    }
  }
  efficient.add_pair("features.8");
  efficient.add("classifier.1");
  efficient_of_timm.add("conv_head", "bn2");
  efficient_of_timm.add("classifier");
  CHECK(mapped_names("efficientnet_b0.torchvision.map", efficient) == names_of_example("efficientnet_b0"));
  CHECK(mapped_names("efficientnet_b0.timm.map", efficient_of_timm) == names_of_example("efficientnet_b0"));

  Names next, next_of_timm;
  for (const char* layer : {"features.0.0", "features.0.1", "classifier.0", "classifier.2"}) next.add(layer);
  for (const char* layer : {"stem.0", "stem.1", "head.norm", "head.fc"}) next_of_timm.add(layer);
  const std::vector<int> blocks = {3, 3, 9, 3};
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    for (int i = 0; stage > 0 && i < 2; ++i) {
      next.add(fmt::format("features.{}.{}", 2 * stage, i));
      next_of_timm.add(fmt::format("stages.{}.downsample.{}", stage, i));
    }
    for (int i = 0; i < blocks[stage]; ++i) {
      const std::string block = fmt::format("features.{}.{}.", 2 * stage + 1, i);
      for (const int layer : {0, 2, 3, 5}) next.add(fmt::format("{}block.{}", block, layer));
      next.push_back(block + "layer_scale");
      const std::string of_timm = fmt::format("stages.{}.blocks.{}.", stage, i);
      for (const char* layer : {"conv_dw", "norm", "mlp.fc1", "mlp.fc2"}) next_of_timm.add(of_timm + layer);
      next_of_timm.push_back(of_timm + "gamma");
    }
  }
  CHECK(mapped_names("convnext_tiny.torchvision.map", next) == names_of_example("convnext_tiny"));
  CHECK(mapped_names("convnext_tiny.timm.map", next_of_timm) == names_of_example("convnext_tiny"));

  Names vit;
  vit.insert(vit.end(), {"cls_token", "pos_embed"});
  for (const char* layer : {"patch_embed.proj", "norm", "head"}) vit.add(layer);
  for (int block = 0; block < 12; ++block) {
    for (const char* layer : {"norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"}) {
      vit.add(fmt::format("blocks.{}.{}", block, layer));
    }
  }
  CHECK(mapped_names("vit_s16.timm.map", vit) == names_of_example("vit_s16"));
}

TEST_CASE("the maps next to the examples give Keras' names") {
  KerasNames dense;
  dense.add("conv1_conv", {"kernel"});
  dense.add_norm("conv1_bn");
  const std::vector<int> layers = {6, 12, 24, 16};
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    for (int i = 1; i <= layers[stage]; ++i) {
      const std::string block = fmt::format("conv{}_block{}", stage + 2, i);
      dense.add_norm(block + "_0_bn");
      dense.add(block + "_1_conv", {"kernel"});
      dense.add_norm(block + "_1_bn");
      dense.add(block + "_2_conv", {"kernel"});
    }
    if (stage + 1 == layers.size()) continue;
    dense.add_norm(fmt::format("pool{}_bn", stage + 2));
    dense.add(fmt::format("pool{}_conv", stage + 2), {"kernel"});
  }
  dense.add_norm("bn");
  dense.add("predictions", {"kernel", "bias"});
  CHECK(mapped_names("densenet121.keras.map", dense.names) == names_of_example("densenet121"));

  KerasNames convnext;
  const std::string net = "convnext_tiny_";
  convnext.add(net + "stem/" + net + "stem_conv", {"kernel", "bias"});
  convnext.add(net + "stem/" + net + "stem_layernorm", {"gamma", "beta"});
  const std::vector<int> blocks = {3, 3, 9, 3};
  int variable = 0;  // Keras numbers those of all blocks
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    if (stage) {
      const std::string half = fmt::format("{}downsampling_block_{}/{}downsampling_", net, stage - 1, net);
      convnext.add(fmt::format("{}layernorm_{}", half, stage - 1), {"gamma", "beta"});
      convnext.add(fmt::format("{}conv_{}", half, stage - 1), {"kernel", "bias"});
    }
    for (int i = 0; i < blocks[stage]; ++i) {
      const std::string block = fmt::format("{}stage_{}_block_{}_", net, stage, i);
      for (const char* layer : {"depthwise_conv", "pointwise_conv_1", "pointwise_conv_2"}) {
        convnext.add(block + layer, {"kernel", "bias"});
      }
      convnext.add(block + "layernorm", {"gamma", "beta"});
      convnext.names.push_back(block + "layer_scale/variable" + (variable ? fmt::format("_{}", variable) : ""));
      ++variable;
    }
  }
  convnext.add(net + "head_layernorm", {"gamma", "beta"});
  convnext.add(net + "head_dense", {"kernel", "bias"});
  CHECK(mapped_names("convnext_tiny.keras.map", convnext.names) == names_of_example("convnext_tiny"));
}

}  // namespace maps_test
