// SPDX-License-Identifier: Apache-2.0
#include "executor/inference/predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "executor/inference/classification.h"
#include "executor/inference/fields_without_data.h"
#include "executor/inference/loaded_model.h"
#include "executor/inference/request_queue.h"
#include "executor/run/host_tasks.h"
#include "executor/run/sample_reader.h"
#include "executor/run/scheduler.h"

namespace arbalest {
namespace {

std::string value_of(const Graph& graph, const std::string& asked) {
  return asked.empty() ? head_of(graph, "", "say which value is to be predicted").scores : asked;
}

std::unique_ptr<const LoadedModel> load(Graph graph, SessionOptions options, const PredictorOptions& asked) {
  const std::string value = value_of(graph, asked.value);
  if (asked.batch < 0) throw GraphError(fmt::format("the batch is {} samples, expected at least 1", asked.batch));
  if (!asked.fields.empty()) options.sources.validation = source_of_fields(asked.fields);
  return std::make_unique<LoadedModel>(std::move(graph), options,
                                       InferenceRequest{.outputs = {value}, .batch = asked.batch, .endless = true});
}

}  // namespace

Predictor::Predictor(Graph graph, const SessionOptions& options, const PredictorOptions& asked)
    : options_(options), model_(load(std::move(graph), options, asked)), output_(model_->output_type(0)) {
  if (output_.dtype != DataType::Float32) {
    throw GraphError(fmt::format("'{}' is {}; a predictor gives floats", value_of(model_->prepared.graph, asked.value),
                                 to_string(output_)));
  }
  const std::vector<Field> all = slot_fields(model_->loop(), *model_->prepared.validation);
  const BatchLayout layout = batch_layout(model_->loop(), BatchOrigin::Host);
  for (size_t f = 0; f < all.size(); ++f) {  // those that host nodes prepare are asked for as prepared
    if (layout.offsets[f] == 0) continue;
    fields_.push_back(all[f]);
    offsets_.push_back(layout.offsets[f]);
  }
  requests_ = std::make_unique<RequestQueue>(model_->loop().batch);
  Scheduler::HostFunctions host(model_->plan.tasks.size());
  SchedulerOptions scheduling;
  scheduling.threads = thread_count(options_);
  scheduling.stall_seconds = std::numeric_limits<double>::infinity();
  for (const Replica& replica : model_->planned().replicas) {
    host[replica.fills.front()] = [this, device = replica.device](int64_t tick) {
      requests_->open(device, tick);
      fill_open_batches();
    };
    host[replica.hand_out] = [this, &replica](int64_t tick) { hand_out(replica, tick); };
  }
  scheduler_ = std::make_unique<Scheduler>(*model_->binding, std::move(host), scheduling);
  serving_ = std::thread([this] { serve(); });
}

const std::vector<std::string>& Predictor::class_names() const {
  return model_->class_names();
}

Predictor::~Predictor() {
  requests_->wait();
  scheduler_->fail(std::make_exception_ptr(RunError("the predictor has ended")));
  serving_.join();
}

void Predictor::serve() {
  try {
    scheduler_->run();
  } catch (...) {
    requests_->fail(std::current_exception());
  }
}

// Fills batches; called by the thread that brings samples or frees a slot.
void Predictor::fill_open_batches() {
  const Plan& plan = model_->plan;
  for (auto batch = requests_->take(); !batch.pieces.empty(); batch = requests_->take()) {
    const std::vector<Replica>& replicas = model_->planned().replicas;
    const TaskId task = replicas[size_t(batch.device)].fills.front();
    const BufferId slots = plan.operands[size_t(plan.tasks[task].first_operand)].buffer;
    std::byte* slot = model_->binding->address(slots, batch.tick);
    StepScalars scalars;
    scalars.seed = options_.numerics.seed;
    scalars.iteration = uint64_t(batch.tick);
    scalars.epoch = uint64_t(kDrawsApart);
    const int64_t number = batch.tick * int64_t(replicas.size()) + batch.device;  // no other batch has it
    scalars.position = uint64_t(number * model_->loop().batch);
    scalars.valid = int32_t(batch.pieces.back().at + batch.pieces.back().count);
    std::memcpy(slot, &scalars, sizeof scalars);
    for (size_t f = 0; f < fields_.size(); ++f) {
      const int64_t sample = fields_[f].sample().bytes();
      for (const RequestQueue::Piece& piece : batch.pieces) {
        std::memcpy(slot + offsets_[f] + piece.at * sample, piece.request->fields[f] + piece.first * sample,
                    size_t(piece.count * sample));
      }
    }
    scheduler_->finish(task, batch.tick);
  }
}

void Predictor::hand_out(const Replica& replica, int64_t tick) {
  const std::vector<std::byte> rows = model_->read_output(replica, 0, tick);
  const auto row = size_t(output_.bytes());
  for (const RequestQueue::Piece& piece : requests_->under_way(replica.device, tick)) {
    std::memcpy(reinterpret_cast<std::byte*>(piece.request->rows.data()) + size_t(piece.first) * row,
                rows.data() + size_t(piece.at) * row, size_t(piece.count) * row);
  }
  requests_->finish(replica.device, tick);
}

std::vector<float> Predictor::predict(std::span<const FieldArray> samples) {
  const auto request = std::make_shared<RequestQueue::Request>();
  for (const Field& field : fields_) {
    const auto given = std::find_if(samples.begin(), samples.end(),
                                    [&](const FieldArray& array) { return array.field.name == field.name; });
    if (given == samples.end()) {
      throw GraphError(
          fmt::format("a request has no field '{}', which the model needs: {}", field.name, to_string(fields_)));
    }
    const int64_t sample = field.sample().bytes(), bytes = int64_t(given->bytes.size());
    const bool fits = given->field.dtype == field.dtype && given->field.shape == field.shape;
    if (!fits || bytes % sample != 0) {
      throw GraphError(fmt::format("the field of a request is {} in {} bytes; expected {}, {} bytes a sample",
                                   to_string(given->field), bytes, to_string(field), sample));
    }
    if (!request->fields.empty() && bytes / sample != request->samples) {
      throw GraphError(fmt::format("a request has {} samples of '{}' and {} of '{}'", request->samples,
                                   fields_.front().name, bytes / sample, field.name));
    }
    request->samples = bytes / sample;
    request->fields.push_back(given->bytes.data());
  }
  if (request->samples == 0) return {};
  request->rows.resize(size_t(request->samples * output_.elements()));
  std::future<void> finished = request->finished.get_future();
  requests_->push(request);
  fill_open_batches();
  finished.get();
  return std::move(request->rows);
}

}  // namespace arbalest
