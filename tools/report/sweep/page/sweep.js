// SPDX-License-Identifier: Apache-2.0

// The page of a sweep: its leaderboard, curves of groups of trials, what settings do, and the trials that failed.

import { counted, grouped, shown } from "../../../page/names.js";
import { el, table } from "../../../page/dom.js";
import { isDark, setTheme } from "../../../page/theme.js";
import { written } from "../../page/axes.js";
import { lineColours, plotPicture } from "../../page/plot.js";
import { boardTable } from "./board.js";
import { pairTable } from "./pair_table.js";
import { dotPicture, ratePoints, settingAxis, settingPoints } from "./setting_plot.js";
import { bestGroups, curvePlots, groupName, statusText } from "./sweep_series.js";

const kShownFirst = 8;  // groups with curves, the best ones

class SweepPage {
  constructor(data) {
    this.data = data;
    this.plots = curvePlots(data);
    this.runs = data.groups.map((_, group) => ({ name: groupName(data, group) }));
    this.drawn = new Set(bestGroups(data, Infinity));
    this.shown = new Set(bestGroups(data, kShownFirst));
    this.marked = null;
    this.range = null;
    this.log = new Set();  // names of plots
    this.sorted = { at: 0, up: true };
  }

  start() {
    const title = `${shown(this.data.graph)}: a sweep of ${counted(this.data.trials.length, "trial")}`;
    document.getElementById("title").replaceChildren(el("bdi", {}, title));
    document.getElementById("theme").addEventListener("click", () => this.theme(isDark() ? "light" : "dark"));
    document.getElementById("whole").addEventListener("click", () => this.look(null, null));
    addEventListener("scroll", () => (document.getElementById("tip").hidden = true), { passive: true });
    this.theme();
  }

  theme(name) {
    setTheme(name);
    this.colours = lineColours(this.runs.length, isDark());
    this.show();
  }

  // A second time takes the mark away.
  mark(group) {
    this.marked = this.marked === group ? null : group;
    this.show();
  }

  toggle(group) {
    if (!this.shown.delete(group)) this.shown.add(group);
    this.show();
  }

  showOnly(groups) {
    this.shown = new Set(groups);
    this.show();
  }

  look(from, to) {
    this.range = from === null ? null : [from, to];
    this.show();
  }

