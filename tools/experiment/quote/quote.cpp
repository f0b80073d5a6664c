// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/quote/quote.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/device_model.h"
#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/files/folder.h"
#include "executor/limit/recomputation.h"
#include "executor/plan/make_plan.h"
#include "executor/plan/plan_part.h"
#include "executor/trace/simulate.h"
#include "executor/trace/verdict.h"
#include "tools/experiment/answer/costs.h"
#include "tools/experiment/quote/plan_costs.h"
#include "tools/experiment/trials/machine_state.h"
#include "tools/experiment/trials/trials.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Bytes that NCCL takes on each GPU, its kernels included: 1092 to 1111 MiB, as measured with seven models.
constexpr int64_t kConnectionBytes = int64_t{1102} << 20;
// Iterations: reports and averages of several are in them.
constexpr int64_t kFewestSimulated = 2000, kMostSimulated = 20000;

// The cell on its first device.
BenchCell on_one_device(BenchCell cell) {
  cell.settings["devices"] = to_string(devices_of(cell).front());
  cell.settings.erase("hosts");
  return cell;
}

// The cell that is profiled. Learners of one CPU take turns, and of one GPU two show how they slow each other down.
// CPU devices of one process share its threads.
BenchCell profiled_cell(BenchCell cell, int64_t learners, const std::string& train_node) {
  const std::vector<PlanDevice> devices = devices_of(cell);
  cell = on_one_device(std::move(cell));
  cell.settings["learners"] = learners > 1 ? "2" : "1";
  if (devices.size() > 1 && devices.front().kind == PlanDevice::Kind::Cpu) {
    int64_t threads = std::atoi(setting_of(cell.settings, "threads").c_str());
    if (threads == 0) threads = std::max<int64_t>(1, int64_t(usable_cores().size()));
    cell.settings["threads"] = std::to_string(std::max<int64_t>(1, threads / int64_t(devices.size())));
  }
  // Neither changes how long a step takes, so that cells which differ in them share a profile.
  for (const char* attribute : {"lr", "epochs"}) {
    for (const std::string& node : {train_node, std::string("train")}) cell.settings.erase(node + "." + attribute);
  }
  return cell;
}

// How names of profiles end, and those of profiles that are being taken.
constexpr std::string_view kTrace = ".trace.json.gz", kTaken = ".new.trace.json.gz";

// The first profile in the folder whose name begins so; "": there is none.
std::string first_trace(const fs::path& folder, const std::string& begin) {
  std::error_code none;
  std::set<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && !name.ends_with(kTaken)) found.insert(entry.path().string());
  }
  return found.empty() ? "" : *found.begin();
}

// Why a cell cannot be predicted at all; "": it can.
std::string unpredictable(const BenchCell& cell) {
  if (setting_of(cell.settings, "learners") == "auto") return "the number of learners is found while training";
  if (!setting_of(cell.settings, "batch_total").empty()) return "batch_total: the batch is not that of the profile";
  return "";
}

// How many times as long compute tasks took as they cost, since they ran next to collectives.
double slowed(const Plan& plan, const Costs& costs, const std::vector<TaskSpan>& spans) {
  double took = 0, cost = 0;
  for (const TaskSpan& span : spans) {
    if (plan.tasks[span.task].kind != Task::Kind::Compute) continue;
    took += double(span.ended - span.started);
    cost += double(costs.tasks[span.task].duration.of(span.instance));
  }
  return cost > 0 ? took / cost : 1;
}

// A plan of all hosts in simulated time.
struct Prediction {
  double images_per_second = 0;
  std::string limit;
};

// Iterations that replay all that the profile recorded, between the two limits.
int64_t iterations_for(const Costs& costs) {
  int64_t recorded = 0;
  for (const TaskCosts& task : costs.tasks) recorded = std::max(recorded, task.duration.size());
  return std::clamp(recorded, kFewestSimulated, kMostSimulated);
}

