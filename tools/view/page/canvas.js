// SPDX-License-Identifier: Apache-2.0

// Drawing of one row of the timeline: what is wide as rectangles, what is narrow as a strip of pixels, each the mean of
// what it covers.

const kWide = 4;      // pixels from which an instance is a rectangle of its own
// Opacity of what takes hardly any of a pixel's time: tasks of the host and copies are seen at any zoom.
const kLeastInk = 0.5;

// How opaque a pixel is, a share of whose time is covered.
export function inkOf(share) {
  return kLeastInk + (1 - kLeastInk) * Math.min(1, share) ** 0.7;
}

// A strip for each row that is seen, as lines of one picture that are then stretched to the rows' heights.
export class Strips {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.context = this.canvas.getContext("2d");
  }

  begin(width, lines) {
    this.width = Math.max(1, width);
    this.canvas.width = this.width;
    this.canvas.height = Math.max(1, lines);
    this.image = this.context.createImageData(this.width, Math.max(1, lines));
    if (!this.cover || this.cover.length < this.width) {
      this.cover = new Float32Array(this.width);
      this.sums = new Float32Array(3 * this.width);
    }
  }

  clear() {
    this.cover.fill(0);
    this.sums.fill(0);
  }

  // Adds a stretch [from, to) in pixels, `share` of which is covered with a colour.
  add(from, to, share, colour) {
    const a = Math.max(0, from), b = Math.min(this.width, to);
    if (b <= a) return;
    for (let x = Math.floor(a); x < b; ++x) {
      const part = share * (Math.min(b, x + 1) - Math.max(a, x));
      this.cover[x] += part;
      this.sums[3 * x] += part * colour[0];
      this.sums[3 * x + 1] += part * colour[1];
      this.sums[3 * x + 2] += part * colour[2];
    }
  }

  // Makes what was added a line of the picture; `rows`: how many rows' time it holds. A pixel with nothing next
  // to it is drawn two wide.
  finish(line, rows = 1) {
    const { data } = this.image, { cover, sums, width } = this;
    for (let x = 0, at = 4 * line * width; x < width; ++x, at += 4) {
      if (cover[x] <= 0) continue;
      const ink = inkOf(cover[x] / rows);
      for (let c = 0; c < 3; ++c) data[at + c] = sums[3 * x + c] / cover[x];
      data[at + 3] = 255 * ink;
      if (x + 1 >= width || cover[x + 1] > 0 || (x > 0 && cover[x - 1] > 0)) continue;
      data.copyWithin(at + 4, at, at + 4);
    }
  }

  end() {
    this.context.putImageData(this.image, 0, 0);
  }
}

// Goes through what a row shows between two times. `scale`: pixels a ns. Returns wide instances as [position, x,
// width].
export function paintRow(rows, number, view, strips, colours) {
  const { from, to, scale } = view;
  const { start, end, task } = rows.instances;
  const wide = [];
  rows.visit(number, from, to, 1 / scale, (position) => {
    const x = (start[position] - from) * scale, width = (end[position] - start[position]) * scale;
    if (width >= kWide) wide.push([position, x, width]);
    else strips.add(x, x + width, 1, colours[task[position]]);
  }, (blockStart, blockEnd, busy, kind) => {
    const x = (blockStart - from) * scale, width = (blockEnd - blockStart) * scale;
    if (width <= 0) return;
    strips.add(x, x + width, busy / (blockEnd - blockStart), colours[kind]);
  });
  return wide;
}

// As much of a text as fits.
export function fitting(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = Math.floor(text.length * width / context.measureText(text).width);
  for (; length > 0; --length) {
    const part = text.slice(0, length) + "…";
    if (context.measureText(part).width <= width) return part;
  }
  return "";
}
