// SPDX-License-Identifier: Apache-2.0

// The page: verdict and views, the selection, and the reader's place.

import { isDark, setTheme } from "../../page/theme.js";
import { Charts } from "./charts.js";
import { paletteOf } from "./colours.js";
import { costsView } from "./costs.js";
import { fromBase64, inflate, readInstances, readNodes, readSamples } from "./decode.js";
import { el } from "../../page/dom.js";
import { hashOf, stateOf } from "./hash.js";
import { helpText } from "./help.js";
import { keyOf, listen } from "./input.js";
import { duration, instanceName, shown } from "../../page/names.js";
import { Navigation } from "./navigation.js";
import { DrawnTimeline } from "./painter.js";
import { Dependencies } from "./plan.js";
import { planView } from "./plan_view.js";
import { Rows } from "./rows.js";
import { selectionPanel } from "./selection.js";
import { compareView, idleView, paysView } from "./tables.js";
import { showPressed, toolbar } from "./toolbar.js";
import { overview, verdictParts } from "./verdict.js";

const kViewNames = { timeline: "Timeline", plan: "Plan", idle: "Why idle", pays: "What pays", tasks: "Costs", compare: "Compare" };

class Page extends Navigation {
  constructor(heads) {
    super();
    this.traces = heads.map((head) => ({ head }));
    this.state = this.stateOf(location.hash);
    if (this.state.trace >= heads.length) this.state.trace = 0;
    if (!this.available(this.state.view)) this.state.view = "timeline";
    this.by = (id) => document.getElementById(id);
    this.plan = { each: false, order: false };
    this.sorted = {};  // tables of costs, by name
    this.timeline = new DrawnTimeline(this.by("timeline"));
    this.charts = new Charts(this.by("charts"), this.timeline);
    this.timeline.arranged = () => this.charts.charts.length > 0 && this.resize();
    this.timeline.drawn = () => (this.charts.draw(), this.input?.pointed());
    this.act = {
      select: (position) => this.select(position, true), hover: (position, layer, at) => this.hover(position, layer, at),
      measuring: (on) => this.setMeasuring(on), showLayer: (name) => this.showLayer(name),
      follow: (forward) => this.follow(forward), neighbour: (step) => this.neighbour(step), otherTrack: (step) => this.otherTrack(step),
      critical: () => this.setCritical(!this.state.critical), changed: () => this.remember(),
      plan: (options) => (Object.assign(this.plan, options), this.showView()),
      compare: (pair) => this.compare(pair),
      showCritical: () => (this.view("timeline"), this.setCritical(true)), showTask: (tasks) => this.showTask(tasks, false),
      showTaskOf: (trace, tasks) => (trace !== this.state.trace && this.switchTo(trace), this.showTask(tasks, false)),
      showLongest: (tasks) => this.showTask(tasks, true), showGap: (cause) => this.showGap(cause), showLane: (lane) => this.showLane(lane),
    };
  }

  // As the hash says, of traces that there are.
  stateOf(hash) {
    const state = stateOf(hash);
    return state.pair.every((at) => at < this.traces.length) ? state : { ...state, pair: [0, 1] };
  }

  get trace() {
    return this.traces[this.state.trace];
  }

  start() {
    this.theme();
    this.input = listen(this.timeline, this.act);
    this.by("tools").replaceChildren(...toolbar(this.tools()));
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("resize", () => this.resize());
    addEventListener("hashchange", () => location.hash !== this.written && this.restore());
    this.by("theme").addEventListener("click", () => this.theme(isDark() ? "light" : "dark"));
    this.by("help-button").addEventListener("click", () => this.help());
    this.by("search").addEventListener("input", () => this.search());
    this.by("search").addEventListener("keydown", (event) => event.key === "Enter" && this.nextMatch(event.shiftKey ? -1 : 1));
    this.showHead();
    this.showLoading();
    this.showView();
  }

  // Loads the columns, which follow the script in the file, so that the verdict is seen before they have arrived.
  async load() {
    for (let i = 0; i < this.traces.length; ++i) {
      const trace = this.traces[i], { head } = trace;
      if (head.instances === 0) continue;
      const names = Object.keys(head.columns);
      const columns = {};
      await Promise.all(names.map(async (name) => {
        const element = this.by(`trace${i}-${name}`);
        if (!element) throw new Error(`the file is incomplete: it ends before the column '${name}'`);
        columns[name] = await inflate(fromBase64(element.textContent));
        element.remove();
      }));
      trace.instances = readInstances(columns, head);
      trace.nodes = readNodes(columns, head, trace.instances);
      trace.samples = readSamples(columns, head);
      trace.rows = new Rows(head, trace.instances);
      trace.dependencies = new Dependencies(head, trace.instances);
      if (i === this.state.trace) this.showTrace();
    }
  }

