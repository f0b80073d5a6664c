// SPDX-License-Identifier: Apache-2.0

// The visible part of the schedule: a range of time, and tracks. painter.js draws it.

import { Strips } from "./canvas.js";
import { tracksOf } from "./tracks.js";

export const kGutter = 188, kAxis = 30;
export const kLowest = 26;  // of a row, in pixels
const kHighest = 44;
const kLeast = 20;                  // ns that are shown
const kOpened = 4;                  // iterations in sight at first

// The span of a few iterations in the middle of the steady state, none of them much longer than is usual there; null if
// the trace has no steady state.
export function steadySpan({ head, instances, dependencies }) {
  const { first, last, iteration_ns } = head.steady ?? {};
  if (!(iteration_ns > 0) || last <= first) return null;
  const steps = head.tasks.map((task, id) => [task, id]).filter(([task]) => task.clock === 0 && head.lanes[task.lane].kind === "compute");
  if (steps.length === 0) return null;
  const [, step] = steps.reduce((a, b) => (b[0].total_ns > a[0].total_ns ? b : a));
  const startOf = (iteration) => instances.start[dependencies.find(step, iteration)];
  const count = Math.min(kOpened, last - first), middle = Math.floor((first + last - count) / 2);
  for (let away = 0; away <= last - first; ++away) {
    for (const at of [middle - away, middle + away]) {
      if (at < first || at + count > last) continue;
      const from = startOf(at), to = startOf(at + count);
      if (to - from <= 1.25 * count * iteration_ns) return [from - 0.1 * iteration_ns, to + 0.1 * iteration_ns];
    }
  }
  return null;
}

export class Timeline {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.strips = new Strips();
    this.open = new Map();
    this.scroll = 0;
    this.frames = [];
    this.marks = [];
    this.measure = null;
    this.measuring = false;  // what a drag does
  }

  // `trace`: { head, instances, nodes, rows, dependencies }.
  show(trace) {
    this.trace = trace;
    this.arrange();
    this.critical = new Set();
    for (const edge of trace.head.critical.edges) {
      this.critical.add(trace.head.edges[edge].from).add(trace.head.edges[edge].to);
    }
    this.fitSteady();
  }

  // Rows are as high as there is room for.
  get row() {
    return Math.min(kHighest, Math.max(kLowest, Math.floor((this.height - kAxis - 8) / this.tracks.length)));
  }

  get span() {
    const { begin_ns, end_ns } = this.trace.head;
    return [begin_ns, end_ns];
  }

  fit() {
    const [begin, end] = this.span;
    const margin = Math.max(kLeast, (end - begin) * 0.01);
    this.setView(begin - margin, end + margin);
  }

  // Shows a few iterations of the steady state, or everything if there is none.
  fitSteady() {
    const steady = steadySpan(this.trace);
    if (steady) this.setView(...steady);
    else this.fit();
  }

  setView(from, to) {
    const [begin, end] = this.span;
    const most = (end - begin) * 1.5 + 1000, width = Math.min(Math.max(to - from, kLeast), most);
    const middle = (from + to) / 2;
    const least = begin - width * 0.9, greatest = end + width * 0.9;
    this.from = Math.min(Math.max(middle - width / 2, least), greatest - width);
    this.to = this.from + width;
    this.draw();
  }

  zoom(factor, x) {
    const at = x === undefined || x < kGutter ? (this.from + this.to) / 2 : this.timeAt(x);
    this.setView(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(share) {
    const by = (this.to - this.from) * share;
    this.setView(this.from + by, this.to + by);
  }

  get scale() {
    return (this.width - kGutter) / (this.to - this.from);
  }
  timeAt(x) {
    return this.from + (x - kGutter) / this.scale;
  }
  xOf(time) {
    return kGutter + (time - this.from) * this.scale;
  }
  trackAt(y) {
    const at = Math.floor((y - kAxis + this.scroll) / this.row);
    return y >= kAxis && at >= 0 && at < this.tracks.length ? at : -1;
  }
  yOf(track) {
    return kAxis + track * this.row - this.scroll;
  }

  // Makes the tracks, of what is open.
  arrange() {
    this.tracks = tracksOf(this.trace.head, this.open);
    this.folded = new Set(this.tracks.flatMap((track) => track.owners ?? []));  // names of processes
    this.arranged?.();
  }

  // Opens a track, or folds it. `alone`: opens it, and folds those like it.
  toggle(track, alone = false) {
    const { key, isOpen, kind, depth } = this.tracks[track];
    if (key === undefined) return;
    const alike = (one) => one.key !== undefined && one.kind === kind && one.depth === depth;
    for (const one of alone ? this.tracks.filter(alike) : []) this.open.set(one.key, false);
    this.open.set(key, alone || !isOpen);
    this.arrange();
    this.scrollBy(0);
  }

  // Folds all tracks, or opens them if all are folded: hosts and processes, or rows of a kind if there is one process.
  foldAll() {
    const tracks = this.tracks.filter((track) => track.key !== undefined && track.depth === 0), opens = tracks.every((track) => !track.isOpen);
    for (const { key } of tracks) this.open.set(key, opens);
    this.arrange();
    this.scrollBy(0);
  }

  scrollBy(pixels) {
    const most = Math.max(0, this.tracks.length * this.row + 40 - (this.height - kAxis));
    this.scroll = Math.min(most, Math.max(0, this.scroll + pixels));
    this.draw();
  }

  // The track on which an instance is drawn: its own row. What it is folded into is opened.
  trackOf(position) {
    const row = this.trace.rows.rowOf(position);
    for (;;) {
      const at = this.tracks.findIndex((track) => track.rows.length === 1 && track.rows[0] === row);
      if (at >= 0) return at;
      const folded = this.tracks.find((track) => !track.isOpen && track.rows.includes(row));
      this.open.set(folded.key, true);
      this.arrange();
    }
  }

  // Brings an instance into sight.
  reveal(position, close = false) {
    const { start, end } = this.trace.instances;
    const y = this.yOf(this.trackOf(position));
    if (y < kAxis || y + this.row > this.height) this.scroll += y - this.height / 2;
    const length = Math.max(end[position] - start[position], kLeast);
    const middle = (start[position] + end[position]) / 2;
    let width = this.to - this.from;
    if (close || length * this.scale < 10) width = length * (close ? 4 : 30);
    if (length > width) width = length * 1.5;
    const seen = start[position] >= this.from && end[position] <= this.to;
    if (!seen || width !== this.to - this.from) this.setView(middle - width / 2, middle + width / 2);
    this.scrollBy(0);
  }

  // Moves a span into view. If it is less than a few pixels wide or wider than a third of the picture, zooms so that it
  // takes a third.
  showSpan(start, end) {
    const length = Math.max(end - start, kLeast / 3), pixels = length * this.scale;
    const width = pixels < 40 || pixels > this.width / 3 ? length * 3 : this.to - this.from;
    const middle = (start + end) / 2;
    this.setView(middle - width / 2, middle + width / 2);
  }

  resize() {
    const box = this.canvas.parentElement.getBoundingClientRect();
    this.ratio = window.devicePixelRatio || 1;
    this.width = Math.max(kGutter + 50, Math.floor(box.width));
    this.height = Math.max(80, Math.floor(box.height));
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    this.draw();
  }

  // Draws once before the next picture, however often it is asked for.
  draw() {
    if (this.pending || !this.trace) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (!this.trace) return;  // switched away since
      const began = performance.now();
      this.paint();
      this.frames.push(performance.now() - began);
      if (this.frames.length > 1000) this.frames.shift();
      this.drawn?.();
    });
  }
}
