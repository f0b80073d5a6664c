// Mouse and keys on the timeline.

import { kAxis, kGutter } from "./timeline.js";

const kSnap = 8;   // pixels within which a measure takes the start or end of an instance
const kClick = 4;  // pixels that a click may move

// The key of an event: capital letters are those with Shift, whatever Caps Lock says.
export function keyOf({ key, shiftKey }) {
  return /^[a-z]$/i.test(key) ? (shiftKey ? key.toUpperCase() : key.toLowerCase()) : key;
}

// `act`: { select(position), hover(position, at), follow(forward), neighbour(step), otherTrack(step), critical(), changed() }.
export function listen(timeline, act) {
  const { canvas } = timeline;
  let pointer = { x: undefined, y: undefined }, drag = null;

  const instanceAt = (x, y) => {
    const at = timeline.trackAt(y);
    if (at < 0 || x < kGutter) return -1;
    const track = timeline.tracks[at];
    if (track.rows.length > 1) return -1;
    const direct = timeline.trace.rows.at(track.rows[0], timeline.timeAt(x));
    if (direct >= 0) return direct;
    const near = timeline.trace.rows.nearestEdge(track.rows[0], timeline.timeAt(x));
    return near !== null && Math.abs(timeline.xOf(near) - x) < kClick ? timeline.trace.rows.at(track.rows[0], near) : -1;
  };
  const snapped = (x, y) => {
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
  };
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (!timeline.trace || event.button > 1) return;
    const { x, y } = place(event);
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    drag = { x, y, last: x, lastY: y, pans: event.button === 1 || event.shiftKey, from: snapped(x, y), moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    pointer = place(event);
    if (!timeline.trace) return;
    if (!drag) {
      act.hover(instanceAt(pointer.x, pointer.y), pointer);
      canvas.style.cursor = pointer.x < kGutter ? "default" : "crosshair";
      return;
    }
    const { x, y } = pointer;
    drag.moved ||= Math.hypot(x - drag.x, y - drag.y) >= kClick;
    if (!drag.moved || drag.x < kGutter) return;
    if (drag.pans) {
      timeline.pan(-(x - drag.last) / (timeline.width - kGutter));
      timeline.scrollBy(drag.lastY - y);
    } else {
      timeline.measure = [drag.from, snapped(Math.max(x, kGutter), y)];
      timeline.draw();
    }
    drag.last = x;
    drag.lastY = y;
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!drag || !timeline.trace) return;
    const { x, y } = place(event);
    if (!drag.moved) {
      if (x < kGutter) timeline.trackAt(y) >= 0 && timeline.toggle(timeline.trackAt(y));
      else {
        timeline.measure = null;
        act.select(instanceAt(x, y));
      }
    }
    drag = null;
    act.changed();
  });
  canvas.addEventListener("pointerleave", () => {
    pointer = { x: undefined, y: undefined };
    act.hover(-1, pointer);
  });
  canvas.addEventListener("dblclick", (event) => {
    if (!timeline.trace) return;
    const { x, y } = place(event);
    const position = instanceAt(x, y);
    if (position >= 0) timeline.reveal(position, true);
  });
  canvas.addEventListener("wheel", (event) => {
    if (!timeline.trace) return;
    event.preventDefault();
    const { x } = place(event);
    if (event.ctrlKey || event.metaKey) timeline.zoom(Math.exp(event.deltaY * 0.004), x);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      timeline.pan((event.deltaX || event.deltaY) / (timeline.width - kGutter));
    } else timeline.scrollBy(event.deltaY);
    act.changed();
  }, { passive: false });

  const keys = {
    w: () => timeline.zoom(0.7, pointer.x),
    s: () => timeline.zoom(1 / 0.7, pointer.x),
    a: () => timeline.pan(-0.15),
    d: () => timeline.pan(0.15),
    f: () => timeline.fit(),
    F: () => timeline.selected >= 0 && timeline.reveal(timeline.selected, true),
    m: () => {
      const selected = timeline.selected >= 0 ? timeline.trace.instances.start[timeline.selected] : (timeline.from + timeline.to) / 2;
      timeline.marks.push(pointer.x > kGutter && pointer.y > kAxis ? snapped(pointer.x, pointer.y) : selected);
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
  return (key) => {
    if (!timeline.trace || !keys[key]) return false;
    keys[key]();
    act.changed();
    return true;
  };
}
