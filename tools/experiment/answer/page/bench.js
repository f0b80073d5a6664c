// SPDX-License-Identifier: Apache-2.0

// The page of a bench: its tables, each column of numbers as a plot, times and epochs over targets, and times against
// prices.

import { kHeight, plotFrame, roomy, tickText, ticks } from "../../../report/page/axes.js";
import { lineColours } from "../../../report/page/plot.js";
import { shown } from "../../../page/names.js";
import { el, svg, table } from "../../../page/dom.js";
import { isDark, setTheme } from "../../../page/theme.js";

const kWide = 520, kRow = 22, kLabel = 260, kTicks = 18;
const kCounts = new Set(["repetitions", "runs"]), kBytes = new Set(["planned memory", "taken of the GPU"]);

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
  const bottom = kRow * points.length + 8;
  const lines = points.flatMap((point, row) => {
    const y = kRow * row + kRow / 2 + 4;
    return [
      svg("text", { class: "number", x: kLabel - 10, y: y + 4 }, shown(point.name)),
      svg("line", { class: "low", x1: x(point.low), x2: x(point.high), y1: y, y2: y }),
      svg("circle", { cx: x(point.value), cy: y, r: 4 }, svg("title", {}, shown(point.text))),
    ];
  });
  const { values, step } = ticks([from, to], 6);
  const axis = values.flatMap((value) => [
    svg("line", { class: "axis", x1: x(value), x2: x(value), y1: 0, y2: bottom }),
    svg("text", { class: "tick", x: x(value), y: bottom + kTicks - 4 }, tickText(value, step)),
  ]);
  const one = comparison && to > 1 ? svg("line", { class: "one", x1: x(1), x2: x(1), y1: 0, y2: bottom }) : null;
  return svg("svg", { class: "dots", width: kLabel + kWide + 20, height: bottom + kTicks }, ...axis, one, ...lines);
}

// The columns of times to targets, or of epochs: [{ at, target }].
export function targetsOf(columns, unit = "s") {
  return columns.map((column, at) => ({ at, found: /^(s|epochs) to (\S+)$/.exec(column.name) }))
    .filter(({ found }) => found?.[1] === unit).map(({ at, found }) => ({ at, target: Number(found[2]) }));
}

// A line for each row with two times or more: [{ name, points: [[target, seconds or epochs]] }].
export function timesOf(rows, targets) {
  return rows.map((row) => ({ name: row[0].text, points: targets.map(({ at, target }) => [target, row[at].number]).filter(([, time]) => Number.isFinite(time)) }))
    .filter((line) => line.points.length > 1);
}

// Time and price of each row that has both: [{ name, x, y, front }], where `front` says that no other row is better in
// both.
export function pricesOf(each) {
  const [time] = targetsOf(each.columns), price = time ? time.at + 1 : 0;
  const name = each.columns[price]?.name ?? "";
  if (!time || !name.endsWith(` to ${time.target}`) || name.startsWith("epochs ")) return [];
  const points = each.rows.map((row) => ({ name: row[0].text, x: row[time.at].number, y: row[price].number }))
    .filter((point) => Number.isFinite(point.x) && Number.isFinite(point.y));
  const better = (one, two) => one.x <= two.x && one.y <= two.y && (one.x < two.x || one.y < two.y);
  return points.map((point) => ({ ...point, front: !points.some((other) => better(other, point)) }));
}

function rangeAround(numbers) {
  return roomy([Math.min(...numbers), Math.max(...numbers)], false);
}

function legend(lines, colours) {
  return el("p", { class: "legend" }, ...lines.map((line, i) => el("span", {}, el("i", { class: "swatch", style: { background: colours[i] } }), shown(line.name))));
}

