// SPDX-License-Identifier: Apache-2.0
#include "tests/executor/session/reference.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "executor/session/state.h"
#include "io/open/open_source.h"
#include "tests/executor/fixture.h"
#include "tests/io/batch.h"
#include "tests/io/test_folder.h"

namespace arbalest::test {
namespace {

constexpr double kMean = 0.2, kDeviation = 0.3;  // of TinyNet's Augment
constexpr uint64_t kSeed = 1;
constexpr double kBeta1 = 0.8, kBeta2 = 0.95, kEpsilon = 1e-3;
constexpr double kAlpha = 0.75, kTrust = 0.125, kVectorFactor = 0.5, kRowEpsilon = 0.25;

std::vector<double> pixels(const Source& source, int64_t sample, int32_t& label) {
  const ImageBatch one = image_batch(source, {sample});
  label = one.labels[0];
  std::vector<double> x;
  for (const uint8_t pixel : one.images) x.push_back((pixel / 255.0 - kMean) / kDeviation);
  return x;
}

using Matrix = std::vector<double>;  // row by row

// The product of x, of `inner` columns, and y, of `columns`.
Matrix product(const Matrix& x, const Matrix& y, size_t inner, size_t columns) {
  Matrix result(x.size() / inner * columns, 0);
  for (size_t i = 0; i < result.size(); ++i) {
    for (size_t k = 0; k < inner; ++k) result[i] += x[i / columns * inner + k] * y[k * columns + i % columns];
  }
  return result;
}

Matrix transposed(const Matrix& x, size_t columns) {
  const size_t rows = x.size() / columns;
  Matrix result(x.size());
  for (size_t i = 0; i < x.size(); ++i) result[i % columns * rows + i / columns] = x[i];
  return result;
}

// Five steps of Newton and Schulz, each a X + b (X Xᵀ) X + c (X Xᵀ)² X.
Matrix orthogonal(Matrix x, size_t columns) {
  const size_t rows = x.size() / columns;
  double squares = 0;
  for (const double each : x) squares += each * each;
  for (double& each : x) each /= std::sqrt(squares) + 1e-7;
  for (int step = 0; step < 5; ++step) {
    const Matrix a = product(x, transposed(x, columns), columns, rows), ax = product(a, x, rows, columns);
    const Matrix aax = product(a, ax, rows, columns);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] - 4.775 * ax[i] + 2.0315 * aax[i];
  }
  return x;
}

// Each row divided by its norm + ε.
Matrix with_equal_rows(Matrix x, size_t columns) {
  for (auto row = x.begin(); row < x.end(); row += int64_t(columns)) {
    const double squares = std::inner_product(row, row + int64_t(columns), row, 0.0);
    std::for_each(row, row + int64_t(columns), [&](double& each) { each /= std::sqrt(squares) + kRowEpsilon; });
  }
  return x;
}

std::vector<double> first_weights(const Setting& setting) {
  const Prepared prepared = prepare(graph_of(setting), options_of(setting));
  const Loop& loop = prepared.program.training();
  TensorFile file;
  for (const ValueId arena : {loop.arenas.weights, loop.arenas.frozen}) {
    if (arena != kNone) append_tensors(file, loop.graph, arena, initial_content(loop.graph, arena, kSeed));
  }
  return weights_of(file);
}

std::string attributes_of(const StrategyOptions& strategy) {
  const std::vector<std::pair<std::string, std::string>> numbers = {
      {"every", fmt::format("{}", strategy.every)},
      {"every_hosts", fmt::format("{}", strategy.every_hosts)},
      {"alpha", fmt::format("{}", strategy.alpha)},
      {"beta", fmt::format("{}", strategy.beta)},
      {"momentum", fmt::format("{}", strategy.momentum)},
      {"follows_rate", fmt::format("{}", int(strategy.follows_rate))},
      {"growth", fmt::format("{}", strategy.growth)},
      {"bucket_mib", fmt::format("{}", double(strategy.bucket_bytes) / (1 << 20))}};
  const std::vector<std::string>& reads = strategy_spec(strategy.name).reads;
  std::string text = fmt::format("strategy = \"{}\"", strategy.name);
  for (const auto& [name, number] : numbers) {
    if (std::find(reads.begin(), reads.end(), name) != reads.end()) text += fmt::format(", {} = {}", name, number);
  }
  return text;
}

}  // namespace