  // In place of the timeline: why it is not there.
  showLoading() {
    this.by("loading").hidden = false;
    this.by("loading").textContent = this.trace.head.instances === 0 ? "There is nothing to draw." : this.failure ?? "reading instances…";
    this.by("panel").replaceChildren();
  }

  showHead() {
    const { head } = this.trace;
    document.title = `${shown(head.name)} · schedule`;
    const title = this.by("title");
    title.replaceChildren(...(this.traces.length === 1 ? [el("bdi", {}, shown(head.name))] : this.traces.map((trace, i) =>
      el("button", { type: "button", "aria-selected": i === this.state.trace ? "true" : "false", onclick: () => this.switchTo(i) }, shown(trace.head.name)))));
    this.by("views").replaceChildren(...Object.entries(kViewNames).filter(([view]) => this.available(view)).map(([view, name]) =>
      el("button", { type: "button", role: "tab", id: `view-${view}`, "aria-selected": view === this.state.view ? "true" : "false", onclick: () => this.view(view) }, name)));
    this.by("verdict").replaceChildren(...verdictParts(head, (figure) => this.showFigure(figure)));
  }

  available(view) {
    if (view === "compare") return this.traces.length > 1;
    return view === "timeline" || this.trace.head.instances > 0;
  }

  view(view) {
    if (!this.available(view)) return;
    this.state.view = view;
    for (const button of this.by("views").children) button.setAttribute("aria-selected", button.id === `view-${view}` ? "true" : "false");
    this.showView();
    this.remember();
  }

  compare(pair) {
    const { id } = document.activeElement;
    this.state.pair = pair;
    this.showView();
    if (id) this.by(id)?.focus();
    this.remember();
  }

  // The actions of the buttons above the timeline; those that move it do nothing if it has no trace.
  tools() {
    const moving = (action) => (value) => this.timeline.trace && (action(value), this.remember());
    return {
      zoom: moving((factor) => this.timeline.zoom(factor)), move: moving((share) => this.timeline.pan(share)),
      steady: moving(() => this.timeline.fitSteady()), whole: moving(() => this.timeline.fit()), fold: moving(() => this.timeline.foldAll()),
      measuring: () => this.setMeasuring(!this.timeline.measuring), critical: () => this.setCritical(!this.state.critical),
      charts: () => this.showCharts(!this.charts.shown),
    };
  }

  setMeasuring(on) {
    this.timeline.measuring = on;
    this.showTools();
  }

  showCharts(on) {
    this.charts.shown = on;
    this.resize();
    this.showTools();
    this.remember();
  }

  showTools() {
    showPressed({ measuring: this.timeline.measuring, critical: this.state.critical, charts: this.charts.shown });
  }

  showView() {
    const { view } = this.state;
    this.by("tip").hidden = true;
    const options = { ...this.plan, sorted: this.sorted, pair: this.state.pair, dark: isDark() };
    this.by("timeline-view").hidden = view !== "timeline";
    this.by("other-view").hidden = view === "timeline";
    if (view === "timeline") return this.resize();
    const made = { plan: () => planView(this.trace, options, this.act), idle: () => idleView(this.trace, options, this.act),
      pays: () => paysView(this.trace, options, this.act), tasks: () => costsView(this.trace, options, this.act),
      compare: () => compareView(this.traces, options, this.act) }[view]();
    this.by("other-view").replaceChildren(made);
    this.by("other-view").scrollTop = 0;
  }

  resize() {
    this.charts.place();
    this.timeline.resize();
  }

  theme(name) {
    setTheme(name);
    this.colour();
    this.showPanel();
    if (this.shownOnce) this.showView();
    this.shownOnce = true;
  }

  colour() {
    const { head } = this.trace;
    if (!head.tasks) return;
    this.timeline.palette = this.palette = paletteOf(head);
    this.timeline.draw();
  }

  // The trace that was chosen, its instances read.
  showTrace() {
    this.by("loading").hidden = true;
    this.colour();
    this.timeline.selected = -1;
    this.timeline.show(this.trace);
    this.charts.show(this.trace);
    this.timeline.resize();
    this.restore();
    this.ready = performance.now();
  }

  switchTo(i) {
    const { view, pair } = this.state;
    this.state = { view, trace: i, marks: [], pair };
    if (view === "compare" || !this.available(view)) this.state.view = "timeline";
    this.by("search").value = this.by("found").textContent = "";
    this.timeline.matches = null;
    this.timeline.trace = undefined;
    this.showHead();
    this.written = undefined;
    history.replaceState(null, "", hashOf(this.state));
    if (this.trace.rows) this.showTrace();
    else this.showLoading();
    this.showView();
  }

