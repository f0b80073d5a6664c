#include "executor/monitor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "executor/task_error.h"
#include "graph/error.h"

namespace arbalest {

Monitor::Monitor(std::vector<std::string> metrics, std::string loss, const ValidationRules& rules,
                 RunObserver& observer)
    : metrics_(std::move(metrics)),
      loss_(std::move(loss)),
      rules_(rules),
      observer_(observer),
      begun_(std::chrono::steady_clock::now()) {
  for (const Target& target : rules_.targets) {
    targets_.push_back({to_string(target), -1});
    if (std::find(metrics_.begin(), metrics_.end(), target.metric) != metrics_.end()) continue;
    throw GraphError(fmt::format("--until '{}': validation has no metric '{}'{}", to_string(target), target.metric,
                                 did_you_mean(target.metric, metrics_)));
  }
  best_metric_ = rules_.metric;
  if (best_metric_.empty()) {
    const auto first = std::find_if(metrics_.begin(), metrics_.end(), [&](const auto& name) { return name != loss_; });
    best_metric_ = first != metrics_.end() ? *first : metrics_.empty() ? "" : metrics_.front();
  } else if (std::find(metrics_.begin(), metrics_.end(), best_metric_) == metrics_.end()) {
    throw GraphError(
        fmt::format("--metric '{}': validation has no such metric; expected {}{}", best_metric_,
                    metrics_.empty() ? "a graph that validates" : fmt::format("{}", fmt::join(metrics_, " or ")),
                    did_you_mean(best_metric_, metrics_)));
  }
}

bool Monitor::smaller_is_better(const std::string& metric) const {
  return metric == loss_ || metric.find("loss") != metric.npos || metric.find("error") != metric.npos;
}

void Monitor::begin() {
  begun_ = std::chrono::steady_clock::now();
}

double Monitor::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
}

void Monitor::report(const RunPosition& at, bool epoch_ended, double learning_rate, const std::vector<double>& sums) {
  const std::scoped_lock lock(mutex_);
  const double now = seconds();
  RunProgress progress;
  progress.epoch = at.epoch;
  progress.iteration = at.iteration;
  progress.seconds = now;
  // Batches that were read again, because a plan ended between updates, count once.
  progress.images_per_second =
      double(std::max<int64_t>(0, at.images - last_images_)) / std::max(1e-9, now - last_seconds_);
  progress.epochs = at.epochs;
  progress.learning_rate = learning_rate;
  progress.loss = sums[1] / sums[0];
  observer_.progress(progress);
  if (!std::isfinite(progress.loss)) {
    const std::string hint =
        learning_rate > 0 ? fmt::format("; try a lower learning rate (now {:.3g})", learning_rate) : std::string();
    throw TaskError(fmt::format("the loss is no longer finite after iteration {}{}", at.iteration, hint), at.iteration);
  }
  last_seconds_ = now;
  last_images_ = at.images;
  epoch_samples_ += sums[0];
  epoch_loss_ += sums[1];
  if (!epoch_ended) return;
  observer_.epoch({progress.epoch, at.iteration, now, epoch_samples_ / std::max(1e-9, now - epoch_began_),
                   epoch_loss_ / epoch_samples_});
  epoch_began_ = now;
  epoch_samples_ = epoch_loss_ = 0;
}

bool Monitor::better(double value) const {
  if (std::isnan(value)) return false;
  return !has_best_ || (smaller_is_better(best_metric_) ? value < best_value_ : value > best_value_);
}

// The best so far, targets, patience, and the plateau on which the rate drops.
void Monitor::judge(const Metrics& all, int64_t epoch, Verdict& verdict) {
  double value_of_best = 0;
  for (const auto& [name, value] : all) {
    for (size_t t = 0; t < rules_.targets.size(); ++t) {
      const Target& target = rules_.targets[t];
      if (target.metric == name && targets_[t].seconds < 0 && target.met(value)) targets_[t].seconds = seconds();
    }
    if (name != best_metric_) continue;
    value_of_best = value;
    verdict.best = better(value);
  }
  if (verdict.best) {
    best_epoch_ = epoch;
    best_value_ = value_of_best;
    has_best_ = true;
  }
  since_best_ = verdict.best ? 0 : since_best_ + 1;
  since_drop_ = verdict.best ? 0 : since_drop_ + 1;
  double factor = factors_.back();
  if (rules_.plateau > 0 && since_drop_ >= rules_.plateau) {
    factor *= rules_.plateau_factor;
    since_drop_ = 0;
  }
  drops_.push_back(drops_.back() + (factor != factors_.back()));
  factors_.push_back(factor);
}

Monitor::Verdict Monitor::validated(const RunPosition& at, const std::vector<double>& sums) {
  const std::scoped_lock lock(mutex_);
  Validated event;
  event.epoch = at.epoch;
  event.iteration = at.iteration;
  event.samples = int64_t(std::llround(sums[0]));
  event.seconds = seconds();
  Metrics all;
  for (size_t m = 0; m < metrics_.size(); ++m) all.emplace_back(metrics_[m], sums[m + 1] / sums[0]);
  for (const auto& [name, value] : all) {
    if (name == loss_) {
      event.loss = value;
      continue;
    }
    event.metrics.emplace_back(name, value);
    const auto known = std::find_if(best_.begin(), best_.end(), [&](const auto& b) { return b.first == name; });
    if (known == best_.end()) {
      best_.emplace_back(name, value);
    } else if (std::isnan(known->second) || (smaller_is_better(name) ? value < known->second : value > known->second)) {
      known->second = value;
    }
  }
  Verdict verdict;
  judge(all, at.epoch, verdict);
  event.rate_factor = factors_.back();
  has_validated_ = true;
  last_ = event;
  observer_.validation(event);
  const bool reached =
      !targets_.empty() && std::all_of(targets_.begin(), targets_.end(), [](const auto& t) { return t.seconds >= 0; });
  verdict.stop = reached || (rules_.patience > 0 && since_best_ >= rules_.patience);
  return verdict;
}

double Monitor::rate_factor(int64_t validations) const {
  const std::scoped_lock lock(mutex_);
  return factors_[size_t(std::clamp<int64_t>(validations, 0, int64_t(factors_.size()) - 1))];
}

int64_t Monitor::rate_drops(int64_t validations) const {
  const std::scoped_lock lock(mutex_);
  return drops_[size_t(std::clamp<int64_t>(validations, 0, int64_t(drops_.size()) - 1))];
}

bool Monitor::all_targets_reached() const {
  const std::scoped_lock lock(mutex_);
  return !targets_.empty() &&
         std::all_of(targets_.begin(), targets_.end(), [](const auto& t) { return t.seconds >= 0; });
}

bool Monitor::out_of_patience() const {
  const std::scoped_lock lock(mutex_);
  return rules_.patience > 0 && since_best_ >= rules_.patience;
}

RunFinished Monitor::finish(const RunPosition& at, double trained_seconds, std::string reason) const {
  const std::scoped_lock lock(mutex_);
  RunFinished end;
  end.reason = std::move(reason);
  end.iteration = at.iteration;
  end.epoch = at.epoch;
  end.images = at.images;
  end.seconds = seconds();
  end.images_per_second = double(end.images) / std::max(1e-9, trained_seconds);
  end.validated = has_validated_;
  end.last = last_;
  end.best = best_;
  end.best_epoch = best_epoch_;
  end.best_metric = best_metric_;
  end.targets = targets_;
  return end;
}

}  // namespace arbalest
