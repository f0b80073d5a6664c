// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command line as structs, one a subcommand. What a subcommand is, and how one is added: subcommand.h.

#include <any>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "executor/inference/export_model.h"
#include "executor/session/session.h"
#include "executor/session/target.h"
#include "executor/trace/link_model.h"
#include "executor/trace/what_if.h"
#include "executor/world/world.h"
#include "graph/file/graph_file.h"
#include "graph/file/onnx_file.h"
#include "tools/answers/prediction_lines.h"
#include "tools/data/pack.h"
#include "tools/start/start_graph.h"

namespace arbalest {

enum class TableFormat : uint8_t;  // tools/experiment/answer/table.h

// A graph and what a session is asked of it; common to all commands that take a graph.
struct GraphOptions {
  std::string graph;             // the file
  std::string devices = "auto";  // see executor/plan/device_list.h
  std::vector<std::string> set;  // each "node.attribute=value"
  ModelFiles models;             // of the models that the graph calls
  SessionOptions session;        // without devices: see session_options()
  std::set<std::string> given;   // of --seed and --skip-bad, those on the command line
  bool tells_of_set = true;      // warns of what `set` changes without effect
};

// An option of a command line, given or not, under its name without dashes.
struct OptionValue {
  std::string name;
  std::vector<std::string> words;  // as given, otherwise the default; none: neither, or a flag that is not set
  bool flag = false;
  bool repeatable = false;
};

struct RunOptions : GraphOptions {
  std::string log;                     // JSON lines
  std::string tensorboard;             // a folder for event files
  std::string mllog;                   // MLPerf's
  std::string mllog_target;            // "accuracy >= 0.759"
  std::vector<std::string> mllog_set;  // each "submission_org=Lab"
  WorldOptions world;
  // The command line and its options, for readers of either output.
  std::vector<std::string> command_line;
  std::vector<OptionValue> given;
};

// arbalest sweep: many runs that differ in settings. The options of a run hold for all of them.
struct SweepOptions : RunOptions {
  std::vector<std::string> vary;  // each "train.lr=0.05,0.1"
  int64_t samples = 0;            // combinations to draw; 0: all
  int64_t folds = 0;              // of the training data; 0: none
  std::string fold_by;            // a field: samples with the same value stay together
  enum class Search : uint8_t { All, Grid, Random, Asha };
  Search search = Search::All;
  int64_t first_rung = 1;  // epochs
  int reduction = 3;
  bool find_rate = false;
  std::string out;         // the folder of logs and models
  int at_once = 0;         // trials on each device; 0: by the device
  std::string keep = "1";  // models: of so many of the best, or "all"
  bool dry_run = false;
  bool retry = false;              // trials that failed run once more
  std::vector<std::string> words;  // of `arbalest run`, that all trials share
  std::set<std::string> varies;    // options of it that trials may differ in, without dashes
};

// The run whose checkpoints are in the folder.
struct ResumeOptions {
  std::string folder;
  std::vector<std::string> changes;  // CheckpointOptions::changes
  bool retry = false;                // of a sweep: SweepOptions::retry
  WorldOptions world;                // of this process; what is not given is as the run had it
  std::set<std::string> given = {};  // options of `world` with a default that are given
};

struct CheckOptions : GraphOptions {
  bool json = false;
};

struct PlanCommandOptions : GraphOptions {
  std::string after;  // a pass: print the graph as it leaves it
  std::string world;  // "2x4": for so many hosts with so many devices each
  bool json = false;
};

struct TraceOptions {
  std::string file;
  int slowest = 5;
  bool full = false;  // tell all
  bool json = false;
  bool each = false;
  int gaps = 5;
  int reasons = 3;
  std::vector<WhatIf> what_if;
  std::vector<WorldSize> worlds;
  WorldLinks links;
};

struct ViewOptions {
  std::vector<std::string> traces;
  std::string file;  // "": named after the first trace, in the working directory
};

struct ReportOptions {
  std::vector<std::string> logs;
  std::string file;  // "": named after the first log, in the working directory
  enum class Plot : uint8_t { None, Scaling, Accuracy };
  Plot plot = Plot::None;  // a picture in the page's place
};

// Throughput over devices × learners. `devices` is the pool that the cells take theirs from.
struct ScalingOptions : GraphOptions {
  ScalingOptions() { session.execution.report_every = 20; }  // windows begin and end at reports