// CPU devices of a host share its cores, of which an image takes as much as it took in the profile.
void bound_by_cores(const PlannedCell& planned, const Profile& profile, Prediction& predicted) {
  const std::optional<double> each = core_seconds_of_image(profile);
  const std::set<int> cores = usable_cores();
  if (!each || cores.empty()) return;
  const double most = double(rank_count(planned.plan)) * double(cores.size()) / *each;
  if (most >= predicted.images_per_second) return;
  predicted.images_per_second = most;
  predicted.limit =
      fmt::format("Cores: an image takes {:.3g} ms of one, and CPU devices share {}.", *each * 1e3, cores.size());
}

Prediction predict(const PlannedCell& planned, const Profile& profile, const WorldLinks& links) {
  TraceFile trace;
  trace.plan = part_of(planned.plan, 0);
  Costs costs = costs_of_plan(trace.plan, planned.learners, profile, links);
  const std::vector<PlanDevice>& own = trace.plan.devices;
  if (own.size() > 1 && own.front().kind == PlanDevice::Kind::Cpu) costs.threads.host *= int32_t(own.size());
  Simulation simulation = simulate(trace.plan, costs, {.iterations = iterations_for(costs)});
  if (simulation.steady.iteration_ns <= 0) throw RunError("too few iterations to predict");
  const auto learners = double(planned.plan.devices.size()) * double(planned.learners);
  const double images = double(planned.prepared.program.training().batch) * learners;
  trace.run.strategy = planned.prepared.request.strategy.name;
  trace.run.learners = planned.learners;
  trace.tasks = std::move(simulation.spans);
  std::string limit = judge(trace, analyze(trace)).sentence;
  if (rank_count(planned.plan) > 1) limit = "Each host: " + limit;
  const double longer = slowed(trace.plan, costs, trace.tasks) - 1;
  if (longer >= 5e-4) limit += fmt::format(" Compute takes {:.1f} % longer next to collectives.", 100 * longer);
  Prediction predicted = {images * 1e9 / simulation.steady.iteration_ns, std::move(limit)};
  if (own.size() > 1 && own.front().kind == PlanDevice::Kind::Cpu) bound_by_cores(planned, profile, predicted);
  return predicted;
}

// Bytes that a device needs beyond its plan: workspaces of so many that use them, and what libraries, their code and
// recorded steps have taken of a GPU.
int64_t beyond_plan(const Profile& profile, int64_t users) {
  const TracedRun& run = profile.trace.run;
  const int64_t bound = planned_bytes(profile.trace.plan, 0);
  const int64_t workspaces = (bound - planned_bytes(profile.plan, 0)) / std::max<int64_t>(1, run.learners) * users;
  return workspaces + std::max<int64_t>(0, run.taken_bytes - bound);
}

// The basis of a profile, or of a quote.
std::string basis_of(const Identity& identity) {
  return hash_of(identity.graph + "\n" + identity.options);
}

}  // namespace

std::vector<Quote> read_quotes(const std::string& path) {
  std::vector<Quote> quotes;
  std::error_code unknown;
  if (!fs::exists(path, unknown)) return quotes;
  try {
    const Json all = Json::parse(read_text(path));
    for (const Json& record : all.at("quotes")) {
      // An earlier version's is predicted anew.
      if (record.contains("basis") && !record.contains("run_images_per_second")) continue;
      Quote& quote = quotes.emplace_back();
      record.at("cell").get_to(quote.cell);
      record.at("basis").get_to(quote.basis);
      record.at("device").get_to(quote.device);
      record.at("links").get_to(quote.links);
      record.at("images_per_second").get_to(quote.images_per_second);
      record.at("efficiency").get_to(quote.efficiency);
      record.at("memory_bytes").get_to(quote.memory_bytes);
      record.at("run_seconds").get_to(quote.run_seconds);
      record.at("run_images_per_second").get_to(quote.run_images_per_second);
      record.at("limit").get_to(quote.limit);
      record.at("fault").get_to(quote.fault);
    }
  } catch (const nlohmann::json::exception& error) {
    throw RunError(fmt::format("{}: holds no quotes of a bench: {}; --quote writes it anew", path, error.what()));
  }
  return quotes;
}

