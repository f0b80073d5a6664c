// AUC: the area under the ROC curve, exact, from the scores of all samples.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

// What a row holds: the scores, then the labels.
struct AucColumns {
  int64_t scores = 1, labels = 1;

  int64_t all() const { return scores + labels; }
  bool classes() const { return scores > 1 && labels == 1; }
};

int64_t columns_of(const TensorType& type) {
  return type.shape.size() > 1 ? type.shape[1] : 1;
}

AucColumns auc_columns(const std::vector<TensorType>& inputs) {
  return {columns_of(inputs[0]), columns_of(inputs[1])};
}

void infer_auc(InferContext& context) {
  const TensorType& scores = floating_input(context, 0, {1, 2});
  const TensorType& label = context.input(1);
  const bool number = is_floating(label.dtype) || label.dtype == DataType::Int32 || label.dtype == DataType::Uint8;
  const bool shaped = label.shape == scores.shape || label.shape == Shape{scores.shape[0]} ||
                      (scores.shape.size() == 1 && label.shape == Shape{scores.shape[0], 1});
  if (!number || !shaped) {
    context.fail(fmt::format("{} is {}; expected float, int32 or uint8 in the shape of the scores, {}{}",
                             input_name(context, 1), to_string(label), to_string(scores.shape),
                             columns_of(scores) > 1 ? ", or a class of each sample" : ""));
  }
  flag_attribute(context.node(), "softmax");
  const AucColumns columns = auc_columns({scores, label});
  context.set_output(0, {master_type(scores.dtype), {scores.shape[0], columns.all()}});
}

template <typename T, typename Label>
std::unique_ptr<Kernel> rows_cpu(const KernelRequest& request) {
  const AucColumns columns = auc_columns(request.inputs);
  const int64_t batch = request.inputs[0].shape[0];
  return make_kernel([=](const KernelContext& context) {
    const T* scores = input<T>(context, 0);
    const Label* label = input<Label>(context, 1);
    Wide<T>* rows = output<Wide<T>>(context, 0);
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t c = 0; c < columns.scores; ++c) *rows++ = widen(scores[n * columns.scores + c]);
      for (int64_t c = 0; c < columns.labels; ++c) *rows++ = Wide<T>(label[n * columns.labels + c]);
    }
  });
}

template <typename T>
std::unique_ptr<Kernel> auc_cpu(const KernelRequest& request) {
  switch (request.inputs[1].dtype) {
    case DataType::Int32: return rows_cpu<T, int32_t>(request);
    case DataType::Uint8: return rows_cpu<T, uint8_t>(request);
    default: break;
  }
  return dispatch_floating(request.inputs[1].dtype, [&](auto label) { return rows_cpu<T, decltype(label)>(request); });
}

struct Scored {
  double score;
  bool positive;
};

// The chance that a positive sample scores higher than a negative one, where equal scores count one half: from the
// ranks of the positives, equals sharing the mean of theirs. NaN where one of both is missing. No score is NaN.
double area(std::vector<Scored>& samples) {
  std::sort(samples.begin(), samples.end(), [](const Scored& a, const Scored& b) { return a.score < b.score; });
  double positives = 0, ranks = 0;
  for (size_t first = 0, last = 0; first < samples.size(); first = last) {
    double among = 0;
    for (last = first; last < samples.size() && samples[last].score == samples[first].score; ++last) {
      among += samples[last].positive;
    }
    positives += among;
    ranks += among * (double(first + 1) + double(last)) / 2;
  }
  const double negatives = double(samples.size()) - positives;
  if (positives == 0 || negatives == 0) return kUndefined;
  return (ranks - positives * (positives + 1) / 2) / (positives * negatives);
}

// log Σ exp(score) of each row: what makes log probabilities of logits.
std::vector<double> normalisers(const MetricRows& rows, int64_t scores) {
  std::vector<double> result(size_t(rows.samples()), 0);
  for (int64_t n = 0; n < rows.samples(); ++n) {
    double greatest = rows.at(n, 0), sum = 0;
    for (int64_t c = 1; c < scores; ++c) greatest = std::max(greatest, double(rows.at(n, c)));
    for (int64_t c = 0; c < scores; ++c) sum += std::exp(double(rows.at(n, c)) - greatest);
    result[size_t(n)] = greatest + std::log(sum);
  }
  return result;
}

