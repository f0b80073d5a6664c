// SPDX-License-Identifier: Apache-2.0

// Tasks of two traces, matched by name without the numbers and kinds of learners and devices.

import { kindName } from "../../page/names.js";
import { samplesOf } from "./run_card.js";

function iterationsOf(head) {
  return Math.max(1, ...head.tasks.filter((task) => task.clock === 0).map((task) => task.count));
}

// The unit for comparing times of traces: "iteration", or "sample" if iterations have different numbers of samples.
export function unitOf(heads) {
  const samples = heads.map(samplesOf);
  return samples.every((count) => count > 0) && samples.some((count) => count !== samples[0]) ? "sample" : "iteration";
}

// The divisor that turns a time of all iterations into one per unit.
function unitsIn(head, unit) {
  return iterationsOf(head) * (unit === "sample" ? samplesOf(head) : 1);
}

// The times of layers per iteration or sample, of all learners together: [{ name, a, b }] in ns, the greatest change
// first. A layer that one of the traces does not have takes 0 there. Empty if one of them has no layers.
export function comparedLayers(a, b) {
  if (!a.layers?.length || !b.layers?.length) return [];
  const unit = unitOf([a, b]);
  const timesOf = (head) => new Map(head.layers.map((layer) => [layer.name, (layer.forward_ns + layer.backward_ns) / unitsIn(head, unit)]));
  const [inA, inB] = [timesOf(a), timesOf(b)];
  const rows = [...new Set([...inA.keys(), ...inB.keys()])].map((name) => ({ name, a: inA.get(name) ?? 0, b: inB.get(name) ?? 0 }));
  return rows.sort((x, y) => Math.abs(y.b - y.a) - Math.abs(x.b - x.a));
}

// The tasks of a trace by name. A group's mean and deviation are per instance, or, in samples, instances' time per
// sample.
function groupsOf(head, unit) {
  const groups = new Map();
  const units = unitsIn(head, unit);
  head.tasks.forEach((task, id) => {
    if (task.count === 0) return;
    const name = kindName(task.like);
    if (!groups.has(name)) groups.set(name, { tasks: [], count: 0, total: 0, squares: 0 });
    const group = groups.get(name);
    group.tasks.push(id);
    group.count += task.count;
    group.total += task.total_ns;
    group.squares += (task.count - 1) * task.deviation_ns ** 2;
  });
  for (const group of groups.values()) {
    const share = unit === "sample" ? group.count / units : 1;
    group.mean = group.total / group.count * share;
    group.deviation = Math.sqrt(group.squares / Math.max(1, group.count - group.tasks.length)) * share;
    group.each = group.total / units;
  }
  return groups;
}

// The changes from `a` to `b`, the greatest first, per `unit` (unitOf). `sure`: the means differ by more than twice
// their standard error. `few`: there is no such error, because on one side no task ran twice.
export function compared(a, b) {
  const unit = unitOf([a, b]), [inA, inB] = [groupsOf(a, unit), groupsOf(b, unit)];
  const rows = [...new Set([...inA.keys(), ...inB.keys()])].map((name) => {
    const [one, other] = [inA.get(name), inB.get(name)];
    const cost = (other?.each ?? 0) - (one?.each ?? 0);
    const error = one && other ? Math.sqrt(one.deviation ** 2 / one.count + other.deviation ** 2 / other.count) : 0;
    const few = [one, other].some((group) => group && group.count === group.tasks.length);
    const sure = !one || !other || (!few && Math.abs(other.mean - one.mean) > 2 * error);
    return { name, a: one, b: other, cost, sure, few };
  });
  rows.sort((x, y) => y.sure - x.sure || Math.abs(y.cost) - Math.abs(x.cost));
  return { rows, unit, time: { a: timeOf(a, unit), b: timeOf(b, unit) } };
}

// The time of an iteration or a sample in the steady state, in ns; 0: unknown.
export function timeOf(head, unit) {
  return (head.steady?.iteration_ns ?? 0) / (unit === "sample" ? samplesOf(head) : 1);
}
