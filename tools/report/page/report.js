// SPDX-License-Identifier: Apache-2.0

// The report: what became of the runs, plots over epochs, iterations or seconds, and in what the runs differ.

import { grouped, quoted, shown } from "../../page/names.js";
import { el, table } from "../../page/dom.js";
import { isDark, setTheme } from "../../page/theme.js";
import { written } from "./axes.js";
import { differing, settingsTable } from "./options.js";
import { lineColours, plotPicture } from "./plot.js";
import { bestValidation, csvOf, endOf, graphOf, judgedBy, kAxes, plotsOf, valueAt } from "./series.js";

const kReasons = new Map([["until", "target reached"], ["patience", "out of patience"]]);

function clock(seconds) {
  if (seconds === null || seconds === undefined) return "—";
  if (seconds < 60) return seconds.toFixed(1) + " s";
  const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
  return whole < 3600 ? `${Math.floor(whole / 60)}:${two(whole % 60)}` : `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

class Report {
  constructor(runs) {
    this.runs = runs;
    this.plots = plotsOf(runs);
    this.view = { axis: "epochs", range: null, hidden: new Set(), log: new Set(), smooth: 0 };
    this.act = { range: (from, to) => this.range(from, to) };
    const asked = new Map(location.hash.replace(/^#/, "").split("&").map((part) => part.split("=")));
    if (Object.hasOwn(kAxes, asked.get("axis") ?? "")) this.view.axis = asked.get("axis");
    const smooth = Number(asked.get("smooth"));
    if (smooth > 0 && smooth < 1) this.view.smooth = smooth;
  }

  start() {
    const by = (id) => document.getElementById(id);
    const graphs = [...new Set(this.runs.map(graphOf))].filter((name) => name), of = graphs.length > 0 ? ` of ${graphs.slice(0, 3).map(shown).join(", ")}${graphs.length > 3 ? ", …" : ""}` : "";
    const title = (this.runs.length === 1 ? shown(this.runs[0].name) : `${this.runs.length} runs`) + of;
    document.title = title + (this.runs.length === 1 ? " · run" : "");
    by("title").replaceChildren(el("bdi", {}, title));
    by("axes").replaceChildren(...Object.entries(kAxes).map(([axis, name]) =>
      el("button", { type: "button", role: "tab", id: `axis-${axis}`, onclick: () => this.axis(axis) }, name)));
    by("theme").addEventListener("click", () => this.theme(isDark() ? "light" : "dark"));
    by("smooth").value = this.view.smooth;
    by("smooth").addEventListener("input", () => this.smooth(Number(by("smooth").value)));
    addEventListener("scroll", () => (by("tip").hidden = true), { passive: true });
    by("whole").addEventListener("click", () => this.range(null, null));
    this.theme();
  }

  theme(name) {
    setTheme(name);
    this.view.colours = lineColours(this.runs.length, isDark());
    this.show();
  }

  axis(axis) {
    this.view.axis = axis;
    this.view.range = null;
    this.remember();
    this.show();
  }

  smooth(weight) {
    this.view.smooth = weight;
    this.remember();
    this.show();
  }

  remember() {
    const { axis, smooth } = this.view;
    history.replaceState(null, "", `#axis=${axis}${smooth > 0 ? `&smooth=${smooth}` : ""}`);
  }

  range(from, to) {
    this.view.range = from === null ? null : [from, to];
    this.show();
  }

  toggle(run) {
    const { hidden } = this.view;
    if (!hidden.delete(run)) hidden.add(run);
    this.show();
  }

  show() {
    for (const button of document.getElementById("axes").children) button.setAttribute("aria-selected", button.id === `axis-${this.view.axis}` ? "true" : "false");
    document.getElementById("whole").hidden = this.view.range === null;
    document.getElementById("tip").hidden = true;
    const { id: focused } = document.activeElement;
    const opened = new Set([...document.querySelectorAll("details[open]")].map((one) => one.dataset.name));
    const parts = this.plots.filter((plot) => plot.part);
    document.getElementById("report").replaceChildren(...[
      this.runsTable(), this.notes(), this.plotGrid(this.plots.filter((plot) => !plot.part)),
      parts.length ? this.folded("parts", `Parts of metrics (${parts.length})`, opened, () => this.plotGrid(parts)) : null,
      this.tunes(), ...this.settings(opened)].filter((section) => section));
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  // Made when it is opened.
  folded(name, title, opened, make) {
    const details = el("details", { "data-name": name, open: opened.has(name) }, el("summary", {}, title));
    const fill = () => details.open && details.childElementCount === 1 && details.append(make());
    details.addEventListener("toggle", fill);
    fill();
    return details;
  }

  runName(index) {
    return el("span", {}, el("i", { class: "swatch", style: { background: this.view.colours[index] } }), el("bdi", {}, shown(this.runs[index].name)));
  }

  runsTable() {
    const { runs } = this;
    const metrics = this.plots.filter((plot) => !plot.part && plot.series.some((series) => series.kind === "validation") && plot.name !== "left_out" && plot.name !== "rate_factor").map((plot) => plot.name);
    const targets = [...new Set(runs.flatMap((run) => run.end?.targets.map((one) => one.target) ?? []))];
    const heads = [["run", "left"], ["graph", "left"], ["", "left"], ["epochs", "right"], ["iterations", "right"], ["time", "right"], ["images/s", "right"],
      ...(metrics.length ? [["best epoch", "right"]] : []), ...metrics.map((name) => [`validation ${shown(name)}`, "right"]), ...targets.map((target) => [`until ${shown(target)}`, "right"])];
    const rows = runs.map((run, index) => {
      const end = endOf(run), hidden = this.view.hidden.has(index);
      const name = runs.length === 1 ? this.runName(index) : el("button", { class: "link run", id: `run-${index}`, type: "button", "aria-pressed": hidden ? "false" : "true", title: hidden ? "show" : "hide", onclick: () => this.toggle(index) }, this.runName(index));
      const outcome = run.error ? el("span", { class: "bad" }, `failed: ${shown(run.error.message)}`) : run.end ? shown(kReasons.get(run.end.reason) ?? run.end.reason) : el("span", { class: "quiet" }, "the log ends before the run does");
      const best = bestValidation(run);
      return [name, el("bdi", {}, shown(graphOf(run)) || "—"), outcome, written(end.epoch), grouped(end.iteration), clock(end.seconds), end.images_per_second === null ? "—" : written(end.images_per_second),
        ...(metrics.length ? [best < 0 ? "—" : this.bestEpoch(run, best)] : []),
        ...metrics.map((metric) => this.validated(run, metric, best)),
        ...targets.map((target) => {
          const reached = run.end?.targets.find((one) => one.target === target);
          return reached ? (reached.seconds === null ? "not reached" : clock(reached.seconds)) : "—";
        })];
    });
    return el("section", { class: "scroll" }, table(heads, rows, { id: "runs-table" }));
  }

  bestEpoch(run, best) {
    const by = judgedBy(run);
    return el("span", {}, written(run.validations.epochs[best]), by ? el("div", { class: "quiet" }, `by ${shown(by)}`) : null);
  }

  // A metric of the best validation, and of the last one if that differs; of the last alone if none is known as
  // the best.
  validated({ validations }, metric, best) {
    const last = valueAt(validations, metric), value = best < 0 ? last : valueAt(validations, metric, best);
    if (value === null) return "—";
    const quiet = best < 0 ? "last" : last === null || last === value ? "" : `last ${written(last)}`;
    return el("span", {}, written(value), quiet ? el("div", { class: "quiet" }, quiet) : null);
  }

  notes() {
    const several = this.runs.length > 1;
    const lines = this.runs.flatMap((run) => {
      const name = several ? shown(run.name) + ", " : "";
      const notes = run.faults.map((fault) => el("li", { class: "bad" }, el("bdi", {}, `${name}line ${fault.line}: ${shown(fault.what)}`)));
      if (run.faulty_lines > run.faults.length) notes.push(el("li", { class: "bad" }, `${name}${run.faulty_lines - run.faults.length} more lines are damaged`));
      if (run.skipped > 0) notes.push(el("li", {}, `${name}${grouped(run.skipped)} samples could not be read`));
      for (const back of run.rollbacks ?? []) {
        notes.push(el("li", { class: "bad" }, el("bdi", {}, `${name}back to iteration ${back.iteration} from ${back.from_iteration}: ${shown(back.reason)}`)));
      }
      for (const loss of run.losses ?? []) {
        notes.push(el("li", {}, el("bdi", {}, `${name}with ${loss.learners} learners from iteration ${loss.iteration} on: ${shown(loss.reason)}`)));
      }
      if (typeof run.start?.note === "string") notes.push(el("li", {}, el("bdi", {}, name + shown(run.start.note))));
      return notes;
    });
    return lines.length ? el("ul", { class: "notes", id: "notes" }, ...lines) : null;
  }

  plotGrid(plots) {
    const seen = plots.filter((plot) => plot.series.some((series) => !this.view.hidden.has(series.run)));
    return el("div", { class: "plots" }, ...seen.map((plot) => {
      const view = { ...this.view, log: this.view.log.has(plot.name) };
      const kinds = new Set(plot.series.map((series) => series.kind));
      const legend = [["training", "training"], ["epoch", "mean of the epoch"], ["validation", "validation"]].filter(([kind]) => kinds.has(kind) && kinds.size > 1)
        .map(([kind, text]) => el("span", {}, el("i", { class: `key ${kind}` }), text));
      const log = el("button", { type: "button", class: "small", "aria-pressed": view.log ? "true" : "false", title: "logarithmic axis", onclick: () => {
        if (!this.view.log.delete(plot.name)) this.view.log.add(plot.name);
        this.show();
      } }, "log");
      const save = el("button", { type: "button", class: "small", title: "all points as comma-separated values", onclick: () => this.save(plot) }, "CSV");
      return el("section", { class: "plot-card" }, el("h3", {}, el("bdi", {}, shown(plot.title)), el("span", { class: "key-line quiet" }, ...legend), el("span", { class: "space" }), log, save),
        plotPicture(plot, this.runs, view, this.act));
    }));
  }

  save(plot) {
    const address = URL.createObjectURL(new Blob([csvOf(plot, this.runs)], { type: "text/csv" }));
    el("a", { href: address, download: `${plot.name.replace(/[^\w.-]+/g, "_")}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  tunes() {
    const rows = this.runs.flatMap((run, index) => run.tunes.map((tune) => [this.runName(index), grouped(tune.iteration), clock(tune.seconds), String(tune.learners),
      tune.images_per_second > 0 ? written(tune.images_per_second) : "—", String(tune.next_learners), shown(tune.reason)]));
    return rows.length === 0 ? null : el("section", { class: "scroll" }, el("h3", {}, "Numbers of learners that were tried"),
      table([["run", "left"], ["iteration", "right"], ["time", "right"], ["learners", "right"], ["images/s", "right"], ["next", "right"], ["because", "left"]], rows));
  }

  settings(opened) {
    const every = this.runs.map((_, index) => index), visible = every.filter((index) => !this.view.hidden.has(index));
    const compared = visible.length > 1 ? visible : every;  // one run alone differs from nothing
    const all = settingsTable(this.runs);
    const different = this.runs.length > 1 ? differing(settingsTable(compared.map((index) => this.runs[index]))) : [];
    const made = (rows, id, runs) => el("div", { class: "scroll" }, table([["", "left"], ...runs.map((index) => [this.runName(index), "left"])], rows.map(([name, words]) => [shown(name), ...words.map((word) => (word === undefined ? el("span", { class: "quiet" }, "not in the log") : word === "" ? "—" : el("bdi", {}, shown(word))))]), { id }));
    const commands = this.runs.map((run, index) => [this.runName(index), shown(typeof run.start?.time === "string" ? run.start.time : ""), el("code", {}, shown(Array.isArray(run.start?.command) ? run.start.command.map(quoted).join(" ") : "not in the log"))]);
    return [
      this.runs.length > 1 ? el("section", {}, el("h3", {}, "Differences"), different.length ? made(different, "differing", compared) : el("p", { class: "quiet" }, "Nothing that the logs tell.")) : null,
      el("section", { class: "scroll" }, el("h3", {}, "Commands"), table([["run", "left"], ["started", "left"], ["command", "left"]], commands)),
      this.folded("settings", `All options, attributes and versions (${all.length})`, opened, () => made(all, "settings", every)),
    ];
  }
}

export function main() {
  const report = new Report(JSON.parse(document.getElementById("runs").textContent));
  window.report = report;  // for the browser test
  report.start();
}