// Whether scores are numbers and labels are 0 and 1, or classes that there are.
bool is_sound(const MetricRows& rows, const AucColumns& columns) {
  const auto greatest = float(columns.classes() ? columns.scores - 1 : 1);
  for (int64_t n = 0; n < rows.samples(); ++n) {
    for (int64_t c = 0; c < columns.scores; ++c) {
      if (std::isnan(rows.at(n, c))) return false;
    }
    for (int64_t c = columns.scores; c < columns.all(); ++c) {
      const float label = rows.at(n, c);
      if (!(label >= 0 && label <= greatest) || label != std::floor(label)) return false;
    }
  }
  return true;
}

// The mean over the labels that have samples of both kinds, then each label's.
std::vector<double> finish_auc(const Node& node, const std::vector<TensorType>& inputs, const MetricRows& rows) {
  const AucColumns columns = auc_columns(inputs);
  const bool classes = columns.classes(), sound = is_sound(rows, columns);
  std::vector<double> shift;
  if (classes && int_attribute(node, "softmax") != 0) shift = normalisers(rows, columns.scores);
  std::vector<double> areas(size_t(columns.scores), kUndefined);
  parallel_for(sound ? columns.scores : 0, 64 * rows.samples(), [&](int64_t begin, int64_t end) {
    std::vector<Scored> samples(size_t(rows.samples()));
    for (int64_t c = begin; c < end; ++c) {
      bool ordered = true;  // infinite logits may have no softmax
      for (int64_t n = 0; n < rows.samples(); ++n) {
        const bool positive = classes ? rows.at(n, columns.scores) == float(c) : rows.at(n, columns.scores + c) == 1.0f;
        samples[size_t(n)] = {rows.at(n, c) - (shift.empty() ? 0.0 : shift[size_t(n)]), positive};
        ordered = ordered && !std::isnan(samples[size_t(n)].score);
      }
      if (ordered) areas[size_t(c)] = area(samples);
    }
  });
  double sum = 0, defined = 0;
  for (const double one : areas) {
    if (!std::isnan(one)) sum += one, defined += 1;
  }
  std::vector<double> all = {defined > 0 ? sum / defined : kUndefined};
  if (columns.scores > 1) all.insert(all.end(), areas.begin(), areas.end());
  return all;
}

std::vector<std::string> auc_parts(const Node&, const std::vector<TensorType>& inputs) {
  const int64_t scores = auc_columns(inputs).scores;
  std::vector<std::string> names;
  for (int64_t c = 0; scores > 1 && c < scores; ++c) names.push_back(std::to_string(c));
  return names;
}

std::vector<Sample> samples() {
  const auto sample = [](std::string name, Shape scores, TensorType label, double greatest) {
    return Sample{.name = std::move(name),
                  .inputs = {{.type = {DataType::Float32, std::move(scores)}}, {std::move(label), 0, greatest, false}},
                  .tolerance = 1e-6};
  };
  return {sample("one score", {33}, {DataType::Int32, {33}}, 1),
          sample("a column", {8, 1}, {DataType::Uint8, {8}}, 1),
          sample("column of labels", {8}, {DataType::Float32, {8, 1}}, 1),
          sample("classes", {17, 10}, {DataType::Int32, {17}}, 9),
          sample("labels", {16, 5}, {DataType::Float32, {16, 5}}, 1),
          sample("many", {300, 70}, {DataType::Uint8, {300, 70}}, 1)};
}

}  // namespace

void register_metrics_auc(OpRegistry& registry) {
  registry.add(
      {.domain = "arbalest",
       .name = "AUC",
       .doc = "the area under the ROC curve: of one score, or the mean of several labels' or classes'",
       .inputs = {{.name = "scores", .lowered = true}, {.name = "label"}},
       .outputs = {{.name = "rows"}},
       .attributes = {int_spec("softmax", 1, "where labels are classes: 1 compares the scores' softmax, 0 the scores")},
       .infer = infer_auc,
       .samples = samples,
       .metric = MetricSpec{.better = MetricSpec::Better::Higher,
                            .least = 0,
                            .most = 1,
                            .keeps = MetricSpec::Keeps::Rows,
                            .parts = auc_parts,
                            .finish = finish_auc},
       .cpu = floating_kernel([](const KernelRequest& r, auto t) { return auc_cpu<decltype(t)>(r); })});
}

}  // namespace arbalest
