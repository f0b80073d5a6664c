// SPDX-License-Identifier: Apache-2.0
#include "executor/session/monitor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/process.h"
#include "base/setting.h"
#include "executor/run/task_error.h"
#include "graph/measures.h"

namespace arbalest {

namespace {

std::vector<MeasuredMetric> validation_metrics(const Program& program, const std::vector<std::string>& class_names) {
  const Loop* loop = program.find(LoopRole::Validate);
  return loop ? measured_metrics(*loop, class_names) : std::vector<MeasuredMetric>{};
}

}  // namespace

Monitor::Monitor(const Program& program, const ValidationRules& rules, RunObserver& observer,
                 const std::vector<std::string>& class_names)
    : metrics_(validation_metrics(program, class_names)),
      trained_metrics_(program.training().metrics),
      accumulate_(program.accumulate),
      rules_(rules),
      observer_(observer),
      begun_(std::chrono::steady_clock::now()) {
  state_.epoch_sums.assign(program.training().sums, 0);
  for (const Target& target : rules_.targets) {
    state_.targets.push_back({to_string(target), -1});
    check(target);
  }
  choose_best();
  if (!rules_.metric.empty()) require_better(set_to(SettingKey::Metric, best_metric_));
  if (rules_.patience > 0) require_better(name_of(SettingKey::Patience));
  if (rules_.plateau > 0) require_better(name_of(SettingKey::Plateau));
}

void Monitor::choose_best() {
  if (rules_.metric.empty()) {
    const auto first = std::find_if(metrics_.begin(), metrics_.end(), [&](const MeasuredMetric& metric) {
      return metric.name != trained_metrics_.front().name;
    });
    if (metrics_.empty()) return;
    const MeasuredMetric& chosen = first != metrics_.end() ? *first : metrics_.front();
    best_metric_ = chosen.name;
    better_ = chosen.better;
    return;
  }
  const bool whole = std::any_of(metrics_.begin(), metrics_.end(),
                                 [&](const MeasuredMetric& metric) { return metric.name == rules_.metric; });
  const MetricDirection stated = whole ? MetricDirection{rules_.metric, {}} : parse_direction(rules_.metric);
  const std::string option = set_to(SettingKey::Metric, fmt::format("'{}'", rules_.metric));
  MeasuredMetric& chosen = find(stated.metric, option);
  if (stated.better && chosen.better && stated.better != chosen.better) {
    throw GraphError(fmt::format("{}: '{}' is better when {}", option, chosen.name, name_of(*chosen.better)));
  }
  if (stated.better) chosen.better = stated.better;
  best_metric_ = chosen.name;
  better_ = chosen.better;
}

void Monitor::require_better(const std::string& option) const {
  if (better_ || metrics_.empty()) return;
  throw GraphError(
      fmt::format("{}: nothing states whether '{}' is better lower or higher; expected {} or {}, or the same in the "
                  "graph, Validate <directions = [\"{}:min\"]>",
                  option, best_metric_, set_to(SettingKey::Metric, best_metric_ + ":min"),
                  set_to(SettingKey::Metric, best_metric_ + ":max"), best_metric_));
}

MeasuredMetric& Monitor::find(const std::string& name, const std::string& option) {
  std::vector<std::string> names, shown;
  for (MeasuredMetric& metric : metrics_) {
    if (metric.name == name) return metric;
    names.push_back(metric.name);
    if (!metric.part) shown.push_back(metric.name);
  }
  throw GraphError(fmt::format("{}: validation has no metric '{}'; expected {}{}", option, name,
                               shown.empty() ? "a graph that validates" : fmt::format("{}", fmt::join(shown, " or ")),
                               did_you_mean(name, names)));
}

void Monitor::check(const Target& target) {
  const std::string option = set_to(SettingKey::Until, fmt::format("'{}'", to_string(target)));
  const MeasuredMetric& metric = find(target.metric, option);
  const bool above = target.op == Target::Op::GreaterEqual || target.op == Target::Op::Greater;
  if (metric.better && above != (*metric.better == MetricSpec::Better::Higher)) {
    warn(fmt::format("{}: '{}' is better when {}", option, metric.name, name_of(*metric.better)));
  }
  check_in_reach(target, metric.least, metric.most, option);
}

void Monitor::begin() {
  const auto before = std::chrono::duration<double>(state_.seconds);
  begun_ = std::chrono::steady_clock::now() - std::chrono::duration_cast<std::chrono::steady_clock::duration>(before);
}

MonitorState Monitor::state() const {
  const std::scoped_lock lock(mutex_);
  MonitorState state = state_;
  state.better = better_;
  state.seconds = seconds();
  return state;
}

void Monitor::restore(MonitorState state) {
  const std::scoped_lock lock(mutex_);
  add_weights(trained_metrics_, 0, state.epoch_sums);
  if (state.epoch_sums.size() != state_.epoch_sums.size() || state.factors.empty() ||
      state.drops.size() != state.factors.size()) {
    throw RunError("the checkpoint's sums and rates are not those of such a run");
  }
  std::vector<TargetReached> targets = state_.targets;
  for (TargetReached& target : targets) {
    for (const TargetReached& known : state.targets) {
      if (known.target == target.target) target = known;
    }
  }
  state_ = std::move(state);
  state_.targets = std::move(targets);
  marks_.clear();
  // A version that did not keep it took what nothing stated for higher.
  const MetricSpec::Better unkept = rules_.metric.ends_with(":min") || !better_ ? MetricSpec::Better::Higher : *better_;
  const MetricSpec::Better before = state_.better.value_or(unkept);
  if (!state_.has_best || before == better_) return;
  warn(fmt::format("the checkpoint's best '{}' was judged with {} as better, and the best is looked for anew",
                   best_metric_, name_of(before)));
  state_.has_best = false;
  state_.best_epoch = state_.best_iteration = state_.since_best = state_.since_drop = 0;
  std::erase_if(state_.best, [&](const auto& best) { return best.first == best_metric_; });
}

void Monitor::roll_back(const MonitorState& from, double rate_factor) {
  const std::scoped_lock lock(mutex_);
  state_.last_seconds = from.seconds;  // the next report is of what has been trained since
  marks_.clear();
  // The best model of all was kept when it was measured, and is not to be replaced by one that is worse.
  state_.best = from.best;
  state_.has_best = from.has_best;
  state_.best_value = from.best_value;
  state_.best_epoch = from.best_epoch;
  state_.best_iteration = from.best_iteration;
  state_.rollbacks = from.rollbacks + 1;
  state_.rollback_factor = from.rollback_factor * rate_factor;
}

int64_t Monitor::best_iteration() const {
  const std::scoped_lock lock(mutex_);
  return state_.best_iteration;
}

double Monitor::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
}

