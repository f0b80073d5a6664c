// SPDX-License-Identifier: Apache-2.0

// A contact sheet: rows of samples, a page of them at a time, and a search for classes.

import { counted, grouped, shown } from "../../page/names.js";
import { el } from "../../page/dom.js";
import { isDark, setTheme } from "../../page/theme.js";

const kRowsOfPage = 25;

// Rows whose class has the text in its name or has that number; all rows if the text is empty.
export function rowsHaving(rows, text) {
  const wanted = text.trim().toLowerCase();
  return wanted === "" ? rows : rows.filter((row) => (row.name ?? "").toLowerCase().includes(wanted) || String(row.class) === wanted);
}

// The rows of a page, or of the nearest one that exists: { rows, page, pages }; pages count from 1.
export function pageOf(rows, page, size = kRowsOfPage) {
  const pages = Math.max(1, Math.ceil(rows.length / size)), at = Math.min(pages, Math.max(1, Math.floor(page) || 1));
  return { rows: rows.slice((at - 1) * size, at * size), page: at, pages };
}

// A sentence on how many of the split's samples and classes the sheet shows.
export function extentOf({ classes, rows, samples, split }) {
  const seen = rows.reduce((sum, row) => sum + row.samples.length, 0), of = `${grouped(seen)} of ${counted(samples, "sample")} of ${shown(split)}`;
  if (classes === 0) return of;
  return rows.length === classes ? `${of}, ${classes === 1 ? "the one class" : `all ${grouped(classes)} classes`}` : `${of}, ${grouped(rows.length)} of ${grouped(classes)} classes, evenly spread`;
}

function figure({ name, image, fault }) {
  const title = shown(name) + (fault ? `: ${shown(fault)}` : "");
  const place = image ? el("div", { class: "place" }, el("img", { src: `data:image/jpeg;base64,${image}`, alt: shown(name) })) : el("div", { class: "place fault" }, shown(fault));
  return el("figure", { title }, place, el("figcaption", {}, el("bdi", {}, shown(name).split("/").pop())));
}

function rowElement(row) {
  const samples = el("div", { class: "samples" }, ...row.samples.map(figure));
  if (row.name === undefined) return el("section", { class: "row plain" }, samples);
  return el("section", { class: "row" }, el("div", {}, el("h2", {}, el("bdi", {}, shown(row.name))),
    el("div", { class: "quiet" }, `class ${row.class}, ${counted(row.count, "sample")}`)), samples);
}

class Sheet {
  constructor(data) {
    this.data = data;
    this.by = (id) => document.getElementById(id);
    this.page = 1;
  }

  start() {
    const { data } = this;
    document.title = shown(data.source);
    this.by("title").replaceChildren(el("bdi", {}, shown(data.source)));
    this.by("what").textContent = extentOf(data);
    this.by("search").hidden = data.classes === 0;
    this.by("search").addEventListener("input", () => this.go(1));
    this.by("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
    addEventListener("hashchange", () => this.restore());
    document.addEventListener("keydown", (event) => this.key(event));
    setTheme();
    this.restore();
  }

  restore() {
    this.page = Number(/^#page=(\d{1,6})$/.exec(location.hash)?.[1] ?? 1);
    this.show();
  }

  go(page) {
    this.page = page;
    this.show();
    history.replaceState(null, "", `#page=${this.page}`);
    scrollTo(0, 0);
  }

  key(event) {
    if (event.target.matches?.("input") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") this.by("search").focus();
    else if (event.key === "ArrowRight") this.go(this.page + 1);
    else if (event.key === "ArrowLeft") this.go(this.page - 1);
    else return;
    event.preventDefault();
  }

  show() {
    const { rows, page, pages } = pageOf(rowsHaving(this.data.rows, this.by("search").value), this.page);
    this.page = page;
    const button = (text, title, to) => el("button", { type: "button", title, disabled: to < 1 || to > pages, onclick: () => this.go(to) }, text);
    this.by("pages").replaceChildren(button("◂", "the page before (←)", page - 1), el("span", {}, `page ${page} of ${pages}`), button("▸", "the next page (→)", page + 1));
    this.by("sheet").replaceChildren(...(rows.length ? rows.map(rowElement) : [el("p", { class: "quiet" }, "No class is called so.")]));
  }
}

export function main() {
  const sheet = new Sheet(JSON.parse(document.getElementById("sheet-data").textContent));
  window.sheet = sheet;  // for the browser test
  sheet.start();
}
