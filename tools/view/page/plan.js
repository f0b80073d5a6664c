// SPDX-License-Identifier: Apache-2.0

// Dependencies between instances, as executor/plan/plan.h defines them for edges between clocks.

import { lowerBound } from "./decode.js";

function coarseOf(relation, tick) {
  const groups = Math.floor((relation.period + relation.group - 1) / relation.group);
  return Math.floor(tick / relation.period) * groups + Math.floor((tick % relation.period) / relation.group);
}

function lastOf(relation, tick) {
  const groups = Math.floor((relation.period + relation.group - 1) / relation.group);
  const end = ((tick % groups) + 1) * relation.group;
  return Math.floor(tick / groups) * relation.period + Math.min(end, relation.period) - 1;
}

// The instance of edge.from that instance n of edge.to needs; below 0: none.
export function neededInstance(head, edge, n) {
  if (edge.relation < 0) return n - edge.distance;
  const relation = head.relations[edge.relation];
  const finer = head.tasks[edge.from].clock === relation.fine;
  return (finer ? lastOf(relation, n) : coarseOf(relation, n)) - edge.distance;
}

// The instances of edge.to that need instance n of edge.from: [first, last], or nothing.
export function needingInstances(head, edge, n) {
  if (edge.relation < 0) return [n + edge.distance, n + edge.distance];
  const relation = head.relations[edge.relation];
  const needed = n + edge.distance;
  if (head.tasks[edge.from].clock === relation.fine) {
    const tick = coarseOf(relation, needed);
    return lastOf(relation, tick) === needed ? [tick, tick] : null;
  }
  return [needed === 0 ? 0 : lastOf(relation, needed - 1) + 1, lastOf(relation, needed)];
}

// The plan of a trace with its instances by task, for following edges.
export class Dependencies {
  constructor(head, instances) {
    this.head = head;
    this.instances = instances;
    this.into = head.tasks.map(() => []);
    this.out = head.tasks.map(() => []);
    head.edges.forEach((edge, id) => {
      this.into[edge.to].push(id);
      this.out[edge.from].push(id);
    });
    this.index = null;
  }

  // Positions of each task's instances, by instance. Made when first asked for.
  positions() {
    if (this.index) return this.index;
    const { task, instance, count } = this.instances;
    const first = new Int32Array(this.head.tasks.length + 1);
    for (let i = 0; i < count; ++i) ++first[task[i] + 1];
    for (let i = 1; i < first.length; ++i) first[i] += first[i - 1];
    const order = new Int32Array(count), number = new Float64Array(count), next = first.slice();
    for (let i = 0; i < count; ++i) order[next[task[i]]++] = i;
    for (let t = 0; t + 1 < first.length; ++t) {
      const part = order.subarray(first[t], first[t + 1]);
      let sorted = true;
      for (let i = 1; i < part.length && sorted; ++i) sorted = instance[part[i - 1]] <= instance[part[i]];
      if (!sorted) part.sort((a, b) => instance[a] - instance[b]);
      for (let i = 0; i < part.length; ++i) number[first[t] + i] = instance[part[i]];
    }
    this.index = { first, order, number };
    return this.index;
  }

  // The position of an instance in the columns; −1: it was not recorded.
  find(task, instance) {
    const { first, order, number } = this.positions();
    const at = lowerBound(number, first[task], first[task + 1], instance);
    return at < first[task + 1] && number[at] === instance ? order[at] : -1;
  }

  // The instances that the one at a position needed: edge, instance and position of each, the last to end first.
  needs(position) {
    const { task, instance, end } = this.instances;
    const list = [];
    for (const id of this.into[task[position]]) {
      const edge = this.head.edges[id];
      const number = neededInstance(this.head, edge, instance[position]);
      if (number < 0) continue;
      const at = this.find(edge.from, number);
      list.push({ edge: id, task: edge.from, instance: number, position: at, time: at < 0 ? -Infinity : end[at] });
    }
    return list.sort((a, b) => b.time - a.time);
  }

  // The instances that needed it, in the same form, the first to start first.
  neededBy(position) {
    const { task, instance, start } = this.instances;
    const list = [];
    for (const id of this.out[task[position]]) {
      const edge = this.head.edges[id];
      const range = needingInstances(this.head, edge, instance[position]);
      if (!range) continue;
      const at = this.find(edge.to, range[0]);
      list.push({ edge: id, task: edge.to, instance: range[0], position: at, time: at < 0 ? Infinity : start[at] });
    }
    return list.sort((a, b) => a.time - b.time);
  }
}
