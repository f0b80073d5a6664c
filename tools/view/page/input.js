// SPDX-License-Identifier: Apache-2.0

// Mouse and keys on the timeline.

import { insideOf } from "./decode.js";
import { kAxis, kGutter } from "./timeline.js";

const kSnap = 8;         // pixels within which a measure takes the start or end of an instance
const kClick = 4;        // pixels that a click may move
const kNotch = 120;      // pixels that a wheel turns at most at once
const kWheel = 0.0025;   // how fast a wheel zooms, a pixel
const kPinch = 0.01;     // how fast two fingers on a trackpad zoom, a pixel
const kLinePixels = 33;  // of a wheel that counts lines

// The key of an event: capital letters are those with Shift, whatever Caps Lock says.
export function keyOf({ key, shiftKey }) {
  return /^[a-z]$/i.test(key) ? (shiftKey ? key.toUpperCase() : key.toLowerCase()) : key;
}

// The factor by which a turn of the wheel changes the time in sight.
export function wheelFactor({ deltaY, deltaMode, ctrlKey, metaKey }) {
  const pixels = deltaY * (deltaMode === 1 ? kLinePixels : 1);
  return Math.exp(Math.max(-kNotch, Math.min(kNotch, pixels)) * (ctrlKey || metaKey ? kPinch : kWheel));
}

// The instance at a place; −1: none. It may be missed by a few pixels.
function instanceAt(timeline, x, y) {
  const at = timeline.trackAt(y);
  if (at < 0 || x < kGutter) return -1;
  const { rows } = timeline.tracks[at], row = rows[0];
  if (rows.length !== 1) return -1;
  const direct = timeline.trace.rows.at(row, timeline.timeAt(x));
  if (direct >= 0) return direct;
  const near = timeline.trace.rows.nearestEdge(row, timeline.timeAt(x));
  return near !== null && Math.abs(timeline.xOf(near) - x) < kClick ? timeline.trace.rows.at(row, near) : -1;
}

// The layer of an instance at a place, { launch, start, end }, or nothing.
function layerAt(timeline, position, x, y) {
  if (position < 0 || y < timeline.yOf(timeline.trackAt(y)) + timeline.row / 2) return undefined;
  const time = timeline.timeAt(x);
  return insideOf(timeline.trace, position).find(({ start, end }) => start <= time && time <= end);
}

// A time, or the start or end of an instance that is near it.
function snapped(timeline, x, y) {
  const time = timeline.timeAt(x), at = timeline.trackAt(y);
  if (at < 0) return time;
  let nearest = time, distance = kSnap;
  for (const row of timeline.tracks[at].rows) {
    const edge = timeline.trace.rows.nearestEdge(row, time);
    if (edge === null || Math.abs(timeline.xOf(edge) - x) >= distance) continue;
    distance = Math.abs(timeline.xOf(edge) - x);
    nearest = edge;
  }
  return nearest;
}

// `act`: { select(position), hover(position, layer, at), follow(forward), neighbour(step), otherTrack(step),
// critical(), measuring(on), changed() }. Returns { key(name), pointed() }: the latter tells anew what is under the
// pointer.
export function listen(timeline, act) {
  const { canvas } = timeline;
  const away = { x: undefined, y: undefined };
  let pointer = away, drag = null;

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const pointed = () => {
    const { x, y } = pointer;
    const position = timeline.trace && !drag?.moved && x !== undefined ? instanceAt(timeline, x, y) : -1;
    act.hover(position, layerAt(timeline, position, x, y), pointer);
    canvas.style.cursor = drag?.moved && !drag.measures ? "grabbing" : !(x >= kGutter) ? "default" : timeline.measuring ? "crosshair" : position >= 0 ? "pointer" : "grab";
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (!timeline.trace || event.button > 1) return;
    const { x, y } = place(event);
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    const measures = event.button === 0 && x >= kGutter && event.shiftKey !== timeline.measuring;
    drag = { x, y, last: x, lastY: y, measures, from: snapped(timeline, x, y), moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    pointer = place(event);
    if (!timeline.trace) return;
    if (!drag) return pointed();
    const { x, y } = pointer;
    drag.moved ||= Math.hypot(x - drag.x, y - drag.y) >= kClick;
    if (!drag.moved) return;
    if (drag.measures) {
      timeline.measure = [drag.from, snapped(timeline, Math.max(x, kGutter), y)];
      timeline.draw();
    } else {
      if (drag.x >= kGutter) timeline.pan(-(x - drag.last) / (timeline.width - kGutter));
      timeline.scrollBy(drag.lastY - y);
    }
    drag.last = x;
    drag.lastY = y;
    pointed();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!drag || !timeline.trace) return;
    const { x, y } = place(event), { moved } = drag;
    drag = null;
    if (!moved && x < kGutter) timeline.trackAt(y) >= 0 && timeline.toggle(timeline.trackAt(y), event.shiftKey);
    else if (!moved) {
      timeline.measure = null;
      act.select(instanceAt(timeline, x, y));
    }
    pointed();
    act.changed();
  });
  canvas.addEventListener("pointercancel", () => {
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => {
    pointer = away;
    pointed();
  });
  canvas.addEventListener("dblclick", (event) => {
    if (!timeline.trace) return;
    const { x, y } = place(event);
    const position = instanceAt(timeline, x, y);
    if (position >= 0) timeline.reveal(position, true);
  });
  canvas.addEventListener("wheel", (event) => {
    if (!timeline.trace) return;
    event.preventDefault();
    const { x } = place(event);
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (sideways) timeline.pan((event.deltaX || event.deltaY) / (timeline.width - kGutter));
    else if (x < kGutter && !event.ctrlKey) timeline.scrollBy(event.deltaY * (event.deltaMode === 1 ? kLinePixels : 1));
    else timeline.zoom(wheelFactor(event), x);
    act.changed();
  }, { passive: false });

  const keys = {
    w: () => timeline.zoom(0.7, pointer.x),
    s: () => timeline.zoom(1 / 0.7, pointer.x),
    a: () => timeline.pan(-0.15),
    d: () => timeline.pan(0.15),
    f: () => timeline.fit(),
    F: () => timeline.selected >= 0 && timeline.reveal(timeline.selected, true),
    i: () => timeline.fitSteady(),
    h: () => timeline.foldAll(),
    r: () => act.measuring(!timeline.measuring),
    m: () => {
      const selected = timeline.selected >= 0 ? timeline.trace.instances.start[timeline.selected] : (timeline.from + timeline.to) / 2;
      timeline.marks.push(pointer.x > kGutter && pointer.y > kAxis ? snapped(timeline, pointer.x, pointer.y) : selected);
      timeline.draw();
    },
    M: () => {
      timeline.marks = [];
      timeline.draw();
    },
    "[": () => act.follow(false),
    "]": () => act.follow(true),
    ArrowLeft: () => act.neighbour(-1),
    ArrowRight: () => act.neighbour(1),
    ArrowUp: () => act.otherTrack(-1),
    ArrowDown: () => act.otherTrack(1),
    Escape: () => {
      timeline.measure = null;
      act.select(-1);
    },
    c: () => act.critical(),
  };
  const key = (name) => {
    if (!timeline.trace || !keys[name]) return false;
    keys[name]();
    act.changed();
    return true;
  };
  return { key, pointed };
}
