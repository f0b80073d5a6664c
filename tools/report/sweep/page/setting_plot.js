// SPDX-License-Identifier: Apache-2.0

// Plots of settings: each trial as a dot over the setting's values, the means as a line with intervals.

import { counted, shown } from "../../../page/names.js";
import { el, svg } from "../../../page/dom.js";
import { kBottom, kHeight, kTop, plotFrame, roomy, written } from "../../page/axes.js";
import { spanOf } from "../../page/series.js";
import { lengthOf, valueText } from "./sweep_series.js";

const kCross = 4;  // pixels from the middle of a cross to its corners

// The trials over a setting, for dotPicture(): { dots: [{ x, y, group, title }], failed: [{ x, group, title }],
// means: [{ x, y, low, high, count, title }] }.
export function settingPoints(data, setting) {
  const points = { dots: [], failed: [], means: [] };
  data.trials.forEach((trial, index) => {
    const x = data.groups[trial.group].at[setting], name = `trial ${index + 1}: ${shown(trial.settings)}`;
    const judged = trial.first ?? trial, { value } = judged;  // of a search: trained as far as the others
    if (x === null) return;
    if (trial.state === "failed") points.failed.push({ x, group: trial.group, title: `${name}\nfailed: ${shown(trial.error)}` });
    else if (trial.state === "ended" && value !== null) points.dots.push({ x, y: value, group: trial.group, title: `${name}\n${written(value)}, ${counted(lengthOf(data, judged), data.in_iterations ? "iteration" : "epoch")}` });
  });
  for (const one of data.settings[setting].means) {
    if (one.mean === null) continue;
    points.means.push({ x: one.at, y: one.mean, low: one.low, high: one.high, count: one.values, title: `${shown(one.text)}: mean ${valueText(one)} of ${one.values} trials${one.failed > 0 ? `, ${one.failed} failed` : ""}` });
  }
  return points;
}

// The horizontal axis of a setting, for plotFrame(), with room on either side.
export function settingAxis({ scale, means }, points) {
  if (scale === "names") return { range: [-0.5, means.length - 0.5], log: false, names: means.map((one) => one.text) };
  const [from, to] = spanOf([[...points.dots, ...points.failed, ...points.means].map((point) => point.x)]) ?? [1, 2];
  if (scale === "log") return { range: [from / (to / from) ** 0.04, to * (to / from) ** 0.04], log: true };
  const room = (to - from) * 0.04 || Math.abs(from) * 0.1 || 1;
  return { range: [from - room, to + room], log: false };
}

// Values from the least to the greatest. Intervals of means widen this by up to a half on either side. Null if there
// is no value.
export function valueSpan({ dots, means }, log) {
  const span = spanOf([[...dots, ...means].map((point) => point.y)], log);
  if (!span) return null;
  const bounds = spanOf([means.flatMap((mean) => [mean.low ?? mean.y, mean.high ?? mean.y])], log) ?? span, most = (span[1] - span[0]) / 2;
  return [Math.min(span[0], Math.max(bounds[0], span[0] - most)), Math.max(span[1], Math.min(bounds[1], span[1] + most))];
}

// `lines`: lists of means, which are joined unless the axis has names. `view`: { log, marked (a group), failedAbove:
// whether crosses of failed trials stand at the top }, `act`: { mark(group) }.
export function dotPicture({ title, axis, dots, failed, lines }, view, act) {
  const span = valueSpan({ dots, means: lines.flat() }, view.log);
  if (!span && failed.length === 0) return el("p", { class: "quiet empty" }, view.log ? "Nothing above 0 here." : "No trial has a value yet.");
  const { picture, box, x, y } = plotFrame({ title, x: axis, y: { range: roomy(span ?? [1, 2], view.log), log: view.log } });
  picture.classList.add("dots");
  const seen = (point) => !view.log || point.y > 0;
  const state = (group) => (view.marked === null ? "" : view.marked === group ? " marked" : " faded");
  const mark = (group) => () => act.mark(group);
  for (const line of lines) {
    const kept = line.filter(seen);
    if (!axis.names && kept.length > 1) box.append(svg("path", { class: "mean", d: "M" + kept.map((mean) => `${x.at(mean.x).toFixed(1)} ${y.at(mean.y).toFixed(1)}`).join("L") }));
  }
  // The marked one is on top.
  for (const dot of dots.filter(seen).sort((a, b) => (a.group === view.marked) - (b.group === view.marked))) {
    box.append(svg("circle", { class: `dot${state(dot.group)}`, cx: x.at(dot.x), cy: y.at(dot.y), r: 4, onclick: mark(dot.group) }, svg("title", {}, dot.title)));
  }
  for (const mean of lines.flat().filter((one) => one.count > 1 && seen(one))) {  // that of one trial is its dot
    const low = view.log && mean.low <= 0 ? y.value(kHeight) : mean.low;
    if (mean.low !== null) box.append(svg("line", { class: "mean", x1: x.at(mean.x), x2: x.at(mean.x), y1: y.at(low), y2: y.at(mean.high) }));
    box.append(svg("circle", { class: "mean", cx: x.at(mean.x), cy: y.at(mean.y), r: 3.5 }, svg("title", {}, mean.title)));
  }
  for (const one of failed) {
    const px = x.at(one.x), py = view.failedAbove ? kTop + kCross : kHeight - kBottom - kCross - 2;
    box.append(svg("path", { class: `failed${state(one.group)}`, onclick: mark(one.group), d: `M${px - kCross} ${py - kCross}l${2 * kCross} ${2 * kCross}m0 ${-2 * kCross}l${-2 * kCross} ${2 * kCross}` }, svg("title", {}, one.title)));
  }
  return picture;
}

// The losses of a search for a learning rate, for dotPicture().
export function ratePoints(data) {
  const points = { dots: [], failed: [], means: [], lines: [] };
  for (const { name, points: all } of data.rates) {
    const title = (rate) => `${name ? shown(name) + ", " : ""}rate ${rate}`, losses = all.filter((point) => point.loss !== null);
    points.failed.push(...all.filter((point) => point.error !== "").map(({ group, rate, error }) => ({ x: rate, group, title: `${title(rate)}\nfailed: ${shown(error)}` })));
    points.dots.push(...losses.map(({ group, rate, loss }) => ({ x: rate, y: loss, group, title: `${title(rate)}\nloss ${written(loss)}` })));
    points.lines.push(losses.map(({ rate, loss }) => ({ x: rate, y: loss, low: null, high: null, count: 1 })));
  }
  return points;
}
