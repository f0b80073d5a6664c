// SPDX-License-Identifier: Apache-2.0

// The summary of a whole trace: the verdict above all views, and the panel if nothing is selected.

import { el, link } from "../../page/dom.js";
import { turnsNote } from "./layout.js";
import { counted, duration, shown, unbroken } from "../../page/names.js";
import { cardOf } from "./run_card.js";

function sizeOf({ instances, begin_ns, end_ns, steady, dropped, unfinished }) {
  const parts = [counted(instances, "task instance") + (instances ? ` over ${duration(end_ns - begin_ns)}` : "")];
  if (steady?.iteration_ns > 0) parts.push(`steady state: iterations ${steady.first} to ${steady.last}, ${duration(steady.iteration_ns)} each`);
  if (dropped > 0) parts.push(`${counted(dropped, "older span was", "older spans were")} dropped: the newest are here`);
  if (unfinished > 0) parts.push(`${counted(unfinished, "instance")} had not ended: the run failed or was stopped`);
  return parts.join(" · ");
}

// `show`: called with a figure that is clicked.
export function verdictParts(head, show) {
  const { sentence, notes, figures } = head.verdict;
  const failed = head.run?.ended === "failed" ? " failed" : "";
  return [el("p", { class: "sentence" }, el("bdi", {}, unbroken(shown(sentence)))),
    ...notes.map((note, i) => el("p", { class: "note" + (i === 0 ? failed : "") }, el("bdi", {}, unbroken(shown(note))))),
    el("div", { class: "figures" }, ...figures.map((figure) => el("button", { class: "figure", type: "button", onclick: () => show(figure) },
      el("b", {}, unbroken(shown(figure.value))), el("span", {}, unbroken(shown(figure.text)))))),
    el("div", { class: "note" }, unbroken(sizeOf(head)))];
}

function runCard(head) {
  const lines = cardOf(head);
  return lines.length === 0 ? null : el("section", {}, el("h2", {}, "The run"), el("dl", { class: "card" }, ...lines.flatMap(([name, text]) =>
    [el("dt", {}, name), el("dd", {}, el(name === "command" ? "code" : "bdi", {}, text))])));
}

export function overview(head, onlyCritical, act) {
  const { critical, edges, tasks, steady } = head;
  const cycle = critical?.edges.length ? el("section", {}, el("h3", {}, "Critical cycle"),
    el("p", {}, unbroken(`No schedule takes less than ${duration(critical.bound_ns)} an iteration, because of these tasks, which wait for each other in turn.${turnsNote(head)}`)),
    el("ul", { class: "edges" }, ...critical.edges.slice(0, 20).map((id) => el("li", { class: "last" },
      link(shown(tasks[edges[id].from].name), () => act.showTask([edges[id].from]))))),
    link(onlyCritical ? "show all tasks" : "show only these", () => act.critical())) : null;
  return el("div", {}, runCard(head), el("h2", {}, "Nothing selected"),
    el("p", { class: "quiet" }, "Each row is a queue of a device, or a thread of the host; each block is one instance of a task. Click one to see what it waited for and who waited for it."),
    steady?.iteration_ns > 0 ? el("p", {}, unbroken(`An iteration takes ${duration(steady.iteration_ns)} in the steady state.`)) : null, cycle,
    el("p", { class: "quiet" }, "The wheel zooms, a drag moves; ", el("kbd", {}, "?"), " shows all keys."));
}
