// Ways through the schedule: along dependencies and rows, to tasks, gaps and lanes, and to what is searched.

import { counted } from "../../page/names.js";

// Of a page with a `timeline`, a `trace`, view(name), select(position, reveals) and by(id).
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
      if (tracks[at].rows.length > 1) continue;
      const near = trace.rows.nearestEdge(tracks[at].rows[0], time);
      const position = near === null ? -1 : trace.rows.at(tracks[at].rows[0], near);
      if (position >= 0) return this.select(position, true);
    }
  }

  selectMiddle() {
    const { timeline } = this;
    const at = timeline.tracks.findIndex((track) => track.rows.length === 1 && track.kind === "compute");
    const track = timeline.tracks[Math.max(0, at)];
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

  // “step” lights the tasks that have it in their names, “step 40” goes to that instance as well.
  search() {
    const text = this.by("search").value.trim().toLowerCase();
    const tasks = this.trace.head.tasks ?? [];
    const numbered = /^(.*\S)\s+(\d+)$/.exec(text);
    const having = (part) => tasks.map((task, id) => (task.name.toLowerCase().includes(part) ? id : -1)).filter((id) => id >= 0);
    let found = text ? having(text) : [];
    this.number = undefined;
    if (found.length === 0 && numbered) {
      found = having(numbered[1]);
      this.number = Number(numbered[2]);
    }
    this.timeline.matches = text ? new Set(found) : null;
    this.by("found").textContent = text ? counted(found.length, "task") : "";
    this.timeline.draw();
  }

  nextMatch(step) {
    const { matches, selected } = this.timeline;
    if (!matches?.size || !this.trace.dependencies) return;
    this.view("timeline");
    const { dependencies, instances } = this.trace;
    const tasks = [...matches];
    if (this.number !== undefined) {
      const at = tasks.map((task) => dependencies.find(task, this.number)).filter((position) => position >= 0);
      if (at.length) this.select(at[(at.indexOf(selected) + 1) % at.length], true);
      return;
    }
    const time = selected >= 0 ? instances.start[selected] : step > 0 ? -Infinity : Infinity;
    let next = -1;
    const { first, order } = dependencies.positions();
    const ahead = (a, b) => (step > 0 ? a < b : a > b);
    for (const task of tasks) {
      for (let i = first[task]; i < first[task + 1]; ++i) {
        const start = instances.start[order[i]];
        if (ahead(time, start) && (next < 0 || ahead(start, instances.start[next]))) next = order[i];
      }
    }
    if (next >= 0) this.select(next, true);
  }
}
