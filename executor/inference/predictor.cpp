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

  RequestQueue(int64_t batch, std::chrono::microseconds patience) : batch_(batch), patience_(patience) {}

  void push(const std::shared_ptr<Request>& request) {
    const std::scoped_lock lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    waiting_.push_back(request);
    samples_ += request->samples;
    changed_.notify_all();
  }

  // The pieces of the device's batch `tick`; waits until there are some. Several batches of a device may be waiting,
  // and they run in order, so the earliest is the first to get any. None: the queue is closed, or `failed()`.
  template <typename Failed>
  std::vector<Piece> take(int32_t device, int64_t tick, const Failed& failed) {
    constexpr auto kLook = std::chrono::milliseconds(20);  // nobody tells of a failure
    std::unique_lock lock(mutex_);
    int64_t& next = next_[device];
    while ((samples_ == 0 || tick != next) && !closed_ && !failed()) changed_.wait_for(lock, kLook);
    if (patience_.count() > 0 && samples_ > 0) {
      changed_.wait_for(lock, patience_, [&] { return samples_ >= batch_ || closed_; });
    }
    std::vector<Piece> pieces;
    for (int64_t at = 0; at < batch_ && !waiting_.empty();) {
      Request& request = *waiting_.front();
      const int64_t count = std::min(batch_ - at, request.samples - request.taken);
      pieces.push_back({waiting_.front(), request.taken, count, at});
      request.taken += count;
      at += count;
      samples_ -= count;
      if (request.taken == request.samples) waiting_.pop_front();
    }
    if (!pieces.empty()) under_way_[{device, tick}] = pieces;
    next = tick + 1;
    changed_.notify_all();
    return pieces;
  }

  std::vector<Piece> end(int32_t device, int64_t tick) {
    const std::scoped_lock lock(mutex_);
    auto node = under_way_.extract({device, tick});
    return node.empty() ? std::vector<Piece>() : std::move(node.mapped());
  }

  // A piece's rows are where they belong.
  void finish(const Piece& piece) {
    const std::scoped_lock lock(mutex_);
    piece.request->done += piece.count;
    if (piece.request->done == piece.request->samples) piece.request->finished.set_value();
  }

  void close() {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  // Every request that is not done fails, and all that come.
  void fail(const std::exception_ptr& error) {
    const std::scoped_lock lock(mutex_);
    error_ = error;
    std::vector<std::shared_ptr<Request>> failed(waiting_.begin(), waiting_.end());
    for (const auto& [batch, pieces] : under_way_) {
      for (const Piece& piece : pieces) failed.push_back(piece.request);
    }
    std::sort(failed.begin(), failed.end());
    failed.erase(std::unique(failed.begin(), failed.end()), failed.end());
    for (const auto& request : failed) request->finished.set_exception(error);
    waiting_.clear();
    under_way_.clear();
    samples_ = 0;
  }

  std::unique_ptr<Scheduler> scheduler;
  std::thread thread;

 private:
  const int64_t batch_;
  const std::chrono::microseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Request>> waiting_;
  int64_t samples_ = 0;                                                  // that wait
  std::map<std::pair<int32_t, int64_t>, std::vector<Piece>> under_way_;  // by device and tick
  std::map<int32_t, int64_t> next_;                                      // tick of each device that takes samples
  std::exception_ptr error_;
  bool closed_ = false;
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
  requests_ = std::make_unique<RequestQueue>(model_->loop().batch, asked.patience);
  Scheduler::HostFunctions host(model_->plan.tasks.size());
  SchedulerOptions scheduling;
  scheduling.threads = thread_count(options_);
  scheduling.stall_seconds = std::numeric_limits<double>::infinity();
  for (const Replica& replica : model_->planned().replicas) {
    const TaskId task = replica.fills.front();
    host[size_t(task)] = [this, &replica](int64_t tick) { fill(replica, tick); };
    host[size_t(replica.hand_out)] = [this, &replica](int64_t tick) { hand_out(replica, tick); };
    scheduling.threads += model_->plan.tasks[size_t(task)].width;  // fills sleep until a request comes
  }
  requests_->scheduler = std::make_unique<Scheduler>(*model_->binding, std::move(host), scheduling);
  requests_->thread = std::thread([this] { serve(); });
}

Predictor::~Predictor() {
  requests_->close();
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

void Predictor::fill(const Replica& replica, int64_t tick) {
  Scheduler& scheduler = *requests_->scheduler;
  const std::vector<RequestQueue::Piece> pieces =
      requests_->take(replica.device, tick, [&] { return scheduler.failed(); });
  if (pieces.empty()) return scheduler.stop();
  const Plan& plan = model_->plan;
  const Task& task = plan.tasks[size_t(replica.fills.front())];
  std::byte* slot = model_->binding->address(plan.operands[size_t(task.first_operand)].buffer, tick);
  StepScalars scalars;
  scalars.seed = options_.numerics.seed;
  scalars.iteration = uint64_t(tick);
  scalars.valid = int32_t(pieces.back().at + pieces.back().count);
  std::memcpy(slot, &scalars, sizeof scalars);
  for (size_t f = 0; f < fields_.size(); ++f) {
    const int64_t sample = fields_[f].sample().bytes();
    for (const RequestQueue::Piece& piece : pieces) {
      std::memcpy(slot + offsets_[f] + piece.at * sample, piece.request->fields[f] + piece.first * sample,
                  size_t(piece.count * sample));
    }
  }
}

void Predictor::hand_out(const Replica& replica, int64_t tick) {
  const std::vector<RequestQueue::Piece> pieces = requests_->end(replica.device, tick);
  if (pieces.empty()) return;
  const std::vector<std::byte> rows = model_->read_output(replica, 0, tick);
  const auto row = size_t(output_.bytes());
  for (const RequestQueue::Piece& piece : pieces) {
    std::memcpy(reinterpret_cast<std::byte*>(piece.request->rows.data()) + size_t(piece.first) * row,
                rows.data() + size_t(piece.at) * row, size_t(piece.count) * row);
    requests_->finish(piece);
  }
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
  finished.get();
  return std::move(request->rows);
}

}  // namespace arbalest
