// SPDX-License-Identifier: Apache-2.0

// Navigation through the schedule: along dependencies and rows, to tasks, gaps and lanes, and to search results.

import { layerOf } from "./colours.js";
import { insideOf } from "./decode.js";
import { counted } from "../../page/names.js";

// Base class of a page with a `timeline`, a `trace`, view(name), select(position, reveals) and by(id).
export class Navigation {
  follow(forward) {
    const list = forward ? this.timeline.neededBy : this.timeline.needs;
    const to = list?.find((need) => need.position >= 0 && need.position !== this.timeline.selected);
    if (to) this.select(to.position, true);
  }

  neighbour(step) {
    const { selected, trace } = this.timeline;
    if (selected < 0) return this.selectMiddle();
    const row = trace.rows.rows[trace.rows.rowOf(selected)], to = selected + step;
    if (to >= row.first && to < row.last) this.select(to, true);
  }

  otherTrack(step) {
    const { selected, trace, tracks } = this.timeline;
    if (selected < 0) return this.selectMiddle();
    const time = trace.instances.start[selected];
    for (let at = this.timeline.trackOf(selected) + step; at >= 0 && at < tracks.length; at += step) {
      if (tracks[at].rows.length !== 1) continue;
      const near = trace.rows.nearestEdge(tracks[at].rows[0], time);
      const position = near === null ? -1 : trace.rows.at(tracks[at].rows[0], near);
      if (position >= 0) return this.select(position, true);
    }
  }

  selectMiddle() {
    const { timeline } = this;
    const at = timeline.tracks.findIndex((track) => track.rows.length === 1 && track.kind === "compute");
    const track = timeline.tracks[at < 0 ? timeline.tracks.findIndex((one) => one.rows.length > 0) : at];
    const near = timeline.trace.rows.nearestEdge(track.rows[0], (timeline.from + timeline.to) / 2);
    if (near !== null) this.select(timeline.trace.rows.at(track.rows[0], near), true);
  }

  // An instance of one of some tasks: the longest, or one in the middle of the run.
  showTask(tasks, longest) {
    this.view("timeline");
    const { dependencies, instances } = this.trace;
    if (!dependencies) return;
    const { first, order } = dependencies.positions();
    let chosen = -1;
    for (const task of tasks) {
      if (!longest) {
        if (first[task + 1] > first[task] && chosen < 0) chosen = order[(first[task] + first[task + 1]) >> 1];
        continue;
      }
      for (let i = first[task]; i < first[task + 1]; ++i) {
        if (chosen < 0 || instances.end[order[i]] - instances.start[order[i]] > instances.end[chosen] - instances.start[chosen]) chosen = order[i];
      }
    }
    if (chosen < 0) return;
    this.select(chosen, true);
    const { iteration_ns } = this.trace.head.steady;
    const width = Math.max(iteration_ns * 4, (instances.end[chosen] - instances.start[chosen]) * 3);
    const middle = (instances.start[chosen] + instances.end[chosen]) / 2;
    this.timeline.setView(middle - width / 2, middle + width / 2);
  }

  showGap(cause) {
    this.view("timeline");
    const width = Math.max(cause.to - cause.from, 20);
    this.timeline.measure = [cause.from, cause.to];
    if (cause.task !== undefined && this.trace.dependencies) this.select(this.trace.dependencies.find(cause.task, cause.instance), true);
    this.timeline.setView(cause.from - width, cause.to + width);
  }

  showLane(lane) {
    const tasks = this.trace.head.tasks.map((task, id) => [task, id]).filter(([task]) => task.lane === lane && task.count > 0);
    tasks.sort((a, b) => b[0].total_ns - a[0].total_ns);
    if (tasks.length) this.showTask([tasks[0][1]], false);
  }

  showFigure(figure) {
    if (figure.where === "lane") this.showLane(figure.id);
    if (figure.where === "task") this.showTask([figure.id], false);
    if (figure.where === "cycle") this.view("plan");
    if (figure.where === "idle") {
      this.view("idle");
      const lane = this.by(`idle-${figure.id}`);
      lane?.classList.add("lit");
      lane?.scrollIntoView({ block: "start" });
    }
  }

