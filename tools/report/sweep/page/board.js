// SPDX-License-Identifier: Apache-2.0

// The leaderboard: a row for each group of trials, with its settings, value and trials.

import { grouped, shown } from "../../../page/names.js";
import { el, sortedTable } from "../../../page/dom.js";
import { groupName, lengthOf, trialsText, valueText } from "./sweep_series.js";

// A setting of a group in a column that is sorted as its scale says.
function settingCell(setting, group, i) {
  const text = group.settings[i];
  return { show: text === null ? "—" : el("bdi", {}, shown(text)), by: setting.scale === "names" ? text ?? "" : group.at[i] ?? -Infinity };
}

// `view`: { shown (a Set of groups with curves to see), drawn (a Set of groups that have curves), marked, colours,
// sorted }, `act`: { mark(group), toggle(group), sorted(how) }.
export function boardTable(data, view, act) {
  const several = data.groups.some((group) => group.trials.length > 1);
  const heads = [["place", "right"], ...data.settings.map((setting) => [shown(setting.name), setting.scale === "names" ? "left" : "right"]),
    [shown(data.metric) || "value", "right"], [several ? "trials" : "trial", "right"], [data.in_iterations ? "iterations" : "epochs", "right"], ["curves", "left"]];
  const lines = new Map();
  const rows = data.groups.map((group, index) => {
    const box = el("input", { type: "checkbox", id: `curves-${index}`, "aria-label": `curves of ${groupName(data, index)}`, checked: view.shown.has(index), disabled: !view.drawn.has(index), onclick: (event) => {
      event.stopPropagation();
      act.toggle(index);
    } });
    const row = [
      // A click on the button is a click on its row, too.
      { show: el("button", { type: "button", class: "link", id: `place-${index}`, title: "let its curves and trials stand out" }, group.mean === null ? "—" : String(index + 1)), by: index },
      ...data.settings.map((setting, i) => settingCell(setting, group, i)),
      { show: group.mean === null && group.failed > 0 ? el("span", { class: "bad" }, "failed") : valueText(group), by: group.mean ?? -Infinity },
      { show: el("span", { class: several && group.failed > 0 ? "bad" : undefined, title: `trial ${group.trials.map((trial) => trial + 1).join(", ")}` }, several ? trialsText(group) : String(group.trials[0] + 1)), by: several ? group.trials.length : group.trials[0] },
      { show: grouped(lengthOf(data, group)), by: lengthOf(data, group) },
      { show: el("label", {}, box, view.drawn.has(index) ? el("i", { class: "swatch", style: { background: view.colours[index] } }) : null), by: view.shown.has(index) ? 1 : 0 }];
    lines.set(row, { class: view.marked === index ? "marked" : undefined, id: `group-${index}`, onclick: () => act.mark(index) });
    return row;
  });
  return el("section", { class: "scroll", id: "board" }, sortedTable(heads, rows, view.sorted, act.sorted, (row) => lines.get(row)));
}
