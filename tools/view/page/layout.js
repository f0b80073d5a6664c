// SPDX-License-Identifier: Apache-2.0

// The plan as a picture: a node per task, or per kind of task over learners and devices. It has a column per step of
// the data's way through an iteration, a band per kind of lane.

import { isCpu, laneWords } from "../../page/names.js";

export const kBands = ["host", "copy_in", "compute", "averaging", "collectives", "copy_out", "validate"];

// Lanes of a CPU device take turns on one thread, which is no edge of the plan.
export function takesTurns(head, lane) {
  return lane.device >= 0 && isCpu(head.devices[lane.device]);
}

export function turnsNote(head) {
  const learners = head.devices.map((_, device) => head.lanes.filter((lane) => lane.device === device && lane.kind === "compute" && takesTurns(head, lane)).length);
  return learners.some((count) => count > 1) ? " That learners of a CPU device take turns is left out of it." : "";
}

// Nodes with their tasks, and links: edges that agree in ends, distance and kind.
export function planGraph(head, each) {
  const nodes = [], byName = new Map(), nodeOf = [];
  const critical = new Set(head.critical.edges);
  head.tasks.forEach((task, id) => {
    const name = each ? task.name : task.like;
    if (!byName.has(name)) {
      byName.set(name, nodes.length);
      nodes.push({ name, tasks: [], band: kBands.indexOf(head.lanes[task.lane].kind), kind: task.kind, clock: task.clock,
        critical: false, slack: Infinity, total: 0, count: 0 });
    }
    const node = nodes[byName.get(name)];
    nodeOf[id] = byName.get(name);
    node.tasks.push(id);
    node.slack = Math.min(node.slack, task.slack_us ?? Infinity);
    node.total += task.total_ns;
    node.count += task.count;
  });
  const links = new Map();
  head.edges.forEach((edge, id) => {
    const from = nodeOf[edge.from], to = nodeOf[edge.to];
    const key = [from, to, edge.distance, edge.why, edge.what].join("\n");
    if (!links.has(key)) {
      links.set(key, { from, to, distance: edge.distance, why: edge.why, what: edge.what, relation: edge.relation,
        edges: [], critical: false, slack: Infinity });
    }
    const link = links.get(key);
    link.edges.push(id);
    link.slack = Math.min(link.slack, edge.slack_us ?? Infinity);
    if (critical.has(id)) link.critical = nodes[from].critical = nodes[to].critical = true;
  });
  return { nodes, links: [...links.values()] };
}

// Each node's column: one more than the last of those that it builds on within the iteration. Links that lead back
// (kinds of tasks, taken together, may be on a cycle that the tasks are not on) do not count.
export function ranksOf({ nodes, links }) {
  const out = nodes.map(() => []);
  for (const link of links) if (link.distance === 0 && link.from !== link.to) out[link.from].push(link.to);
  const rank = nodes.map(() => 0), state = nodes.map(() => 0), order = [], forward = nodes.map(() => []);
  const visit = (node) => {
    state[node] = 1;
    for (const to of out[node]) {
      if (state[to] === 1) continue;
      forward[node].push(to);
      if (state[to] === 0) visit(to);
    }
    state[node] = 2;
    order.push(node);
  };
  nodes.forEach((_, node) => state[node] === 0 && visit(node));
  for (const node of order.reverse()) for (const to of forward[node]) rank[to] = Math.max(rank[to], rank[node] + 1);
  return rank;
}

// Places nodes: x, y of their centres, and the bands' heights.
export function placed(graph, size) {
  const rank = ranksOf(graph);
  const cells = new Map();
  const depth = kBands.map(() => 0);
  graph.nodes.forEach((node, id) => {
    const key = `${node.band},${rank[id]}`;
    if (!cells.has(key)) cells.set(key, []);
    node.row = cells.get(key).length;
    cells.get(key).push(id);
    depth[node.band] = Math.max(depth[node.band], node.row + 1);
  });
  const bands = [];
  let y = size.top;
  kBands.forEach((name, band) => {
    if (depth[band] === 0) return;
    const height = depth[band] * size.row + size.gap;
    bands.push({ name: laneWords(name), y, height });
    graph.nodes.filter((node) => node.band === band).forEach((node) => {
      node.y = y + size.gap / 2 + (node.row + 0.5) * size.row;
    });
    y += height;
  });
  graph.nodes.forEach((node, id) => (node.x = size.left + (rank[id] + 0.5) * size.column));
  return { bands, width: size.left + (Math.max(0, ...rank) + 1) * size.column + size.right, height: y + size.bottom };
}
