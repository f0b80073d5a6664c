// SPDX-License-Identifier: Apache-2.0

// A plot as SVG: axes, a line per series, and the values under the pointer.

import { grouped, roundStep, shown } from "../../page/names.js";
import { el, svg } from "../../page/dom.js";
import { pointedAt, smoothed, spanOf, thinned } from "./series.js";

const kWidth = 560, kHeight = 250, kLeft = 58, kRight = 12, kTop = 10, kBottom = 24;
const kEdge = 4;  // around what is drawn, for marks and widths of lines
const kKindWords = { training: "training ", epoch: "mean ", validation: "validation ", steps: "" };

// As many digits as say what a number is.
export function written(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e15 || size < 1e-4) return value.toExponential(2);
  if (size >= 1000) return grouped(Math.round(value));
  return String(Number(value.toPrecision(4)));
}

// A tick with as many digits as distinguish it from neighbours at a distance of `step`; a power of ten has one.
export function tickText(value, step = Math.abs(value)) {
  if (value === 0) return "0";
  const size = Math.abs(value), exponent = (number) => Math.floor(Math.log10(number) + 1e-9);
  const digits = (least) => Math.min(20, Math.max(0, least - exponent(step)));
  if (size >= 1e15 || size < 1e-4) return value.toExponential(digits(exponent(size)));
  return value.toLocaleString("en", { maximumFractionDigits: digits(0) }).replaceAll(",", "\u202f");
}

// Round values between two numbers: steps of 1, 2, 5 times a power of ten. On a logarithmic axis, powers of ten if two
// fit. { values, step }, without a step for powers of ten.
export function ticks([from, to], most, log = false) {
  const first = log ? Math.ceil(Math.log10(from) - 1e-9) : 0, last = log ? Math.floor(Math.log10(to) + 1e-9) : 0;
  if (last > first) {
    const every = Math.max(1, Math.ceil((last - first + 1) / most));
    return { values: Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, i) => Number(`1e${first + i * every}`)) };
  }
  const step = roundStep((to - from) / most || 1), values = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-6 && values.length < 2 * most; ++i) values.push(Number((i * step).toPrecision(14)));
  return { values, step };
}

// Spans that have a width, with a little room on either side of `y`.
function roomy([from, to], log) {
  if (log) return from === to ? [from / 2, to * 2] : [from, to];
  const room = (to - from) * 0.04 || Math.abs(from) * 0.1 || 1;
  return [from >= 0 ? Math.max(0, from - room) : from - room, to + room];
}

// A scale from values to pixels and back.
function scale([from, to], [first, last], log) {
  const map = log ? Math.log : (value) => value, back = log ? Math.exp : (value) => value;
  const a = map(from), factor = (last - first) / (map(to) - a || 1);
  return { at: (value) => first + (map(value) - a) * factor, value: (pixel) => back(a + (pixel - first) / factor) };
}

// `view`: { axis, range (null: all), hidden (a set of runs), colours (by run), log, smooth (0: not at all) },
// `act`: { range(from, to) }.
export function plotPicture(plot, runs, view, act) {
  const seen = plot.series.filter((series) => !view.hidden.has(series.run));
  const whole = spanOf(seen.map((series) => series[view.axis]));
  const range = view.range ?? (whole && [Math.min(0, whole[0]), whole[1]]);
  const span = range && spanOf(seen.map((series) => within(series, view.axis, range).value), view.log);
  if (!span) return el("p", { class: "quiet empty" }, view.log ? "Nothing above 0 here." : "Nothing here.");
  const xRange = range[0] === range[1] ? [range[0], range[0] + 1] : range;
  const yRange = roomy(span, view.log);
  const x = scale(xRange, [kLeft, kWidth - kRight], false), y = scale(yRange, [kHeight - kBottom, kTop], view.log);
  const picture = svg("svg", { viewBox: `0 0 ${kWidth} ${kHeight}`, class: "plot", role: "img", "aria-label": plot.title });
  const upward = ticks(yRange, 5, view.log), along = ticks(xRange, 6);
  for (const value of upward.values) {
    picture.append(svg("line", { class: "grid", x1: kLeft, x2: kWidth - kRight, y1: y.at(value), y2: y.at(value) }),
      svg("text", { class: "y", x: kLeft - 6, y: y.at(value) + 3.5 }, tickText(value, upward.step)));
  }
  for (const value of along.values) picture.append(svg("text", { x: x.at(value), y: kHeight - 7 }, tickText(value, along.step)));
  picture.append(svg("line", { class: "axis", x1: kLeft, x2: kWidth - kRight, y1: kHeight - kBottom, y2: kHeight - kBottom }));
  const inner = [kLeft - kEdge, kTop - kEdge, kWidth - kLeft - kRight + 2 * kEdge, kHeight - kTop - kBottom + 2 * kEdge];
  const box = svg("svg", { x: inner[0], y: inner[1], width: inner[2], height: inner[3], viewBox: inner.join(" ") });
  for (const series of seen) box.append(...linesOf(series, seen, view, x, y, xRange));
  const cross = svg("line", { class: "cross", y1: kTop, y2: kHeight - kBottom, visibility: "hidden" });
  const chosen = svg("rect", { class: "chosen", y: kTop, height: kHeight - kTop - kBottom, visibility: "hidden" });
  picture.append(box, chosen, cross);
  listen(picture, { plot, runs, view, act, seen, x, cross, chosen, xRange });
  return picture;
}

