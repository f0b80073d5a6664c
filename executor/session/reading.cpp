// SPDX-License-Identifier: Apache-2.0
#include "executor/session/reading.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/process.h"
#include "executor/plan/strategy.h"
#include "executor/run/binding.h"
#include "executor/run/data_faults.h"
#include "executor/session/facts.h"
#include "executor/session/shared_resources.h"
#include "graph/op.h"
#include "ops/names.h"

namespace arbalest {

std::shared_ptr<BadSamples> make_bad_samples(const SessionOptions& options) {
  return std::make_shared<BadSamples>(
      options.execution.skip_bad,
      [](const std::string& place, const std::string& fault) { warn(fmt::format("skipped {}: {}", place, fault)); });
}

TimedLook warn_if_slow(std::string what, double seconds) {
  if (seconds <= 0) return {};
  return look_after(std::chrono::duration<double>(seconds), [what = std::move(what), seconds] {
    warn(fmt::format("{} has taken {:g} s, and goes on", what, seconds));
  });
}

namespace {

// Whether the source draws samples anew, by epoch or position: looks at some of them twice.
bool draws_anew(const Source& source) {
  constexpr int64_t kLooks = 16;
  const std::vector<Field> fields = source.fields();
  const auto look = [&](int64_t index, uint64_t epoch, uint64_t position) {
    std::vector<std::vector<std::byte>> content;
    std::vector<std::byte*> to;
    for (const Field& field : fields) {
      const bool file = field.dtype == DataType::String;
      content.emplace_back(file ? 0 : size_t(field.sample().bytes()));
      to.push_back(file ? nullptr : content.back().data());
    }
    const SampleRef sample{index, epoch, position};
    source.fill({&sample, 1}, to);
    return content;
  };
  for (int64_t i = 0; i < std::min(kLooks, source.size()); ++i) {
    if (look(i, 0, uint64_t(i)) != look(i, 1, uint64_t(source.size() - 1 - i))) return true;
  }
  return false;
}

// Sets up samples that stay on the devices. Throws if a source or a host node draws them anew in each epoch.
void keep_on_devices(Prepared& prepared, const Node& prefetch) {
  prepared.stores.kept_arenas = std::make_shared<KeptArenas>();
  const auto keep = [&](const Loop* loop, const Source* source) {
    if (!loop || !source) return std::shared_ptr<KeptSamples>();
    cached_bytes(*loop);
    if (draws_anew(*source)) {
      fail(prefetch,
           fmt::format("attribute 'cache' keeps samples, and '{}' draws them anew in each epoch", source->describe()));
    }
    return std::make_shared<KeptSamples>();
  };
  prepared.stores.training_kept = keep(&prepared.program.training(), prepared.training.get());
  prepared.stores.validation_kept = keep(prepared.program.find(LoopRole::Validate), prepared.validation.get());
}

}  // namespace

namespace {

// States all that prepared samples depend on: where they come from, where they are kept, and what host nodes make of
// them.
std::string text_of_samples(const Prepared& prepared) {
  std::string text = fmt::format("{} {}", fmt::ptr(prepared.training.get()), fmt::ptr(prepared.validation.get()));
  for (const PlanDevice& device : prepared.request.devices) text.append(" ").append(to_string(device));
  const std::vector<std::string> lines = node_lines(prepared.graph);
  for (const NodeId n : prepared.graph.nodes.ids()) {
    if (prepared.graph.nodes[n].op->prepare) text += "\n" + lines[size_t(n)];
  }
  return text;
}

void make_stores(Prepared& prepared) {
  const Node& prefetch = *prepared.graph.find_op(op::Prefetch);
  const std::string where = string_attribute(prefetch, "cache");
  if (where == "device") keep_on_devices(prepared, prefetch);
  if (where != "host") return;
  const auto cache_of = [&](const Loop* loop, const std::shared_ptr<const Source>& source) {
    const int64_t bytes = loop && source ? cached_bytes(*loop) : 0;
    return bytes > 0 ? std::make_shared<SampleCache>(source->size(), bytes) : nullptr;
  };
  prepared.stores.training_cache = cache_of(&prepared.program.training(), prepared.training);
  prepared.stores.validation_cache = cache_of(prepared.program.find(LoopRole::Validate), prepared.validation);
  check_memory_for_caches(bytes_of_caches(prepared));
  if (!prepared.stores.training_cache) {
    fail(prefetch,
         fmt::format("attribute 'cache' keeps what host nodes make of files, and '{}' has none that the graph "
                     "prepares: its samples are in memory",
                     prepared.training->describe()));
  }
}

}  // namespace

void add_caches(Prepared& prepared, SharedResources* shared) {
  if (!shared) return make_stores(prepared);
  const std::string where = string_attribute(*prepared.graph.find_op(op::Prefetch), "cache");
  prepared.shared_stores = shared->samples(where + text_of_samples(prepared), [&] {
    make_stores(prepared);
    SampleStores made = prepared.stores;
    // As long as the samples are there, so that no other source gets the addresses in the name.
    made.training = prepared.training;
    made.validation = prepared.validation;
    return made;
  });
  prepared.stores = *prepared.shared_stores;
}

int64_t bytes_of_caches(const Prepared& prepared) {
  int64_t bytes = 0;
  for (const auto& cache : {prepared.stores.training_cache, prepared.stores.validation_cache})
    bytes += cache ? cache->bytes() : 0;
  return bytes;
}

namespace {

// Whether all samples can be read in this time. Files are not read.
bool can_be_read_within(const Source& source, double microseconds) {
  const std::vector<Field> fields = source.fields();
  const bool files =
      std::any_of(fields.begin(), fields.end(), [](const Field& f) { return f.dtype == DataType::String; });
  return files || source.microseconds_per_sample() * double(source.size()) <= microseconds;
}

std::string split_of(const Prepared& prepared, std::string_view op) {
  return string_attribute(*prepared.graph.find_op(op), "split");
}

}  // namespace

void check_samples(Prepared& prepared) {
  constexpr double kMostTime = 10e6;  // µs
  const auto look = [](const Loop& loop, const Source& source, const std::string& split) {
    if (!can_be_read_within(source, kMostTime)) return std::string();
    DataFindings found = look_at_data(loop, source, split, LookFor::LabelsAndNumbers);
    if (found.fault) throw RunError(found.fault->text);
    return found.note;
  };
  std::string note = look(prepared.program.training(), *prepared.training, split_of(prepared, op::Prefetch));
  const Loop* validation = prepared.program.find(LoopRole::Validate);
  if (validation) look(*validation, *prepared.validation, split_of(prepared, op::Validate));
  if (!note.empty()) prepared.notes.push_back(std::move(note));
}

std::string note_of_labels(const Prepared& prepared) {
  constexpr double kMostTime = 1e6;  // µs
  const Source& source = *prepared.training;
  if (prepared.stores.training_kept || !can_be_read_within(source, kMostTime)) return "";  // kept: each is read once
  return look_at_data(prepared.program.training(), source, split_of(prepared, op::Prefetch), LookFor::Counting).note;
}

int64_t samples_left_out(const Prepared& prepared) {
  const PlanRequest& request = prepared.request;
  const int64_t learners = int64_t(request.devices.size()) * request.learners;
  const int64_t batch = prepared.program.training().batch;
  const int64_t rounds = rounds_of(request.training_samples, learners, batch, prepared.program.accumulate);
  return request.training_samples - rounds * learners * batch;
}

void note_padding(Prepared& prepared, int64_t skip_bad) {
  const Loop* loop = prepared.program.find(LoopRole::Validate);
  if (!loop || loop->padded.empty()) return;
  const int64_t samples = prepared.request.validation_samples, batch = loop->batch;
  const std::string what = fmt::format("'{}' {} of whole batches", fmt::join(loop->padded, "', '"),
                                       loop->padded.size() == 1 ? "is made" : "are made");
  const std::string help =
      "operators that count valid samples alone, such as arbalest.MeanSquaredError, have exact means with any batch";
  if (!pads_evenly(samples, batch)) {
    prepared.notes.push_back(fmt::format(
        "{}, and the last one of validation fills {} rows with {} of {} samples, some of them once more than "
        "others, so that the mean is not exact; a batch that divides the samples, or a model that was "
        "exported for any batch, makes it so; {}",
        what, batch, samples % batch, samples, help));
  } else if (batch < std::min(samples, loop->asked_batch)) {
    prepared.notes.push_back(fmt::format(
        "validation takes batches of {} instead of {}: {}, and so the last one of {} samples counts each as often; {}",
        batch, loop->asked_batch, what, samples, help));
  }
  if (skip_bad == 0) return;
  prepared.notes.push_back(fmt::format(
      "{}: where validation leaves out samples that cannot be read, their batches are not exact; {}", what, help));
}

void note_batches(Prepared& prepared) {
  const auto add = [&](const Loop& loop, const char* what) {
    std::vector<std::string> names;
    for (const LoopMetric& metric : loop.metrics) {
      if (metric.of_batches) names.push_back(metric.name);
    }
    if (names.empty()) return;
    prepared.notes.push_back(
        fmt::format("'{}' {} computed of each batch of {} from what is no linear function of one "
                    "mean over samples: {}",
                    fmt::join(names, "', '"), names.size() == 1 ? "is" : "are", loop.batch, what));
  };
  const Program& program = prepared.program;
  if (const Loop* loop = program.find(LoopRole::Validate)) {
    add(*loop, "validation has its mean over batches, which is another one with another batch");
  }
  const bool several = program.accumulate > 1 || strategy_spec(prepared.request.strategy.name).sums_gradients;
  if (several) {
    add(program.training(),
        "an update of several batches follows the mean over these, not what one batch as large "
        "as all of them has");
  }
}

void note_draws(Prepared& prepared) {
  const Loop* loop = prepared.program.find(LoopRole::Validate);
  std::vector<std::string> names;
  for (const Node& node : loop ? loop->graph.nodes : Table<NodeId, Node>()) {
    if (node.op->random && node.op->domain.empty())
      names.push_back(node.name);  // those of Arbalest draw in training alone
  }
  constexpr size_t kMost = 8;
  const size_t count = names.size();
  if (count > kMost) names.resize(kMost);
  if (count == 0) return;
  prepared.notes.push_back(fmt::format(
      "'{}'{} {} random numbers without training, too, as ONNX says: predictions and exported models differ "
      "from call to call. A dropout that is spelt out is found where kept elements are scaled by 1 / their "
      "share",
      fmt::join(names, "', '"), count > kMost ? fmt::format(" and {} others", count - kMost) : "",
      count == 1 ? "draws" : "draw"));
}

std::shared_ptr<const SampleReader> make_reader(const Prepared& prepared, const Loop& loop, uint64_t seed) {
  const Source& source = loop.role == LoopRole::Validate ? *prepared.validation : *prepared.training;
  const bool validates = loop.role == LoopRole::Validate;
  SampleCache* cache = (validates ? prepared.stores.validation_cache : prepared.stores.training_cache).get();
  const KeptSamples* kept = (validates ? prepared.stores.validation_kept : prepared.stores.training_kept).get();
  return std::make_shared<SampleReader>(loop, source, seed, prepared.bad.get(), cache, prepared.watch.get(), kept);
}

}  // namespace arbalest
