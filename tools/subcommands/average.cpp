// SPDX-License-Identifier: Apache-2.0

// arbalest average: one model whose weights are the mean of several models'.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/process.h"
#include "executor/inference/average_models.h"
#include "executor/session/output_paths.h"
#include "tools/command/commands.h"
#include "tools/command/session_setup.h"
#include "tools/command/subcommand.h"
#include "tools/command/trained_graph.h"
#include "tools/sweep/leaderboard.h"
#include "tools/sweep/sweep_log.h"
#include "tools/sweep/trial_runs.h"

namespace arbalest {
namespace {

// A line for each model, in columns.
class SoupTable {
 public:
  // `before`: what stands before names in lines of a greedy soup.
  SoupTable(const std::vector<std::string>& files, std::string metric, std::string_view before)
      : metric_(std::move(metric)) {
    for (const std::string& file : files) width_ = std::max(width_, before.size() + printable(file).size());
  }
  void line(const std::string& name, const ModelAverage::Measured& measured, const std::string& note = "") const {
    const std::string value = std::isnan(measured.value) ? "undefined" : fmt::format("{:.6g}", measured.value);
    fmt::print("{:<{}}  {} {}{}\n", printable(name), width_, printable(metric_), value, note);
  }

 private:
  size_t width_ = 16;
  std::string metric_;
};

// The options of a source's text that decide which samples are held out: "folds=5, fold=2"; "": no fold is.
std::string held_out_by(const std::string& source) {
  const size_t begin = source.find('?');
  if (begin == source.npos) return "";
  std::vector<std::string> found;
  bool folds = false;
  for (size_t at = begin + 1; at <= source.size();) {
    const std::string option = source.substr(at, source.find('&', at) - at), name = option.substr(0, option.find('='));
    at += option.size() + 1;
    folds = folds || name == "fold";
    for (const std::string_view each : {"folds", "fold", "by", "group", "limit"}) {
      if (name == each) found.push_back((name == "by" ? "group" : name) + option.substr(name.size()));
    }
  }
  std::sort(found.begin(), found.end());  // in whichever order and under whichever name they are stated
  return folds ? fmt::format("{}", fmt::join(found, ", ")) : "";
}

// Models of several folds have trained on what others were validated on. All are measured on the fold of the first one,
// unless --set names other data: the choice that --greedy makes by that would mean nothing.
void check_folds(const AverageOptions& options) {
  const auto names_data = [](const std::string& set) { return set.find(".source=") != set.npos; };
  if (std::any_of(options.set.begin(), options.set.end(), names_data)) return;
  GraphOptions unchanged = options;
  unchanged.set.clear();
  const Graph graph = load_with_overrides(unchanged);
  const std::string first = held_out_by(data_of_run(graph, options.files.front()));
  if (first.empty()) return;  // measured on a split that no fold was trained on
  for (const std::string& file : options.files) {
    const std::string data = data_of_run(graph, file), held_out = held_out_by(data);
    if (data.empty() || held_out == first) continue;
    const std::string text = fmt::format(
        "{} was trained with {} and {} with {}: models that were trained on what the others hold out are measured on "
        "it",
        options.files.front(), first, file, held_out.empty() ? "no fold" : held_out);
    if (options.greedy) throw GraphError(text + "; --greedy expects models of one fold");
    return warn(text + "; these values say nothing of new samples");
  }
}

// Models of different first weights lie apart, and the mean of their weights is a model of neither.
void warn_of_worthless_mean(const ModelAverage& average, const std::vector<ModelAverage::Measured>& single,
                            const ModelAverage::Measured& mean) {
  const auto no_better = [&](const ModelAverage::Measured& each) { return average.as_good(mean.value, each.value); };
  if (std::any_of(single.begin(), single.end(), no_better)) return;
  warn(
      "the mean is worse than each of its models; expected models that share a part of their training, such as several "
      "that --weights began from one");
}

// The files, with the models that a sweep has kept in place of its folder: the best first.
std::vector<std::string> models_in(const std::vector<std::string>& files) {
  std::vector<std::string> models;
  std::string few;
  std::error_code unknown;
  for (const std::string& file : files) {
    if (!std::filesystem::exists(sweep_log_path(file), unknown)) {
      models.push_back(file);
      continue;
    }
    const size_t before = models.size();
    for (const int trial : ranked_trials(read_sweep_log(sweep_log_path(file)))) {
      const std::string model = trial_model(file, trial);
      if (std::filesystem::exists(model, unknown)) models.push_back(model);
    }
    few += fmt::format("; the sweep in {} has kept {}: --keep N keeps those of its N best trials", file,
                       models.size() - before);
  }
  if (models.size() >= 2) return models;
  throw GraphError(fmt::format("average takes two models or more; found {}{}", models.size(), few));
}

}  // namespace

int command_average(const AverageOptions& given) {
  AverageOptions options = given;
  options.files = models_in(given.files);
  const std::vector<std::string>& files = options.files;
  options.session.files.weights = files.front();  // whose run says what it changed in the graph
  NamedPaths inputs;
  for (const std::string& file : files) inputs.emplace_back("MODEL", file);
  const NamedPaths outputs = {{"--output", options.out}};
  check_inputs_kept(inputs, outputs);
  check_folds(options);
  std::vector<std::string> graph_files;
  Graph graph = load_as_trained(options, &graph_files);
  check_graph_kept(graph_files, options.session.files, outputs);
  check_weights_name("--output", options.out);
  check_kind_kept("--output", options.out, OutputKind::Weights);
  const auto held = hold_outputs(outputs);
  SessionOptions session = session_options(options);
  take_as_trained(session, options, graph);
  const ModelAverage average(std::move(graph), session, files);
  const std::string with = options.greedy ? "with " : "";
  const SoupTable table(files, average.metric(), with);
  std::vector<ModelAverage::Measured> single;
  std::vector<size_t> all;
  for (size_t model = 0; model < files.size(); ++model) {
    all.push_back(model);
    single.push_back(average.mean({model}));
    table.line(files[model], single.back());
  }
  GreedySoup soup;
  if (options.greedy) {
    soup = greedy_soup(average, single, [&](size_t model, bool joins, const ModelAverage::Measured& mean) {
      table.line(with + files[model], mean, joins ? "" : ", left out");
    });
  } else {
    soup = {all, average.mean(all)};
  }
  average.save(options.out, soup.mean, soup.models.size());
  table.line(fmt::format("mean of {}", soup.models.size()), soup.mean, fmt::format(": {}", printable(options.out)));
  warn_of_worthless_mean(average, single, soup.mean);
  return kDone;
}

void declare_average(Subcommands& commands) {
  const auto command =
      commands.add<AverageOptions>("average", "write the mean of several trained models", command_average);
  CLI::App& app = command.app;
  AverageOptions& options = command.options;
  bind_graph(app, options);
  bind_passes(app, options.session);
  bind_reading(app, options.session, "go on over so many samples that cannot be read, which are left out");
  app.add_option("MODEL", options.files,
                 "weights of models of this graph (safetensors), two at least; a sweep's folder stands for those that "
                 "it has kept")
      ->type_name("")
      ->check(not_empty());
  app.add_option("-o,--output", options.out, "the file of weights to write")->type_name("FILE")->check(not_empty());
  app.add_flag("--greedy", options.greedy,
               "from the best model on, take in each with which the mean is as good on the validation data; otherwise "
               "all");
  app.add_option("--metric", options.session.rules.metric,
                 "what models are compared by, NAME or NAME:min or NAME:max; otherwise the first that is not the loss")
      ->type_name("NAME")
      ->check(not_empty());
  app.add_option("--recalibrate", options.session.rules.recalibrate,
                 fmt::format("training batches that statistics of batch norms are made anew with; 0: as the graph's "
                             "Validate says, otherwise {}",
                             ModelAverage::kRecalibrate))
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(0));
  app.footer(
      "Every model, and every mean, is measured on the graph's validation data, with statistics of batch norms that\n"
      "are made anew. Models should share a part of their training: the mean of models from different first weights\n"
      "is worth nothing. Models of several folds are refused with --greedy: each was trained on what others hold out.");
  command.check = [&app, &options] { require(options.out, "--output", app); };
}

}  // namespace arbalest
