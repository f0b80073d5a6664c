// SPDX-License-Identifier: Apache-2.0

// Curves over time below the timeline: samples of devices and the process, and numbers of filled slots.

import { upperBound } from "./decode.js";
import { bytes, grouped, isCpu, processOf } from "../../page/names.js";
import { ownerOf } from "./tracks.js";

// A value that holds from each of `times`, ascending, until the next, and the last one until `end`.
export class Curve {
  constructor(times, values, end) {
    this.times = times;
    this.values = values;
    this.end = end;
    this.sums = new Float64Array(times.length + 1);  // of value · time before each
    for (let i = 0; i < times.length; ++i) {
      this.sums[i + 1] = this.sums[i] + values[i] * ((i + 1 < times.length ? times[i + 1] : end) - times[i]);
    }
  }

  // The value that holds at a time; NaN before the first and after the end.
  at(time) {
    if (time > this.end) return NaN;
    const i = upperBound(this.times, 0, this.times.length, time) - 1;
    return i < 0 ? NaN : this.values[i];
  }

  // The mean over the part of [from, to] that the curve covers; NaN if it covers none.
  mean(from, to) {
    if (this.times.length === 0) return NaN;
    const a = Math.max(from, this.times[0]), b = Math.min(to, this.end);
    if (b < a) return NaN;
    return b > a ? (this.sumUntil(b) - this.sumUntil(a)) / (b - a) : this.at(a);
  }

  sumUntil(time) {
    const i = upperBound(this.times, 0, this.times.length, time) - 1;
    return i < 0 ? 0 : this.sums[i] + this.values[i] * (time - this.times[i]);
  }

  get most() {
    return this.values.reduce((most, value) => Math.max(most, value), 0);
  }
}

// A chart for each thing that was sampled, with a line a device: [{ name, process, unit, most, planned, plannedAs,
// lines: [{ name, curve }] }]. A sample tells of the time since the one before. `process`: its owner, if there are
// several; `planned`: bytes, of the device that needs most; `plannedAs`: what they are called.
export function sampledCharts({ head, samples }) {
  const charts = new Map();
  const { at } = samples;
  const times = at.slice();
  for (let i = at.length - 1; i > 0; --i) times[i] = at[i - 1];
  if (at.length > 0) times[0] = at[0] - head.sampling.interval_ms * 1e6;
  (head.sampling?.series ?? []).forEach((series, i) => {
    if (!charts.has(series.name)) charts.set(series.name, { name: series.name, process: processOf(series.name), unit: series.unit, most: 0, planned: 0, plannedAs: plannedName(head, series.device, processOf(series.name)), lines: [] });
    const chart = charts.get(series.name);
    chart.most = Math.max(chart.most, series.most);
    if (series.unit === "B") chart.planned = Math.max(chart.planned, plannedBytes(head, series.device, processOf(series.name)));
    chart.lines.push({ name: series.device < 0 ? "" : head.devices[series.device], curve: new Curve(times, samples.values[i], at.at(-1) ?? 0) });
  });
  return [...charts.values()];
}

// Bytes that the plan reserves on a GPU, or for a process: pinned memory and that of its CPU devices.
export function plannedBytes(head, device, process = "") {
  const ofProcess = (arena) => arena.memory === "pinned" || arena.device < 0 || isCpu(head.devices[arena.device]);
  const isOwn = (arena) => arena.device < 0 || processOf(head.devices[arena.device]) === process;
  return (head.arenas ?? []).filter((arena) => (device < 0 ? ofProcess(arena) && isOwn(arena) : !ofProcess(arena) && arena.device === device))
    .reduce((sum, arena) => sum + arena.bytes, 0);
}

// Rings of slots, over learners and devices together. A slot is filled when its producer ends, and free again when the
// last of its readers has ended. It is free at the latest when it is filled anew, since GPUs report ends to the
// microsecond. Named after the producer; `most`: slots.
export function slotCharts({ head, instances, dependencies }) {
  const rings = new Map();
  head.tasks.forEach((task, producer) => {
    const frees = dependencies.into[producer].map((id) => head.edges[id]).filter((edge) => edge.why === "reuse" && edge.relation < 0);
    if ((task.kind !== "fill" && task.kind !== "copy_in") || frees.length === 0) return;
    if (!rings.has(task.like)) rings.set(task.like, { name: task.like, process: ownerOf(head, head.lanes[task.lane]), slots: 0, producers: [] });
    const ring = rings.get(task.like);
    const distance = Math.min(...frees.map((edge) => edge.distance));
    ring.slots += distance;
    ring.producers.push({ producer, distance, readers: frees.map((edge) => edge.from) });
  });
  return [...rings.values()].map(({ name, process, slots, producers }) => {
    const filled = [], freed = [];
    for (const { producer, distance, readers } of producers) {
      const { first, order } = dependencies.positions();
      for (let k = first[producer]; k < first[producer + 1]; ++k) {
        const free = readers.map((reader) => dependencies.find(reader, instances.instance[order[k]]));
        if (head.dropped > 0 && free.includes(-1)) continue;  // its reader may be among what was dropped
        const anew = dependencies.find(producer, instances.instance[order[k]] + distance);
        const read = free.reduce((last, at) => Math.max(last, at < 0 ? Infinity : instances.end[at]), -Infinity);
        const until = Math.min(read, anew < 0 ? Infinity : instances.start[anew]);
        filled.push(instances.end[order[k]]);
        if (Number.isFinite(until)) freed.push(Math.max(until, instances.end[order[k]]));
      }
    }
    return { name, process, unit: "slots", most: slots, planned: 0, lines: [{ name: "", curve: countCurve(filled, freed, head.end_ns) }] };
  });
}

// How many have come and not gone.
export function countCurve(come, gone, end) {
  const comes = Float64Array.from(come).sort(), goes = Float64Array.from(gone).sort();
  const times = new Float64Array(comes.length + goes.length), values = new Float64Array(times.length);
  let i = 0, j = 0, count = 0;
  for (let k = 0; k < times.length; ++k) {
    const isGone = j < goes.length && (i === comes.length || goes[j] <= comes[i]);
    times[k] = isGone ? goes[j++] : comes[i++];
    values[k] = count += isGone ? -1 : 1;
  }
  return new Curve(times, values, end);
}

// "pinned" if the process only feeds GPUs: the plan then covers only its pinned memory, not the memory of its sources.
export function plannedName(head, device, process = "") {
  return device < 0 && !head.devices.some((name) => processOf(name) === process && isCpu(name)) ? "pinned" : "planned";
}

export function amount(value, unit) {
  if (Number.isNaN(value)) return "—";
  if (unit === "B") return bytes(value);
  if (unit === "slots") return grouped(value, Number.isInteger(value) ? 0 : 1) + " filled";
  return `${grouped(value, value < 9.95 && unit === "cores" ? 1 : 0)} ${unit}`;
}
