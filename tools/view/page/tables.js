// Why lanes idle, what pays, what tasks and layers cost, and how two traces differ.

import { css } from "../../page/theme.js";
import { causeColour, kindColour } from "./colours.js";
import { bar, el, link, table } from "../../page/dom.js";
import { amount, plannedBytes, plannedName } from "./curves.js";
import { compared, comparedLayers } from "./compare.js";
import { bytes, counted, duration, grouped, instanceName, kindName, percent, shown } from "../../page/names.js";

export function idleView(trace, state, act) {
  const { head } = trace;
  const lanes = head.lanes.map((lane, id) => ({ ...lane, id })).filter((lane) => lane.causes);
  const order = ["compute", "averaging", "collectives", "copy in", "copy out", "validation", "host"];
  lanes.sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind) || a.id - b.id);
  const sections = lanes.map((lane) => {
    const all = lane.busy_ns + lane.idle_ns || 1;
    const parts = [{ share: lane.busy_ns / all, colour: css(kindColour(lane.kind, state.dark)), title: `busy ${percent(lane.busy_ns / all)}` },
      ...lane.causes.map((cause) => ({ share: cause.ns / all, colour: causeColour(cause.why, state.dark), title: `${cause.why}: ${percent(cause.ns / all)}` }))];
    const rows = lane.causes.filter((cause) => cause.ns / all >= 0.0005).map((cause) => [
      el("span", {}, el("i", { class: "swatch", style: { background: causeColour(cause.why, state.dark) } }), cause.why),
      percent(cause.ns / all), duration(cause.ns), grouped(cause.count),
      link(`${duration(cause.to - cause.from)}${cause.task === undefined ? "" : " before " + instanceName(shown(head.tasks[cause.task].name), cause.instance)}`,
        () => act.showGap(cause))]);
    return el("section", { class: "lane", id: `idle-${lane.id}` },
      el("h3", {}, el("bdi", {}, shown(lane.name)), el("span", { class: "quiet" }, ` busy ${percent(lane.busy_ns / all)}, idle ${percent(lane.idle_ns / all)}`),
        el("span", { class: "space" }), link("in the timeline", () => act.showLane(lane.id))),
      bar(parts),
      rows.length ? table([["idle, because", "left"], ["of all time", "right"], ["time", "right"], ["gaps", "right"], ["longest", "left"]], rows) : null,
      lane.reasons.length > 0 ? el("details", {}, el("summary", {}, "in terms of the plan"),
        table([["waiting for", "left"], ["of all time", "right"], ["time", "right"]],
          lane.reasons.slice(0, 12).map((reason) => [el("bdi", {}, shown(reason.why)), percent(reason.ns / all), duration(reason.ns)]))) : null);
  });
  return el("div", { class: "page" }, el("p", { class: "intro" },
    "A queue is idle while it has no task to run. Each gap is cut where its cause changed: from the end of the task before to the start of the next. "
      + "Shares are of the whole run, its beginning and end included, which the figures above leave out."), ...sections);
}

const kSaves = 0.002;  // of an iteration: less is no more than noise, however exact the model is

// `error`: of the model, as a share; what is less has no colour.
function saved(change, error) {
  if (Math.abs(change.saved) < kSaves) return el("span", { class: "quiet" }, "nothing");
  const kind = Math.abs(change.saved) < error ? "quiet" : change.saved > 0 ? "good" : "bad";
  return el("span", { class: kind }, change.saved > 0 ? `saves ${percent(change.saved)}` : `costs ${percent(-change.saved)}`);
}

