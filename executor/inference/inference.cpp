#include "executor/inference/inference.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "executor/run/bind_plan.h"
#include "executor/run/host_tasks.h"
#include "executor/run/scheduler.h"
#include "executor/session/initial_values.h"
#include "executor/session/validation_reader.h"
#include "io/formats/layout.h"

namespace arbalest {
namespace {

// Row-major elements as files have them, floats as float.
std::vector<std::byte> logical(const TensorType& type, const std::byte* memory) {
  std::vector<std::byte> row_major(size_t(type.bytes()));
  to_row_major(type, memory, row_major.data());
  if (type.dtype != DataType::Bfloat16) return row_major;
  std::vector<std::byte> wide(size_t(type.elements()) * sizeof(float));
  for (int64_t i = 0; i < type.elements(); ++i) {
    bfloat16 narrow;
    std::memcpy(&narrow, row_major.data() + size_t(i) * sizeof narrow, sizeof narrow);
    const auto value = float(narrow);
    std::memcpy(wide.data() + size_t(i) * sizeof value, &value, sizeof value);
  }
  return wide;
}

}  // namespace

Inference::Inference(Graph graph, const SessionOptions& options, const InferenceRequest& asked)
    : options_(options),
      prepared_(prepare_inference(std::move(graph), options, asked)),
      plan_(make_inference_plan(prepared_.program, prepared_.request)),
      binding_(bind_plan(plan_, thread_count(options_), options_.execution.collective_timeout,
                         bind_options(prepared_, options_), make_device_cache())) {
  for (const ValueId output : loop().outputs) {
    const Value& value = loop().graph.values[size_t(output)];
    const bool batched = !value.type.shape.empty() && value.type.shape[0] == loop().batch;
    if (!batched) {
      throw GraphError(fmt::format("'{}' is {}; expected a value with a row for each of the {} samples of a batch",
                                   value.name, to_string(value.type), loop().batch));
    }
  }
  put_weights();
}

Inference::~Inference() = default;

void Inference::put_weights() {
  std::optional<SafetensorsReader> file;
  const ArenaValues& arenas = prepared_.program.training().arenas;
  if (!options_.files.weights.empty()) {
    file.emplace(options_.files.weights);
    check_tensor_names(*file, prepared_.program.training().graph, {arenas.weights, arenas.statistics, arenas.frozen});
  }
  const Initialisation start{options_.numerics.seed, file ? &*file : nullptr, thread_count(options_)};
  const InitialValues content = initial_values(loop(), *prepared_.validation, start);
  for (const Replica& replica : plan_.handles.loops[0].replicas) put_values(*binding_, replica, content);
}

TensorType Inference::output_type(size_t index) const {
  TensorType type = loop().graph.values[size_t(loop().outputs[index])].type;
  type.shape.erase(type.shape.begin());
  type.layout = Layout::RowMajor;
  if (type.dtype == DataType::Bfloat16) type.dtype = DataType::Float32;
  return type;
}

// Device d of D takes batches d, d + D, …; those beyond the split's end are padding.
std::function<void(int64_t)> Inference::fill(const Replica& replica, TaskId task) const {
  const Source& source = *prepared_.validation;
  auto filler = std::make_shared<BatchFiller>(*binding_, plan_.tasks[size_t(task)], loop(), source,
                                              batch_layout(loop(), prepared_.request.validation_resident));
  const DataOrder order(options_.numerics.seed, source.size(), false);
  return [filler, order, devices = int64_t(plan_.devices.size()), device = replica.device,
          seed = options_.numerics.seed](int64_t tick) {
    StepScalars scalars;
    scalars.seed = seed;
    scalars.iteration = uint64_t(tick);
    const int64_t batch = tick * devices + device;
    if (filler->has_scalars()) filler->put_scalars(tick, order, 0, batch, scalars);
    filler->fill(tick, order, 0, batch);
  };
}

std::function<void(int64_t)> Inference::hand_out(const Replica& replica,
                                                 const std::function<void(const InferredBatch&)>& each) {
  return [this, &each, replica](int64_t tick) {
    InferredBatch batch;
    batch.first = (tick * int64_t(plan_.devices.size()) + replica.device) * loop().batch;
    batch.samples = std::min(loop().batch, samples() - batch.first);
    if (batch.samples <= 0 || !each) return;
    std::vector<std::vector<std::byte>> values;
    for (size_t i = 0; i < replica.outputs.size(); ++i) {
      const TensorType& type = loop().graph.values[size_t(loop().outputs[i])].type;
      values.push_back(logical(type, binding_->address(replica.outputs[i], tick)));
      batch.values.push_back(values.back().data());
    }
    const std::scoped_lock lock(handing_out_);
    each(batch);
  };
}

Validated Inference::run(const std::function<void(const InferredBatch&)>& each, const std::atomic<bool>& interrupted) {
  if (interrupted) throw RunError("interrupted");
  const auto began = std::chrono::steady_clock::now();
  const LoopPlan& planned = plan_.handles.loops[0];
  Scheduler::HostFunctions host(plan_.tasks.size());
  for (const Replica& replica : planned.replicas) {
    for (const TaskId task : replica.fills) host[size_t(task)] = fill(replica, task);
    if (replica.hand_out != kNone) host[size_t(replica.hand_out)] = hand_out(replica, each);
  }
  ValidationReader reader(*binding_, loop(), planned, samples());
  SchedulerOptions scheduling;
  scheduling.threads = thread_count(options_);
  Scheduler scheduler(*binding_, std::move(host), scheduling);
  scheduler.run(interrupted);
  if (scheduler.iterations() < plan_.clocks[0].ticks) throw RunError("interrupted");

  Validated result;
  tell(measured_metrics(loop()), prepared_.program.training().metrics.front().name, reader.read(0), result);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return result;
}

}  // namespace arbalest
