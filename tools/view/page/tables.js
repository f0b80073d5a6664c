// SPDX-License-Identifier: Apache-2.0

// Tables: causes of idle lanes, possible gains, and differences between traces.

import { css } from "../../page/theme.js";
import { causeColour, kindColour } from "./colours.js";
import { bar, el, link, table } from "../../page/dom.js";
import { compared, comparedLayers, timeOf, unitOf } from "./compare.js";
import { cardOf, imagesPerSecond, learnersOf, samplesOf } from "./run_card.js";
import { counted, duration, grouped, instanceName, kindName, percent, shown } from "../../page/names.js";

export function idleView(trace, state, act) {
  const { head } = trace;
  const lanes = head.lanes.map((lane, id) => ({ ...lane, id })).filter((lane) => lane.causes);
  const order = ["compute", "averaging", "collectives", "copy_in", "copy_out", "validate", "host"];
  lanes.sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind) || a.id - b.id);
  const sections = lanes.map((lane) => {
    const all = lane.busy_ns + lane.idle_ns || 1;
    const parts = [{ share: lane.busy_ns / all, colour: css(kindColour(lane.kind, state.dark)), title: `busy ${percent(lane.busy_ns / all)}` },
      ...lane.causes.map((cause) => ({ share: cause.ns / all, colour: causeColour(cause.why, state.dark), title: `${cause.why}: ${percent(cause.ns / all)}` }))];
    const rows = lane.causes.filter((cause) => cause.ns / all >= 0.0005).map((cause) => [
      el("span", { class: "cause" }, el("i", { class: "swatch", style: { background: causeColour(cause.why, state.dark) } }), cause.why),
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
  const rank = (one) => [one.change.startsWith("prefetch") ? 1 : 0, tells(one) ? Math.abs(one.saved) : 0];
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
    ...changesTable("If there were another number of slots", "slots", slots, (one) => shown(one.change), change, tells, act),
    ...changesTable("If a layer were twice as fast, forward and backward", "layer", layers, (one) => shown(one.layer), change, tells, act),
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

function comparedLayersTable(rows, names, unit) {
  const most = 12;
  if (rows.length === 0) return [];
  return [el("h3", {}, `Layers, per ${unit}`),
    table([["layer", "left"], [`in ${shown(names[0])}`, "right"], [`in ${shown(names[1])}`, "right"], ["difference", "right"]], rows.slice(0, most).map((row) => [
      el("bdi", {}, shown(row.name)), duration(row.a), duration(row.b), signedTime(row.b - row.a)])),
    rows.length > most ? el("p", { class: "quiet" }, `and ${counted(rows.length - most, "layer")} that changed less`) : null];
}

// `state.pair`: which two.
export function compareView(traces, state, act) {
  const [a, b] = state.pair.map((at) => traces[at].head);
  return el("div", { class: "page" }, ...(traces.length > 2 ? allCompared(traces, state.pair, act) : []), ...twoCompared(a, b, state.pair, act));
}

const signedTime = (ns) => (ns > 0 ? "+" : "−") + duration(Math.abs(ns));
const signedShare = (share) => (share > 0 ? "+" : "") + percent(share);

// Compares times per iteration of each trace with the first of the pair, or per sample if batches differ. The two to be
// compared in full can be chosen.
function allCompared(traces, pair, act) {
  const chosen = (side) => el("select", { id: `compare-${side}`, onchange: (event) => act.compare(pair.map((at, i) => (i === side ? event.target.selectedIndex : at))) },
    ...traces.map(({ head }, i) => el("option", { selected: i === pair[side] }, shown(head.name))));
  const unit = unitOf(traces.map(({ head }) => head)), base = timeOf(traces[pair[0]].head, unit);
  const known = (value, text) => (value > 0 ? text(value) : "—");
  return [el("p", { class: "choice" }, "From ", chosen(0), " to ", chosen(1)),
    table([["trace", "left"], ["learners", "right"], ["batch", "right"], ["images/s", "right"], [unit === "sample" ? "a sample" : "an iteration", "right"], ["difference", "right"], ["", "right"]], traces.map(({ head }, i) => {
      const own = timeOf(head, unit), differs = i !== pair[0] && base > 0 && own > 0;
      return [i === pair[0] ? el("bdi", {}, shown(head.name)) : link(shown(head.name), () => act.compare([pair[0], i]), "all that changed"), head.tasks ? grouped(learnersOf(head)) : "—",
        known(head.run?.batch, grouped), known(imagesPerSecond(head), grouped), known(own, duration),
        differs ? signedTime(own - base) : "", differs ? signedShare(own / base - 1) : ""];
    }))];
}

// The differences between the cards of two runs.
function cardsCompared(a, b) {
  const [inA, inB] = [a, b].map((head) => new Map(cardOf(head)));
  const rows = [...new Set([...inA.keys(), ...inB.keys()])].filter((name) => name !== "date" && inA.get(name) !== inB.get(name));
  if (rows.length === 0) return [];
  return [el("h3", {}, "The runs"), table([["", "left"], [shown(a.name), "left"], [shown(b.name), "left"]],
    rows.map((name) => [name, ...[inA, inB].map((card) => el("bdi", {}, card.get(name) ?? "—"))]))];
}

function twoCompared(a, b, pair, act) {
  if (!a.tasks || !b.tasks) return [el("p", { class: "intro" }, "One of the traces holds no instances: there is nothing to compare.")];
  const { rows, unit, time } = compared(a, b), samples = unit === "sample";
  const verdict = time.a > 0 && time.b > 0
    ? `${samples ? "A sample" : "An iteration"} takes ${duration(time.a)} in “${shown(a.name)}” and ${duration(time.b)} in “${shown(b.name)}”: ${signedTime(time.b - time.a)} (${signedShare(time.b / time.a - 1)}).`
    : "One of the traces is too short to tell how long an iteration takes.";
  const learners = [a, b].map(learnersOf), mean = samples ? "a sample" : "mean";
  const unlike = samples ? ` Iterations are of ${grouped(samplesOf(a))} and of ${grouped(samplesOf(b))} samples, so that all times are of a sample.`
    : learners[0] === learners[1] ? "" : ` An iteration is a batch of each learner: ${learners[0]} in “${shown(a.name)}”, ${learners[1]} in “${shown(b.name)}”.`;
  return [el("p", { class: "intro" }, verdict + unlike),
    table([["task", "left"], [`${mean} in ${shown(a.name)}`, "right"], [`${mean} in ${shown(b.name)}`, "right"], ["difference", "right"], [`per ${unit}`, "right"], ["", "left"]],
      rows.map((row) => [link(row.name, () => act.showTaskOf(pair[row.b ? 1 : 0], (row.b ?? row.a).tasks)),
        row.a ? `${duration(row.a.mean)} ± ${duration(row.a.deviation)}` : "—", row.b ? `${duration(row.b.mean)} ± ${duration(row.b.deviation)}` : "—",
        row.a && row.b ? signedTime(row.b.mean - row.a.mean) : "—",
        el("span", { class: row.sure ? (row.cost > 0 ? "bad" : "good") : "quiet" }, row.sure ? signedTime(row.cost) : row.few ? "too few instances" : "within its spread"),
        row.a ? row.b ? "" : `only in ${shown(a.name)}` : `only in ${shown(b.name)}`])),
    ...comparedLayersTable(comparedLayers(a, b), [a.name, b.name], unit), ...cardsCompared(a, b),
    el("p", { class: "quiet" }, `“Per ${unit}” is the work of all learners and devices together; work at the same time as compute may cost no time. Recorded: ${counted(a.instances, "instance")} and ${counted(b.instances, "instance")}.`)];
}
