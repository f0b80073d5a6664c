// SPDX-License-Identifier: Apache-2.0
#pragma once
// The results of a bench: JSON lines, one a finished trial.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/experiment/cells/settings.h"
#include "tools/watch/event_stream.h"

namespace arbalest {

// The quantity that a trial measures.
enum class Measure : uint8_t { Throughput, Accuracy };
std::string_view name_of(Measure measure);

// All that a result depends on apart from chance. Texts, so that a change can be named.
struct Identity {
  std::string graph;    // hash of the graph file's content and of the models' that it calls
  std::string options;  // the command line without the file, weights by their content, and the metric of training
  std::string build;    // of the program and its library
  std::string devices;  // their models, of CPUs with the cores that may be used, and how many hosts
  bool operator==(const Identity&) const = default;
};

// The parts that are not the same, in words: "the graph", "the options", "the build", "the devices".
std::vector<std::string> differences(const Identity& one, const Identity& other);

// A validation of a training run.
struct CurvePoint {
  double epoch = 0, seconds = 0, value = 0;
};

// A finished trial: one repetition of a cell's throughput, or one training run.
struct TrialResult {
  std::string key;   // of the trial: a hash of identity, measure and repetition
  std::string cell;  // BenchCell::id
  std::string name;  // BenchCell::name
  Settings settings;
  Measure measure = Measure::Throughput;
  int64_t repetition = 0;  // from 0 on; of training its seed
  Identity identity;
  std::string error;              // why there is no result; "": there is one
  bool too_large = false;         // whether that is for want of memory, as the plan says; never in a file
  double images_per_second = 0;   // a median of windows, or over all of training
  std::vector<double> windows;    // images/s
  double warmup_seconds = 0;      // until rates agreed
  bool settled = true;            // whether they did
  int64_t peak_bytes = 0;         // planned, of the device that needs most
  int64_t taken_bytes = -1;       // of the GPU that took most: RunFinished::taken_bytes; −1: unknown
  double joules = 0;              // of all GPUs, for the whole process of a training run; 0: unknown
  double joules_per_image = 0;    // of all GPUs, over the windows of throughput; 0: unknown
  double late_batches = -1;       // share of them that the device waited for; −1: unknown
  double gpu_busy = -1;           // share of the windows in which kernels ran, mean of all GPUs; −1: unknown
  double seconds = 0;             // of training
  double setup_seconds = 0;       // before it, from the first touch of data on
  double command_seconds = 0;     // of the whole command of a training run, compilation included; 0: unknown
  double epochs = 0;              // that were trained
  std::vector<CurvePoint> curve;  // of the metric
  bool lower = false;             // whether less of the metric is better
  nlohmann::ordered_json state;   // of the machine

  bool disturbed() const { return state.is_object() && state.contains("faults"); }  // by other work, or a slow clock
};

std::string line_of(const TrialResult& result);  // with a line feed

// Results of a file in its order; those of one key and cell replace earlier ones. Throws RunError for a file that
// cannot be read, or that has lines, none of which is a bench's. A file that does not exist has none.
struct Results {
  std::vector<TrialResult> trials;
  int64_t whole = 0;                // JsonLines::whole
  std::vector<std::string> faults;  // JsonLines::faults: of lines that do not count
};
Results read_results(const std::string& path);

// The results of a file, after a warning for each line that does not count.
std::vector<TrialResult> told_results(const std::string& path);

// Results that are added one by one. Other processes cannot write the file meanwhile.
class ResultsFile {
 public:
  // Throws RunError if the file cannot be written, OutputInUse if another process holds it.
  explicit ResultsFile(const std::string& path);
  const std::vector<TrialResult>& trials() const { return results_.trials; }
  void add(TrialResult result);  // throws RunError if the file cannot be written

 private:
  EventStream file_;
  Results results_;
};

}  // namespace arbalest
