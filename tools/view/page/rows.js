// SPDX-License-Identifier: Apache-2.0

// Instances by row, and the level of detail for each zoom.

import { lowerBound, upperBound } from "./decode.js";

const kBranch = 16;

// A tree per row over its instances. A block of level L spans 16^L of them and stores how long tasks ran in it and
// which task ran longest. Instances narrower than a pixel are drawn as blocks.
export class Rows {
  constructor(head, instances) {
    this.instances = instances;
    this.rows = [];
    let first = 0;
    for (const { lane, count } of head.rows) {
      this.rows.push({ lane, first, last: first + count, levels: this.levelsOf(first, first + count) });
      first += count;
    }
  }

  levelsOf(first, last) {
    const { task, start, end } = this.instances;
    const levels = [];
    let count = last - first;
    let child = { busy: (i) => end[first + i] - start[first + i], task: (i) => task[first + i] };
    while (count > kBranch) {
      const blocks = Math.ceil(count / kBranch);
      const busy = new Float64Array(blocks), most = new Int32Array(blocks);
      const sums = new Map();
      for (let block = 0; block < blocks; ++block) {
        sums.clear();
        const to = Math.min(count, (block + 1) * kBranch);
        let longest = -1, all = 0;
        for (let i = block * kBranch; i < to; ++i) {
          const one = child.busy(i), kind = child.task(i);
          const sum = (sums.get(kind) ?? 0) + one;
          sums.set(kind, sum);
          all += one;
          if (sum > longest) {
            longest = sum;
            most[block] = kind;
          }
        }
        busy[block] = all;
      }
      levels.push({ busy, most });
      count = blocks;
      child = { busy: (i) => busy[i], task: (i) => most[i] };
    }
    return levels;
  }

  // Calls instance(position) for instances that meet [from, to] and last `least` or longer, and for others
  // block(start, end, busy, task) of runs of them that last less than `least` together.
  visit(number, from, to, least, instance, block) {
    const row = this.rows[number];
    const { task, start, end } = this.instances;
    const descend = (level, index) => {
      const size = kBranch ** level;
      const a = row.first + index * size, b = Math.min(row.last, a + size);
      if (end[b - 1] < from || start[a] > to) return;
      if (level === 0) {
        if (end[a] - start[a] >= least) instance(a);
        else block(start[a], end[a], end[a] - start[a], task[a]);
        return;
      }
      if (end[b - 1] - start[a] < least) {
        block(start[a], end[b - 1], row.levels[level - 1].busy[index], row.levels[level - 1].most[index]);
        return;
      }
      const children = Math.ceil((b - a) / kBranch ** (level - 1));
      for (let i = 0; i < children; ++i) descend(level - 1, index * kBranch + i);
    };
    const top = row.levels.length;
    const blocks = Math.ceil((row.last - row.first) / kBranch ** top);
    for (let i = 0; i < blocks; ++i) descend(top, i);
  }

  // The instance of a row that runs at a time; −1: none.
  at(number, time) {
    const row = this.rows[number];
    const position = upperBound(this.instances.start, row.first, row.last, time) - 1;
    return position >= row.first && this.instances.end[position] >= time ? position : -1;
  }

  // The start or end of one of a row's instances that is nearest to a time.
  nearestEdge(number, time) {
    const row = this.rows[number];
    const { start, end } = this.instances;
    const after = lowerBound(start, row.first, row.last, time);
    let nearest = null;
    for (let i = Math.max(row.first, after - 1); i < Math.min(row.last, after + 1); ++i) {
      for (const edge of [start[i], end[i]]) {
        if (nearest === null || Math.abs(edge - time) < Math.abs(nearest - time)) nearest = edge;
      }
    }
    return nearest;
  }

  rowOf(position) {
    return upperBound(this.rows.map((row) => row.first), 0, this.rows.length, position) - 1;
  }
}
