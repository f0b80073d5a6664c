// SPDX-License-Identifier: Apache-2.0

// The panel next to the timeline: an instance, what it waited for, what waited for it, and the layers inside.

import { css } from "../../page/theme.js";
import { insideOf } from "./decode.js";
import { bar, el, link, table } from "../../page/dom.js";
import { counted, duration, inMilliseconds, instanceName, percent, shortName, shown } from "../../page/names.js";

const kWords = {
  data: "needs what it made",
  reuse: "needs the slot that it freed",
  lane: "runs after it in the same queue",
  self: "its own instances follow each other",
  pace: "the host runs no further ahead",
  clock: "begins after it",
};

export function edgeInWords(edge) {
  const what = edge.what ? `: ${shown(edge.what)}` : "";
  return kWords[edge.why] + what;
}

// The time at which the last of an instance's needs ended, as the list of these shows. If none of that was recorded,
// the time at which the run found it ready; on a GPU that is when all its needs were queued. NaN: unknown. Clocks of
// GPUs are read to the microsecond, so needs may seem to end a little late.
export function readyAt({ instances }, position, needs) {
  const start = instances.start[position];
  return needs.length > 0 && needs[0].position >= 0 ? Math.min(start, needs[0].time) : start - instances.ready[position];
}

function timesOf(trace, position, needs) {
  const { start, end, issued } = trace.instances;
  const zero = trace.head.begin_ns, ready = readyAt(trace, position, needs);
  const times = [["issued", start[position] - issued[position], "in its queue, or taken by a thread"], ["ready", ready, "the last of what it needed had ended"],
    ["started", start[position], Number.isFinite(ready) ? `${duration(start[position] - ready)} after it was ready` : ""], ["ended", end[position], ""]];
  const rows = times.filter(([, time]) => Number.isFinite(time)).sort((a, b) => a[1] - b[1]).map(([word, time, note]) => [word, inMilliseconds(time - zero), note]);
  return table([["", "left"], ["at", "right"], ["", "left"]], rows, { class: "times" });
}

// A list of the instances that one needed, with the time between each one's end and this one's start. The first ended
// last, so it is what this one waited for.
function needsList(trace, position, needs, act) {
  const { head, instances } = trace;
  if (needs.length === 0) return el("p", { class: "quiet" }, "Nothing: it could start at once.");
  return el("ul", { class: "edges" }, ...needs.map((need, i) => {
    const name = instanceName(shown(head.tasks[need.task].name), need.instance);
    const ahead = instances.start[position] - need.time;
    const before = need.position < 0 ? "not recorded" : `ended ${duration(Math.abs(ahead))} ${ahead >= 0 ? "before" : "after it started"}`;
    return el("li", { class: i === 0 && need.position >= 0 ? "last" : "" },
      need.position < 0 ? el("bdi", {}, name) : link(name, () => act.select(need.position)),
      el("div", { class: "quiet" }, `${i === 0 && need.position >= 0 ? "came last, " : ""}${before}; ${edgeInWords(head.edges[need.edge])}`));
  }));
}

function neededByList(trace, neededBy, act) {
  const { head } = trace;
  if (neededBy.length === 0) return el("p", { class: "quiet" }, "Nobody.");
  return el("ul", { class: "edges" }, ...neededBy.map((need) => {
    const name = instanceName(shown(head.tasks[need.task].name), need.instance);
    return el("li", {}, need.position < 0 ? el("bdi", {}, name) : link(name, () => act.select(need.position)),
      el("div", { class: "quiet" }, edgeInWords(head.edges[need.edge])));
  }));
}

function layersInside(trace, position, palette) {
  const { head, instances } = trace;
  const list = insideOf(trace, position).map(({ launch, start, end }) => [end - start, launch]);
  if (list.length === 0) return null;
  const timed = head.tasks[instances.task[position]].inside !== undefined;
  list.sort((a, b) => b[0] - a[0]);
  const all = list.reduce((sum, [time]) => sum + time, 0) || 1;
  return el("section", {}, el("h3", {}, "Inside"),
    table([["node", "left"], ["time", "right"], ["", "left"]], list.slice(0, 12).map(([time, launch]) => [
      el("bdi", {}, shown(head.launches[launch])), duration(time),
      bar([{ share: time / list[0][0], colour: css(palette.layers[launch]), title: percent(time / all) }], "90px")])),
    list.length > 12 ? el("p", { class: "quiet" }, `and ${counted(list.length - 12, "node")} that take less`) : null,
    timed ? el("p", { class: "quiet" }, "A step of a GPU is one launch: its nodes were timed after the run, and this instance is divided alike.") : null);
}

function slackOf(task) {
  if (!Number.isFinite(task.slack_us)) return "";
  if (task.slack_us * 1000 < 1) return " It is on the critical cycle: each that takes longer delays all that come after.";
  return ` Each could take ${duration(task.slack_us * 1000)} longer before it were on the critical cycle.`;
}

export function selectionPanel(trace, position, needs, neededBy, act, palette) {
  const { head, instances } = trace;
  const task = head.tasks[instances.task[position]];
  const took = instances.end[position] - instances.start[position];
  const spread = task.deviation_ns > 0 ? ` ± ${duration(task.deviation_ns)}` : "";
  const steady = head.steady;
  const place = task.clock === 0 && steady.last >= steady.first
    ? instances.instance[position] < steady.first ? ", in the warm-up" : instances.instance[position] > steady.last ? ", in the run's end" : ""
    : "";
  return el("div", {},
    el("h2", {}, el("bdi", {}, instanceName(shortName(task.name), instances.instance[position]))),
    el("p", { class: "quiet" }, el("bdi", {}, shown(task.name)), ` · instance ${instances.instance[position]} of the clock “${shown(head.clocks[task.clock].name)}”${place}`),
    el("p", {}, `Took ${duration(took)}; its mean is ${duration(task.mean_ns)}${spread}.`,
      slackOf(task)),
    timesOf(trace, position, needs),
    el("section", {}, el("h3", {}, "Waited for ", el("kbd", {}, "[")), needsList(trace, position, needs, act)),
    el("section", {}, el("h3", {}, "Waited for it ", el("kbd", {}, "]")), neededByList(trace, neededBy, act)),
    layersInside(trace, position, palette));
}
