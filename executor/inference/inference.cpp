// SPDX-License-Identifier: Apache-2.0
#include "executor/inference/inference.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stop_token>

#include "executor/inference/loaded_model.h"
#include "executor/run/data_faults.h"
#include "executor/run/host_tasks.h"
#include "executor/run/scheduler.h"
#include "executor/segment/validation_reader.h"
#include "executor/session/reading.h"
#include "executor/world/part.h"
#include "executor/world/ranks.h"
#include "ops/names.h"

namespace arbalest {

Inference::Inference(Graph graph, const SessionOptions& options, const InferenceRequest& asked)
    : options_(options),
      model_(std::make_unique<LoadedModel>(std::move(graph), options, asked)),
      reader_(make_reader(model_->prepared, model_->loop(), options_.numerics.seed)),
      class_names_(model_->class_names()) {}

Inference::~Inference() = default;

int64_t Inference::samples() const {
  return model_->prepared.request.validation_samples;
}

const Graph& Inference::graph() const {
  return model_->prepared.graph;
}

const Source& Inference::source() const {
  return *model_->prepared.validation;
}

const std::vector<std::string>& Inference::class_names() const {
  return class_names_;
}

bool Inference::measures_loss() const {
  const std::vector<LoopMetric>& metrics = model_->loop().metrics;
  const std::string& loss = model_->prepared.program.training().metrics.front().name;
  return std::any_of(metrics.begin(), metrics.end(), [&](const LoopMetric& metric) { return metric.name == loss; });
}

const std::string& Inference::loss() const {
  return model_->prepared.program.training().metrics.front().name;
}

const std::vector<std::string>& Inference::notes() const {
  return model_->prepared.notes;
}

void Inference::name_classes(std::vector<std::string> names) {
  class_names_ = std::move(names);
}

TensorType Inference::output_type(size_t index) const {
  return model_->output_type(index);
}

// Device d of D, of all processes, takes batches d, d + D, …; those beyond the split's end are padding.
std::function<void(int64_t)> Inference::fill(const Replica& replica, TaskId task) const {
  const Source& source = *model_->prepared.validation;
  auto filler =
      std::make_shared<BatchFiller>(*model_->binding, model_->plan.tasks[task],
                                    batch_layout(model_->loop(), model_->prepared.request.validation_batches), reader_);
  const DataOrder order(options_.numerics.seed, source.size(), false, source.block());
  return [filler, order, devices = int64_t(model_->planned().everywhere), device = replica.place,
          seed = options_.numerics.seed](int64_t tick) {
    StepScalars scalars;
    scalars.seed = seed;
    scalars.iteration = uint64_t(tick);
    const int64_t batch = tick * devices + device;
    if (filler->has_scalars()) filler->put_scalars(tick, order, kDrawsApart, batch, scalars);
    filler->fill(tick, order, 0, batch);
  };
}

std::function<void(int64_t)> Inference::hand_out(const Replica& replica,
                                                 const std::function<void(const InferredBatch&)>& each) {
  return [this, &each, replica](int64_t tick) {
    InferredBatch batch;
    batch.first = (tick * int64_t(model_->planned().everywhere) + replica.place) * model_->loop().batch;
    batch.samples = std::min(model_->loop().batch, samples() - batch.first);
    if (batch.samples <= 0 || !each) return;
    const std::vector<int64_t> left_out = reader_->left_out().among(0, batch.first, batch.samples);
    for (int64_t sample = batch.first; sample < batch.first + batch.samples; ++sample) {
      if (!std::binary_search(left_out.begin(), left_out.end(), sample)) batch.rows.push_back(sample);
    }
    std::vector<std::vector<std::byte>> values;
    for (size_t i = 0; i < replica.outputs.size(); ++i) {
      values.push_back(model_->read_output(replica, i, tick));
      batch.values.push_back(values.back().data());
    }
    const std::scoped_lock lock(handing_out_);
    each(batch);
  };
}

// Appends each batch to `kept`, as a part for rank 0.
std::function<void(const InferredBatch&)> Inference::keeper(std::string& kept) const {
  return [this, &kept](const InferredBatch& batch) {
    PartWriter part;
    part.number(batch.first);
    part.number(batch.samples);
    part.array(batch.rows);
    for (size_t i = 0; i < batch.values.size(); ++i) {
      const int64_t bytes = output_type(i).bytes() * int64_t(batch.rows.size());
      part.array(std::string(reinterpret_cast<const char*>(batch.values[i]), size_t(bytes)));
    }
    kept += part.bytes;
  };
}

// Hands the batches of the other processes to `each`, at rank 0.
void Inference::take_others(std::string kept, const std::function<void(const InferredBatch&)>& each) const {
  for (const std::string& part : options_.ranks->gather("batches", std::move(kept))) {
    for (PartReader in(part); !in.at_end();) {
      InferredBatch batch;
      batch.first = in.number<int64_t>();
      batch.samples = in.number<int64_t>();
      batch.rows = in.array<int64_t>();
      std::vector<std::vector<std::byte>> values;
      for (size_t i = 0; i < model_->loop().outputs.size(); ++i) {
        values.push_back(in.array<std::byte>());
        batch.values.push_back(values.back().data());
      }
      each(batch);
    }
  }
}

// Throws if the samples are why values are not finite. Some metrics are nan for good reasons.
void Inference::blame_data(const Measurement& measured) const {
  if (std::none_of(measured.values.begin(), measured.values.end(), [](double v) { return !std::isfinite(v); })) return;
  const bool finite = all_means_finite(model_->loop(), measured);
  const std::string split = string_attribute(*graph().find_op(op::Validate), "split");
  const auto fault =
      fault_in_data(model_->loop(), source(), split, finite ? LookFor::Labels : LookFor::LabelsAndNumbers);
  if (fault) throw RunError("what is measured is not finite: " + fault->text);
}

Validated Inference::run(const std::function<void(const InferredBatch&)>& each, std::stop_token stop) {
  if (stop.stop_requested()) throw InterruptedError("interrupted");
  const auto began = std::chrono::steady_clock::now();
  const LoopPlan& planned = model_->planned();
  Scheduler::HostFunctions host(model_->plan.tasks.size());
  Ranks* const ranks = options_.ranks.get();
  std::string kept;
  const bool hands_on = each && ranks && !ranks->first();
  const std::function<void(const InferredBatch&)> own = hands_on ? keeper(kept) : each;
  for (const Replica& replica : planned.replicas) {
    for (const TaskId task : replica.fills) host[task] = fill(replica, task);
    if (replica.hand_out != kNone) host[replica.hand_out] = hand_out(replica, own);
  }
  ValidationReader reader(*model_->binding, model_->loop(), planned, samples(), reader_->left_out());
  SchedulerOptions scheduling;
  scheduling.threads = thread_count(options_);
  scheduling.stalled = warn_of_stall;
  scheduling.late_read = [this] { return model_->prepared.watch->late(); };
  scheduling.ranks = options_.ranks;
  scheduling.standstill_seconds = options_.execution.device_timeout;
  scheduling.host_standstill_seconds = host_patience(options_.execution);
  Scheduler scheduler(*model_->binding, std::move(host), scheduling);
  scheduler.run(stop);
  if (scheduler.iterations() < model_->plan.clocks[0].ticks) throw InterruptedError("interrupted");

  Validated result;
  const std::string& loss = model_->prepared.program.training().metrics.front().name;
  if (ranks && each) take_others(std::move(kept), each);
  const std::string part = reader.part(0);
  const Measurement measured = reader.read(0, ranks ? ranks->exchange("measured", part) : Ranks::Parts{part});
  blame_data(measured);
  tell(measured_metrics(model_->loop(), class_names_), loss, measured, result);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return result;
}

}  // namespace arbalest