  std::vector<int> device_counts;   // ascending; empty: powers of two up to the pool's size, and that size
  std::vector<int> learners = {1};  // per device, ascending
  int windows = 5;
  double window_seconds = 1;
  double warmup_seconds = 1;
  double settled = 0;                    // WindowRule::settled
  std::string trace;                     // of the only cell; "": none
  std::optional<double> price_per_hour;  // of all devices of the pool
  bool json = false;
  std::string write;       // a bench file to write in place of measuring; "": none
  std::string bench_text;  // that file, if it is to be written
  WorldOptions world;
};

// arbalest bench FILE: an experiment.
struct BenchOptions {
  std::string file;                // .toml
  std::string results;             // "": named after the file, in the working directory
  std::vector<std::string> set;    // each "learners=[1, 2]"
  std::vector<std::string> cells;  // ids of those to look at; empty: all
  bool dry_run = false;            // print the cells, run nothing
  bool quote = false;              // predict the cells from profiles, measure nothing
  bool anyway = false;             // measure on a machine that does other work
  bool retry = false;              // trials that failed run again
  int64_t gpu_memory = 0;          // of each GPU, for plans; 0: of those that are here
  std::string slurm;               // a folder to write a script into
  std::string collect;             // a folder of results to take over
  TableFormat format = {};
  std::string output;   // the page; "": none
  std::string svg;      // a folder for the page's plots; "": none
  std::string bundle;   // an archive to publish; "": none
  std::string program;  // that runs trials; "": this one
};

// arbalest bench compare: results before and after a change.
struct BenchCompareOptions {
  std::vector<std::string> files;  // old, new
  double threshold = 0;            // a share by which what is worse may be worse
  std::vector<double> targets;     // of the metric
  TableFormat format = {};
};

// arbalest bench tracing: the throughput that a trace costs.
struct TracingOptions : GraphOptions {
  TracingOptions() { session.execution.report_every = 20; }

  int rounds = 9;
  int windows = 3;  // of a run; their median is its throughput
  double window_seconds = 1;
  double warmup_seconds = 1;
};

// arbalest profile: the time of a step by nodes or layers.
struct ProfileOptions : GraphOptions {
  ProfileOptions() { session.execution.report_every = 5; }

  double seconds = 2;            // of training that throughput is measured over
  int slowest = 10;              // nodes to list
  bool layers = false;           // every layer
  bool json = false;
};

// One pass over a split with weights as they are.
struct EvaluateOptions : GraphOptions {
  WorldOptions world;
  std::string split;        // "": the graph's validation split
  std::string class_names;  // a file of them, a line each
  std::string value;        // the scores that classes are counted by; "": the first loss's
  double threshold = 0.5;   // the probability above which one of several labels counts as predicted
  bool json = false;
};

// A table of predictions and of what they should have been: CSV with a column for the probability of each class.
struct PredictionTable {
  std::function<void(const std::string& text)> write;  // takes the lines
  bool head = true;
  std::vector<std::pair<std::string, std::string>> columns;  // the first ones, which are the same in each line
};

struct PredictOptions : GraphOptions {
  using Format = LineFormat;
  WorldOptions world;
  std::string split;
  std::string class_names;
  std::string value;               // instead of classes, the numbers of this value of the graph, or its classes
  int top = 0;                     // classes per sample; 0: one, or all labels if there are several per sample
  std::vector<std::string> files;  // instead of a split
  Format format = Format::Lines;
  std::optional<PredictionTable> table;  // instead of lines on standard output
};

struct ExportCommandOptions : GraphOptions {
  std::string file;         // .onnx
  std::string class_names;  // a file of them, a line each
  OnnxFileOptions written;
  ExportOptions exported;
};

struct AverageOptions : GraphOptions {
  std::vector<std::string> files;  // of the models' weights
  std::string out;                 // .safetensors
  bool greedy = false;
};

// arbalest data: the content of a data set.
struct DataOptions {
  std::string source;
  std::vector<std::string> splits;  // empty: train and test, if they exist
  int64_t limit = 0;                // samples of a split to read; 0: all
  int threads = 0;                  // 0: one per core
  std::string contact_sheet;        // .html, .png or .jpg of the first split; "": none
  bool json = false;
};

struct PackCommandOptions {
  PackOptions pack;  // without the split
  std::vector<std::string> splits;
  std::optional<int> quality;
};

struct OpsOptions {
  std::string name;  // empty: all
};

struct SourcesOptions {
  std::string name;  // empty: all
};

// The process ends with `status` after printing `text`: help on standard output (0), faults on standard error (2).
struct Exit {
  int status = 0;
  std::string text;
};

int command_exit(const Exit& exit);

// A command line that has been understood.
struct Command {
  std::any options;          // of the subcommand's type, such as RunOptions; or Exit
  std::function<int()> run;  // returns the exit status
};

template <typename Options>
const Options* options_if(const Command& command) {
  return std::any_cast<Options>(&command.options);
}

inline Command command_of(const Exit& exit) {
  return {exit, [exit] { return command_exit(exit); }};
}

Command parse_command_line(int argc, const char* const* argv);

}  // namespace arbalest
