// SPDX-License-Identifier: Apache-2.0

// The costs of tasks, operators and layers, the use of devices, and memory.

import { css } from "../../page/theme.js";
import { bar, el, link, sortedTable, table } from "../../page/dom.js";
import { kindColour } from "./colours.js";
import { amount, plannedBytes, plannedName } from "./curves.js";
import { bytes, counted, duration, grouped, kindName, percent, shown } from "../../page/names.js";

const costCell = (show, by) => ({ show, by });
const timeCell = (ns) => costCell(ns > 0 ? duration(ns) : "—", ns);

export function costsView(trace, state, act) {
  const { head } = trace, layers = head.layers ?? [], operators = operatorsOf(layers);
  const sorted = (name) => [state.sorted[name] ?? {}, (how) => (state.sorted[name] = how)];
  const parts = [], part = (name) => parts[parts.push(el("h3", {}, name)) - 1];
  const content = [part("Tasks"), tasksTable(head, state, act, sorted("tasks")),
    ...(operators.length ? [part("Operators"), el("p", { class: "quiet" }, "Layers of an operator together, each with its gradients."),
      layersTable("operator", operators, state, sorted("operators"))] : []),
    part("Layers"),
    layers.length === 0 ? el("p", { class: "quiet" }, "This trace knows no layers: the run failed, or an earlier version wrote it.") : layersTable("layer", layers, state, sorted("layers"), (name) => act.showLayer(name)),
    ...sampledTable(head, part), part("Memory"), ...memoryTable(head, state)];
  return el("div", { class: "page" }, el("p", { class: "parts" }, ...parts.map((one) => link(one.textContent, () => one.scrollIntoView({ block: "start" })))), ...content);
}

function tasksTable(head, state, act, sorted) {
  const groups = new Map();
  head.tasks.forEach((task, id) => {
    if (task.count === 0) return;
    if (!groups.has(task.like)) groups.set(task.like, { tasks: [], count: 0, total: 0, longest: 0, deviation: 0, slack: Infinity, kind: head.lanes[task.lane].kind });
    const group = groups.get(task.like);
    group.tasks.push(id);
    group.count += task.count;
    group.total += task.total_ns;
    group.longest = Math.max(group.longest, task.longest_ns);
    group.deviation = Math.max(group.deviation, task.deviation_ns);
    group.slack = Math.min(group.slack, task.slack_us ?? Infinity);
  });
  const list = [...groups].sort((a, b) => b[1].total - a[1].total), most = list[0]?.[1].total || 1;
  return sortedTable([["task", "left"], ["instances", "right"], ["mean", "right"], ["spread", "right"], ["longest", "right"], ["slack", "right"], ["total", "right"], ["", "left"]],
    list.map(([name, group]) => [
      costCell(link(kindName(name) + (group.tasks.length > 1 ? ` × ${group.tasks.length}` : ""), () => act.showTask(group.tasks), shown(name)), kindName(name)), costCell(grouped(group.count), group.count),
      timeCell(group.total / group.count), costCell(group.count > group.tasks.length ? "± " + duration(group.deviation) : "—", group.deviation), costCell(link(duration(group.longest), () => act.showLongest(group.tasks)), group.longest),
      costCell(Number.isFinite(group.slack) ? duration(group.slack * 1000) : "—", Math.min(group.slack, Number.MAX_VALUE)), timeCell(group.total),
      costCell(bar([{ share: group.total / most, colour: css(kindColour(group.kind, state.dark)), title: duration(group.total) }], "140px"))]), ...sorted);
}

// Layers summed by their operator, the costliest first: [{ name, layers, forward_ns, backward_ns }]; empty if no
// layer's operator is known.
export function operatorsOf(layers) {
  const sums = new Map();
  for (const layer of layers) {
    if (!layer.operator) continue;
    if (!sums.has(layer.operator)) sums.set(layer.operator, { name: layer.operator, layers: 0, forward_ns: 0, backward_ns: 0 });
    const sum = sums.get(layer.operator);
    ++sum.layers;
    sum.forward_ns += layer.forward_ns;
    sum.backward_ns += layer.backward_ns;
  }
  return [...sums.values()].sort((a, b) => b.forward_ns + b.backward_ns - a.forward_ns - a.backward_ns);
}