void Monitor::check_loss(const RunProgress& progress, bool skipped, const std::string& diverged) const {
  const double rate = progress.learning_rate;
  std::string hint;
  if (progress.iteration <= accumulate_) {
    hint = fmt::format(" and before any update, so that the learning rate has no part in it; {} names the value",
                       name_of(SettingKey::FindNan));
  } else if (rate > 0) {
    hint = fmt::format("; try a lower learning rate (now {:.3g})", rate);
  }
  if (!std::isfinite(progress.loss) && !skipped) {
    const std::string whose = diverged.empty() ? "" : " of " + diverged;
    throw Diverged(fmt::format("the loss{} is no longer finite after iteration {}{}", whose, progress.iteration, hint),
                   progress.iteration, Diverged::Of::Training);
  }
  if (state_.skipped_in_a_row < kMostSkipped) return;
  throw Diverged(fmt::format("the last {} updates up to iteration {} have been skipped, since losses or gradients were "
                             "not finite{}",
                             state_.skipped_in_a_row, progress.iteration, hint),
                 progress.iteration, Diverged::Of::Training);
}

// Images per second over the last two reports at least, and over half a second at least if the run is as old. The end
// of an epoch may follow a report at once, and the host may come to two groups of iterations together.
double Monitor::recent_rate(double now, int64_t images) {
  constexpr size_t kLeastReports = 2;
  constexpr double kLeastSeconds = 0.5;
  if (marks_.empty()) marks_.push_back({state_.last_seconds, state_.last_images});
  while (marks_.size() > kLeastReports && now - marks_[1].seconds >= kLeastSeconds) marks_.pop_front();
  const Mark& since = marks_.front();
  // Batches that were read again, because a plan ended between updates, count once.
  const double rate = double(std::max<int64_t>(0, images - since.images)) / std::max(1e-9, now - since.seconds);
  marks_.push_back({now, images});
  return rate;
}

