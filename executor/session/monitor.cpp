#include "executor/session/monitor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "executor/run/task_error.h"
#include "graph/error.h"

namespace arbalest {

namespace {

std::vector<MeasuredMetric> validation_metrics(const Program& program, const std::vector<std::string>& class_names) {
  const Loop* loop = program.find(LoopRole::Validate);
  return loop ? measured_metrics(*loop, class_names) : std::vector<MeasuredMetric>{};
}

std::vector<std::string> names_of(const std::vector<LoopMetric>& metrics) {
  std::vector<std::string> names;
  for (const LoopMetric& metric : metrics) names.push_back(metric.name);
  return names;
}

std::string described(const MeasuredMetric& metric) {
  if (std::isinf(metric.most)) return fmt::format("'{}' is never below {:g}", metric.name, metric.least);
  if (std::isinf(metric.least)) return fmt::format("'{}' is never above {:g}", metric.name, metric.most);
  return fmt::format("'{}' is {:g} to {:g}", metric.name, metric.least, metric.most);
}

}  // namespace

Monitor::Monitor(const Program& program, const ValidationRules& rules, RunObserver& observer,
                 const std::vector<std::string>& class_names)
    : metrics_(validation_metrics(program, class_names)),
      trained_metrics_(names_of(program.training().metrics)),
      rules_(rules),
      observer_(observer),
      begun_(std::chrono::steady_clock::now()),
      epoch_sums_(trained_metrics_.size() + 1, 0) {
  for (const Target& target : rules_.targets) {
    targets_.push_back({to_string(target), -1});
    check(target);
  }
  best_metric_ = rules_.metric;
  if (!best_metric_.empty()) {
    find(best_metric_, fmt::format("--metric '{}'", best_metric_));
    return;
  }
  const auto first = std::find_if(metrics_.begin(), metrics_.end(), [&](const MeasuredMetric& metric) {
    return metric.name != trained_metrics_.front();
  });
  best_metric_ = first != metrics_.end() ? first->name : metrics_.empty() ? "" : metrics_.front().name;
}

const MeasuredMetric& Monitor::find(const std::string& name, const std::string& option) const {
  std::vector<std::string> names, shown;
  for (const MeasuredMetric& metric : metrics_) {
    if (metric.name == name) return metric;
    names.push_back(metric.name);
    if (!metric.part) shown.push_back(metric.name);
  }
  throw GraphError(fmt::format("{}: validation has no metric '{}'; expected {}{}", option, name,
                               shown.empty() ? "a graph that validates" : fmt::format("{}", fmt::join(shown, " or ")),
                               did_you_mean(name, names)));
}

void Monitor::check(const Target& target) const {
  const std::string option = fmt::format("--until '{}'", to_string(target));
  const MeasuredMetric& metric = find(target.metric, option);
  if (target.met(metric.least) || target.met(metric.most)) return;
  const bool percent = target.threshold > 1 && target.threshold <= 100 && metric.least == 0 && metric.most == 1;
  throw GraphError(
      fmt::format("{} cannot be reached: {}{}", option, described(metric),
                  percent ? fmt::format("; {} % is {:.6g}", target.threshold, target.threshold / 100) : std::string()));
}

void Monitor::begin() {
  begun_ = std::chrono::steady_clock::now();
}

double Monitor::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
}

