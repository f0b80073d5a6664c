#pragma once
// The command line as structs, one a subcommand.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "executor/session.h"
#include "executor/target.h"
#include "executor/what_if.h"

namespace arbalest {

// A graph and where it runs; common to all commands that take a graph.
struct GraphOptions {
  std::string graph;                       // the file
  std::string devices = "auto";            // see executor/device_list.h
  std::optional<Strategy::Kind> strategy;  // otherwise the graph's
  Precision precision = Precision::Fp32;
  uint64_t seed = 1;
  bool deterministic = false;
  std::vector<std::string> set;  // each "node.attribute=value"
  int threads = 0;               // of the process for kernels and decoding; 0: one a core
};

// What makes a plan; common to run, check and plan.
struct PlanOptions : GraphOptions {
  int learners = 1;                   // per device; 0: auto
  int64_t batch_total = 0;            // samples of all learners' batches together; 0: the graph's, for each
  int64_t recalibrate = 0;            // batches before each validation; 0: as the graph says
  std::optional<int64_t> epochs;      // otherwise the graph's
  std::optional<int64_t> iterations;  // ends earlier than the epochs say
};

struct RunOptions : PlanOptions {
  ValidationRules rules;  // --until, --metric, --patience, --plateau
  RateScaling scale_lr = RateScaling::None;
  std::string weights;             // read before training
  std::string save;                // written at the end
  double collective_timeout = 20;  // seconds
  std::string save_best;           // written after each validation that is better than all before
  std::string trace;
  std::string log;        // JSON lines
  int64_t log_every = 0;  // iterations between progress events; 0: by the length of an epoch
};

struct CheckOptions : PlanOptions {
  bool json = false;
};

struct PlanCommandOptions : PlanOptions {
  std::string after;  // a pass: print the graph as it leaves it
  bool json = false;
};

struct TraceOptions {
  std::string file;
  int slowest = 5;
  bool each = false;
  int gaps = 5;
  int reasons = 3;
  std::vector<WhatIf> what_if;
};

// Throughput over devices × learners. `devices` is the pool that the cells take theirs from.
struct ScalingOptions : GraphOptions {
  std::vector<int> device_counts;   // ascending; empty: powers of two up to the pool's size, and that size
  std::vector<int> learners = {1};  // per device, ascending
  std::optional<int64_t> batch;     // per learner; otherwise the graph's
  int windows = 5;
  double window_seconds = 1;
  double warmup_seconds = 1;
  int64_t report_every = 20;             // iterations between the timestamps at which windows begin and end
  std::optional<double> price_per_hour;  // of all devices of the pool
  bool json = false;
};

struct OpsOptions {
  std::string name;  // empty: all
};

// The process ends with `status` after printing `text`: help on standard output (0), faults on standard error (2).
struct Exit {
  int status = 0;
  std::string text;
};

using Command =
    std::variant<Exit, RunOptions, CheckOptions, PlanCommandOptions, TraceOptions, ScalingOptions, OpsOptions>;

Command parse_command_line(int argc, const char* const* argv);

}  // namespace arbalest
