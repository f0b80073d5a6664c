// SPDX-License-Identifier: Apache-2.0
#include "tools/view/viewer_data.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "executor/trace/verdict.h"
#include "tools/view/trace_json.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

// Times of long traces keep fewer digits, so that the page stays small: three to four of the mean time from one
// instance to the next.
int64_t unit_for(const TraceFile& trace, const TraceSummary& summary) {
  constexpr size_t kShort = 200'000;
  constexpr int64_t kParts = 5000;
  if (trace.tasks.size() <= kShort) return 1;
  int64_t unit = 10;
  while (unit * 10 <= (summary.end - summary.begin) / int64_t(trace.tasks.size()) / kParts) unit *= 10;
  return unit;
}

struct Row {
  LaneId lane = kNone;
  std::vector<int32_t> spans;  // indices into TraceFile::tasks
};

// Each instance takes the lane's first row that is free.
std::vector<Row> rows_of(const TraceFile& trace) {
  const Plan& plan = trace.plan;
  Table<LaneId, std::vector<Row>> lanes(plan.lanes.size());
  for (size_t i = 0; i < trace.tasks.size(); ++i) {
    const TaskSpan& span = trace.tasks[i];
    const LaneId lane = plan.tasks[span.task].lane;
    std::vector<Row>& rows = lanes[lane];
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& one) {
      return trace.tasks[size_t(one.spans.back())].ended <= span.started;
    });
    if (row == rows.end()) row = rows.insert(rows.end(), Row{lane, {}});
    row->spans.push_back(int32_t(i));
  }
  std::vector<Row> all;
  for (std::vector<Row>& rows : lanes) std::move(rows.begin(), rows.end(), std::back_inserter(all));
  return all;
}

class Writer {
 public:
  Writer(const TraceFile& trace, ViewerData& data, const TraceSummary& summary)
      : trace_(trace), data_(data), unit_(unit_for(trace, summary)), begin_(at(summary.begin)) {}

  void run() {
    data_.head["unit_ns"] = unit_;
    instances();
    nodes();
    samples();
    Json columns = Json::object();
    for (const auto& [name, column] : data_.columns) columns[name] = column.count();
    data_.head["columns"] = std::move(columns);
  }

 private:
  int64_t at(int64_t ns) const { return ns / unit_; }
  Column& column(const char* name) { return data_.columns[name]; }

  static void add_known(Column& column, int64_t since, bool known) {
    column.add(known ? 1 + (uint64_t(since) << 1 ^ uint64_t(since >> 63)) : 0);
  }

  void instances() {
    Column &task = column("task"), &instance = column("instance"), &gap = column("gap"), &duration = column("duration"),
           &ready = column("ready"), &issued = column("issued");
    Table<TaskId, int64_t> next(trace_.plan.tasks.size(), 0);  // instance of each task
    position_.resize(trace_.tasks.size());
    int32_t position = 0;
    Json rows = Json::array();
    for (const Row& row : rows_of(trace_)) {
      rows.push_back({{"lane", row.lane}, {"count", row.spans.size()}});
      int64_t ended = begin_;
      TaskId before = 0;
      for (const int32_t index : row.spans) {
        const TaskSpan& span = trace_.tasks[size_t(index)];
        position_[size_t(index)] = position++;
        task.add_signed(int64_t(span.task) - int64_t(before));
        before = span.task;
        instance.add_signed(span.instance - next[span.task]);
        next[span.task] = span.instance + 1;
        const int64_t start = at(span.started), end = at(span.ended);
        gap.add_signed(start - ended);
        ended = end;
        duration.add(uint64_t(end - start));
        add_known(ready, start - at(span.ready), span.ready >= 0);
        const int64_t since = span.ready >= 0 ? at(span.issued) - at(span.ready) : start - at(span.issued);
        add_known(issued, since, span.issued >= 0);
      }
    }
    data_.head["rows"] = std::move(rows);
  }

  // Nodes whose instance is not in the trace are left out.
  void nodes() {
    std::map<std::pair<TaskId, int64_t>, int32_t> parents;
    if (!trace_.nodes.empty()) {
      for (size_t i = 0; i < trace_.tasks.size(); ++i) {
        parents[{trace_.tasks[i].task, trace_.tasks[i].instance}] = int32_t(i);
      }
    }
    struct Placed {
      const NodeSpan* node;
      int32_t parent;  // position
      int64_t start;
    };
    std::vector<Placed> placed;
    for (const NodeSpan& node : trace_.nodes) {
      const auto found = parents.find({node.task, node.instance});
      if (found == parents.end()) continue;
      placed.push_back({&node, position_[size_t(found->second)], trace_.tasks[size_t(found->second)].started});
    }
    std::stable_sort(placed.begin(), placed.end(),
                     [](const Placed& a, const Placed& b) { return a.parent < b.parent; });
    Column &parent = column("node_parent"), &launch = column("node_launch"), &gap = column("node_gap"),
           &duration = column("node_duration");
    int32_t before = 0;
    int64_t ended = 0;
    for (size_t i = 0; i < placed.size(); ++i) {
      const auto& [node, position, start] = placed[i];
      if (i == 0 || position != placed[i - 1].parent) ended = at(start);
      parent.add(uint64_t(position - before));
      before = position;
      launch.add(uint64_t(node->launch));
      gap.add_signed(at(node->started) - ended);
      ended = at(node->ended);
      duration.add(uint64_t(ended - at(node->started)));
    }
    data_.head["launches"] = trace_.launches;
  }

  // Values in 10 000th of the greatest of their series.
  void samples() {
    constexpr double kSteps = 10'000;
    const Sampling& sampling = trace_.sampling;
    Column &gap = column("sample_at"), &step = column("sample_value");
    int64_t time = begin_;
    for (const int64_t sample : sampling.at) {
      gap.add_signed(at(sample) - time);
      time = at(sample);
    }
    for (size_t i = 0; i < sampling.series.size(); ++i) {
      double greatest = 0;
      for (const double value : sampling.series[i].values) greatest = std::max(greatest, std::abs(value));
      const double scale = greatest > 0 ? greatest / kSteps : 1;
      data_.head["sampling"]["series"][i]["scale"] = scale;
      int64_t before = 0;
      for (const double value : sampling.series[i].values) {
        const int64_t now = std::llround(value / scale);
        step.add_signed(now - before);
        before = now;
      }
    }
  }

  const TraceFile& trace_;
  ViewerData& data_;
  const int64_t unit_, begin_;     // begin_ in units
  std::vector<int32_t> position_;  // of each span in the columns
};

// A trace in which nothing started and ended: there is nothing to judge, and the page says so.
Json head_without_instances(const TraceFile& trace) {
  return {{"graph", trace.graph},
          {"instances", 0},
          {"dropped", trace.dropped},
          {"unfinished", trace.unfinished},
          {"verdict",
           {{"sentence", "No task of this trace started and ended: the run ended before its first task did."},
            {"notes", notes_on(trace.run)},
            {"figures", Json::array()}}}};
}

}  // namespace

ViewerData viewer_data(const TraceFile& trace, const std::string& name) {
  ViewerData data;
  if (trace.tasks.empty()) {
    data.head = head_without_instances(trace);
  } else {
    const TraceSummary summary = analyze(trace);
    data.head = trace_json(trace, summary, what_pays(trace));
    Writer(trace, data, summary).run();
  }
  data.head["name"] = name;
  return data;
}

}  // namespace arbalest
