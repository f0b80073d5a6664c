// SPDX-License-Identifier: Apache-2.0

// Colours of tasks: a hue per kind of lane, and shades for the tasks of one kind. Learners and devices share them.

import { css, isDark, rgbOf } from "../../page/theme.js";

const kHues = { host: 38, copy_in: 155, compute: 216, averaging: 338, collectives: 285, copy_out: 185, validate: 255 };

// The colour of text on a background colour.
export function inkOn([r, g, b]) {
  return 0.299 * r + 0.587 * g + 0.114 * b > 158 ? "#1d2330" : "#ffffff";
}

export function mixed(a, b, share) {
  return a.map((value, i) => Math.round(value * share + b[i] * (1 - share)));
}

// The colours of tasks, by task: [r, g, b]. `dark`: for the dark page.
export function taskColours(head, dark) {
  const shades = new Map(), counts = {};
  for (const task of head.tasks) {
    const kind = head.lanes[task.lane].kind;
    const short = task.name.slice(task.name.lastIndexOf("/") + 1);
    const key = kind + "/" + short;
    if (!shades.has(key)) shades.set(key, (counts[kind] = (counts[kind] ?? 0) + 1) - 1);
  }
  return head.tasks.map((task) => {
    const kind = head.lanes[task.lane].kind;
    const shade = shades.get(kind + "/" + task.name.slice(task.name.lastIndexOf("/") + 1));
    const hue = kHues[kind] + [0, 18, -16, 32, -30][shade % 5];
    const lightness = (dark ? 0.52 : 0.6) + [0, 0.08, -0.08, 0.04, -0.04][shade % 5];
    return rgbOf((hue + 360) % 360, dark ? 0.42 : 0.56, lightness);
  });
}

export function kindColour(kind, dark) {
  return rgbOf(kHues[kind] ?? 0, dark ? 0.42 : 0.56, dark ? 0.52 : 0.6);
}

// The layer that a node is of: "conv1" of "conv1.grad_weight".
export function layerOf(node) {
  return node.replace(/\.grad(_.*)?$/, "");
}

// Layers: their forward and backward nodes alike.
export function layerColours(launches, dark) {
  const hues = new Map();
  return launches.map((name) => {
    const layer = layerOf(name);
    if (!hues.has(layer)) hues.set(layer, (hues.size * 47 + 190) % 360);
    const backward = layer !== name;
    return rgbOf(hues.get(layer), dark ? 0.3 : 0.42, (dark ? 0.42 : 0.74) - (backward ? 0.09 : 0));
  });
}

// The palette of a trace's timeline: the page's colours, and those of tasks and layers.
export function paletteOf(head) {
  const dark = isDark(), page = dark ? [20, 23, 30] : [255, 255, 255];
  const style = getComputedStyle(document.documentElement), colour = (variable) => style.getPropertyValue("--" + variable).trim();
  const palette = { dark, neededBy: colour("needed"), layerText: colour("layer-text") };
  for (const name of ["page", "stripe", "ink", "quiet", "line", "grid", "measure", "mark", "outside", "needs"]) palette[name] = colour(name);
  palette.colours = taskColours(head, dark);
  palette.faint = palette.colours.map((one) => mixed(one, page, dark ? 0.22 : 0.18));
  palette.layers = layerColours(head.launches ?? [], dark);
  palette.faintLayers = palette.layers.map((one) => mixed(one, page, 0.25));
  return palette;
}

// The colour of slack, from none (on the critical cycle) to plenty: `share` of an iteration.
export function slackColour(share, dark) {
  if (!Number.isFinite(share)) return dark ? "rgb(70,74,84)" : "rgb(226,229,235)";
  const spare = Math.min(1, Math.max(0, share));
  return css(rgbOf(16 + 130 * Math.sqrt(spare), dark ? 0.42 : 0.6, dark ? 0.36 : 0.8));
}

const kCauseHues = [["not read", 38], ["on its way", 155], ["averaged", 338], ["summed", 338], ["results", 185], ["validation", 255],
  ["done computing", 230], ["its turn", 205], ["as far ahead", 60], ["noticed", 0], ["no thread", 20], ["all threads", 20], ["issuing", 10], ["about to start", 300]];

// The colour of a cause of idleness, by its words.
export function causeColour(why, dark) {
  const known = kCauseHues.find(([words]) => why.includes(words));
  if (!known) return dark ? "rgb(52,56,66)" : "rgb(228,231,237)";
  return css(rgbOf(known[1], dark ? 0.35 : 0.5, dark ? 0.45 : 0.72));
}