function targetPlot(each, unit) {
  const targets = targetsOf(each.columns, unit), lines = timesOf(each.rows, targets), title = unit === "s" ? "Seconds to each target" : "Epochs to each target";
  if (targets.length < 2 || lines.length === 0) return null;
  const amounts = lines.flatMap((line) => line.points.map((point) => point[1]));
  const { picture, box, x, y } = plotFrame({ title: title.toLowerCase(), x: { range: rangeAround(targets.map(({ target }) => target)) }, y: { range: [0, rangeAround(amounts)[1]] } });
  const colours = lineColours(lines.length, isDark());
  lines.forEach((line, i) => {
    const path = line.points.map(([target, time], p) => `${p === 0 ? "M" : "L"}${x.at(target).toFixed(1)} ${y.at(time).toFixed(1)}`).join("");
    box.append(svg("path", { class: "series", d: path, stroke: colours[i] }, svg("title", {}, shown(line.name))));
  });
  return el("div", {}, el("h3", {}, title), picture, legend(lines, colours));
}

function pricePlot(each) {
  const points = pricesOf(each);
  if (points.length < 2) return null;
  const upTo = (numbers) => [0, rangeAround(numbers)[1]];
  const { picture, box, x, y } = plotFrame({ title: "price against time", x: { range: upTo(points.map((point) => point.x)) }, y: { range: upTo(points.map((point) => point.y)) } });
  const front = points.filter((point) => point.front).sort((one, two) => one.x - two.x);
  box.append(svg("path", { class: "front", d: front.map((point, i) => `${i === 0 ? "M" : "L"}${x.at(point.x).toFixed(1)} ${y.at(point.y).toFixed(1)}`).join("") }));
  for (const point of points) {
    const above = y.at(point.y) < kHeight / 4 ? 14 : -8;
    box.append(svg("circle", { class: point.front ? "best" : "", cx: x.at(point.x), cy: y.at(point.y), r: 4 }), svg("text", { class: "point", x: x.at(point.x), y: y.at(point.y) + above }, shown(point.name)));
  }
  return el("div", {}, el("h3", {}, "Price against seconds; none is below and left of the line"), picture);
}

function tableSection(each) {
  const heads = each.columns.map((column) => [shown(column.name), column.number ? "right" : "left"]);
  const rows = each.rows.map((row) => row.map((value) => shown(value.text)));
  return el("section", {}, el("h2", {}, shown(each.title)), el("div", { class: "scroll" }, table(heads, rows)), ...each.notes.map((note) => el("p", { class: "quiet" }, shown(note))));
}

// null: there is nothing to draw.
function plotSection(each) {
  const plots = each.columns.flatMap((column, at) => {
    const plotted = column.number && at > 0 && !kCounts.has(column.name);
    const picture = plotted ? plot(each.rows, at, /against|speed-up|of images/.test(column.name)) : null;
    return picture ? [el("h3", {}, shown(column.name) + (kBytes.has(column.name) ? ", bytes" : "")), picture] : [];
  });
  const all = [targetPlot(each, "s"), targetPlot(each, "epochs"), pricePlot(each), ...plots].filter((part) => part);
  return all.length > 0 ? el("section", {}, el("h2", {}, `${shown(each.title)}, drawn`), ...all) : null;
}

// The picture as a file of its own, with the colours that it has here.
function save(picture, name) {
  const copy = picture.cloneNode(true), from = [picture, ...picture.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const property of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font", "text-anchor"]) to[i].style.setProperty(property, style.getPropertyValue(property));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const file = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  el("a", { href: file, download: `${name}.svg` }).click();
  URL.revokeObjectURL(file);
}

export function main() {
  const bench = JSON.parse(document.getElementById("experiment").textContent);
  setTheme();
  document.getElementById("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  document.getElementById("title").append(shown(bench.title));
  document.getElementById("bench").append(...bench.tables.map(tableSection), ...bench.tables.map(plotSection).filter((part) => part),
    el("section", {}, el("h2", {}, "Machine and versions"), table([["", "left"], ["", "left"]], bench.environment.map(([name, text]) => [name, shown(text)]))),
    el("section", {}, el("h2", {}, shown(bench.file)), el("pre", {}, bench.text)));
  for (const picture of document.querySelectorAll("#bench svg.dots, #bench svg.plot")) {
    const name = picture.previousElementSibling?.textContent ?? "plot";
    picture.after(el("p", {}, el("button", { class: "link", type: "button", onclick: () => save(picture, name) }, "save as SVG")));
  }
}