export function paysView(trace, state, act) {
  const { pays } = trace.head;
  if (!pays || pays.measured_ns === 0) {
    return el("div", { class: "page" }, el("p", { class: "intro" }, "The trace has too few iterations to predict what would pay: it needs at least five in its steady state."));
  }
  const off = pays.simulated_ns / pays.measured_ns - 1, least = Math.max(kSaves, pays.error);
  const tells = (one) => Math.abs(one.saved) >= least;
  const change = (one) => one && el("div", { class: "saving" }, saved(one, pays.error), el("span", { class: "quiet" }, duration(one.iteration_ns)));
  const tasks = new Map();
  for (const one of pays.changes) {
    if (one.kind !== "halved" && one.kind !== "removed") continue;
    const key = trace.head.tasks[one.tasks[0]].like;
    if (!tasks.has(key)) tasks.set(key, { of: one.tasks });
    tasks.get(key)[one.kind] = one;
  }
  const all = [...tasks].sort((a, b) => b[1].removed.saved - a[1].removed.saved);
  const ranked = all.filter(([, one]) => tells(one.removed) || tells(one.halved));
  const idle = all.filter((one) => !ranked.includes(one));
  const layers = pays.changes.filter((one) => one.kind === "layer halved");
  const slots = pays.changes.filter((one) => one.kind.startsWith("slot"));
  const rank = (one) => [tells(one) ? Math.abs(one.saved) : 0, one.change.startsWith("prefetch") ? 1 : 0];
  slots.sort((a, b) => rank(b)[0] - rank(a)[0] || rank(b)[1] - rank(a)[1]);
  return el("div", { class: "page" },
    el("p", { class: "intro" }, "Each line is this run, simulated again with one change. The simulation of the run as it is gives ",
      el("b", {}, duration(pays.simulated_ns)), " an iteration, measured are ", el("b", {}, duration(pays.measured_ns)),
      `: the model is ${percent(Math.abs(off))} ${off > 0 ? "too slow" : "too fast"}. Replayed from elsewhere in the recording it differs by up to `
        + `${percent(pays.spread)}. What changes less than the greater of these says nothing: it is in grey, or left out. `,
      "Durations are taken as they were; that tasks on the same cores slow each other down is not in the model."),
    el("h3", {}, "If a task were faster"),
    table([["task", "left"], ["twice as fast", "right"], ["if it took no time", "right"]], ranked.map(([name, one]) => [
      link(kindName(name), () => act.showTask(one.of), shown(name)), change(one.halved), change(one.removed)])),
    idle.length ? el("p", { class: "quiet" }, "Nothing that the model can tell would be saved by ", ...idle.flatMap(([name, one], i) => [i > 0 ? ", " : "", link(kindName(name), () => act.showTask(one.of), shown(name))]), ".") : null,
    ...changesTable("If a layer were twice as fast, forward and backward", "layer", layers, (one) => shown(one.layer), change, tells, act),
    ...changesTable("If there were another number of slots", "slots", slots, (one) => shown(one.change), change, tells, act),
    el("p", { class: "quiet" }, "Changes of your own: ", el("code", {}, "arbalest trace TRACE --what-if 'step*0.5' --what-if prefetch.depth=4")));
}

// A line for each change of which the model can tell something, and for those of prefetch.depth; the others together.
function changesTable(title, what, changes, nameOf, change, tells, act) {
  if (changes.length === 0) return [];
  const shows = (one) => tells(one) || one.change.startsWith("prefetch");
  const named = (one) => link(nameOf(one), () => act.showTask(one.tasks));
  const lines = changes.filter(shows), others = changes.filter((one) => !shows(one));
  return [el("h3", {}, title),
    lines.length ? table([[what, "left"], ["time per iteration", "right"]], lines.map((one) => [named(one), change(one)])) : null,
    others.length ? el("p", { class: "quiet" }, "Nothing that the model can tell would change with ", ...others.flatMap((one, i) => [i > 0 ? ", " : "", named(one)]), ".") : null];
}

export function tasksView(trace, state, act) {
  const { head } = trace;
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
  const list = [...groups].sort((a, b) => b[1].total - a[1].total);
  const most = list[0]?.[1].total || 1;
  const layers = head.layers ?? [];
  const all = layers.reduce((sum, layer) => sum + layer.forward_ns + layer.backward_ns, 0) || 1;
  const longest = layers.length ? layers[0].forward_ns + layers[0].backward_ns : 1;
  const colour = css(kindColour("compute", state.dark));
  return el("div", { class: "page" },
    el("h3", {}, "Tasks"),
    table([["task", "left"], ["instances", "right"], ["mean", "right"], ["spread", "right"], ["longest", "right"], ["slack", "right"], ["total", "right"], ["", "left"]],
      list.map(([name, group]) => [
        link(kindName(name) + (group.tasks.length > 1 ? ` × ${group.tasks.length}` : ""), () => act.showTask(group.tasks), shown(name)), grouped(group.count),
        duration(group.total / group.count), "± " + duration(group.deviation), link(duration(group.longest), () => act.showLongest(group.tasks)),
        Number.isFinite(group.slack) ? duration(group.slack * 1000) : "—", duration(group.total),
        bar([{ share: group.total / most, colour: css(kindColour(group.kind, state.dark)), title: duration(group.total) }], "140px")])),
    el("h3", {}, "Layers"),
    layers.length === 0 ? el("p", { class: "quiet" }, "This trace knows no layers: the run failed, or an earlier version wrote it.") :
      table([["layer", "left"], ["of compute", "right"], ["forward", "right"], ["backward", "right"], ["", "left"]], layers.map((layer) => [
        el("bdi", {}, shown(layer.name)), percent((layer.forward_ns + layer.backward_ns) / all), duration(layer.forward_ns), duration(layer.backward_ns),
        bar([{ share: layer.forward_ns / longest, colour, title: "forward" }, { share: layer.backward_ns / longest, colour: css(kindColour("validation", state.dark)), title: "backward" }], "200px")])),
    ...sampledTable(head), el("h3", {}, "Memory"), ...memoryTable(head, state));
}