  // “step” lights the tasks that have it in their names, “conv1” the layers, “step 40” goes to that instance as well.
  search() {
    const text = this.by("search").value.trim();
    const numbered = /^(.*\S)\s+(\d+)$/.exec(text);
    let found = foundIn(this.trace, text);
    this.number = undefined;
    if (found && numbered && found.tasks.size + found.launches.size === 0) {
      found = foundIn(this.trace, numbered[1]);
      this.number = Number(numbered[2]);
    }
    this.timeline.matches = found;
    this.by("found").textContent = found ? foundWords(found) : "";
    this.timeline.draw();
  }

  // Goes to the next search result after the selection or the view, and from the last one to the first.
  nextMatch(step) {
    const { matches, selected, from, to } = this.timeline;
    if (!matches || !this.trace.dependencies) return;
    this.view("timeline");
    const time = this.foundAt?.position === selected && selected >= 0 ? this.foundAt.time
      : selected >= 0 ? this.trace.instances.start[selected] : step > 0 ? from - 1 : to + 1;
    const next = this.foundFrom(time, step) ?? this.foundFrom(step > 0 ? -Infinity : Infinity, step);
    if (!next) return;
    this.foundAt = next;
    this.select(next.position, true);
    if (next.layer) this.timeline.showSpan(next.layer.start, next.layer.end);
  }

  // The instance, and within it the layer, that begins first after a time, or, with a negative step, last before it: {
  // position, time, layer }.
  foundFrom(time, step) {
    const { tasks, holders, launches } = this.timeline.matches;
    const { instances, dependencies } = this.trace, { first, order } = dependencies.positions();
    const ahead = (a, b) => (step > 0 ? a < b : a > b);
    let next = null;
    const take = (one) => {
      if (ahead(time, one.time) && (!next || ahead(one.time, next.time))) next = one;
    };
    const of = (task) => (this.number === undefined ? order.subarray(first[task], first[task + 1])
      : [dependencies.find(task, this.number)].filter((position) => position >= 0));
    for (const task of tasks) for (const position of of(task)) take({ position, time: instances.start[position] });
    for (const task of holders) {
      for (const position of of(task)) {
        const begin = step > 0 ? instances.end[position] : -instances.start[position];
        if (begin < step * time || (next && ahead(next.time, step > 0 ? instances.start[position] : instances.end[position]))) continue;
        for (const layer of insideOf(this.trace, position)) if (launches.has(layer.launch)) take({ position, time: layer.start, layer });
      }
    }
    return next;
  }

  // Goes to a layer by its name.
  showLayer(name) {
    this.by("search").value = name;
    this.search();
    this.nextMatch(1);
  }
}

function foundWords({ tasks, layers }) {
  const words = [layers > 0 ? counted(layers, "layer") : "", tasks.size > 0 ? counted(tasks.size, "task") : ""].filter((text) => text);
  return words.join(", ") || "nothing";
}

// The parts of a trace with the text in their names, in either case: { tasks, launches (nodes of layers), layers (their
// number), holders (tasks with these nodes inside) }. A text that is a layer's whole name finds that layer alone. Null
// if the text is empty.
export function foundIn(trace, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  const { tasks = [], launches = [] } = trace.head;
  const having = (names) => names.map((name, id) => (name.toLowerCase().includes(wanted) ? id : -1)).filter((id) => id >= 0);
  const whole = launches.map((name, id) => (layerOf(name).toLowerCase() === wanted ? id : -1)).filter((id) => id >= 0);
  const nodes = new Set(whole.length > 0 ? whole : having(launches));
  const found = new Set(having(tasks.map((task) => task.name)));
  const holders = new Set();
  if (nodes.size > 0) for (const [task, inside] of launchesOfTasks(trace)) if (inside.some((launch) => nodes.has(launch))) holders.add(task);
  return { tasks: found, launches: nodes, holders, layers: new Set([...nodes].map((id) => layerOf(launches[id]))).size };
}

// [task, its nodes' launches] of all tasks that have nodes inside; computed once per trace.
function launchesOfTasks(trace) {
  if (trace.inside) return trace.inside;
  const { head, instances, nodes } = trace, sets = new Map();
  if (!instances) return [];
  const add = (task, launch) => {
    if (!sets.has(task)) sets.set(task, new Set());
    sets.get(task).add(launch);
  };
  for (let i = 0; i < nodes.count; ++i) add(instances.task[nodes.parent[i]], nodes.launch[i]);
  head.tasks.forEach((task, id) => {
    if (task.inside !== undefined && !sets.has(id)) for (const [launch] of head.insides[task.inside]) add(id, launch);
  });
  return (trace.inside = [...sets].map(([task, inside]) => [task, [...inside]]));
}
