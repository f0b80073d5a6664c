// SPDX-License-Identifier: Apache-2.0

// The buttons above the timeline: what the wheel, drags and keys do as well.

import { el } from "../../page/dom.js";

// `act`: { zoom(factor), move(share), steady(), whole(), fold(), measuring(on), critical(), charts() }. [buttons];
// those that stay pressed have a name in `shown()`.
export function toolbar(act) {
  const button = (text, title, action, pressed) => el("button", { type: "button", title, id: pressed && `tool-${pressed}`, "aria-label": title, onclick: action }, text);
  const group = (...buttons) => el("span", { class: "group" }, ...buttons);
  return [
    group(button("−", "zoom out (wheel, S)", () => act.zoom(1 / 0.7)), button("+", "zoom in (wheel, W)", () => act.zoom(0.7))),
    group(button("◂", "earlier (drag, A)", () => act.move(-0.3)), button("▸", "later (drag, D)", () => act.move(0.3))),
    group(button("some iterations", "a few iterations in the middle of the steady state (I)", act.steady), button("whole run", "all of the trace (F)", act.whole)),
    group(button("fold", "fold all hosts, or open them (H); Shift+click on a host's name opens it alone", act.fold)),
    group(button("measure", "a drag measures a time rather than moving (R, or Shift while dragging)", () => act.measuring(), "measuring"),
      button("critical cycle", "only the tasks that bound how fast iterations follow each other (C)", () => act.critical(), "critical"),
      button("charts", "what devices and slots did, under the timeline (G); a click on a chart's name folds it", () => act.charts(), "charts")),
  ];
}

// Which of them are on: { measuring, critical, charts }.
export function showPressed(state) {
  for (const [name, on] of Object.entries(state)) document.getElementById(`tool-${name}`)?.setAttribute("aria-pressed", on ? "true" : "false");
}