  show() {
    document.getElementById("whole").hidden = this.range === null;
    document.getElementById("tip").hidden = true;
    const { id: focused } = document.activeElement;
    const scrolled = document.getElementById("board")?.scrollTop ?? 0;
    document.getElementById("report").replaceChildren(...[this.status(), this.rates(), this.board(), this.curves(), this.settings(), this.pairs(), this.failed(), this.unfinished()].filter((section) => section));
    document.getElementById("board").scrollTop = scrolled;
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  status() {
    const { data } = this, notes = data.notes.map((note) => el("li", { class: "bad" }, el("bdi", {}, shown(note))));
    if (data.notes_left_out > 0) notes.push(el("li", { class: "bad" }, `${grouped(data.notes_left_out)} more such logs`));
    return el("section", {}, el("p", { id: "status" }, statusText(data)), notes.length ? el("ul", { class: "notes", id: "notes" }, ...notes) : null);
  }

  board() {
    const { data } = this, several = data.groups.some((group) => group.trials.length > 1);
    return el("section", {}, el("h3", {}, "Leaderboard"),
      boardTable(data, this, { mark: (group) => this.mark(group), toggle: (group) => this.toggle(group), sorted: (how) => (this.sorted = how) }),
      data.why ? el("p", { class: "quiet", id: "why" }, data.why) : null,
      several ? el("p", { class: "quiet" }, data.folds ? "± is the standard deviation of trials, of which each has held out another fold." : "± is the interval of 95 % of the mean over seeds, by Student's distribution.") : null);
  }

  card(name, title, picture, ...more) {
    const log = el("button", { type: "button", class: "small", id: `log-${name}`, "aria-pressed": this.log.has(name) ? "true" : "false", title: "logarithmic axis", onclick: () => {
      if (!this.log.delete(name)) this.log.add(name);
      this.show();
    } }, "log");
    return el("section", { class: "plot-card" }, el("h3", {}, el("bdi", {}, shown(title)), el("span", { class: "space" }), log), picture, ...more);
  }

  curves() {
    const { data } = this;
    if (this.plots.length === 0) return null;
    const hidden = { has: (group) => group !== this.marked && !this.shown.has(group) };
    const view = (name) => ({ axis: "epochs", range: this.range, hidden, marked: this.marked ?? undefined, colours: this.colours, log: this.log.has(name), smooth: 0 });
    const choice = (id, text, groups) => el("button", { type: "button", class: "small", id, onclick: () => this.showOnly(groups) }, text);
    const cards = this.plots.map((plot) => this.card(plot.name, plot.title, plotPicture(plot, this.runs, view(plot.name), { range: (from, to) => this.look(from, to) })));
    const left = data.curves_left_out > 0 ? el("p", { class: "quiet" }, `${counted(data.curves_left_out, "group")} further down have no curves here.`) : null;
    const rungs = data.rungs.length > 1 ? el("p", { class: "quiet" }, `Trials are judged after ${data.rungs.slice(0, -1).join(", ")} epochs; the curves of those that do not train on end there.`) : null;
    return el("section", {}, el("h3", {}, "Curves", el("span", { class: "quiet" }, "mean of a group's trials, from the least to the greatest"), el("span", { class: "space" }),
      choice("best-curves", `best ${kShownFirst}`, bestGroups(data, kShownFirst)), choice("all-curves", "all", this.drawn), choice("no-curves", "none", [])), rungs, left, el("div", { class: "plots" }, ...cards));
  }

  dots(name, title, points, axis, lines, failedAbove) {
    const picture = dotPicture({ title, axis, dots: points.dots, failed: points.failed, lines }, { log: this.log.has(name), marked: this.marked, failedAbove }, { mark: (group) => this.mark(group) });
    return this.card(name, title, picture);
  }

  settings() {
    const { data } = this;
    if (data.settings.length === 0) return null;
    const cards = data.settings.map((setting, i) => {
      const points = settingPoints(data, i);
      return this.dots(`setting-${i}`, `${data.metric || "value"} by ${setting.name}`, points, settingAxis(setting, points), [points.means], data.lower);
    });
    return el("section", {}, el("h3", {}, "Settings", el("span", { class: "quiet" }, data.folds ? "● a trial  ○ the mean of all with that value  × a trial that failed" : "● a trial  ○ the mean of all with that value, and its interval of 95 %  × a trial that failed", data.rungs.length > 1 ? `; all after ${counted(data.rungs[0], "epoch")}, since the best alone trained further` : "")), el("div", { class: "plots" }, ...cards));
  }

  rates() {
    const { data } = this;
    if (data.rates.length === 0) return null;
    const points = ratePoints(data);
    return el("section", {}, el("h3", {}, "Learning rates"), data.advice ? el("p", { id: "advice" }, shown(data.advice.trim())) : null,
      el("div", { class: "plots" }, this.dots("rates", "loss of training by learning rate", points, settingAxis({ scale: "log" }, points), points.lines, true)));
  }

  pairs() {
    const { data } = this;
    return data.pairs.length === 0 ? null : el("section", {}, el("h3", {}, "Pairs of settings"), el("div", { class: "pairs" }, ...data.pairs.map((pair) => pairTable(data, pair))));
  }

  // A table of the trials in a state.
  trials(state, title, id, last) {
    const rows = this.data.trials.map((trial, index) => ({ trial, index })).filter(({ trial }) => trial.state === state)
      .map(({ trial, index }) => [String(index + 1), el("bdi", {}, shown(trial.settings)), written(trial.epochs), last[1](trial)]);
    return rows.length === 0 ? null : el("section", { class: "scroll" }, el("h3", {}, title), table([["trial", "right"], ["settings", "left"], ["epochs", "right"], last[0]], rows, { id }));
  }

  failed() {
    return this.trials("failed", "Trials that failed", "failed", [["because", "left"], (trial) => el("span", { class: "bad" }, el("bdi", {}, shown(trial.error)))]);
  }

  unfinished() {
    return this.trials("unfinished", "Trials that have begun and not ended", "unfinished", [[`${shown(this.data.metric)} so far`, "right"], (trial) => (trial.value === null ? "—" : written(trial.value))]);
  }
}

export function main() {
  const page = new SweepPage(JSON.parse(document.getElementById("sweep").textContent));
  window.sweep = page;  // for the browser test
  page.start();
}
