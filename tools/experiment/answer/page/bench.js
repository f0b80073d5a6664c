// SPDX-License-Identifier: Apache-2.0

// The page of a bench: its tables, and pictures of their columns, which are drawn before (bench_plots.cpp).

import { shown } from "../../../page/names.js";
import { el, table } from "../../../page/dom.js";
import { isDark, setTheme } from "../../../page/theme.js";

function tableSection(each) {
  const heads = each.columns.map((column) => [shown(column.name), column.number ? "right" : "left"]);
  const rows = each.rows.map((row) => row.map((value) => shown(value.text)));
  return el("section", {}, el("h2", {}, shown(each.title)), el("div", { class: "scroll" }, table(heads, rows)), ...each.notes.map((note) => el("p", { class: "quiet" }, shown(note))));
}

// An image, in which a picture's text can be no markup of the page.
function picture({ title, file, svg }) {
  const source = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  return el("figure", {}, el("img", { src: source, alt: shown(title) }), el("p", {}, el("a", { href: source, download: file }, "save as SVG")));
}

// null: there is nothing to draw.
function plotSection(each, plots) {
  const own = plots.filter((plot) => plot.table === each.title);
  return own.length > 0 ? el("section", {}, el("h2", {}, `${shown(each.title)}, drawn`), ...own.map(picture)) : null;
}

export function main() {
  const bench = JSON.parse(document.getElementById("experiment").textContent);
  setTheme();
  document.getElementById("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  document.getElementById("title").append(shown(bench.title));
  document.getElementById("bench").append(...bench.tables.map(tableSection), ...bench.tables.map((each) => plotSection(each, bench.plots)).filter((part) => part),
    el("section", {}, el("h2", {}, "Machine and versions"), table([["", "left"], ["", "left"]], bench.environment.map(([name, text]) => [name, shown(text)]))),
    el("section", {}, el("h2", {}, shown(bench.file)), el("pre", {}, bench.text)));
}