  // Goes to the place that the hash states.
  restore() {
    const state = this.stateOf(location.hash);
    if (state.trace !== this.state.trace && state.trace < this.traces.length) return this.switchTo(state.trace);
    this.state.critical = state.critical;
    this.state.pair = state.pair;
    this.charts.shown = state.charts;
    const { timeline } = this;
    timeline.onlyCritical = state.critical;
    timeline.measure = state.measure ?? null;
    timeline.marks = state.marks;
    if (state.from !== undefined && timeline.trace) timeline.setView(state.from, state.to);
    let position = -1;
    if (timeline.trace && state.task < this.trace.head.tasks.length) position = this.trace.dependencies.find(state.task, state.instance);
    this.select(position, false);
    this.showTools();
    this.resize();
    if (state.view !== this.state.view) this.view(state.view);
  }

  // Into the hash, without an entry of the history for each step.
  remember() {
    clearTimeout(this.remembering);
    this.remembering = setTimeout(() => {
      const { timeline } = this;
      if (!timeline.trace) return;
      const state = { view: this.state.view, trace: this.state.trace, critical: this.state.critical, marks: timeline.marks, pair: this.state.pair,
        charts: this.charts.shown, from: Math.max(0, timeline.from), to: timeline.to };
      if (timeline.measure) state.measure = timeline.measure;
      if (timeline.selected >= 0) {
        const { instances } = this.trace;
        Object.assign(state, { task: instances.task[timeline.selected], instance: instances.instance[timeline.selected] });
      }
      this.written = hashOf(state);
      history.replaceState(null, "", this.written);
    }, 150);
  }

  select(position, reveals) {
    const { timeline } = this;
    timeline.selected = position;
    [timeline.needs, timeline.neededBy] = position >= 0 ? [this.trace.dependencies.needs(position), this.trace.dependencies.neededBy(position)] : [[], []];
    if (position >= 0 && reveals) timeline.reveal(position);
    this.showPanel();
    timeline.draw();
    this.remember();
  }

  showPanel() {
    const { timeline } = this;
    if (!timeline.trace) return;
    if (timeline.selected >= 0) {
      this.by("panel").replaceChildren(selectionPanel(this.trace, timeline.selected, timeline.needs, timeline.neededBy, this.act, this.palette));
      return;
    }
    this.by("panel").replaceChildren(overview(this.trace.head, this.state.critical, this.act));
  }

  setCritical(on) {
    this.state.critical = this.timeline.onlyCritical = on;
    this.timeline.draw();
    this.showTools();
    this.showPanel();
    this.remember();
  }

  // Shows the tip for the instance under the pointer; hides it if there is none or if another view is shown.
  hover(position, layer, { x, y }) {
    const tip = this.by("tip");
    tip.hidden = position < 0 || this.state.view !== "timeline";
    if (tip.hidden) return;
    const { instances, head } = this.trace;
    const task = head.tasks[instances.task[position]];
    tip.textContent = `${instanceName(shown(task.name), instances.instance[position])}: ${duration(instances.end[position] - instances.start[position])}`
      + (layer ? `; ${shown(head.launches[layer.launch])}: ${duration(layer.end - layer.start)}` : "");
    const box = this.by("timeline").getBoundingClientRect();
    tip.style.left = Math.min(box.left + x + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(box.top + y + 16, innerHeight - 40) + "px";
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.by("help").open) return;
    if (event.target.matches?.("select")) return;
    if (event.target.matches?.("input")) {
      if (event.key === "Escape") {
        this.by("search").value = "";
        this.search();
        event.target.blur();
      }
      return;
    }
    const key = keyOf(event), view = Object.keys(kViewNames)[Number(key) - 1];
    if (key === "/") this.by("search").focus();
    else if (key === "?") this.help();
    else if (view) this.view(view);
    else if (key === "g" && this.state.view === "timeline") this.showCharts(!this.charts.shown);
    else if (this.state.view !== "timeline" || !this.input.key(key)) return;
    event.preventDefault();
  }

  help() {
    this.by("help").replaceChildren(...helpText());
    this.by("help").showModal();
  }
}

export function main() {
  const page = new Page(JSON.parse(document.getElementById("heads").textContent));
  window.schedule = page;  // for the browser test
  page.start();
  const load = () => page.load().catch((error) => {
    page.failure = `The instances cannot be read: ${error.message}`;
    if (!page.timeline.trace) page.showLoading();
  });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", load);
  else load();
}
