// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helper of fuzz targets of graphs: a graph taken as far as `arbalest plan` takes it.

#include <memory>
#include <string>

#include "executor/plan/make_plan.h"
#include "executor/session/session.h"
#include "graph/op.h"
#include "io/open/open_source.h"
#include "io/sources/source.h"
#include "tests/fuzz/target.h"
#include "tools/command/graph_listing.h"
#include "tools/command/plan_summary.h"

namespace arbalest::fuzz {

// Noise in the shape of what the graph names, or files of it: an input opens no data set.
inline DataSources sources_for(const std::string& spec) {
  const auto both = [](const std::string& source) {
    return DataSources{open_source(source, "train", 1), open_source(source, "test", 1)};
  };
  static const DataSources digits = both("synthetic:?shape=1x28x28&size=256&test=64");
  static const DataSources colours = both("synthetic:?shape=3x32x32&size=256&test=64");
  static const DataSources files = [&] {
    for (const char* split : {"train", "test"}) {
      for (const char* label : {"a", "b"}) {
        std::filesystem::create_directories(folder() / "photos" / split / label);
        write(std::filesystem::path("photos") / split / label / "0.jpg", "a photo");
      }
    }
    return both("folder:" + (folder() / "photos").string());
  }();
  if (spec.starts_with("synthetic:")) return {};
  if (spec.starts_with("folder:")) return files;
  return spec.starts_with("cifar10:") ? colours : digits;
}

// `session` says how many learners there are and the like. Throws as reading graphs does.
inline void plan(Graph graph, SessionOptions session) {
  constexpr size_t kMostNodes = 500;  // beyond, an input takes long
  if (graph.nodes.size() > kMostNodes) return;
  if (const Node* prefetch = graph.find_op("arbalest.Prefetch")) {
    const Attribute* source = prefetch->attributes.find("source");
    const auto* text = source ? std::get_if<std::string>(source) : nullptr;
    session.sources = sources_for(text ? *text : "");
  }
  const Prepared prepared = prepare(std::move(graph), session);
  const Plan plan = make_plan(prepared.program, prepared.request);
  expect_printable(list_graph(prepared.graph));
  expect_printable(summarize_plan(plan));
  expect_printable(print_plan(plan));
  graph_record(prepared.graph);
}

// Two learners of a CPU device.
inline SessionOptions two_learners() {
  SessionOptions session;
  session.learners.devices = {{PlanDevice::Kind::Cpu, 0}};
  session.learners.per_device = 2;
  session.execution.threads = 2;
  return session;
}

}  // namespace arbalest::fuzz