// A table of layers, or of operators: each { name, layers (their number), forward_ns, backward_ns }, the costliest
// first. `go`: called with a name that is clicked.
function layersTable(what, list, state, sorted, go) {
  const totalOf = (one) => one.forward_ns + one.backward_ns;
  const all = list.reduce((sum, one) => sum + totalOf(one), 0) || 1, longest = totalOf(list[0]) || 1;
  const forward = css(kindColour("compute", state.dark)), backward = css(kindColour("validate", state.dark));
  const counts = list[0].layers !== undefined;
  return sortedTable([[what, "left"], ...(counts ? [["layers", "right"]] : []), ["of compute", "right"], ["forward", "right"], ["backward", "right"], ["", "left"]], list.map((one) => [
    costCell(go ? link(shown(one.name), () => go(one.name), "in the timeline") : el("bdi", {}, shown(one.name)), one.name), ...(counts ? [costCell(grouped(one.layers), one.layers)] : []), costCell(percent(totalOf(one) / all), totalOf(one)), timeCell(one.forward_ns), timeCell(one.backward_ns),
    costCell(bar([{ share: one.forward_ns / longest, colour: forward, title: `forward ${duration(one.forward_ns)}` }, { share: one.backward_ns / longest, colour: backward, title: `backward ${duration(one.backward_ns)}` }], "200px"))]), ...sorted);
}

// The use of devices and of the process during the run.
function sampledTable({ sampling, devices }, part) {
  if (!sampling || (sampling.series.length === 0 && !sampling.note)) return [];
  return [part("Devices over time"),
    sampling.series.length ? table([["", "left"], ["mean", "right"], ["highest", "right"], ["limit", "right"]], sampling.series.map((one) => [
      el("bdi", {}, `${one.device < 0 ? "" : devices[one.device] + " "}${shown(one.name)}`), amount(one.mean, one.unit), amount(one.highest, one.unit), one.most > 0 ? amount(one.most, one.unit) : "—"])) : null,
    el("p", { class: "quiet" }, `${sampling.note ? shown(sampling.note) + ". " : ""}Sampled every ${sampling.interval_ms} ms; over time under the timeline.`)];
}

// The memory that the plan reserves before anything runs.
function memoryTable(head, state) {
  const arenas = [...(head.arenas ?? [])].sort((a, b) => b.bytes - a.bytes);
  if (arenas.length === 0) return [el("p", { class: "quiet" }, "This trace does not know its memory: it was written by an earlier version.")];
  const sums = new Map();
  for (const arena of arenas) {
    const where = arena.memory === "pinned" ? "host, pinned" : arena.device < 0 ? "host" : head.devices[arena.device];
    sums.set(where, (sums.get(where) ?? 0) + arena.bytes);
  }
  const total = [...sums].map(([where, sum]) => `${where}: ${bytes(sum)}`).join(" · ");
  const measured = (head.sampling?.series ?? []).filter((one) => one.unit === "B").map((one) =>
    `${one.device < 0 ? "the process" : head.devices[one.device]} had up to ${bytes(one.highest)} in use where ${bytes(plannedBytes(head, one.device))} are ${plannedName(head, one.device) === "pinned" ? "planned, all of it pinned" : "planned"}`);
  return [el("p", {}, "Planned, and allocated before the run began. ", el("b", {}, total)),
    measured.length ? el("p", {}, `Measured: ${measured.join("; ")}. The rest is code, libraries, `
      + (measured.length > 1 ? "what CUDA keeps for itself, other processes on the same GPU, " : "") + "and the data set where it is read whole.") : null,
    table([["arena", "left"], ["size", "right"], ["", "left"]], arenas.slice(0, 40).map((arena) => [el("bdi", {}, shown(arena.name)), bytes(arena.bytes),
      bar([{ share: arena.bytes / (arenas[0].bytes || 1), colour: css(kindColour(arena.memory === "pinned" ? "host" : "compute", state.dark)), title: bytes(arena.bytes) }], "140px")])),
    arenas.length > 40 ? el("p", { class: "quiet" }, `and ${counted(arenas.length - 40, "arena")} that are smaller`) : null];
}
