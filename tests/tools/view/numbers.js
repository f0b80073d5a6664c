// SPDX-License-Identifier: Apache-2.0

// Shared parts of the page's tests: numbers drawn from a seed, and columns as tools/view/columns.cpp writes them.

export function generator(seed) {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

export function bytesOf(numbers) {
  const bytes = [];
  for (let value of numbers) {
    for (; value >= 128; value = Math.floor(value / 128)) bytes.push((value % 128) + 128);
    bytes.push(value);
  }
  return new Uint8Array(bytes);
}

export const zigzag = (value) => (value >= 0 ? 2 * value : -2 * value - 1);

// A head and instances, as decode.js gives them: rows of instances that do not overlap, for `tasks` tasks.
export function randomTrace(random, { rows = 3, count = 500, tasks = 4 } = {}) {
  const head = { rows: [], tasks: [], lanes: [], unit_ns: 1, begin_ns: 0 };
  const list = [], next = Array(tasks).fill(0);
  for (let row = 0; row < rows; ++row) {
    const many = random(count) + 1;
    head.rows.push({ lane: row, count: many });
    let time = random(1000);
    for (let i = 0; i < many; ++i) {
      time += random(3) === 0 ? random(5000) : 0;
      const start = time;
      time += random(10) === 0 ? random(2000) : random(20);
      const task = random(tasks);
      list.push({ task, instance: next[task]++, start, end: time, ready: NaN, issued: NaN });
    }
  }
  const column = (name, Type) => Type.from(list, (one) => one[name]);
  const instances = { count: list.length, task: column("task", Int32Array), instance: column("instance", Float64Array),
    start: column("start", Float64Array), end: column("end", Float64Array), ready: column("ready", Float64Array), issued: column("issued", Float64Array) };
  return { head, instances };
}
