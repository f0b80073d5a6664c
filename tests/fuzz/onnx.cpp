// SPDX-License-Identifier: Apache-2.0

// Binary models: as graphs, and as models that a graph calls.

#include "graph/file/graph_file.h"
#include "ops/builtin_ops.h"
#include "tests/fuzz/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest;
  using namespace arbalest::fuzz;
  static constexpr const char* kCall = R"(<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1, "model" : 1]>
call () => () {
  image, label = arbalest.Prefetch <batch = 4, source = "synthetic:?shape=1x8x8&size=64&test=32", split = "train"> ()
  x = Cast <to = 1> (image)
  y = model.m (x)
  flat = Flatten (y)
  logits = arbalest.Linear <out = 10> (flat)
  loss = arbalest.SoftmaxCrossEntropy (logits, label)
  step = arbalest.Train <optimizer = "sgd", lr = 0.1> (loss)
}
)";
  const std::string model = write("model.onnx", text(data, size));
  Graph graph;
  if (!accepted([&] { graph = load_graph(model, builtin_ops()); })) return 0;
  accepted([&] { plan(std::move(graph), two_learners()); });
  accepted([&] {
    plan(read_graph_text(kCall, (folder() / "call.onnxtxt").string(), builtin_ops(), 0, {{"m", model}}),
         two_learners());
  });
  return 0;
}