std::string Setting::source() const {
  return fmt::format("glyphs:?train={}&test={}&size=16", samples(), std::max<int64_t>(1, test_samples));
}

Graph graph_of(const Setting& s) {
  TinyNet net;
  net.source = s.source();
  net.batch = s.batch;
  net.layers = s.hidden > 0 ? fmt::format("hidden = arbalest.Linear <units = {}> (x)\nh = Relu (hidden)\n", s.hidden)
                            : "h = Flatten (x)\n";
  net.train = fmt::format("lr = {}, momentum = {}, weight_decay = {}, nesterov = {}, accumulate = {}", s.rate,
                          s.momentum, s.decay, int(s.nesterov), s.accumulate);
  if (s.adamw) {
    net.train += fmt::format(", optimizer = \"adamw\", beta1 = {}, beta2 = {}, epsilon = {}", kBeta1, kBeta2, kEpsilon);
  }
  if (!s.rule.empty()) net.train += fmt::format(", optimizer = \"{}\"", s.rule);
  if (s.rule == "rmsprop") net.train += fmt::format(", alpha = {}, epsilon = {}, centered = 1", kAlpha, kEpsilon);
  if (s.rule == "lars") net.train += fmt::format(", trust_coefficient = {}", kTrust);
  if (s.rule == "muon") net.train += fmt::format(", momentum_only_factor = {}", kVectorFactor);
  if (s.momentum_only) net.train += ", momentum_only = [\"logits.*\"]";
  if (s.rule == "lamb") net.train += fmt::format(", beta1 = {}, beta2 = {}, epsilon = {}", kBeta1, kBeta2, kEpsilon);
  if (s.ema > 0) net.train += fmt::format(", ema = {}", s.ema);
  if (s.clip > 0) net.train += fmt::format(", clip_norm = {}", s.clip);
  if (!s.decay_biases) net.train += ", decay_norms = 0";
  if (s.freeze_hidden) net.train += ", frozen = [\"hidden.*\"]";
  if (s.logits_factor != 1) {
    net.train += fmt::format(", rate_patterns = [\"logits.*\"], rate_factors = [{}]", s.logits_factor);
  }
  if (!s.milestones.empty()) {
    net.train +=
        fmt::format(", schedule = \"multistep\", milestones = [{}], gamma = 0.5", fmt::join(s.milestones, ", "));
  }
  net.synchronize = attributes_of(s.strategy);
  for (const StrategyPhase& phase : s.later) {
    net.later.push_back(fmt::format("{}, from = {}", attributes_of(phase.strategy), phase.from));
  }
  net.validate = s.test_samples > 0 ? fmt::format("batch = {}", s.test_batch) : "";
  return tiny(net);
}

SessionOptions options_of(const Setting& setting) {
  SessionOptions options = on_cpus(setting.devices, setting.learners);
  options.numerics.seed = kSeed;
  options.length.iterations = setting.iterations;
  for (size_t i = 0; i < setting.gpus.size(); ++i)
    options.learners.devices[i] = {PlanDevice::Kind::Cuda, setting.gpus[i]};
  for (size_t d = 0; d < setting.hosts.size(); ++d) options.learners.devices[d].host_number = setting.hosts[d];
  options.learners.rate_scaling = setting.scaling;
  return options;
}

