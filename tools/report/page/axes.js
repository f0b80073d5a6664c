// SPDX-License-Identifier: Apache-2.0

// The axes of a plot, with round numbers.

import { grouped, roundStep, shown } from "../../page/names.js";
import { svg } from "../../page/dom.js";

export const kWidth = 560, kHeight = 250, kLeft = 58, kRight = 12, kTop = 10, kBottom = 24;
const kEdge = 4;  // around what is drawn, for marks and widths of lines
const kLongest = 84;  // pixels of a name on the horizontal axis

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
export function roomy([from, to], log) {
  if (log) return from === to ? [from / 2, to * 2] : [from, to];
  const room = (to - from) * 0.04 || Math.abs(from) * 0.1 || 1;
  return [from >= 0 ? Math.max(0, from - room) : from - room, to + room];
}

// A scale from values to pixels and back.
export function scale([from, to], [first, last], log) {
  const map = log ? Math.log : (value) => value, back = log ? Math.exp : (value) => value;
  const a = map(from), factor = (last - first) / (map(to) - a || 1);
  return { at: (value) => first + (map(value) - a) * factor, value: (pixel) => back(a + (pixel - first) / factor) };
}

// The words of an axis at their values: [{ at, text, name }], where `name` is the whole of a text that was cut short.
export function axisTexts({ range, log, names }, most) {
  if (!names) {
    const { values, step } = ticks(range, most, log);
    return values.map((at) => ({ at, text: tickText(at, step) }));
  }
  const letters = Math.max(2, Math.floor(Math.min(kLongest, (kWidth - kLeft - kRight) / names.length) / 6));
  return names.map((name, at) => ({ at, text: shown(name).length > letters ? shown(name).slice(0, letters - 1) + "…" : shown(name), name }));
}

// An empty plot: the picture, the box that clips what is drawn, and the scales of its axes. An axis is
// { range, log, names }; names stand at 0, 1, 2 and so on.
export function plotFrame({ title, x: along, y: upward }) {
  const x = scale(along.range, [kLeft, kWidth - kRight], along.log), y = scale(upward.range, [kHeight - kBottom, kTop], upward.log);
  const picture = svg("svg", { viewBox: `0 0 ${kWidth} ${kHeight}`, class: "plot", role: "img", "aria-label": title });
  for (const { at, text } of axisTexts(upward, 5)) {
    picture.append(svg("line", { class: "grid", x1: kLeft, x2: kWidth - kRight, y1: y.at(at), y2: y.at(at) }), svg("text", { class: "y", x: kLeft - 6, y: y.at(at) + 3.5 }, text));
  }
  for (const { at, text, name } of axisTexts(along, 6)) {
    picture.append(svg("text", { x: x.at(at), y: kHeight - 7 }, text, name === undefined ? null : svg("title", {}, shown(name))));
  }
  picture.append(svg("line", { class: "axis", x1: kLeft, x2: kWidth - kRight, y1: kHeight - kBottom, y2: kHeight - kBottom }));
  const inner = [kLeft - kEdge, kTop - kEdge, kWidth - kLeft - kRight + 2 * kEdge, kHeight - kTop - kBottom + 2 * kEdge];
  const box = svg("svg", { x: inner[0], y: inner[1], width: inner[2], height: inner[3], viewBox: inner.join(" ") });
  picture.append(box);
  return { picture, box, x, y };
}
