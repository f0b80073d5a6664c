// SPDX-License-Identifier: Apache-2.0

// A plot as SVG: axes, a line per series, and the values under the pointer.

import { shown } from "../../page/names.js";
import { el, svg } from "../../page/dom.js";
import { css, rgbOf } from "../../page/theme.js";
import { kBottom, kHeight, kLeft, kRight, kTop, kWidth, plotFrame, roomy, written } from "./axes.js";
import { pointedAt, smoothed, spanOf, thinned } from "./series.js";

const kKindWords = { training: "training ", epoch: "mean ", validation: "validation ", steps: "", folded: "" };

const kHues = [216, 22, 150, 285, 340, 48, 190, 95];

// A colour for each of so many lines.
export function lineColours(count, dark) {
  return Array.from({ length: count }, (_, i) => {
    const shade = Math.floor(i / kHues.length) % 3;
    return css(rgbOf(kHues[i % kHues.length], dark ? 0.6 : 0.68, (dark ? 0.64 : 0.47) + [0, 0.13, -0.13][shade]));
  });
}

// `plot`: { title, series, marks: [x of lines from top to bottom] }; series are as plotsOf() makes them. A series of
// kind "folded" has means of several runs, with the least (`low`), the greatest (`high`) and their number (`count`).
// `view`: { axis, range (null: all), hidden (a set of runs), marked (a run; all others fade), colours (by run),
// log, smooth (0: not at all) }, `act`: { range(from, to) }.
export function plotPicture(plot, runs, view, act) {
  const seen = plot.series.filter((series) => !view.hidden.has(series.run));
  const whole = spanOf(seen.map((series) => series[view.axis]));
  const range = view.range ?? (whole && [Math.min(0, whole[0]), whole[1]]);
  const span = range && spanOf(seen.map((series) => within(series, view.axis, range)).flatMap(({ value, low, high }) => [value, low ?? [], high ?? []]), view.log);
  if (!span) return el("p", { class: "quiet empty" }, view.log ? "Nothing above 0 here." : "Nothing here.");
  const xRange = range[0] === range[1] ? [range[0], range[0] + 1] : range;
  const { picture, box, x, y } = plotFrame({ title: plot.title, x: { range: xRange, log: false }, y: { range: roomy(span, view.log), log: view.log } });
  box.append(...(plot.marks ?? []).filter((at) => at > xRange[0] && at < xRange[1]).map((at) => svg("line", { class: "cross", x1: x.at(at), x2: x.at(at), y1: kTop, y2: kHeight - kBottom })));
  for (const series of seen) box.append(...linesOf(series, seen, view, x, y, xRange));
  const cross = svg("line", { class: "cross", y1: kTop, y2: kHeight - kBottom, visibility: "hidden" });
  const chosen = svg("rect", { class: "chosen", y: kTop, height: kHeight - kTop - kBottom, visibility: "hidden" });
  picture.append(chosen, cross);
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
  const faded = (view.marked ?? series.run) === series.run ? "" : " faded";
  const dotted = ((series.kind === "validation" || series.kind === "folded") && kept.length <= 60) || kept.length === 1;
  const marks = dotted ? points.map(([px, py]) => svg("circle", { cx: px, cy: py, r: 2.6, fill: colour, class: faded })) : [];
  return [bandOf(series, kept, view, x, y), svg("path", { d: path, class: `series ${series.kind}${noisy ? " noisy" : ""}${faded}`, stroke: colour }), ...marks].filter((part) => part);
}

// The area from the least to the greatest value of several runs; null if the series is of one alone.
function bandOf(series, kept, view, x, y) {
  const inside = kept.filter((i) => !view.log || series.low?.[i] > 0);
  if (!series.low || inside.every((i) => series.low[i] === series.high[i])) return null;
  const along = (values, positions) => positions.map((i) => `${x.at(series[view.axis][i]).toFixed(1)} ${y.at(values[i]).toFixed(1)}`);
  const points = [...along(series.high, inside), ...along(series.low, [...inside].reverse())];
  return svg("path", { d: `M${points.join("L")}Z`, class: `band${(view.marked ?? series.run) === series.run ? "" : " faded"}`, fill: view.colours[series.run], stroke: view.colours[series.run] });
}

// "validation 0.592", of several trials "0.592 (0.58 to 0.6 in 2 trials)".
export function pointText(series, i) {
  const value = kKindWords[series.kind] + written(series.value[i]);
  return series.count?.[i] > 1 ? `${value} (${written(series.low[i])} to ${written(series.high[i])} in ${series.count[i]} trials)` : value;
}

// "epoch 3", "iteration 120", "12.5 s".
export function whereText(axis, x) {
  return axis === "seconds" ? `${written(x)} s` : axis === "epochs" ? `epoch ${written(x)}` : `iteration ${Math.round(x)}`;
}

// The points of a series that are in view.
function within(series, axis, [from, to]) {
  const kept = series.value.map((_, i) => i).filter((i) => series[axis][i] >= from && series[axis][i] <= to);
  if (kept.length === series.value.length) return series;
  const columns = [axis, "value", "low", "high", "count"].filter((name) => series[name]);
  return { ...series, ...Object.fromEntries(columns.map((name) => [name, kept.map((i) => series[name][i])])) };
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
        pointText(series, i) + elsewhere);
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