std::string to_string(const Setting& s) {
  return fmt::format(
      "{} every {}, hosts [{}] every {}, alpha {}{}, beta {}, mu {}, on {} devices with {} learners; rate {}, {} {}, "
      "decay {}, nesterov "
      "{}, "
      "accumulate {}, milestones [{}], hidden {}{}, {} iterations; clipped to {}, biases decay {}, logits' rate times "
      "{}{}, ema {}",
      s.strategy.name, s.strategy.every, fmt::join(s.hosts, ", "), s.strategy.every_hosts, s.strategy.alpha,
      s.strategy.follows_rate ? " as the rate" : "", s.strategy.beta, s.strategy.momentum, s.devices, s.learners,
      s.rate,
      !s.rule.empty() ? s.rule
      : s.adamw       ? "adamw"
                      : "momentum",
      s.momentum, s.decay, s.nesterov, s.accumulate, fmt::join(s.milestones, ", "), s.hidden,
      s.freeze_hidden ? " (frozen)" : "", s.iterations, s.clip, s.decay_biases, s.logits_factor,
      s.momentum_only ? " by momentum only" : "", s.ema);
}

std::vector<double> weights_of(const TensorFile& file) {
  std::vector<double> weights;
  for (const char* name : {"hidden.weight", "hidden.bias", "logits.weight", "logits.bias"}) {
    const NamedTensor* tensor = file.find(name);
    if (!tensor) continue;
    for (size_t at = 0; at < tensor->bytes.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, tensor->bytes.data() + at, sizeof value);
      weights.push_back(double(value));
    }
  }
  return weights;
}

TensorFile trained(Graph graph, SessionOptions options) {
  const TestFolder folder;
  options.files.save = folder / "weights.safetensors";
  run(std::move(graph), options);
  return read_safetensors(options.files.save);
}

std::vector<double> executed(const Setting& setting) {
  return weights_of(trained(graph_of(setting), options_of(setting)));
}

std::vector<double> simulated(const Setting& setting) {
  Reference reference(setting);
  reference.advance(setting.iterations);
  return reference.model();
}

Bits bits_of(TensorFile file) {
  Bits all;
  for (NamedTensor& tensor : file.tensors) all.push_back(std::move(tensor.bytes));
  return all;
}

void check_validations(const Setting& setting, double loss_tolerance) {
  INFO(to_string(setting));
  const Recorder story = run(graph_of(setting), options_of(setting));
  REQUIRE(int64_t(story.validations.size()) == setting.iterations / setting.rounds);
  Reference reference(setting);
  for (const Validated& validation : story.validations) {
    reference.advance(setting.rounds);
    const Reference::Metrics metrics = reference.validate(reference.model());
    CHECK(validation.samples == setting.test_samples);
    CHECK(validation.loss == doctest::Approx(metrics.loss).epsilon(loss_tolerance));
    CHECK(validation.metrics.at(0).second == doctest::Approx(metrics.accuracy).epsilon(1e-6));
  }
}

double greatest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) throw std::logic_error("weights of different models");
  double greatest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (std::isnan(difference)) return difference;
    greatest = std::max(greatest, difference);
  }
  return greatest;
}

Perceptron::Perceptron(int64_t inputs, int64_t hidden, int64_t classes) {
  std::vector<size_t> widths = {size_t(inputs), size_t(hidden), size_t(classes)};
  if (hidden == 0) widths.erase(widths.begin() + 1);
  size_t at = 0;
  for (size_t l = 0; l + 1 < widths.size(); ++l) {
    const size_t features = widths[l], units = widths[l + 1];
    layers_.push_back({features, units, at, at + features * units});
    at += (features + 1) * units;
  }
}

std::vector<size_t> Perceptron::parameters() const {
  std::vector<size_t> begins;
  for (const Layer& layer : layers_) begins.insert(begins.end(), {layer.weight, layer.bias});
  begins.push_back(layers_.back().bias + layers_.back().units);
  return begins;
}

size_t Perceptron::features(size_t parameter) const {
  const auto layer =
      std::find_if(layers_.begin(), layers_.end(), [&](const Layer& l) { return l.weight == parameter; });
  return layer == layers_.end() ? 1 : layer->features;
}

