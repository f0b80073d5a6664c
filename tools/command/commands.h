// SPDX-License-Identifier: Apache-2.0
#pragma once
// The subcommands. Each returns the exit status; a wrong graph is thrown as GraphError, a failed run as RunError.
// A subcommand that was asked to end before it was done returns kInterrupted or throws InterruptedError.

#include "tools/command/options.h"

namespace arbalest {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;         // the run failed
inline constexpr int kWrong = 2;          // the command or the graph is wrong
inline constexpr int kNotReached = 3;     // --until was not reached
inline constexpr int kInterrupted = 130;  // interrupted or out of time

int command_run(const RunOptions& options);
int command_sweep(const SweepOptions& options);
int command_resume(const ResumeOptions& options);
int command_evaluate(const EvaluateOptions& options);
int command_predict(const PredictOptions& options);
int predict_alone(const PredictOptions& options);  // the same, but as no rank of a world
int command_export(const ExportCommandOptions& options);
int command_average(const AverageOptions& options);
int command_check(const CheckOptions& options);
int command_plan(const PlanCommandOptions& options);
int command_trace(const TraceOptions& options);
int command_view(const ViewOptions& options);
int command_report(const ReportOptions& options);
int command_data(const DataOptions& options);
int command_pack(const PackCommandOptions& options);
int command_ops(const OpsOptions& options);
int command_sources(const SourcesOptions& options);
int command_init(const StartOptions& options);
int command_profile(const ProfileOptions& options);
int command_bench(const BenchOptions& options);
int command_bench_compare(const BenchCompareOptions& options);
int command_bench_scaling(const ScalingOptions& options);
int command_bench_tracing(const TracingOptions& options);

// The result of `make` on a trace that was read from `file`. Some faults of the trace's plan show only here; their
// errors name the file too.
template <typename Make>
auto made_of_trace(const std::string& file, const Make& make) {
  try {
    return make();
  } catch (const GraphError& error) {
    throw GraphError(Position{file, 0, 0}, error.what());
  }
}

}  // namespace arbalest
