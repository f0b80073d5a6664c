// SPDX-License-Identifier: Apache-2.0

// The page of a bench: its tables, and each column that has intervals as a plot.

import { shown } from "../../../page/names.js";
import { el, svg, table } from "../../../page/dom.js";
import { isDark, setTheme } from "../../../page/theme.js";

const kWide = 520, kRow = 22, kLabel = 260;

// The numbers of a column that are there, with their rows; a missing interval is the number itself.
export function pointsOf(rows, at) {
  return rows.map((row) => ({ name: row[0].text, text: row[at].text, value: row[at].number, low: row[at].low ?? row[at].number, high: row[at].high ?? row[at].number }))
    .filter((point) => Number.isFinite(point.value));
}

// The range of a plot: from 0 to beyond the greatest bound.
export function rangeOf(points) {
  return [0, Math.max(...points.map((point) => point.high)) * 1.05 || 1];
}

function plot(rows, at, comparison) {
  const points = pointsOf(rows, at);
  if (points.length < 2) return null;
  const [from, to] = rangeOf(points), x = (value) => kLabel + (value - from) / (to - from) * kWide;
  const height = kRow * points.length + 8;
  const lines = points.flatMap((point, row) => {
    const y = kRow * row + kRow / 2 + 4;
    return [
      svg("line", { class: "axis", x1: x(0), x2: x(to), y1: y, y2: y }),
      svg("text", { class: "number", x: kLabel - 10, y: y + 4 }, shown(point.name)),
      svg("line", { class: "low", x1: x(point.low), x2: x(point.high), y1: y, y2: y }),
      svg("circle", { cx: x(point.value), cy: y, r: 4 }, svg("title", {}, shown(point.text))),
    ];
  });
  const one = comparison && to > 1 ? svg("line", { class: "one", x1: x(1), x2: x(1), y1: 0, y2: height }) : null;
  return svg("svg", { class: "dots", width: kLabel + kWide + 20, height }, one, ...lines);
}

function section(each) {
  const heads = each.columns.map((column) => [shown(column.name), column.number ? "right" : "left"]);
  const rows = each.rows.map((row) => row.map((value) => shown(value.text)));
  const plots = each.columns.flatMap((column, at) => {
    const picture = column.interval ? plot(each.rows, at, /against|speed-up|of images/.test(column.name)) : null;
    return picture ? [el("h3", {}, shown(column.name)), picture] : [];
  });
  return el("section", {}, el("h2", {}, shown(each.title)), el("div", { class: "scroll" }, table(heads, rows)),
    ...each.notes.map((note) => el("p", { class: "quiet" }, shown(note))), ...plots);
}

export function main() {
  const bench = JSON.parse(document.getElementById("experiment").textContent);
  setTheme();
  document.getElementById("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  document.getElementById("title").append(shown(bench.title));
  document.getElementById("bench").append(...bench.tables.map(section),
    el("section", {}, el("h2", {}, "Where it was measured"), table([["", "left"], ["", "left"]], bench.environment.map(([name, text]) => [name, shown(text)]))),
    el("section", {}, el("h2", {}, shown(bench.file)), el("pre", {}, bench.text)));
}