bool Perceptron::is_bias(size_t weight) const {
  return std::any_of(layers_.begin(), layers_.end(),
                     [&](const Layer& layer) { return weight >= layer.bias && weight < layer.bias + layer.units; });
}

Perceptron::Outcome Perceptron::run(const std::vector<double>& weights, const std::vector<double>& x, int32_t label,
                                    double share, std::vector<double>* gradient) const {
  std::vector<std::vector<double>> inputs = {x};  // of each layer; then the logits
  for (const Layer& layer : layers_) {
    const std::vector<double>& in = inputs.back();
    std::vector<double> out(weights.begin() + ptrdiff_t(layer.bias),
                            weights.begin() + ptrdiff_t(layer.bias + layer.units));
    for (size_t u = 0; u < layer.units; ++u) {
      for (size_t f = 0; f < layer.features; ++f) out[u] += weights[layer.weight + u * layer.features + f] * in[f];
      if (&layer != &layers_.back()) out[u] = std::max(0.0, out[u]);
    }
    inputs.push_back(std::move(out));
  }
  const std::vector<double>& logits = inputs.back();
  const auto greatest = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - *greatest);
  const double log_sum = *greatest + std::log(sum);
  const Outcome outcome{log_sum - logits[size_t(label)], greatest - logits.begin() == label};
  if (!gradient) return outcome;

  std::vector<double> slope;  // of the loss, by the layer's output
  for (const double logit : logits) slope.push_back(std::exp(logit - log_sum));
  slope[size_t(label)] -= 1;
  for (size_t l = layers_.size(); l-- > 0;) {
    const Layer& layer = layers_[l];
    const std::vector<double>& in = inputs[l];
    std::vector<double> before(layer.features, 0);
    for (size_t u = 0; u < layer.units; ++u) {
      (*gradient)[layer.bias + u] += share * slope[u];
      for (size_t f = 0; f < layer.features; ++f) {
        const size_t w = layer.weight + u * layer.features + f;
        (*gradient)[w] += share * slope[u] * in[f];
        if (in[f] > 0) before[f] += weights[w] * slope[u];
      }
    }
    slope = std::move(before);
  }
  return outcome;
}

Reference::Reference(const Setting& s)
    : setting_(s),
      training_(open_source(s.source(), "train", kSeed)),
      test_(open_source(s.source(), "test", kSeed)),
      order_(kSeed, training_->size(), true),
      perceptron_(training_->fields()[0].sample().bytes(), s.hidden, training_->fields()[1].classes),
      rounds_(s.rounds / s.accumulate * s.accumulate) {
  const std::vector<double> start = first_weights(s);
  const std::vector<double> zeros(start.size(), 0);
  learners_.assign(size_t(s.all_learners()), Learner{start, zeros, zeros, zeros, zeros});
  averages_ = {{start, start}};
  for (size_t j = 0; j < learners_.size() && s.strategy.every_hosts > 1 && !s.hosts.empty(); ++j) {
    learners_[j].host = size_t(s.hosts[j / size_t(s.learners)]);
    averages_.resize(std::max(averages_.size(), learners_[j].host + 1), averages_[0]);
  }
  for (const Learner& learner : learners_) ++averages_[learner.host].learners;
  for (size_t i = 0; i < start.size(); ++i) {
    decay_.push_back(s.decay_biases || !perceptron_.is_bias(i) ? s.decay : 0);
    factor_.push_back(perceptron_.is_last(i) ? s.logits_factor : 1);
    if (s.rule == "muon" && !is_matrix(i)) factor_[i] *= kVectorFactor;
    frozen_.push_back(s.freeze_hidden && !perceptron_.is_last(i));
  }
  weighed_ = outer_velocity_ = zeros;
  begin(s.strategy);
}

