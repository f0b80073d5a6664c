// SPDX-License-Identifier: Apache-2.0

// Draws the charts under the timeline, aligned with it in time.

import { css, rgbOf } from "../../page/theme.js";
import { fitting } from "./canvas.js";
import { amount, sampledCharts, slotCharts } from "./curves.js";
import { bytes, counted, kindName } from "../../page/names.js";
import { kAxis, kGutter, kLowest } from "./timeline.js";

const kTall = 40, kFlat = 22, kFolded = 18, kMargin = 4;  // of a chart, in pixels
const kTwoLines = 34;                       // a row that has room for a name and, under it, its value
const kLeastName = 60;                       // least pixels of a name next to its value
const kRoom = 0.42, kLeastRoom = 0.24;       // of the timeline's place, at most and at least

export class Charts {
  constructor(canvas, timeline) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.timeline = timeline;
    this.charts = [];
    this.shown = true;
    this.pointer = null;
    this.first = 0;  // chart on top, if there is no room for all
    this.folded = new Set();  // names of charts that are a line of text
    this.shownCharts = [];  // those of processes that are not folded
    this.placed = [];  // what is in sight: { chart, top, height }
    canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("click", (event) => event.offsetX < kGutter && this.fold(event.offsetY));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.offsetX < kGutter && this.hiddenCharts() > 0) this.scroll(Math.sign(event.deltaY));
      else if (event.offsetX >= kGutter) timeline.canvas.dispatchEvent(new WheelEvent("wheel", event));
    }, { passive: false });
  }

  show(trace) {
    this.charts = [...sampledCharts(trace), ...slotCharts(trace)];
    this.place();
  }

  // Makes the charts as high as the timeline's rows leave room for.
  place() {
    const { height } = this.canvas.parentElement.getBoundingClientRect();
    const rows = kAxis + (this.timeline.tracks?.length ?? 0) * kLowest + 8;
    const room = Math.min(kRoom * height, Math.max(kLeastRoom * height, height - rows));
    const charts = this.shownCharts = this.charts.filter((chart) => !this.timeline.folded?.has(chart.process));
    const isFolded = (chart) => this.folded.has(chart.name), folded = charts.filter(isFolded).length;
    const open = Math.max(1, charts.length - folded);
    const row = Math.min(kTall, Math.max(kFlat, Math.floor((room - folded * kFolded) / open)));
    const heights = charts.map((chart) => (isFolded(chart) ? kFolded : row));
    let last = charts.length;  // the first chart from which on all others have room
    for (let used = 0; last > 0 && (used += heights[last - 1]) <= Math.max(room, row); --last);
    this.first = Math.min(Math.max(this.first, 0), last);
    this.placed = [];
    this.height = 0;
    for (let i = this.first; this.shown && i < heights.length && (i === this.first || this.height + heights[i] <= room); ++i) {
      this.placed.push({ chart: charts[i], top: this.height, height: heights[i] });
      this.height += heights[i];
    }
    this.canvas.hidden = this.height === 0;
    this.canvas.style.height = this.height + "px";
  }

  hiddenCharts() {
    return this.height ? this.shownCharts.length - this.placed.length : 0;
  }

  scroll(by) {
    this.first += by;
    this.changed();
  }

  // Folds the chart at a height, or opens it.
  fold(y) {
    const name = this.placed.find(({ top, height }) => y >= top && y < top + height)?.chart.name;
    if (name === undefined) return;
    if (!this.folded.delete(name)) this.folded.add(name);
    this.changed();
  }

  changed() {
    this.place();
    this.timeline.resize();
  }

  point(x) {
    this.pointer = x === null || x < kGutter ? null : x;
    this.draw();
  }

  draw() {
    const { context: ctx, timeline } = this;
    if (!this.height || !timeline.trace || !timeline.palette) return;
    const { width, ratio, palette } = timeline;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = palette.page;
    ctx.fillRect(0, 0, width, this.height);
    ctx.textBaseline = "middle";
    for (const one of this.placed) this.drawChart(one);
    this.drawMore();
    ctx.fillStyle = palette.line;
    ctx.fillRect(kGutter - 1, 0, 1, this.height);
    if (this.pointer !== null) ctx.fillRect(this.pointer, 0, 1, this.height);
    this.canvas.style.cursor = this.pointer === null ? "pointer" : "crosshair";
  }

  drawChart({ chart, top, height: row }) {
    const { context: ctx, timeline } = this;
    const { width, palette } = timeline;
    ctx.fillStyle = palette.line;
    ctx.fillRect(0, top, width, 1);
    if (this.folded.has(chart.name)) return this.drawNames(chart, top, row);
    const seen = Math.max(...chart.lines.map((line) => line.curve.most), chart.planned, 1e-9);
    // If values stay below a quarter of the limit, the axis ends just above the highest value instead of at the limit.
    const most = chart.most > 0 && seen > chart.most / 4 ? Math.max(chart.most, seen) : seen * 1.05;
    const yOf = (value) => top + row - kMargin / 2 - (value / most) * (row - kMargin - 2);
    chart.lines.forEach((line, i) => this.drawLine(line.curve, yOf, rgbOf((216 + 67 * i) % 360, palette.dark ? 0.5 : 0.6, palette.dark ? 0.62 : 0.48), chart.lines.length === 1 ? top + row - 1 : null));
    if (chart.planned > 0) {
      ctx.strokeStyle = palette.needs;
      ctx.setLineDash([5, 4]);
      ctx.beginPath();
      ctx.moveTo(kGutter, Math.round(yOf(chart.planned)) + 0.5);
      ctx.lineTo(width, Math.round(yOf(chart.planned)) + 0.5);
      ctx.stroke();
      ctx.setLineDash([]);
      this.drawNote(`${chart.plannedAs} ${bytes(chart.planned)}`, Math.min(Math.max(yOf(chart.planned) - 7, top + 8), top + row - 7));
    }
    this.drawNames(chart, top, row);
  }

  // At the right end, or the left one, over what is drawn there.
  drawNote(text, y, atLeft = false) {
    const { context: ctx, timeline } = this;
    ctx.font = "10px system-ui, sans-serif";
    const wide = ctx.measureText(text).width, left = atLeft ? kGutter + 8 : timeline.width - wide - 10;
    ctx.fillStyle = timeline.palette.page;
    ctx.globalAlpha = 0.8;
    ctx.fillRect(left - 3, y - 6, wide + 6, 12);
    ctx.globalAlpha = 1;
    ctx.fillStyle = timeline.palette.ink;
    ctx.fillText(text, left, y);
  }

  // How many charts there is no room for.
  drawMore() {
    const above = this.first, below = this.hiddenCharts() - above;
    if (above > 0) this.drawNote(`▴ ${counted(above, "more chart")}`, 8, true);
    if (below > 0) this.drawNote(`▾ ${counted(below, "more chart")}`, this.height - 7, true);
  }

  // A line of means, one a pixel; `floor`: what lies between it and that is filled.
  drawLine(curve, yOf, colour, floor) {
    const { context: ctx, timeline } = this;
    ctx.beginPath();
    let begun = null, last = 0;
    for (let x = kGutter; x < timeline.width; ++x) {
      const value = curve.mean(timeline.timeAt(x), timeline.timeAt(x + 1));
      if (Number.isNaN(value)) {
        if (begun !== null) break;
        continue;
      }
      if (begun === null) ctx.moveTo(begun = x, yOf(value));
      else ctx.lineTo(x, yOf(value));
      last = x;
    }
    if (begun === null) return;
    ctx.strokeStyle = css(colour);
    ctx.lineWidth = 1.3;
    ctx.stroke();
    if (floor === null) return;
    ctx.lineTo(last, floor);
    ctx.lineTo(begun, floor);
    ctx.globalAlpha = 0.16;
    ctx.fillStyle = css(colour);
    ctx.fill();
    ctx.globalAlpha = 1;
  }

  // In the gutter: what it is, and how much at the pointer, or at most.
  drawNames(chart, top, row) {
    const { context: ctx, timeline, pointer } = this;
    const { palette } = timeline;
    const name = chart.unit === "slots" ? `slots of ${kindName(chart.name)}` : chart.name;
    const time = pointer === null ? null : timeline.timeAt(pointer);
    const values = chart.lines.map((line) => amount(time === null ? line.curve.most : line.curve.at(time), chart.unit));
    const limit = chart.most > 0 && chart.unit !== "B" ? `of ${amount(chart.most, chart.unit).replace(" filled", "")}` : "";
    const value = [...new Set(values)].join(", "), from = time === null ? "up to " : "", to = limit ? ", " + limit : "";
    const texts = [from + value + to, value + to, from + value, value];  // the first that there is room for
    const room = kGutter - 24 - 6;
    ctx.fillStyle = palette.ink;
    ctx.font = "12px system-ui, sans-serif";
    ctx.fillText(this.folded.has(chart.name) ? "▸" : "▾", 10, top + row / 2 + 1);
    if (row < kTwoLines) {
      ctx.font = "11px system-ui, sans-serif";
      const wide = (text) => ctx.measureText(text).width;
      const text = texts.find((one) => wide(`${name}: ${one}`) <= room) ?? value;
      const short = fitting(ctx, name, Math.max(kLeastName, room - wide(": " + text)));
      ctx.fillText(fitting(ctx, `${short}: ${text}`, room), 24, top + row / 2 + 1);
      return;
    }
    ctx.fillText(fitting(ctx, name, room), 24, top + row / 2 - 7);
    ctx.font = "11px system-ui, sans-serif";
    ctx.fillStyle = palette.quiet;
    ctx.fillText(fitting(ctx, texts.find((one) => ctx.measureText(one).width <= room) ?? value, room), 24, top + row / 2 + 8);
  }
}