void Monitor::report(const TrainingReport& trained) {
  const RunPosition& at = trained.at;
  const std::vector<double>& sums = trained.sums;
  const std::optional<UpdateCount>& updates = trained.updates;
  const std::scoped_lock lock(mutex_);
  const double now = seconds();
  const auto means = [&](const std::vector<double>& of) {
    Metrics metrics;
    for (size_t m = 1; m < trained_metrics_.size(); ++m) {
      metrics.emplace_back(trained_metrics_[m].name, mean_of(trained_metrics_[m], of));
    }
    return metrics;
  };
  RunProgress progress;
  progress.epoch = at.epoch;
  progress.iteration = at.iteration;
  progress.seconds = now;
  progress.images_per_second = recent_rate(now, at.images);
  progress.epochs = at.epochs;
  progress.learning_rate = trained.learning_rate;
  progress.loss = mean_of(trained_metrics_.front(), sums);
  progress.loss_undefined = is_weightless(trained_metrics_.front(), sums);
  progress.metrics = means(sums);
  progress.input = trained.input;
  if (updates) {
    progress.skipped_updates = updates->skipped;
    state_.skipped += updates->skipped;
    state_.skipped_in_a_row += updates->due / updates->learners;
    if (updates->skipped < updates->due) state_.skipped_in_a_row = 0;
  }
  observer_.on(progress);
  // Without a batch whose loss is finite there is no mean.
  check_loss(progress, progress.loss_undefined || (updates && sums[0] == 0), trained.diverged);
  state_.last_seconds = now;
  state_.last_images = at.images;
  for (size_t i = 0; i < sums.size(); ++i) state_.epoch_sums[i] += sums[i];
  if (!trained.ends_epoch) return;
  EpochEnded end{progress.epoch, at.iteration, now};
  end.images_per_second = state_.epoch_sums[0] / std::max(1e-9, now - state_.epoch_began);
  end.loss = mean_of(trained_metrics_.front(), state_.epoch_sums);
  end.loss_undefined = is_weightless(trained_metrics_.front(), state_.epoch_sums);
  end.metrics = means(state_.epoch_sums);
  end.validates = trained.validates;
  observer_.on(end);
  state_.epoch_began = now;
  std::fill(state_.epoch_sums.begin(), state_.epoch_sums.end(), 0);
}

// The best so far, targets, patience, and the plateau on which the rate drops.
void Monitor::judge(const std::vector<double>& values, const RunPosition& at, Verdict& verdict) {
  bool undefined = false;
  for (size_t m = 0; m < metrics_.size(); ++m) {
    for (size_t t = 0; t < rules_.targets.size(); ++t) {
      const Target& target = rules_.targets[t];
      if (target.metric == metrics_[m].name && state_.targets[t].seconds < 0 && target.met(values[m])) {
        state_.targets[t].seconds = seconds();
      }
    }
    if (metrics_[m].name != best_metric_) continue;
    undefined = std::isnan(values[m]);
    verdict.best =
        better_ && !std::isnan(values[m]) && (!state_.has_best || metrics_[m].improves(values[m], state_.best_value));
    if (!verdict.best) continue;
    state_.best_epoch = at.epoch;
    state_.best_iteration = at.iteration;
    state_.best_value = values[m];
    state_.has_best = true;
  }
  if (!undefined) {
    state_.since_best = verdict.best ? 0 : state_.since_best + 1;
    state_.since_drop = verdict.best ? 0 : state_.since_drop + 1;
  } else if (rules_.patience > 0 || rules_.plateau > 0) {
    warn(fmt::format("epoch {}: '{}' is undefined, which counts neither for {} nor for {}", at.epoch, best_metric_,
                     name_of(SettingKey::Patience), name_of(SettingKey::Plateau)));
  }
  double factor = state_.factors.back();
  if (rules_.plateau > 0 && !undefined && state_.since_drop >= rules_.plateau) {
    factor *= rules_.plateau_factor;
    state_.since_drop = 0;
  }
  state_.drops.push_back(state_.drops.back() + (factor != state_.factors.back()));
  state_.factors.push_back(factor);
}