// Learners go on from where they are, unless the strategy keeps them alike. The first update corrects as the strategy
// before asks.
void Reference::begin(const StrategyOptions& strategy) {
  const auto corrects = [](const std::string& name) { return name == "sma" || name == "papa"; };
  if (iteration_ > 0) {
    const std::vector<double> model = shared();
    averaged_ = corrects(kind_) && corrects(strategy.name);
    averages_ = {{model, averaged_ ? averages_[0].before : model, double(learners_.size())}};
    carried_alpha_ = alpha_;
    outer_velocity_.assign(model.size(), 0);
    averagings_ = 0;
    for (Learner& learner : learners_) {
      if (strategy.name == "diloco" || strategy.name == "ssgd") learner.weights = model;
      if (strategy.name == "ssgd") learner.velocity = learners_.front().velocity;
    }
  }
  setting_.strategy = strategy;
  kind_ = setting_.all_learners() == 1 ? "none" : strategy.name;
  alpha_ = strategy.alpha;
  const bool plain = setting_.momentum == 0 && !setting_.adamw && setting_.rule.empty();
  beta_ = kind_ == "papa" ? 1 : strategy.beta;
  mu_ = kind_ == "papa" ? 0 : strategy.momentum >= 0 ? strategy.momentum : plain ? 0.9 : 0;
}

double Reference::epochs_at(int64_t iteration) const {
  const int64_t seen = iteration % rounds_ * setting_.all_learners() * setting_.batch;
  return double(iteration / rounds_) + double(seen) / double(training_->size());
}

int Reference::drops_at(int64_t iteration) const {
  int drops = 0;
  for (const double milestone : setting_.milestones) drops += milestone <= epochs_at(iteration);
  return drops;
}

double Reference::rate_at(int64_t iteration) const {
  const auto k = double(setting_.all_learners());
  const double rate = std::ldexp(setting_.rate, -drops_at(iteration));
  switch (setting_.scaling) {
    case RateScaling::None: break;
    case RateScaling::Linear: return rate * k;
    case RateScaling::Sqrt: return rate * std::sqrt(k);
  }
  return rate;
}

// Adds the gradient of the mean loss over a batch, divided by the number of batches that make an update.
void Reference::add_gradient(Learner& learner, int64_t epoch, int64_t batch) const {
  std::vector<int64_t> samples(size_t(setting_.batch));
  order_.batch(uint64_t(epoch), batch, samples);
  const double share = 1.0 / double(setting_.batch * setting_.accumulate);
  for (const int64_t sample : samples) {
    int32_t label = 0;
    const std::vector<double> x = pixels(*training_, sample, label);
    perceptron_.run(learner.weights, x, label, share, &learner.gradient);
  }
}

std::vector<double> Reference::mean(std::vector<double> Learner::*of, int host) const {
  std::vector<double> sum(weighed_.size(), 0);
  double count = 0;
  for (const Learner& learner : learners_) count += host < 0 || learner.host == size_t(host);
  for (const Learner& learner : learners_) {
    if (host >= 0 && learner.host != size_t(host)) continue;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += (learner.*of)[i] / count;
  }
  return sum;
}