void Monitor::report(const RunPosition& at, bool epoch_ended, bool validates, double learning_rate,
                     const std::vector<double>& sums, const std::string& diverged, const InputReport& input) {
  const std::scoped_lock lock(mutex_);
  const double now = seconds();
  const auto means = [&](const std::vector<double>& of) {
    Metrics metrics;
    for (size_t m = 1; m < trained_metrics_.size(); ++m) metrics.emplace_back(trained_metrics_[m], of[m + 1] / of[0]);
    return metrics;
  };
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
  progress.metrics = means(sums);
  progress.input = input;
  observer_.progress(progress);
  if (!std::isfinite(progress.loss)) {
    const std::string hint =
        learning_rate > 0 ? fmt::format("; try a lower learning rate (now {:.3g})", learning_rate) : std::string();
    const std::string whose = diverged.empty() ? "" : " of " + diverged;
    throw TaskError(fmt::format("the loss{} is no longer finite after iteration {}{}", whose, at.iteration, hint),
                    at.iteration);
  }
  last_seconds_ = now;
  last_images_ = at.images;
  for (size_t i = 0; i < sums.size(); ++i) epoch_sums_[i] += sums[i];
  if (!epoch_ended) return;
  EpochEnded end{progress.epoch, at.iteration, now};
  end.images_per_second = epoch_sums_[0] / std::max(1e-9, now - epoch_began_);
  end.loss = epoch_sums_[1] / epoch_sums_[0];
  end.metrics = means(epoch_sums_);
  end.validates = validates;
  observer_.epoch(end);
  epoch_began_ = now;
  std::fill(epoch_sums_.begin(), epoch_sums_.end(), 0);
}

// The best so far, targets, patience, and the plateau on which the rate drops.
void Monitor::judge(const std::vector<double>& values, int64_t epoch, Verdict& verdict) {
  for (size_t m = 0; m < metrics_.size(); ++m) {
    for (size_t t = 0; t < rules_.targets.size(); ++t) {
      const Target& target = rules_.targets[t];
      if (target.metric == metrics_[m].name && targets_[t].seconds < 0 && target.met(values[m])) {
        targets_[t].seconds = seconds();
      }
    }
    if (metrics_[m].name != best_metric_) continue;
    verdict.best = !std::isnan(values[m]) && (!has_best_ || metrics_[m].improves(values[m], best_value_));
    if (!verdict.best) continue;
    best_epoch_ = epoch;
    best_value_ = values[m];
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

void Monitor::keep_best(const std::vector<double>& values) {
  for (size_t m = 0; m < metrics_.size(); ++m) {
    const MeasuredMetric& metric = metrics_[m];
    if (metric.part || metric.name == trained_metrics_.front()) continue;
    const auto known = std::find_if(best_.begin(), best_.end(), [&](const auto& b) { return b.first == metric.name; });
    if (known == best_.end()) {
      best_.emplace_back(metric.name, values[m]);
    } else if (std::isnan(known->second) || metric.improves(values[m], known->second)) {
      known->second = values[m];
    }
  }
}

void Monitor::validating(int64_t epoch, double share) {
  constexpr double kBetween = 0.2;  // seconds
  const std::scoped_lock lock(mutex_);
  const double now = seconds();
  if (now - told_validating_ < kBetween) return;
  told_validating_ = now;
  observer_.validating({epoch, share, now});
}

Monitor::Verdict Monitor::validated(const RunPosition& at, const Measurement& measured) {
  const std::scoped_lock lock(mutex_);
  Validated event;
  event.epoch = at.epoch;
  event.iteration = at.iteration;
  event.seconds = seconds();
  tell(metrics_, trained_metrics_.front(), measured, event);
  const auto loss = std::find_if(metrics_.begin(), metrics_.end(),
                                 [&](const MeasuredMetric& metric) { return metric.name == trained_metrics_.front(); });
  if (loss != metrics_.end() && !std::isfinite(event.loss)) {
    observer_.validation(event);
    if (measured.samples == 0) {
      throw TaskError(fmt::format("the validation after iteration {} (epoch {}) has no sample that can be read",
                                  at.iteration, at.epoch),
                      at.iteration);
    }
    throw TaskError(
        fmt::format("the loss of the validation after iteration {} (epoch {}) is not finite", at.iteration, at.epoch),
        at.iteration);
  }
  keep_best(measured.values);
  Verdict verdict;
  judge(measured.values, at.epoch, verdict);
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