void Monitor::keep_best(const std::vector<double>& values) {
  for (size_t m = 0; m < metrics_.size(); ++m) {
    const MeasuredMetric& metric = metrics_[m];
    if (metric.part || !metric.better || metric.name == trained_metrics_.front().name) continue;
    const auto known =
        std::find_if(state_.best.begin(), state_.best.end(), [&](const auto& b) { return b.first == metric.name; });
    if (known == state_.best.end()) {
      state_.best.emplace_back(metric.name, values[m]);
    } else if (std::isnan(known->second) || metric.improves(values[m], known->second)) {
      known->second = values[m];
    }
  }
}

void Monitor::validating(int64_t epoch, double share, bool recalibrates) {
  constexpr double kBetween = 0.2;  // seconds
  const std::scoped_lock lock(mutex_);
  const double now = seconds();
  if (now - told_validating_ < kBetween) return;
  told_validating_ = now;
  observer_.on(ValidationProgress{epoch, share, now, recalibrates});
}

Monitor::Verdict Monitor::validated(const RunPosition& at, const Measurement& measured) {
  const std::scoped_lock lock(mutex_);
  Validated event;
  event.epoch = at.epoch;
  event.iteration = at.iteration;
  event.seconds = seconds();
  tell(metrics_, trained_metrics_.front().name, measured, event);
  const auto loss = std::find_if(metrics_.begin(), metrics_.end(), [&](const MeasuredMetric& metric) {
    return metric.name == trained_metrics_.front().name;
  });
  if (loss != metrics_.end() && !event.loss_undefined && !std::isfinite(event.loss)) {
    observer_.on(event);
    if (measured.samples == 0) {
      throw TaskError(fmt::format("the validation after iteration {} (epoch {}) has no sample that can be read",
                                  at.iteration, at.epoch),
                      at.iteration);
    }
    throw Diverged(
        fmt::format("the loss of the validation after iteration {} (epoch {}) is not finite", at.iteration, at.epoch),
        at.iteration, Diverged::Of::Validation);
  }
  keep_best(measured.values);
  Verdict verdict;
  judge(measured.values, at, verdict);
  event.rate_factor = state_.factors.back();
  state_.has_validated = true;
  state_.last = event;
  observer_.on(event);
  const bool reached = !state_.targets.empty() && std::all_of(state_.targets.begin(), state_.targets.end(),
                                                              [](const auto& t) { return t.seconds >= 0; });
  verdict.stop = reached || (rules_.patience > 0 && state_.since_best >= rules_.patience);
  return verdict;
}

double Monitor::rate_factor(int64_t validations) const {
  const std::scoped_lock lock(mutex_);
  const auto at = size_t(std::clamp<int64_t>(validations, 0, int64_t(state_.factors.size()) - 1));
  return state_.rollback_factor * state_.factors[at];
}

int64_t Monitor::rate_drops(int64_t validations) const {
  const std::scoped_lock lock(mutex_);
  return state_.drops[size_t(std::clamp<int64_t>(validations, 0, int64_t(state_.drops.size()) - 1))];
}

bool Monitor::all_targets_reached() const {
  const std::scoped_lock lock(mutex_);
  return !state_.targets.empty() &&
         std::all_of(state_.targets.begin(), state_.targets.end(), [](const auto& t) { return t.seconds >= 0; });
}

bool Monitor::out_of_patience() const {
  const std::scoped_lock lock(mutex_);
  return rules_.patience > 0 && state_.since_best >= rules_.patience;
}

RunFinished Monitor::finish(const RunPosition& at, double trained_seconds, RunEnd reason) const {
  const std::scoped_lock lock(mutex_);
  RunFinished end;
  end.reason = reason;
  end.iteration = at.iteration;
  end.epoch = at.epoch;
  end.images = at.images;
  end.seconds = seconds();
  end.images_per_second = double(end.images) / std::max(1e-9, trained_seconds);
  end.validated = state_.has_validated;
  end.last = state_.last;
  end.best = state_.best;
  end.best_epoch = state_.best_epoch;
  end.best_metric = best_metric_;
  end.best_value = state_.best_value;
  end.targets = state_.targets;
  end.skipped_updates = state_.skipped;
  return end;
}

}  // namespace arbalest
