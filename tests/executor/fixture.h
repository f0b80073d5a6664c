// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small runs for tests of the executor: graphs as a file states them, and an observer that remembers.

#include <fmt/format.h>

#include <mutex>
#include <string>
#include <vector>

#include "executor/session/session.h"
#include "graph/file/graph_file.h"
#include "graph/op.h"
#include "ops/builtin_ops.h"

namespace arbalest::test {

struct TinyNet {
  std::string source = "glyphs:?train=96&test=50&size=16";
  int64_t batch = 8, depth = 3;
  std::string layers = "hidden = arbalest.Linear <units = 16> (x)\nh = Relu (hidden)\n";  // from x to h
  std::string train = "lr = 0.1, momentum = 0.9";
  std::string synchronize;              // "" for no such node
  std::string validate = "batch = 16";  // "" for none
  std::vector<std::string> later;       // attributes of further Synchronize nodes, one after the other
};

// A net that learns from 1280 samples; fewer will do if it need not.
inline TinyNet convolutional(int64_t samples = 1280) {
  TinyNet net;
  net.source = fmt::format("glyphs:?train={}&test=300&size=16", samples);
  net.batch = 32;
  net.layers =
      "c = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3]> (x)\n"
      "h = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)\n";
  net.train = "lr = 0.05, momentum = 0.9";
  net.validate = "batch = 100";
  return net;
}

// A net with a batch norm that is recalibrated.
inline TinyNet recalibrated() {
  TinyNet net;
  net.batch = 10;
  net.layers =
      "normal = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (x)\n"
      "h = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (normal)\n";
  net.validate = "batch = 16, recalibrate = 3";
  return net;
}

inline Graph tiny(const TinyNet& net) {
  std::string synced =
      net.synchronize.empty() ? "" : "synced = arbalest.Synchronize <" + net.synchronize + "> (trained)\n";
  std::string token = synced.empty() ? "trained" : "synced";
  for (const std::string& attributes : net.later) {
    synced += fmt::format("{0}_later = arbalest.Synchronize <{1}> ({0})\n", token, attributes);
    token += "_later";
  }
  const std::string report =
      net.validate.empty() ? ""
                           : fmt::format("report = arbalest.Validate <{}> ({}, loss, accuracy)\n", net.validate, token);
  return read_graph_text(fmt::format("<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
                                     "tiny () => (float loss)\n{{\n"
                                     "image, label = arbalest.Prefetch <source = \"{}\", batch = {}, depth = {}> ()\n"
                                     "x = arbalest.Augment <mean = [0.2], std = [0.3]> (image)\n{}"
                                     "logits = arbalest.Linear <units = 10> (h)\n"
                                     "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
                                     "accuracy = arbalest.Accuracy (logits, label)\n"
                                     "trained = arbalest.Train <{}> (loss)\n{}{}}}\n",
                                     net.source, net.batch, net.depth, net.layers, net.train, synced, report),
                         "tiny.onnxtxt", builtin_ops());
}

// A net one of whose weights is normalised and scaled before it is read.
inline Graph with_scaled_weights() {
  std::string numbers = "0.5";
  for (int i = 1; i < 64; ++i) numbers += fmt::format(", {}", 0.01 * (i % 7) - 0.03);
  return read_graph_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\nscaled () => (float loss)\n<float[8, 8] w = {" +
          numbers +
          "}, float[8] gain = {1, 2, 3, 4, 5, 6, 7, 8}>\n{\n"
          "image, label = arbalest.Prefetch <source = \"synthetic:?shape=1x16x16&classes=8&size=1000\", batch = 8> ()\n"
          "x = arbalest.Augment <mean = [0.2], std = [0.3]> (image)\n"
          "first = arbalest.Linear <units = 8> (x)\nlength = ReduceL2 <axes = [1]> (w)\nunit = Div (w, length)\n"
          "normal = LayerNormalization <axis = 1> (unit, gain)\n"
          "root = Sqrt (gain)\nmade = Mul (normal, root)\nh = MatMul (first, made)\n"
          "logits = arbalest.Linear <units = 8> (h)\nloss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
          "trained = arbalest.Train <lr = 0.1, momentum = 0.9> (loss)\n}\n",
      "scaled.onnxtxt", builtin_ops());
}

inline std::vector<PlanDevice> cpus(int count) {
  std::vector<PlanDevice> devices;
  for (int i = 0; i < count; ++i) devices.push_back({PlanDevice::Kind::Cpu, i});
  return devices;
}

// Two threads, so that a run is the same wherever the tests run.
inline SessionOptions on_cpus(int devices = 1, int learners = 1) {
  SessionOptions options;
  options.learners.devices = cpus(devices);
  options.learners.per_device = learners;
  options.execution.threads = 2;
  return options;
}

class Recorder : public RunObserver {
 public:
  void started(const RunStarted& event) override { starts.push_back(event); }
  void progress(const RunProgress& event) override { reports.push_back(event); }
  void epoch(const EpochEnded& event) override { epochs.push_back(event); }
  void validating(const ValidationProgress& event) override { validating_shares.push_back(event); }
  void validation(const Validated& event) override { validations.push_back(event); }
  void checkpoint(const CheckpointSaved& event) override { checkpoints.push_back(event); }
  void tuned(const Tuned& event) override { tunings.push_back(event); }
  void rolled_back(const RolledBack& event) override { rollbacks.push_back(event); }
  void finished(const RunFinished& event) override { ends.push_back(event); }
  void failed(const RunFailed& event) override { failures.push_back(event); }

  std::vector<RunStarted> starts;
  std::vector<RunProgress> reports;
  std::vector<EpochEnded> epochs;
  std::vector<ValidationProgress> validating_shares;
  std::vector<Validated> validations;
  std::vector<CheckpointSaved> checkpoints;
  std::vector<Tuned> tunings;
  std::vector<RolledBack> rollbacks;
  std::vector<RunFinished> ends;
  std::vector<RunFailed> failures;
};

inline Recorder run(Graph graph, const SessionOptions& options) {
  Recorder recorder;
  run_training(std::move(graph), options, recorder);
  return recorder;
}

// what() of the GraphError or RunError that `action` throws, "" if it throws none.
template <typename Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace arbalest::test
