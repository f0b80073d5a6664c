// SPDX-License-Identifier: Apache-2.0
#include "tools/watch/tensorboard_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/files/folder.h"
#include "base/process.h"
#include "executor/session/output_paths.h"
#include "tools/watch/event_record.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.";  // by which TensorBoard knows event files

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void make_folder(const std::string& folder, bool goes_on) {
  make_folders(folder);
  std::error_code error;
  if (access(folder.c_str(), W_OK) != 0) throw RunError(fmt::format("{}: the folder is read-only", folder));
  if (goes_on) return;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(kPrefix)) continue;
    warn(fmt::format("{}: holds events of another run, and TensorBoard shows both as one", folder));
    break;
  }
}

// The path of the event file for a run that starts now.
std::string path_in(const std::string& folder) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const std::string name = fmt::format("{}{:010}.{}.{}", kPrefix, int64_t(now()), host, getpid());
  return free_path((fs::path(folder) / name).string()).path;
}

void add(std::vector<std::pair<std::string, double>>& scalars, const Metrics& metrics, std::string_view of) {
  for (const auto& [name, value] : metrics) scalars.emplace_back(fmt::format("{}/{}", printable(name), of), value);
}

}  // namespace

TensorBoardLog::TensorBoardLog(const std::string& folder, RunSettings settings, bool goes_on)
    : folder_(folder), settings_(std::move(settings)) {
  make_folder(folder, goes_on);
}

void TensorBoardLog::write(const std::string& event) {
  if (file_) file_->write(framed(event));
}

void TensorBoardLog::write_scalars(int64_t iteration, Scalars scalars) {
  std::erase_if(scalars, [](const auto& scalar) { return std::isnan(scalar.second); });
  if (!scalars.empty()) write(scalars_event(now(), iteration, scalars));
}

void TensorBoardLog::started(const RunStarted& event) {
  file_.emplace(path_in(folder_), "event file");
  if (!event.trained.empty()) loss_ = printable(event.trained);
  write(version_event(now()));
  if (!event.resumed.empty()) write(restarted_event(now(), event.resumed_iteration + 1));
  std::vector<std::pair<std::string, Hyperparameter>> parameters = {
      {"graph", printable(event.graph)},    {"devices", fmt::format("{}", fmt::join(event.devices, ", "))},
      {"learners", double(event.learners)}, {"strategy", event.strategy},
      {"batch", double(event.batch)},       {"precision", event.precision}};
  for (const auto& [name, value] : settings_.hyperparameters) {
    const auto same = [&name = name](const auto& parameter) { return parameter.first == name; };
    if (std::any_of(parameters.begin(), parameters.end(), same)) continue;
    parameters.emplace_back(printable(name), value);
    if (auto* text = std::get_if<std::string>(&parameters.back().second)) *text = printable(*text);
  }
  write(session_started_event(now(), parameters));
}

void TensorBoardLog::progress(const RunProgress& event) {
  Scalars scalars = {{loss_ + "/train", event.loss},
                     {"learning_rate", event.learning_rate},
                     {"images_per_second", event.images_per_second},
                     {"epochs", event.epochs},
                     {"late_batches", event.input.late}};
  add(scalars, event.metrics, "train");
  if (event.skipped_updates > 0) scalars.emplace_back("skipped_updates", double(event.skipped_updates));
  write_scalars(event.iteration, std::move(scalars));
}

void TensorBoardLog::epoch(const EpochEnded& event) {
  Scalars scalars = {{loss_ + "/epoch", event.loss}};
  add(scalars, event.metrics, "epoch");
  write_scalars(event.iteration, std::move(scalars));
}

void TensorBoardLog::validation(const Validated& event) {
  Scalars scalars = {{loss_ + "/validation", event.loss}};
  add(scalars, event.metrics, "validation");
  add(scalars, event.parts, "validation");
  write_scalars(event.iteration, std::move(scalars));
}

void TensorBoardLog::tuned(const Tuned& event) {
  write_scalars(event.iteration, {{"learners", double(event.next)}});
}

void TensorBoardLog::rolled_back(const RolledBack& event) {
  write(restarted_event(now(), event.iteration + 1));
}

void TensorBoardLog::finished(const RunFinished&) {
  write(session_ended_event(now(), true));
}

void TensorBoardLog::failed(const RunFailed&) {
  write(session_ended_event(now(), false));
}

}  // namespace arbalest
