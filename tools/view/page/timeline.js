// The timeline: a canvas with the tracks, its axis and what is selected, measured and marked.

import { css } from "./colours.js";
import { fitting, paintRow, Strips } from "./canvas.js";
import { nodesOf } from "./decode.js";
import { duration, moment, roundStep, shortName, shown } from "./names.js";
import { tracksOf } from "./tracks.js";

export const kGutter = 188, kAxis = 30;
const kRow = 26, kPad = 3, kLeast = 20;  // the last: ns that are shown at least

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
  }

  // `trace`: { head, instances, nodes, rows, dependencies }.
  show(trace) {
    this.trace = trace;
    this.tracks = tracksOf(trace.head, this.open);
    this.critical = new Set();
    for (const edge of trace.head.critical.edges) {
      this.critical.add(trace.head.edges[edge].from).add(trace.head.edges[edge].to);
    }
    this.fit();
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
    const at = Math.floor((y - kAxis + this.scroll) / kRow);
    return y >= kAxis && at >= 0 && at < this.tracks.length ? at : -1;
  }
  yOf(track) {
    return kAxis + track * kRow - this.scroll;
  }

  toggle(track) {
    const { key, isOpen } = this.tracks[track];
    if (key === undefined) return;
    this.open.set(key, !isOpen);
    this.tracks = tracksOf(this.trace.head, this.open);
    this.scrollBy(0);
  }

  scrollBy(pixels) {
    const most = Math.max(0, this.tracks.length * kRow + 40 - (this.height - kAxis));
    this.scroll = Math.min(most, Math.max(0, this.scroll + pixels));
    this.draw();
  }

  // The track on which an instance is drawn: its own row, opened where it is folded.
  trackOf(position) {
    const row = this.trace.rows.rowOf(position);
    let at = this.tracks.findIndex((track) => track.rows.length === 1 && track.rows[0] === row);
    if (at < 0) {
      const folded = this.tracks.findIndex((track) => track.rows.includes(row));
      this.open.set(this.tracks[folded].key, true);
      this.tracks = tracksOf(this.trace.head, this.open);
      at = this.tracks.findIndex((track) => track.rows.length === 1 && track.rows[0] === row);
    }
    return at;
  }

  // Brings an instance into sight.
  reveal(position, close = false) {
    const { start, end } = this.trace.instances;
    const y = this.yOf(this.trackOf(position));
    if (y < kAxis || y + kRow > this.height) this.scroll += y - this.height / 2;
    const length = Math.max(end[position] - start[position], kLeast);
    const middle = (start[position] + end[position]) / 2;
    let width = this.to - this.from;
    if (close || length * this.scale < 10) width = length * (close ? 4 : 30);
    if (length > width) width = length * 1.5;
    const seen = start[position] >= this.from && end[position] <= this.to;
    if (!seen || width !== this.to - this.from) this.setView(middle - width / 2, middle + width / 2);
    this.scrollBy(0);
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
      const began = performance.now();
      this.paint();
      this.frames.push(performance.now() - began);
      if (this.frames.length > 1000) this.frames.shift();
      this.drawn?.();
    });
  }

  coloursNow() {
    const { colours, faint } = this.palette;
    if (!this.onlyCritical && !this.matches) return colours;
    const lit = (task) => (!this.onlyCritical || this.critical.has(task)) && (!this.matches || this.matches.has(task));
    return colours.map((colour, task) => (lit(task) ? colour : faint[task]));
  }

  paint() {
    if (!this.width) return;
    const { context: ctx, palette } = this;
    ctx.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    ctx.fillStyle = palette.page;
    ctx.fillRect(0, 0, this.width, this.height);
    ctx.font = "12px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    const first = Math.max(0, Math.floor(this.scroll / kRow));
    const last = Math.min(this.tracks.length, Math.ceil((this.scroll + this.height - kAxis) / kRow));
    this.paintGrid(first, last);
    ctx.save();
    ctx.beginPath();
    ctx.rect(kGutter, kAxis, this.width - kGutter, this.height - kAxis);
    ctx.clip();
    this.paintTracks(first, last);
    this.paintArrows();
    ctx.restore();
    this.paintGutter(first, last);
    this.paintAxis();
    this.paintMeasure();
  }

  paintGrid(first, last) {
    const { context: ctx, palette } = this;
    for (let track = first; track < last; ++track) {
      ctx.fillStyle = track % 2 ? palette.page : palette.stripe;
      ctx.fillRect(kGutter, this.yOf(track), this.width - kGutter, kRow);
    }
    const [begin, end] = this.span;
    ctx.fillStyle = palette.outside;
    const a = this.xOf(begin), b = this.xOf(end);
    if (a > kGutter) ctx.fillRect(kGutter, kAxis, a - kGutter, this.height);
    if (b < this.width) ctx.fillRect(b, kAxis, this.width - b, this.height);
  }

  paintTracks(first, last) {
    const { context: ctx, strips } = this;
    const colours = this.coloursNow();
    const width = Math.round((this.width - kGutter) * this.ratio);
    const view = { from: this.from, to: this.to, scale: width / (this.to - this.from) };
    strips.begin(width, last - first);
    const wide = new Map();  // by task
    for (let at = first; at < last; ++at) {
      const track = this.tracks[at];
      strips.clear();
      for (const row of track.rows) {
        for (const [position, x, w] of paintRow(this.trace.rows, row, view, strips, colours)) {
          const task = this.trace.instances.task[position];
          if (track.rows.length > 1) {
            strips.add(x, x + w, 1, colours[task]);
            continue;
          }
          if (!wide.has(task)) wide.set(task, []);
          wide.get(task).push([position, x / this.ratio + kGutter, w / this.ratio, this.yOf(at)]);
        }
      }
      strips.finish(at - first, track.rows.length);
    }
    strips.end();
    ctx.imageSmoothingEnabled = false;
    for (let at = first; at < last; ++at) {
      ctx.drawImage(strips.canvas, 0, at - first, width, 1, kGutter, this.yOf(at) + kPad, this.width - kGutter, kRow - 2 * kPad);
    }
    for (const [task, list] of wide) {
      ctx.fillStyle = css(colours[task]);
      for (const [, x, w, y] of list) ctx.fillRect(x, y + kPad, w > 6 ? w - 1 : w, kRow - 2 * kPad);
    }
    for (const [task, list] of wide) for (const one of list) this.paintInside(task, one);
    this.paintSelected();
  }

  paintInside(task, [position, x, w, y]) {
    if (w < 34) return;
    const { context: ctx, palette, trace } = this;
    const left = Math.max(x, kGutter), right = Math.min(x + w, this.width);
    let height = kRow - 2 * kPad;
    if (w > 90 && trace.nodes.count > 0) {
      const [from, to] = nodesOf(trace.nodes, position);
      if (to > from) {
        height = 10;
        for (let i = from; i < to; ++i) {
          const a = this.xOf(trace.nodes.start[i]), b = this.xOf(trace.nodes.end[i]);
          if (b < left || a > right || b - a < 0.3) continue;
          ctx.fillStyle = css(palette.layers[trace.nodes.launch[i]]);
          ctx.fillRect(a, y + kPad + 10, Math.max(0.5, b - a - 0.5), kRow - 2 * kPad - 10);
          if (b - a < 36) continue;
          ctx.font = "9px system-ui, sans-serif";
          ctx.fillStyle = palette.layerText;
          ctx.fillText(fitting(ctx, shown(trace.head.launches[trace.nodes.launch[i]]), b - a - 6), a + 3, y + kPad + 15.5);
        }
      }
    }
    ctx.font = height < 12 ? "9px system-ui, sans-serif" : "12px system-ui, sans-serif";
    ctx.fillStyle = palette.taskText;
    const text = `${shortName(trace.head.tasks[task].name)} ${trace.instances.instance[position]}`;
    ctx.fillText(fitting(ctx, text, right - left - 8), left + 4, y + kPad + height / 2 + 0.5);
    ctx.font = "12px system-ui, sans-serif";
  }

  paintSelected() {
    if (this.selected === undefined || this.selected < 0) return;
    const { context: ctx, palette, trace } = this;
    const row = trace.rows.rowOf(this.selected);
    const at = this.tracks.findIndex((track) => track.rows.length === 1 && track.rows[0] === row);
    if (at < 0) return;
    const a = this.xOf(trace.instances.start[this.selected]), b = this.xOf(trace.instances.end[this.selected]);
    ctx.strokeStyle = palette.ink;
    ctx.lineWidth = 2;
    ctx.strokeRect(a - 1, this.yOf(at) + kPad - 1, Math.max(3, b - a) + 1, kRow - 2 * kPad + 2);
  }

  // From the ends of what the selected instance needed to its start, and from its end to those that needed it.
  paintArrows() {
    if (this.selected === undefined || this.selected < 0) return;
    const { start, end } = this.trace.instances;
    const track = (position) => {
      const row = this.trace.rows.rowOf(position);
      return this.tracks.findIndex((one) => one.rows.includes(row) && (one.rows.length === 1 || !one.isOpen));
    };
    const middle = (position) => this.yOf(track(position)) + kRow / 2;
    this.needs.slice(0, 24).forEach((need, i) => {
      if (need.position >= 0) {
        this.arrow(this.xOf(end[need.position]), middle(need.position), this.xOf(start[this.selected]), middle(this.selected), i === 0, true);
      }
    });
    this.neededBy.slice(0, 24).forEach((need) => {
      if (need.position >= 0) {
        this.arrow(this.xOf(end[this.selected]), middle(this.selected), this.xOf(start[need.position]), middle(need.position), false, false);
      }
    });
  }

  arrow(x0, y0, x1, y1, strong, into) {
    const { context: ctx, palette } = this;
    const far = 4 * this.width, clamp = (x) => Math.max(-far, Math.min(far, x));
    [x0, x1] = [clamp(x0), clamp(x1)];
    const bend = Math.min(60, Math.max(14, Math.abs(x1 - x0) / 2));
    ctx.strokeStyle = ctx.fillStyle = into ? palette.needs : palette.neededBy;
    ctx.globalAlpha = strong ? 1 : 0.65;
    ctx.lineWidth = strong ? 2.4 : 1.2;
    ctx.beginPath();
    ctx.moveTo(x0, y0);
    ctx.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 2, y1);
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(x1, y1);
    ctx.lineTo(x1 - 7, y1 - 4);
    ctx.lineTo(x1 - 7, y1 + 4);
    ctx.fill();
    ctx.globalAlpha = 1;
  }

  paintGutter(first, last) {
    const { context: ctx, palette } = this;
    ctx.fillStyle = palette.page;
    ctx.fillRect(0, kAxis, kGutter, this.height);
    for (let at = first; at < last; ++at) {
      const track = this.tracks[at], y = this.yOf(at) + kRow / 2;
      ctx.fillStyle = track.inner ? palette.quiet : palette.ink;
      const left = track.key !== undefined ? 24 : track.inner ? 32 : 12;
      if (track.key !== undefined) ctx.fillText(track.isOpen ? "▾" : "▸", 10, y);
      ctx.fillText(fitting(ctx, shown(track.name), kGutter - left - 8), left, y);
    }
    ctx.fillStyle = palette.line;
    ctx.fillRect(kGutter - 1, 0, 1, this.height);
  }

  paintAxis() {
    const { context: ctx, palette } = this;
    ctx.fillStyle = palette.page;
    ctx.fillRect(0, 0, this.width, kAxis);
    const step = roundStep(110 / this.scale), zero = this.span[0];
    ctx.font = "11px system-ui, sans-serif";
    for (let k = Math.ceil((this.from - zero) / step); zero + k * step <= this.to; ++k) {
      const x = this.xOf(zero + k * step);
      ctx.fillStyle = palette.grid;
      ctx.fillRect(Math.round(x), kAxis - 6, 1, this.height);
      ctx.fillStyle = palette.quiet;
      ctx.fillText(moment(k * step, step), x + 4, kAxis / 2);
    }
    ctx.fillStyle = palette.line;
    ctx.fillRect(0, kAxis - 1, this.width, 1);
    ctx.fillStyle = palette.quiet;
    ctx.fillText(duration(this.to - this.from) + " in sight", 12, kAxis / 2);
    ctx.font = "12px system-ui, sans-serif";
  }

  paintMeasure() {
    const { context: ctx, palette } = this;
    this.marks.forEach((time, i) => {
      const x = this.xOf(time);
      if (x < kGutter) return;
      ctx.fillStyle = palette.mark;
      ctx.fillRect(x, 0, 1.5, this.height);
      ctx.fillText(String(i + 1), x + 4, 8);
    });
    if (!this.measure) return;
    const [from, to] = [...this.measure].sort((a, b) => a - b);
    const a = Math.max(kGutter, this.xOf(from)), b = Math.min(this.width, this.xOf(to));
    if (b < a) return;
    ctx.fillStyle = palette.measure;
    ctx.fillRect(a, 0, b - a, this.height);
    ctx.fillStyle = palette.ink;
    ctx.fillRect(a, 0, 1, this.height);
    ctx.fillRect(b - 1, 0, 1, this.height);
    const iteration = this.trace.head.steady.iteration_ns;
    const text = duration(to - from) + (iteration > 0 ? ` · ${((to - from) / iteration).toFixed(2)} iterations` : "");
    const width = ctx.measureText(text).width + 16;
    const x = Math.min(Math.max((a + b - width) / 2, kGutter), this.width - width);
    ctx.fillStyle = palette.ink;
    ctx.fillRect(x, 4, width, 20);
    ctx.fillStyle = palette.page;
    ctx.fillText(text, x + 8, 14.5);
  }
}
