#include "executor/inference/predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "executor/inference/classification.h"
#include "executor/inference/loaded_model.h"
#include "executor/run/scheduler.h"

namespace arbalest {
namespace {

// The graph's data set, where only the kinds of fields are known.
class FieldsOnly final : public Source {
 public:
  explicit FieldsOnly(std::vector<Field> fields) : fields_(std::move(fields)) {}
  std::vector<Field> fields() const override { return fields_; }
  int64_t size() const override { return 1; }
  void fill(std::span<const SampleRef>, std::span<std::byte* const>) const override {
    throw RunError("the samples of a predictor are those of its requests");
  }
  std::string describe() const override { return "requests: samples of " + to_string(fields_); }

 private:
  std::vector<Field> fields_;
};

std::string value_of(const Graph& graph, const std::string& asked) {
  if (!asked.empty()) return asked;
  const auto classified = classified_values(graph);
  if (!classified) throw GraphError("the graph has no SoftmaxCrossEntropy; say which value is to be predicted");
  return classified->logits;
}

std::unique_ptr<const LoadedModel> load(Graph graph, SessionOptions options, const PredictorOptions& asked) {
  const std::string value = value_of(graph, asked.value);
  if (asked.batch < 0) throw GraphError(fmt::format("the batch is {} samples, expected at least 1", asked.batch));
  if (!asked.fields.empty()) options.sources.validation = std::make_shared<FieldsOnly>(asked.fields);
  return std::make_unique<LoadedModel>(std::move(graph), options,
                                       InferenceRequest{.outputs = {value}, .batch = asked.batch, .endless = true});
}

}  // namespace

// What waits, what is under way, and the thread that runs the plan.
class RequestQueue {
 public:
  struct Request {
    std::vector<const std::byte*> fields;  // the samples of each of the predictor's fields
    int64_t samples = 0, taken = 0, done = 0;
    std::vector<float> rows;
    std::promise<void> finished;
  };
  // Samples first … first + count − 1 of a request, in rows from `at` on of a batch.
  struct Piece {
    std::shared_ptr<Request> request;
    int64_t first = 0, count = 0, at = 0;
  };
  struct Batch {
    int32_t device = 0;  // the predictor's replica
    int64_t tick = 0;
    std::vector<Piece> pieces;  // none: there is nothing to fill
  };

  explicit RequestQueue(int64_t batch) : batch_(batch) {}

  void push(const std::shared_ptr<Request>& request) {
    const std::scoped_lock lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    waiting_.push_back(request);
  }

  // A slot that may be filled.
  void open(int32_t device, int64_t tick) {
    const std::scoped_lock lock(mutex_);
    open_.push_back({device, tick, {}});
  }

  // The next batch that there are samples for, on the device that has been free the longest. A device runs its batches
  // in order, so only the earliest of its open slots gets any.
  Batch take() {
    const std::scoped_lock lock(mutex_);
    const auto slot =
        std::find_if(open_.begin(), open_.end(), [&](const Batch& b) { return b.tick == next_[b.device]; });
    if (waiting_.empty() || slot == open_.end() || error_) return {};
    Batch batch{slot->device, slot->tick, {}};
    int64_t at = 0;
    for (auto request = waiting_.begin(); request != waiting_.end() && at < batch_; ++request) {
      const int64_t count = std::min(batch_ - at, (*request)->samples - (*request)->taken);
      batch.pieces.push_back({*request, (*request)->taken, count, at});
      at += count;
    }
    under_way_[{batch.device, batch.tick}] = batch.pieces;
    for (const Piece& piece : batch.pieces) {  // nothing is thrown from here on
      piece.request->taken += piece.count;
      if (piece.request->taken == piece.request->samples) waiting_.pop_front();
    }
    open_.erase(slot);
    ++next_[batch.device];
    return batch;
  }

  std::vector<Piece> under_way(int32_t device, int64_t tick) {
    const std::scoped_lock lock(mutex_);
    const auto batch = under_way_.find({device, tick});
    return batch == under_way_.end() ? std::vector<Piece>() : batch->second;
  }

