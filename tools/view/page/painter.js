// SPDX-License-Identifier: Apache-2.0

// Draws the timeline: tracks, axis, and what is selected, measured and marked.

import { css } from "../../page/theme.js";
import { inkOn } from "./colours.js";
import { fitting, paintRow } from "./canvas.js";
import { insideOf } from "./decode.js";
import { duration, instanceName, moment, roundStep, shortName, shown } from "../../page/names.js";
import { kAxis, kGutter, Timeline } from "./timeline.js";

const kPad = 3;  // pixels above and below a row's blocks
// Pixels of a block from which on it has a name, layers, layers that are searched.
const kNamed = 34, kLayered = 90, kSearched = 12;

export class DrawnTimeline extends Timeline {
  coloursNow() {
    const { colours, faint } = this.palette;
    if (!this.onlyCritical && !this.matches) return colours;
    const found = (task) => !this.matches || this.matches.tasks.has(task) || this.matches.holders.has(task);
    const lit = (task) => (!this.onlyCritical || this.critical.has(task)) && found(task);
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
    const first = Math.max(0, Math.floor(this.scroll / this.row));
    const last = Math.min(this.tracks.length, Math.ceil((this.scroll + this.height - kAxis) / this.row));
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
      ctx.fillRect(kGutter, this.yOf(track), this.width - kGutter, this.row);
    }
    const [begin, end] = this.span;
    ctx.fillStyle = palette.outside;
    const a = this.xOf(begin), b = this.xOf(end);
    if (a > kGutter) ctx.fillRect(kGutter, kAxis, a - kGutter, this.height);
    if (b < this.width) ctx.fillRect(b, kAxis, this.width - b, this.height);
    ctx.fillStyle = palette.grid;
    this.eachTick((x) => ctx.fillRect(Math.round(x), kAxis, 1, this.height));
  }

  // Round times in sight: x, ns since the trace's begin, and the step between them.
  eachTick(action) {
    const step = roundStep(110 / this.scale), zero = this.span[0];
    for (let k = Math.max(0, Math.ceil((this.from - zero) / step)); zero + k * step <= this.to; ++k) {
      action(this.xOf(zero + k * step), k * step, step);
    }
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
      strips.finish(at - first, track.turns ? 1 : Math.max(1, track.rows.length));
    }
    strips.end();
    ctx.imageSmoothingEnabled = false;
    for (let at = first; at < last; ++at) {
      ctx.drawImage(strips.canvas, 0, at - first, width, 1, kGutter, this.yOf(at) + kPad, this.width - kGutter, this.row - 2 * kPad);
    }
    for (const [task, list] of wide) {
      ctx.fillStyle = css(colours[task]);
      for (const [, x, w, y] of list) ctx.fillRect(x, y + kPad, w > 6 ? w - 1 : w, this.row - 2 * kPad);
    }
    for (const [task, list] of wide) for (const one of list) this.paintInside(task, one, colours[task]);
    this.paintSelected();
  }

  // Layers, and names that there is room for. Layers that are searched are seen in narrower blocks as well.
  paintInside(task, [position, x, w, y], colour) {
    const searched = this.matches?.launches;
    if (w < kNamed && !(searched?.size && w > kSearched)) return;
    const { context: ctx, palette, trace } = this;
    const left = Math.max(x, kGutter), right = Math.min(x + w, this.width);
    let height = this.row - 2 * kPad;
    const inside = w > (searched?.size ? kSearched : kLayered) ? insideOf(trace, position) : [];
    if (inside.length > 0) height = Math.round((this.row - 2 * kPad) / 2);
    for (const { launch, start, end } of inside) {
      const a = this.xOf(start), b = this.xOf(end);
      if (b < left || a > right || b - a < 0.3) continue;
      ctx.fillStyle = css(searched?.size && !searched.has(launch) ? palette.faintLayers[launch] : palette.layers[launch]);
      ctx.fillRect(a, y + kPad + height, Math.max(0.5, b - a - 0.5), this.row - 2 * kPad - height);
      if (b - a < 36) continue;
      ctx.font = `${height < 14 ? 10 : 11}px system-ui, sans-serif`;
      ctx.fillStyle = palette.layerText;
      ctx.fillText(fitting(ctx, shown(trace.head.launches[launch]), b - a - 6), a + 3, y + this.row - kPad - height / 2 + 0.5);
    }
    if (w < kNamed) return;
    ctx.font = `${height < 14 ? 10 : 12}px system-ui, sans-serif`;
    ctx.fillStyle = inkOn(colour);
    const name = shortName(trace.head.tasks[task].name), text = instanceName(name, trace.instances.instance[position]);
    const all = ctx.measureText(text).width <= right - left - 8;
    ctx.fillText(all ? text : fitting(ctx, name, right - left - 8), left + 4, y + kPad + height / 2 + 0.5);
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
    ctx.strokeRect(a - 1, this.yOf(at) + kPad - 1, Math.max(3, b - a) + 1, this.row - 2 * kPad + 2);
  }

  // From the ends of what the selected instance needed to its start, and from its end to those that needed it.
  paintArrows() {
    if (this.selected === undefined || this.selected < 0) return;
    const { start, end } = this.trace.instances;
    const track = (position) => {
      const row = this.trace.rows.rowOf(position);
      return this.tracks.findIndex((one) => one.rows.includes(row) && (one.rows.length === 1 || !one.isOpen));
    };
    const middle = (position) => this.yOf(track(position)) + this.row / 2;
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
      const track = this.tracks[at], y = this.yOf(at) + this.row / 2;
      ctx.fillStyle = track.inner ? palette.quiet : palette.ink;
      const indent = 12 * track.depth, left = indent + (track.key !== undefined ? 24 : track.inner ? 32 : 12);
      if (track.key !== undefined) ctx.fillText(track.isOpen ? "▾" : "▸", indent + 10, y);
      ctx.font = `${track.kind === "process" ? "bold " : ""}12px system-ui, sans-serif`;
      ctx.fillText(fitting(ctx, shown(track.name), kGutter - left - 8), left, y);
      ctx.font = "12px system-ui, sans-serif";
      ctx.fillStyle = palette.quiet;
      if (track.note && track.isOpen) ctx.fillText(fitting(ctx, track.note, this.width - kGutter - 16), kGutter + 8, y);
    }
    ctx.fillStyle = palette.line;
    ctx.fillRect(kGutter - 1, 0, 1, this.height);
  }

  paintAxis() {
    const { context: ctx, palette } = this;
    ctx.fillStyle = palette.page;
    ctx.fillRect(0, 0, this.width, kAxis);
    ctx.font = "11px system-ui, sans-serif";
    this.eachTick((x, time, step) => {
      ctx.fillStyle = palette.line;
      ctx.fillRect(Math.round(x), kAxis - 6, 1, 6);
      ctx.fillStyle = palette.quiet;
      ctx.fillText(moment(time, step), x + 4, kAxis / 2);
    });
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