// Whether the series is drawn smoothed: values of training reports are, values of epochs and validations are not.
export function isSmoothed(series, view) {
  return series.kind === "training" && view.smooth > 0;
}

function linesOf(series, seen, view, x, y, xRange) {
  if (isSmoothed(series, view)) {
    return [...lineOf(series, true, view, x, y, xRange), ...lineOf({ ...series, value: smoothed(series.value, view.smooth) }, false, view, x, y, xRange)];
  }
  const noisy = series.kind === "training" && seen.some((other) => other.run === series.run && other.kind === "epoch" && other.value.length > 1);
  return lineOf(series, noisy, view, x, y, xRange);
}

function lineOf(series, noisy, view, x, y, xRange) {
  const kept = thinned(series[view.axis], series.value, xRange[0], xRange[1], kWidth - kLeft - kRight).filter((i) => !view.log || series.value[i] > 0);
  const points = kept.map((i) => [x.at(series[view.axis][i]), y.at(series.value[i])]);
  const colour = view.colours[series.run];
  const steps = series.kind === "steps";
  const path = points.map(([px, py], i) => (i === 0 ? `M${px.toFixed(1)} ${py.toFixed(1)}` : (steps ? `H${px.toFixed(1)}V` : `L${px.toFixed(1)} `) + py.toFixed(1))).join("");
  const marks = (series.kind === "validation" && kept.length <= 60) || kept.length === 1 ? points.map(([px, py]) => svg("circle", { cx: px, cy: py, r: 2.6, fill: colour })) : [];
  return [svg("path", { d: path, class: `series ${series.kind}${noisy ? " noisy" : ""}`, stroke: colour }), ...marks];
}

// "epoch 3", "iteration 120", "12.5 s".
export function whereText(axis, x) {
  return axis === "seconds" ? `${written(x)} s` : axis === "epochs" ? `epoch ${written(x)}` : `iteration ${Math.round(x)}`;
}

// The points of a series that are in view.
function within(series, axis, [from, to]) {
  const kept = series.value.map((_, i) => i).filter((i) => series[axis][i] >= from && series[axis][i] <= to);
  return kept.length === series.value.length ? series : { ...series, [axis]: kept.map((i) => series[axis][i]), value: kept.map((i) => series.value[i]) };
}

// Handles the pointer: shows the nearest point of each series at its x. Dragging chooses a range, a double click the
// whole one.
function listen(picture, { plot, runs, view, act, seen, x, cross, chosen, xRange }) {
  const tip = document.getElementById("tip");
  const at = (event) => {
    const bounds = picture.getBoundingClientRect();
    return Math.max(kLeft, Math.min(kWidth - kRight, (event.clientX - bounds.left) * kWidth / bounds.width));
  };
  const inside = seen.map((series) => within(series, view.axis, xRange));
  let begun = null;
  picture.addEventListener("pointermove", (event) => {
    const pixel = at(event);
    const pointed = pointedAt(inside, view.axis, x.value(pixel));
    if (!pointed) return;
    cross.setAttribute("x1", x.at(pointed.x));
    cross.setAttribute("x2", x.at(pointed.x));
    cross.setAttribute("visibility", "visible");
    if (begun !== null) {
      chosen.setAttribute("x", Math.min(begun, pixel));
      chosen.setAttribute("width", Math.abs(pixel - begun));
      chosen.setAttribute("visibility", "visible");
    }
    tip.replaceChildren(el("div", {}, whereText(view.axis, pointed.x)), ...pointed.points.slice(0, 16).map(({ series, at: i }) => {
      const own = series[view.axis][i], elsewhere = own === pointed.x ? "" : `, ${whereText(view.axis, own)}`;
      return el("div", {}, el("i", { class: "swatch", style: { background: view.colours[series.run] } }),
        el("bdi", {}, runs.length > 1 ? shown(runs[series.run].name) + " " : ""),
        kKindWords[series.kind] + written(series.value[i]) + elsewhere);
    }));
    tip.hidden = false;
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + "px";
  });
  picture.addEventListener("pointerdown", (event) => {
    if (event.button === 0) begun = at(event);
    event.preventDefault();
  });
  picture.addEventListener("pointerup", (event) => {
    const from = begun, to = at(event);
    begun = null;
    chosen.setAttribute("visibility", "hidden");
    if (from !== null && Math.abs(to - from) > 4) act.range(x.value(Math.min(from, to)), x.value(Math.max(from, to)));
  });
  picture.addEventListener("pointerleave", () => {
    begun = null;
    tip.hidden = true;
    for (const one of [cross, chosen]) one.setAttribute("visibility", "hidden");
  });
  picture.addEventListener("dblclick", () => act.range(null, null));
}