// What devices and the process used while the run went on.
function sampledTable({ sampling, devices }) {
  if (!sampling || (sampling.series.length === 0 && !sampling.note)) return [];
  return [el("h3", {}, "Devices over time"),
    sampling.series.length ? table([["", "left"], ["mean", "right"], ["highest", "right"], ["limit", "right"]], sampling.series.map((one) => [
      el("bdi", {}, `${one.device < 0 ? "" : devices[one.device] + " "}${shown(one.name)}`), amount(one.mean, one.unit), amount(one.highest, one.unit), one.most > 0 ? amount(one.most, one.unit) : "—"])) : null,
    el("p", { class: "quiet" }, `${sampling.note ? shown(sampling.note) + ". " : ""}Sampled every ${sampling.interval_ms} ms; over time under the timeline.`)];
}

// What the plan reserves before anything runs.
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

function layersTable(rows, names, signed) {
  const most = 12;
  if (rows.length === 0) return [];
  return [el("h3", {}, "Layers, per iteration"),
    table([["layer", "left"], [`in ${shown(names[0])}`, "right"], [`in ${shown(names[1])}`, "right"], ["difference", "right"]], rows.slice(0, most).map((row) => [
      el("bdi", {}, shown(row.name)), duration(row.a), duration(row.b), signed(row.b - row.a)])),
    rows.length > most ? el("p", { class: "quiet" }, `and ${counted(rows.length - most, "layer")} that changed less`) : null];
}

export function compareView(traces, state, act) {
  const [a, b] = traces.map((trace) => trace.head);
  if (!a.tasks || !b.tasks) return el("div", { class: "page" }, el("p", { class: "intro" }, "One of the traces holds no instances: there is nothing to compare."));
  const { rows, iteration } = compared(a, b);
  const signed = (ns) => (ns > 0 ? "+" : "−") + duration(Math.abs(ns));
  const verdict = iteration.a > 0 && iteration.b > 0
    ? `An iteration takes ${duration(iteration.a)} in “${shown(a.name)}” and ${duration(iteration.b)} in “${shown(b.name)}”: ${signed(iteration.b - iteration.a)} (${percent(iteration.b / iteration.a - 1)}).`
    : "One of the traces is too short to tell how long an iteration takes.";
  const learners = [a, b].map((head) => head.lanes.filter((lane) => lane.kind === "compute").length);
  const unlike = learners[0] === learners[1] ? "" :
    ` An iteration is a batch of each learner: ${learners[0]} in “${shown(a.name)}”, ${learners[1]} in “${shown(b.name)}”.`;
  return el("div", { class: "page" }, el("p", { class: "intro" }, verdict + unlike),
    table([["task", "left"], ["mean in " + shown(a.name), "right"], ["mean in " + shown(b.name), "right"], ["difference", "right"], ["per iteration", "right"], ["", "left"]],
      rows.map((row) => [link(kindName(row.name), () => act.showTaskOf(row.b ? 1 : 0, (row.b ?? row.a).tasks), shown(row.name)),
        row.a ? `${duration(row.a.mean)} ± ${duration(row.a.deviation)}` : "—", row.b ? `${duration(row.b.mean)} ± ${duration(row.b.deviation)}` : "—",
        row.a && row.b ? signed(row.b.mean - row.a.mean) : "—",
        el("span", { class: row.sure ? (row.cost > 0 ? "bad" : "good") : "quiet" }, row.sure ? signed(row.cost) : row.few ? "too few instances" : "within its spread"),
        row.a ? row.b ? "" : `only in ${shown(a.name)}` : `only in ${shown(b.name)}`])),
    ...layersTable(comparedLayers(a, b), [a.name, b.name], signed),
    el("p", { class: "quiet" }, `“Per iteration” is the work of all learners and devices together; work beside compute may cost no time. Samples: ${counted(a.instances, "instance")} and ${counted(b.instances, "instance")}.`));
}
