// SPDX-License-Identifier: Apache-2.0
#include "executor/training/model_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "base/process.h"
#include "base/setting.h"
#include "executor/session/output_paths.h"
#include "executor/session/state.h"
#include "executor/weights/class_names.h"
#include "executor/world/ranks.h"
#include "io/formats/safetensors.h"

namespace arbalest {
namespace {

std::vector<OutputLock> hold_files(const FileOptions& files) {
  NamedPaths saved = {{name_of(SettingKey::Save), files.save}};
  if (!saves_best_or_last(files)) saved.emplace_back(name_of(SettingKey::SaveBest), files.save_best);
  NamedPaths written = saved;
  written.emplace_back(name_of(SettingKey::Trace), files.trace);
  check_inputs_kept({{name_of(SettingKey::Weights), files.weights}}, {{name_of(SettingKey::Trace), files.trace}});
  check_inputs_kept({{name_of(SettingKey::WeightsMap), files.weights_map}}, written);
  check_kind_kept(name_of(SettingKey::Trace), files.trace, OutputKind::Trace);
  for (const auto& [option, path] : saved) {
    check_weights_name(option, path);
    if (!same_file(path, files.weights)) check_kind_kept(option, path, OutputKind::Weights);
  }
  return hold_outputs(written);
}

// Throws RunError if a number of the model is infinite or not a number: such a file is of no use, and may replace a
// good one.
void check_finite(const ModelAt& saved, const std::string& path) {
  for (const std::vector<std::byte>* content : {&saved.model.weights, &saved.model.statistics}) {
    if (all_finite(DataType::Float32, *content)) continue;
    throw RunError(
        fmt::format("{}: not written: the weights are no longer finite after iteration {}; try a lower learning rate",
                    path, saved.at.iteration));
  }
}

}  // namespace

ModelFiles::ModelFiles(const SessionOptions& options, const Prepared& prepared, RunObserver& events)
    : options_(options),
      held_(options.ranks && !options.ranks->first() ? std::vector<OutputLock>() : hold_files(options.files)),
      prepared_(prepared),
      events_(events) {}

void ModelFiles::check_names() const {
  for (const Value& value : prepared_.program.training().graph.values) {
    const bool saved = value.role == Role::Parameter || value.role == Role::Frozen || value.role == Role::State;
    if (!saved || is_utf8(value.name)) continue;
    throw GraphError(fmt::format("'{}' has a name that is not UTF-8, which files of weights need", value.name));
  }
}

void ModelFiles::keep(const Monitor::Verdict& verdict, const ModelAt& validated, const Monitor& monitor) {
  validated_ = validated;
  const std::string& path = options_.files.save_best;
  if (path.empty()) return;
  if (!verdict.best) {
    if (monitor.best_iteration() == 0 && !saves_best_or_last(options_.files)) {
      best_error_ = fmt::format("{}: '{}' was undefined in every validation", path, monitor.best_metric());
    }
    return;
  }
  try {
    check_finite(validated, path);
    save(path, validated, monitor.seconds());
    best_error_.clear();
  } catch (const RunError& error) {  // the disk may have room again by the next
    best_error_ = error.what();
    warn(fmt::format("{}; training goes on", best_error_));
  }
}

void ModelFiles::save_last(RunFinished& end, const std::function<ModelAt()>& last) {
  const bool interrupted = end.reason == RunEnd::Interrupted || end.reason == RunEnd::TimeLimit;
  if (interrupted && end.iteration == 0) return;  // nothing was trained: an earlier run's file is worth more
  // The best model stays, if it could be written. A run that went on after it could not knows no best_error_.
  std::error_code unknown;
  const bool has_best =
      end.best_epoch > 0 && best_error_.empty() && std::filesystem::exists(options_.files.save, unknown);
  if (saves_best_or_last(options_.files) && has_best) return;
  std::string path = options_.files.save;
  const bool kept = !end.checkpoint.empty() && end.checkpoint_error.empty();
  const bool unasked = path.empty() && interrupted && !kept;
  const std::string name = file_name_of(prepared_.graph.name) + ".interrupted.safetensors";
  const FreePath free = unasked ? free_path(name) : FreePath();  // an earlier run's file stays
  if (unasked) path = free.path.empty() ? name : free.path;
  if (path.empty()) return;
  // If a validation ended the run, the model that it measured is saved, not the one some iterations later. If
  // validation recalibrates, its model of the last iteration is saved, because it has the better statistics.
  const bool recalibrated = prepared_.program.find(LoopRole::Recalibrate) && validated_.at.iteration == end.iteration;
  const bool validated = end.reason == RunEnd::Until || end.reason == RunEnd::Patience || recalibrated;
  save_somewhere(path, validated && !validated_.model.weights.empty() ? validated_ : last(), end);
}

// A model that has been trained is not lost because its file cannot be written.
void ModelFiles::save_somewhere(const std::string& path, const ModelAt& last, RunFinished& end) {
  check_finite(last, path);
  end.weights = path;
  end.weights_epoch = last.at.epoch;
  end.weights_iteration = last.at.iteration;
  try {
    return save(path, last, end.seconds);
  } catch (const RunError& error) {
    if (!options_.files.rescues) throw;
    for (const auto& [other, held] : other_places(path)) {
      try {
        save(other, last, end.seconds);
      } catch (const RunError&) {
        continue;
      }
      warn(fmt::format("{}; the model is in '{}'", error.what(), other));
      end.weights = other;
      if (!options_.files.save.empty()) end.weights_error = error.what();
      return;
    }
    throw;
  }
}

void ModelFiles::save(const std::string& path, const ModelAt& saved, double seconds) {
  const RunPosition& at = saved.at;
  TensorFile file;
  file.metadata = {{"graph", prepared_.graph.name},
                   {"iteration", std::to_string(at.iteration)},
                   {"epoch", std::to_string(at.epoch)}};
  put_class_names(file.metadata, prepared_.training->class_names());
  if (options_.files.overrides) put_overrides(file.metadata, *options_.files.overrides);
  if (options_.execution.skip_bad > 0) put_number(file.metadata, "skip_bad", uint64_t(options_.execution.skip_bad));
  put_number(file.metadata, "seed", options_.numerics.seed);
  append_model(file, prepared_.program.training(), saved.model);
  write_safetensors(path, file);
  CheckpointSaved event{path, at.epoch, at.iteration, 0, seconds};
  for (const NamedTensor& tensor : file.tensors) event.bytes += int64_t(tensor.bytes.size());
  events_.on(event);
}

}  // namespace arbalest