  // The batch's rows are where they belong.
  void finish(int32_t device, int64_t tick) {
    const std::scoped_lock lock(mutex_);
    const auto batch = under_way_.find({device, tick});
    if (batch == under_way_.end()) return;  // it has failed
    for (const Piece& piece : batch->second) {
      Request& request = *piece.request;
      request.done += piece.count;
      if (request.done == request.samples) request.finished.set_value();
    }
    under_way_.erase(batch);
    changed_.notify_all();
  }

  // Returns when nothing is asked any more, or nothing can be answered.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return (waiting_.empty() && under_way_.empty()) || error_; });
  }

  // Every request that is not done fails, and all that come.
  void fail(const std::exception_ptr& error) {
    const std::scoped_lock lock(mutex_);
    error_ = error;
    std::set<std::shared_ptr<Request>> failed(waiting_.begin(), waiting_.end());
    for (const auto& [batch, pieces] : under_way_) {
      for (const Piece& piece : pieces) failed.insert(piece.request);
    }
    for (const auto& request : failed) request->finished.set_exception(error);
    waiting_.clear();
    under_way_.clear();
    changed_.notify_all();
  }

  std::unique_ptr<Scheduler> scheduler;
  std::thread thread;

 private:
  const int64_t batch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Request>> waiting_;
  std::deque<Batch> open_;                                               // in the order in which they became free
  std::map<int32_t, int64_t> next_;                                      // the tick of each device that is to be filled
  std::map<std::pair<int32_t, int64_t>, std::vector<Piece>> under_way_;  // by device and tick
  std::exception_ptr error_;
};

Predictor::Predictor(Graph graph, const SessionOptions& options, const PredictorOptions& asked)
    : options_(options), model_(load(std::move(graph), options, asked)), output_(model_->output_type(0)) {
  if (output_.dtype != DataType::Float32) {
    throw GraphError(fmt::format("'{}' is {}; a predictor gives floats", value_of(model_->prepared.graph, asked.value),
                                 to_string(output_)));
  }
  const std::vector<Field> all = model_->prepared.validation->fields();
  const BatchLayout layout = batch_layout(model_->loop(), false);
  for (size_t f = 0; f < all.size(); ++f) {
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
    scheduling.deferred.push_back(replica.fills.front());
    host[size_t(replica.fills.front())] = [this, device = replica.device](int64_t tick) {
      requests_->open(device, tick);
      fill_open_batches();
    };
    host[size_t(replica.hand_out)] = [this, &replica](int64_t tick) { hand_out(replica, tick); };
  }
  requests_->scheduler = std::make_unique<Scheduler>(*model_->binding, std::move(host), scheduling);
  requests_->thread = std::thread([this] { serve(); });
}

Predictor::~Predictor() {
  requests_->wait();
  requests_->scheduler->fail(std::make_exception_ptr(RunError("the predictor has ended")));
  requests_->thread.join();
}

void Predictor::serve() {
  const std::atomic<bool> never{false};
  try {
    requests_->scheduler->run(never);
  } catch (...) {
    requests_->fail(std::current_exception());
  }
}

// By whoever brings the samples, or frees the slot.
void Predictor::fill_open_batches() {
  const Plan& plan = model_->plan;
  for (auto batch = requests_->take(); !batch.pieces.empty(); batch = requests_->take()) {
    const TaskId task = model_->planned().replicas[size_t(batch.device)].fills.front();
    const BufferId slots = plan.operands[size_t(plan.tasks[size_t(task)].first_operand)].buffer;
    std::byte* slot = model_->binding->address(slots, batch.tick);
    StepScalars scalars;
    scalars.seed = options_.numerics.seed;
    scalars.iteration = uint64_t(batch.tick);
    scalars.valid = int32_t(batch.pieces.back().at + batch.pieces.back().count);
    std::memcpy(slot, &scalars, sizeof scalars);
    for (size_t f = 0; f < fields_.size(); ++f) {
      const int64_t sample = fields_[f].sample().bytes();
      for (const RequestQueue::Piece& piece : batch.pieces) {
        std::memcpy(slot + offsets_[f] + piece.at * sample, piece.request->fields[f] + piece.first * sample,
                    size_t(piece.count * sample));
      }
    }
    requests_->scheduler->finish(task, batch.tick);
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