std::vector<double> Reference::mean(std::vector<double> Average::*of) const {
  std::vector<double> sum(weighed_.size(), 0);
  for (const Average& average : averages_) {
    const double share = average.learners / double(learners_.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += share * (average.*of)[i];
  }
  return sum;
}

void Reference::advance(int64_t iterations) {
  for (const int64_t end = iteration_ + iterations; iteration_ < end; ++iteration_) {
    const int64_t epoch = iteration_ / rounds_, round = iteration_ % rounds_;
    for (const StrategyPhase& phase : setting_.later) {
      if (round == 0 && epoch == phase.from) begin(phase.strategy);
    }
    const int64_t k = setting_.all_learners();
    if (updates_ == 0 && round % setting_.accumulate == 0) {
      last_begin_ = group_begin_;
      group_begin_ = iteration_;
    }
    for (int64_t j = 0; j < k; ++j) add_gradient(learners_[size_t(j)], epoch, round * k + j);
    if ((round + 1) % setting_.accumulate != 0) continue;
    update(iteration_);
    if (!averages_models()) take_in(1);
    ++updates_;
    ++apart_;
    if (updates_ == setting_.strategy.every || round + 1 == rounds_) synchronise(round + 1 == rounds_);
  }
}

void Reference::update(int64_t iteration) {
  if (kind_ == "ssgd") {
    const std::vector<double> shared = mean(&Learner::gradient);
    for (Learner& learner : learners_) learner.gradient = shared;
  }
  const bool restarts = kind_ == "sma" && averaged_ && drops_at(group_begin_) > drops_at(last_begin_);
  const double asked = carried_alpha_.value_or(alpha_);
  carried_alpha_.reset();
  const double alpha = setting_.strategy.follows_rate ? std::ldexp(asked, -drops_at(iteration)) : asked;
  const double rate = rate_at(iteration);
  for (Learner& learner : learners_) {
    clip(learner);
    const std::vector<double> ratio = trust(learner);
    if ((setting_.rule == "muon" || setting_.rule == "rows") && !restarts) turn(learner);
    const Average& average = averages_[learner.host];
    const std::vector<double>& towards = kind_ == "papa" ? average.now : average.before;
    for (size_t i = 0; i < towards.size() && !restarts; ++i) {
      const double pull = averaged_ ? alpha * (learner.weights[i] - towards[i]) : 0;
      if (!frozen_[i]) learner.weights[i] -= change(learner, i, rate * factor_[i] * ratio[i]) + pull;
    }
    ++learner.updates;
    if (restarts) restart(learner);
    learner.gradient.assign(towards.size(), 0);
  }
  for (Average& average : averages_) {
    if (restarts) average.before = average.now;
  }
  averaged_ = false;
}

void Reference::clip(Learner& learner) const {
  double squares = 0;
  for (size_t i = 0; i < weighed_.size(); ++i) squares += frozen_[i] ? 0 : learner.gradient[i] * learner.gradient[i];
  if (setting_.clip == 0 || std::sqrt(squares) <= setting_.clip) return;
  for (double& g : learner.gradient) g *= setting_.clip / std::sqrt(squares);
}

// The factor that multiplies the learning rate in the change of a weight.
double Reference::step(Learner& learner, size_t i) const {
  const double w = learner.weights[i], m = setting_.momentum;
  double g = learner.gradient[i], &v = learner.velocity[i], &squares = learner.squares[i];
  if (setting_.adamw || setting_.rule == "lamb") {
    v = kBeta1 * v + (1 - kBeta1) * g;
    squares = kBeta2 * squares + (1 - kBeta2) * g * g;
    const auto t = double(learner.updates + 1);
    const double mean = v / (1 - std::pow(kBeta1, t)), mean_square = squares / (1 - std::pow(kBeta2, t));
    return decay_[i] * w + mean / (std::sqrt(mean_square) + kEpsilon);
  }
  g += decay_[i] * w;
  v = m * v + g;
  return setting_.nesterov ? g + m * v : v;
}

double Reference::change(Learner& learner, size_t i, double rate) const {
  const double m = setting_.momentum, w = learner.weights[i], g = learner.gradient[i] + decay_[i] * w;
  double &v = learner.velocity[i], &squares = learner.squares[i], &mean = learner.means[i];
  if (setting_.rule == "rmsprop") {
    squares = kAlpha * squares + (1 - kAlpha) * g * g;
    mean = kAlpha * mean + (1 - kAlpha) * g;
    v = m * v + g / (std::sqrt(squares - mean * mean) + kEpsilon);
    return rate * v;
  }
  if (setting_.rule == "lars") {
    v = m * v + rate * g;
    return setting_.nesterov ? rate * g + m * v : v;
  }
  if (setting_.rule == "muon" || setting_.rule == "rows") return rate * (decay_[i] * w + mean);
  return rate * step(learner, i);
}

bool Reference::is_matrix(size_t parameter) const {
  return !perceptron_.is_bias(parameter) && !(setting_.momentum_only && perceptron_.is_last(parameter));
}

// The directions of an update by matrix: of a vector the momentum's.
void Reference::turn(Learner& learner) const {
  const std::vector<size_t> begins = perceptron_.parameters();
  const double m = setting_.momentum;
  for (size_t i = 0; i < weighed_.size(); ++i) {
    const double g = learner.gradient[i], v = learner.velocity[i] = m * learner.velocity[i] + g;
    learner.means[i] = setting_.nesterov ? g + m * v : v;
  }
  for (size_t p = 0; p + 1 < begins.size(); ++p) {
    if (!is_matrix(begins[p])) continue;
    const auto begin = learner.means.begin() + int64_t(begins[p]), end = learner.means.begin() + int64_t(begins[p + 1]);
    const size_t columns = perceptron_.features(begins[p]);
    const Matrix matrix(begin, end);
    const double ratio = double(matrix.size() / columns) / double(columns);
    Matrix turned = setting_.rule == "rows" ? with_equal_rows(matrix, columns) : orthogonal(matrix, columns);
    for (double& each : turned) each *= setting_.rule == "rows" ? 1 : std::sqrt(std::max(1.0, ratio));
    std::copy(turned.begin(), turned.end(), begin);
  }
}

// The factor of each weight's learning rate: the norm of its parameter divided by that of the direction in which the
// parameter moves.
std::vector<double> Reference::trust(const Learner& learner) const {
  std::vector<double> ratio(weighed_.size(), 1);
  if (setting_.rule != "lars" && setting_.rule != "lamb") return ratio;
  Learner moved = learner;
  const std::vector<size_t> begins = perceptron_.parameters();
  for (size_t p = 0; p + 1 < begins.size(); ++p) {
    if (!setting_.decay_biases && perceptron_.is_bias(begins[p])) continue;
    double weights = 0, directions = 0;
    for (size_t i = begins[p]; i < begins[p + 1]; ++i) {
      const double w = learner.weights[i];
      const double u = setting_.rule == "lars" ? learner.gradient[i] + decay_[i] * w : step(moved, i);
      weights += w * w;
      directions += u * u;
    }
    if (weights == 0 || directions == 0) continue;
    const double coefficient = setting_.rule == "lars" ? kTrust : 1;
    std::fill(ratio.begin() + int64_t(begins[p]), ratio.begin() + int64_t(begins[p + 1]),
              coefficient * std::sqrt(weights / directions));
  }
  return ratio;
}

void Reference::restart(Learner& learner) const {
  learner.weights = averages_[learner.host].now;
  learner.velocity.assign(weighed_.size(), 0);
  learner.squares.assign(weighed_.size(), 0);
  learner.means.assign(weighed_.size(), 0);
  learner.updates = 0;
}

// By the velocity of the model's ways, as in the paper; returns the model after the step.
std::vector<double> Reference::outer_step(std::vector<double>& velocity) const {
  std::vector<double> next = averages_[0].now;
  const std::vector<double> of_learners = mean(&Learner::weights);
  for (size_t i = 0; i < next.size(); ++i) {
    const double way = of_learners[i] - next[i];
    velocity[i] = mu_ * velocity[i] + way;
    next[i] += beta_ * (way + mu_ * velocity[i]);
  }
  return next;
}

std::vector<double> Reference::next_average(size_t host) const {
  const auto& [now, before, learners] = averages_[host];
  std::vector<double> next(now.size());
  const std::vector<double> of_learners = mean(&Learner::weights, int(host));
  for (size_t i = 0; i < next.size(); ++i) {
    next[i] = now[i] + beta_ * (of_learners[i] - now[i]) + mu_ * (now[i] - before[i]);
  }
  return next;
}

void Reference::synchronise(bool ends_epoch) {
  updates_ = 0;
  if (kind_ == "local") {
    std::vector<std::vector<double>> shared;
    for (size_t host = 0; host < averages_.size(); ++host) shared.push_back(mean(&Learner::weights, int(host)));
    for (Learner& learner : learners_) learner.weights = shared[learner.host];
  } else if (kind_ == "elastic") {
    const std::vector<double> shared = mean(&Learner::weights);
    for (Learner& learner : learners_) {
      for (size_t i = 0; i < shared.size(); ++i) learner.weights[i] -= alpha_ * (learner.weights[i] - shared[i]);
    }
  } else if (kind_ == "diloco") {
    averages_[0].now = outer_step(outer_velocity_);
    for (Learner& learner : learners_) learner.weights = averages_[0].now;
  } else if (kind_ == "sma" || kind_ == "papa") {
    std::vector<std::vector<double>> next;
    for (size_t host = 0; host < averages_.size(); ++host) next.push_back(next_average(host));
    for (size_t host = 0; host < averages_.size(); ++host) {
      averages_[host].before = std::exchange(averages_[host].now, next[host]);
    }
    averaged_ = true;
  }
  if (++averagings_ == setting_.strategy.every_hosts || ends_epoch || averages_.size() == 1) meet();
}

// Each host moves as a whole, so that all have the average before; then they take the mean of their averages.
void Reference::meet() {
  if (kind_ == "local") {
    const std::vector<double> shared = mean(&Learner::weights);
    for (Learner& learner : learners_) learner.weights = shared;
  } else if (averages_.size() > 1) {
    const std::vector<double> now = mean(&Average::now), before = mean(&Average::before);
    for (Learner& learner : learners_) {
      const std::vector<double>& own = averages_[learner.host].before;
      for (size_t i = 0; i < own.size(); ++i) learner.weights[i] += before[i] - own[i];
    }
    for (Average& average : averages_) average = {now, before, average.learners};
  }
  averagings_ = 0;
  const int64_t updates = std::exchange(apart_, 0);
  if (averages_models()) take_in(updates);
}

std::vector<double> Reference::shared() const {
  if (kind_ == "diloco" && updates_ > 0) {
    std::vector<double> velocity = outer_velocity_;
    return outer_step(velocity);
  }
  if (kind_ == "sma" && updates_ == 0) return mean(&Average::now);
  if (kind_ == "sma") {
    std::vector<double> shared(weighed_.size(), 0);
    for (size_t host = 0; host < averages_.size(); ++host) {
      const std::vector<double> next = next_average(host);
      const double share = averages_[host].learners / double(learners_.size());
      for (size_t i = 0; i < next.size(); ++i) shared[i] += share * next[i];
    }
    return shared;
  }
  return averages_models() ? mean(&Learner::weights) : learners_.front().weights;
}

// The sum of the moving average once it has taken in the model as it is now, for so many updates. A model's weight
// falls by the decay with every update, and the weights of all come to 1 - decay ^ updates.
std::vector<double> Reference::weighed(int64_t updates) const {
  const double stays = std::pow(setting_.ema, double(updates));
  const std::vector<double> model = shared();
  std::vector<double> sum = weighed_;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = stays * sum[i] + (1 - stays) * model[i];
  return sum;
}

void Reference::take_in(int64_t updates) {
  weighed_ = weighed(updates);
  seen_ += updates;
}

std::vector<double> Reference::model() const {
  if (setting_.ema == 0) return shared();
  const int64_t left = averages_models() ? apart_ : 0;
  std::vector<double> average = weighed(left);
  for (double& weight : average) weight /= 1 - std::pow(setting_.ema, double(seen_ + left));
  return average;
}

Reference::Metrics Reference::validate(const std::vector<double>& weights) const {
  Metrics metrics;
  for (int64_t sample = 0; sample < test_->size(); ++sample) {
    int32_t label = 0;
    const std::vector<double> x = pixels(*test_, sample, label);
    const Perceptron::Outcome outcome = perceptron_.run(weights, x, label, 1, nullptr);
    metrics.loss += outcome.loss / double(test_->size());
    metrics.accuracy += double(outcome.correct) / double(test_->size());
  }
  return metrics;
}

}  // namespace arbalest::test
