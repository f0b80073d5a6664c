// SPDX-License-Identifier: Apache-2.0

// Two settings at once: the mean of the metric by both, as a table with colours.

import { counted, shown } from "../../../page/names.js";
import { el } from "../../../page/dom.js";
import { written } from "../../page/axes.js";
import { spanOf } from "../../page/series.js";

// How good a mean is among those of a table: 0 the worst, 1 the best.
export function goodness(mean, [least, most], lower) {
  const share = most > least ? (mean - least) / (most - least) : 1;
  return lower && most > least ? 1 - share : share;
}

// "mean of 2 trials, 1 failed".
export function cellTitle({ values, failed }) {
  const others = failed > 0 ? `${counted(failed, "trial")} failed` : "";
  return [values > 0 ? `mean of ${counted(values, "trial")}` : "", others].filter((text) => text).join(", ");
}

export function pairTable(data, { down, across, cells }) {
  const rows = data.settings[down], columns = data.settings[across];
  const span = spanOf([cells.flat().map((cell) => cell?.mean ?? NaN)]) ?? [0, 0];
  const cellOf = (cell) => {
    if (!cell) return el("td", {});
    if (cell.mean === null) return el("td", { class: "bad", title: cellTitle(cell) }, "failed");
    const good = goodness(cell.mean, span, data.lower);
    return el("td", { title: cellTitle(cell), class: good === 1 ? "best" : undefined, style: { background: `color-mix(in srgb, var(--accent) ${Math.round(8 + 52 * good)}%, var(--page))` } }, written(cell.mean));
  };
  const head = (text, side) => el("th", { class: side }, el("bdi", {}, shown(text)));
  return el("div", { class: "scroll" },
    el("h3", {}, el("bdi", {}, `${shown(data.metric)} by ${shown(rows.name)} and ${shown(columns.name)}`)),
    el("table", { class: "heat" },
      el("thead", {}, el("tr", {}, head(`${rows.name} ↓  ${columns.name} →`, "left"), ...columns.means.map((one) => head(one.text)))),
      el("tbody", {}, ...cells.map((row, i) => el("tr", {}, head(rows.means[i].text, "left"), ...row.map(cellOf))))));
}
