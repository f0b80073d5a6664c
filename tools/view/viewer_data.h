// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trace as the viewer's page carries it: a head of JSON, and the instances of tasks and nodes in columns.
//
// Instances are grouped in rows, and within a row in the order of time; in a row none overlaps another. A device lane
// is one row, and the host as many as it has tasks at once. With t the unit of time (head: unit_ns), the columns of
// instances are
//   task      signed: task − that of the instance before in the row
//   instance  signed: instance − (the one of the same task that came before in the columns + 1)
//   gap       signed: start − end of the instance before in the row, in t; of the first, start − begin_ns
//   duration  in t
//   ready     0: unknown; otherwise 1 + signed (start − ready), in t
//   issued    0: unknown; otherwise 1 + signed (issued − ready), or if `ready` is unknown 1 + signed (start − issued)
// and those of nodes, which are in the order of the instances that they are part of,
//   parent    position of the instance − that of the node before
//   launch    index into the head's `launches`
//   gap, duration  as above; the gap of a parent's first node is from the parent's start
// and those of samples, of all series at the same times,
//   at        signed: from the time of the sample before in t; of the first, from begin_ns
//   value     signed: from the value before of its series, or 0, in the series' `scale`; one series after the other

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "executor/trace/trace_file.h"
#include "tools/view/columns.h"

namespace arbalest {

struct ViewerData {
  nlohmann::ordered_json head;            // trace_json()'s, with unit_ns, rows, launches and the columns' counts
  std::map<std::string, Column> columns;  // by name: "task", …, "node_parent", …
};

// `name` is what the page calls the trace. A trace without instances is shown as such. Throws GraphError if the plan
// cannot run.
ViewerData viewer_data(const TraceFile& trace, const std::string& name);

}  // namespace arbalest