void write_quotes(const std::string& path, const std::vector<Quote>& quotes) {
  Json all = Json::array();
  for (const Quote& quote : quotes) {
    all.push_back({{"cell", quote.cell},
                   {"basis", quote.basis},
                   {"device", quote.device},
                   {"links", quote.links},
                   {"images_per_second", quote.images_per_second},
                   {"efficiency", quote.efficiency},
                   {"memory_bytes", quote.memory_bytes},
                   {"run_seconds", quote.run_seconds},
                   {"run_images_per_second", quote.run_images_per_second},
                   {"limit", quote.limit},
                   {"fault", quote.fault}});
  }
  AtomicFile file(path);
  file.write(Json{{"event", "quotes"}, {"quotes", all}}.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  file.commit();
}

Link usual_link(PlanDevice::Kind kind, const std::string& model) {
  if (kind == PlanDevice::Kind::Cpu) return {20e-6, 3e9};
  return {13e-6, device_model_or_usual(model).link_bytes_per_second};
}

Quoter::Quoter(Identities& identities, std::string folder, const StatedLinks& links, RunProfile run)
    : identities_(identities), folder_(std::move(folder)), links_(links), run_(std::move(run)) {}

WorldLinks Quoter::links_of(const BenchCell& cell) const {
  if (hosts_in(cell.settings) > 1 && !links_.between) {
    throw GraphError(
        fmt::format("{}: no links between hosts are stated; expected their latency and bandwidth: [links] between = "
                    "\"10us,400Gbit/s\"",
                    cell.name));
  }
  return {links_.within.value_or(Link()), links_.between.value_or(Link())};
}

std::string basis_of(Identities& identities, const BenchCell& cell) {
  return basis_of(identities.of(cell, scaling_words(cell.settings)));
}

Profile Quoter::profile_of(const BenchCell& cell, int64_t learners) {
  const BenchCell alone = profiled_cell(cell, learners, identities_.train_node(cell));
  const std::vector<std::string> words = scaling_words(alone.settings);
  return {read_trace(profile_file(alone, words)), plan_of(words).plan};
}

// The trace of a profile with these words, which is taken unless it is there. Throws RunError with the reason if there
// is none. A device that is not here has the profile of any that was taken of its kind.
std::string Quoter::profile_file(const BenchCell& alone, const std::vector<std::string>& words) {
  const Identity identity = identities_.of(alone, words);
  const std::string begin = basis_of(identity);
  if (identity.devices.empty()) {
    std::string found = first_trace(folder_, begin);
    if (!found.empty()) return found;
    throw RunError(fmt::format(
        "{} is not in this machine, and {} is not there; --quote on a machine that has such a "
        "device takes it, and the folder can be copied",
        setting_of(alone.settings, "devices"), (fs::path(folder_) / (begin + "-*.trace.json.gz")).string()));
  }
  const std::string path =
      (fs::path(folder_) / fmt::format("{}-{}.trace.json.gz", begin, hash_of(identity.build + "\n" + identity.devices)))
          .string();
  if (fs::exists(path)) return path;
  std::string& fault = faults_[path];
  if (fault.empty()) {
    make_folders(folder_);
    // Under a name of its own until it is done, so that one that was cut off is never taken for the profile.
    const std::string taken = path.substr(0, path.size() - kTrace.size()) + std::string(kTaken);
    std::vector<std::string> traced = words;
    traced.insert(traced.end(), {"--windows", "3", "--window-seconds", "0.5", "--warmup-seconds", "0.5", "--settled",
                                 "0.05", "--json", "--trace", taken});
    fault = run_(alone.name, traced);
    // A process that times engines keeps code of all that it tried, and the cell's own will find these choices.
    if (fault.empty() && read_trace(taken).run.timed_engines > 0) fault = run_(alone.name, traced);
    std::error_code ignored;
    if (!fault.empty()) {
      fs::remove(taken, ignored);
    } else if (std::error_code failed; fs::rename(taken, path, failed), failed) {
      fault = fmt::format("{} cannot be renamed: {}", taken, failed.message());
    }
  }
  if (!fault.empty()) throw RunError("the profile failed: " + fault);
  return path;
}

bool Quoter::profile_failed() const {
  return std::any_of(faults_.begin(), faults_.end(), [](const auto& each) { return !each.second.empty(); });
}

Quote Quoter::quote(const BenchCell& cell, const CellNeeds& needs, bool trains) {
  Quote quote;
  quote.cell = cell.id;
  quote.memory_bytes = needs.bytes;
  quote.fault = needs.fault.empty() ? unpredictable(cell) : needs.fault;
  try {
    quote.basis = basis_of(identities_, cell);
    if (!quote.fault.empty()) return quote;
    const int hosts = hosts_in(cell.settings);
    WorldLinks links = links_of(cell);
    const PlannedCell planned = plan_of(scaling_words(cell.settings), hosts);
    const Profile profile = profile_of(cell, planned.learners);
    const TracedRun& profiled = profile.trace.run;
    const std::vector<PlanDevice>& devices = planned.plan.devices;
    // The profile does not validate, which takes about as much as a learner does.
    quote.memory_bytes += beyond_plan(profile, planned.learners + (trains ? 1 : 0));
    if (devices.front().kind == PlanDevice::Kind::Cuda && devices.size() > 1) quote.memory_bytes += kConnectionBytes;
    quote.device = profiled.models.empty() ? "" : profiled.models.front();
    if (!links_.within) links.within = usual_link(devices.front().kind, quote.device);
    if (int64_t(devices.size()) > hosts) quote.links = "within hosts " + to_string(links.within);
    if (hosts > 1) quote.links += (quote.links.empty() ? "" : "; ") + ("between hosts " + to_string(links.between));
    const Prediction all = predict(planned, profile, links);
    quote.images_per_second = all.images_per_second;
    quote.limit = all.limit;
    if (devices.size() > 1) {
      const Prediction alone = predict(plan_of(scaling_words(on_one_device(cell).settings)), profile, {});
      quote.efficiency = all.images_per_second / double(devices.size()) / alone.images_per_second;
    }
    if (trains) {
      quote.run_seconds = (needs.samples + needs.validated * forward_share(profile.trace)) / quote.images_per_second;
      if (quote.run_seconds > 0) quote.run_images_per_second = needs.samples / quote.run_seconds;
    }
  } catch (const Error& error) {
    quote.fault = error.what();
  }
  return quote;
}

namespace {

// By how much a prediction is off, which is added to `all`; "-" if one of the two is unknown.
TableValue off_by(double predicted, double measured, std::vector<double>& all) {
  if (predicted <= 0 || measured <= 0) return {"-"};
  all.push_back(predicted / measured - 1);
  return {fmt::format("{:+.1f} %", 100 * all.back()), all.back()};
}

int64_t within(double most, const std::vector<double>& errors) {
  return std::count_if(errors.begin(), errors.end(), [&](double error) { return std::abs(error) <= most; });
}

void add_price_columns(const BenchFile& file, const TimeUnit& unit, ResultTable& table) {
  const std::string money = file.price->currency + (file.accuracy ? " a run" : " for 1e6 images");
  table.columns.push_back({money});
  if (file.price->spot_per_hour.empty()) return;
  if (file.accuracy) table.columns.push_back({fmt::format("{} a run on spot", unit.name)});
  table.columns.push_back({money + " on spot"});
}

// Adds the values of those columns. Returns the ways that a run of so many seconds can be done; 0: it is unknown.
std::vector<CellCost> add_prices(const BenchFile& file, const CellSummary& summary, double seconds,
                                 const TimeUnit& unit, std::vector<TableValue>& row) {
  const auto number = [](double value) { return value > 0 ? TableValue{shown(value), value} : TableValue{"-"}; };
  std::vector<CellCost> ways = ways_of(*file.price, summary, seconds);
  for (const CellCost& way : ways) {
    if (way.machine.spot && file.accuracy) row.push_back(number(way.seconds / unit.seconds));
    row.push_back(number(way.money));
  }
  if (seconds <= 0) ways.clear();
  return ways;
}

}  // namespace

ResultTable quote_table(const BenchFile& file, const std::vector<CellSummary>& summaries,
                        const std::vector<Quote>& quotes) {
  const bool of_runs = file.accuracy && !file.throughput;  // whose validations count in what is measured
  ResultTable table{"Predicted",
                    {{"cell", false},
                     {of_runs ? "images/s of a run" : "images/s"},
                     {"efficiency"},
                     {"measured"},
                     {"error"},
                     {"memory"},
                     {"measured"},
                     {"error"}},
                    {},
                    {}};
  double longest = 0;
  for (const Quote& quote : quotes) longest = std::max(longest, quote.run_seconds);
  const TimeUnit unit = unit_of(longest);
  if (file.accuracy) table.columns.push_back({fmt::format("{} a run", unit.name)});
  if (file.price) add_price_columns(file, unit, table);
  table.columns.push_back({"note", false});
  std::vector<double> rates_off, memory_off;
  std::vector<CellCost> ways;
  std::set<std::string> devices, links;
  bool shares_cores = false;
  for (const CellSummary& summary : summaries) {
    const auto quote =
        std::find_if(quotes.begin(), quotes.end(), [&](const Quote& each) { return each.cell == summary.cell->id; });
    if (quote == quotes.end()) continue;
    const std::vector<double>& rates = of_runs ? summary.run_rates : summary.rates;
    const double rate = of_runs ? quote->run_images_per_second : quote->images_per_second;
    const auto number = [](double value) { return value > 0 ? TableValue{shown(value), value} : TableValue{"-"}; };
    const auto share = [](double value) {
      return value > 0 ? TableValue{fmt::format("{:.1f} %", 100 * value), value} : TableValue{"-"};
    };
    const auto size = [](int64_t bytes) {
      return bytes > 0 ? TableValue{size_text(bytes), double(bytes)} : TableValue{"-"};
    };
    const double measured = rates.empty() ? 0 : median_of(rates);
    const int64_t taken = summary.taken_bytes > 0 ? summary.taken_bytes : summary.peak_bytes;
    std::vector<TableValue> row = {{summary.cell->name},
                                   number(rate),
                                   share(quote->efficiency),
                                   number(measured),
                                   off_by(rate, measured, rates_off),
                                   size(quote->memory_bytes),
                                   size(taken),
                                   off_by(double(quote->memory_bytes), double(taken), memory_off)};
    if (file.accuracy) row.push_back(number(quote->run_seconds / unit.seconds));
    if (file.price) {
      const double seconds = file.accuracy ? quote->run_seconds : rate > 0 ? 1e6 / rate : 0;
      for (const CellCost& way : add_prices(file, summary, seconds, unit, row)) ways.push_back(way);
    }
    row.push_back({quote->fault.empty() ? quote->limit : quote->fault});
    table.rows.push_back(std::move(row));
    if (!quote->device.empty()) devices.insert(quote->device);
    if (!quote->links.empty()) links.insert(quote->links);
    const std::vector<PlanDevice> own = devices_of(*summary.cell);
    shares_cores = shares_cores || (own.size() > 1 && own.front().kind == PlanDevice::Kind::Cpu && rate > 0);
  }
  if (!rates_off.empty()) {
    table.notes.push_back(
        fmt::format("{} of {} cells within 5 % of the images/s that were measured, {} of {} within 2 % of the memory",
                    within(0.05, rates_off), rates_off.size(), within(0.02, memory_off), memory_off.size()));
  }
  if (of_runs) table.notes.emplace_back("images/s of a run are those that it trains; its time has validations as well");
  if (file.accuracy && !ways.empty() && file.price->by_seconds > 0) {
    table.notes.push_back("predicted for whole runs: " + cheapest_in_time(*file.price, ways));
  }
  for (const std::string& device : devices) table.notes.push_back("from profiles of one device: " + device);
  if (shares_cores) {
    table.notes.emplace_back(
        "CPU devices of a machine share its cores, which is predicted, and its memory, which is not");
  }
  for (const std::string& link : links) {
    table.notes.push_back(fmt::format("links {}: {}", link, kLinkAssumptions));
  }
  return table;
}

}  // namespace arbalest
