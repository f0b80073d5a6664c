// SPDX-License-Identifier: Apache-2.0

// Columns as tools/view/columns.h writes them, and instances and nodes as viewer_data.h lays them out.

export function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; ++i) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Reads one number after the other.
export class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }
  unsigned() {
    const { bytes } = this;
    let byte = bytes[this.at++];
    if (byte < 128) return byte;
    let value = byte & 127;
    let factor = 128;
    do {
      if (this.at >= bytes.length) throw new Error("a column ends within a number");
      byte = bytes[this.at++];
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte >= 128);
    return value;
  }
  signed() {
    const value = this.unsigned();
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  }
}

function checkCounts(columns, counts) {
  for (const [name, count] of Object.entries(counts)) {
    if (count > 0 && !(columns[name] && columns[name].length >= count)) throw new Error(`the column '${name}' is incomplete`);
  }
}

// Instances, row by row, times in ns since the trace began. `ready` and `issued` are durations before the start, NaN if
// unknown.
export function readInstances(columns, head) {
  const count = head.columns.task;
  checkCounts(columns, head.columns);
  const task = new Int32Array(count), instance = new Float64Array(count);
  const start = new Float64Array(count), end = new Float64Array(count);
  const ready = new Float64Array(count), issued = new Float64Array(count);
  const unit = head.unit_ns, next = new Float64Array(head.tasks.length);
  const of = (name) => new Reader(columns[name] ?? new Uint8Array());
  const tasks = of("task"), instances = of("instance"), gaps = of("gap"), durations = of("duration");
  const readies = of("ready"), issues = of("issued");
  const known = (reader) => {
    const value = reader.unsigned();
    if (value === 0) return NaN;
    return unit * ((value - 1) % 2 === 0 ? (value - 1) / 2 : -value / 2);
  };
  let at = 0;
  for (const row of head.rows) {
    let ended = Math.floor(head.begin_ns / unit), before = 0;
    for (const last = at + row.count; at < last; ++at) {
      before += tasks.signed();
      task[at] = before;
      instance[at] = next[before] + instances.signed();
      next[before] = instance[at] + 1;
      ended += gaps.signed();
      start[at] = ended * unit;
      ended += durations.unsigned();
      end[at] = ended * unit;
      ready[at] = known(readies);
      const since = known(issues);
      issued[at] = Number.isNaN(ready[at]) ? since : ready[at] - since;
    }
  }
  return { count, task, instance, start, end, ready, issued };
}

// Nodes inside instances, in the order of `parent`; first[p] … first[p + 1] are those of the instance at position p.
export function readNodes(columns, head, instances) {
  const count = head.columns.node_parent ?? 0;
  const launch = new Int32Array(count), parent = new Int32Array(count);
  const start = new Float64Array(count), end = new Float64Array(count);
  const of = (name) => new Reader(columns[name] ?? new Uint8Array());
  const parents = of("node_parent"), launches = of("node_launch"), gaps = of("node_gap"), durations = of("node_duration");
  const unit = head.unit_ns;
  let position = 0, ended = 0;
  for (let i = 0; i < count; ++i) {
    const step = parents.unsigned();
    position += step;
    if (i === 0 || step > 0) ended = instances.start[position] / unit;
    parent[i] = position;
    launch[i] = launches.unsigned();
    ended += gaps.signed();
    start[i] = ended * unit;
    ended += durations.unsigned();
    end[i] = ended * unit;
  }
  return { count, parent, launch, start, end };
}

// When samples were taken, and the values of each series.
export function readSamples(columns, head) {
  const series = head.sampling?.series ?? [], count = head.columns.sample_at ?? 0;
  const gaps = new Reader(columns.sample_at ?? new Uint8Array()), steps = new Reader(columns.sample_value ?? new Uint8Array());
  const at = new Float64Array(count);
  let time = Math.floor(head.begin_ns / head.unit_ns);
  for (let i = 0; i < count; ++i) at[i] = (time += gaps.signed()) * head.unit_ns;
  const values = series.map(({ scale }) => {
    const list = new Float64Array(count);
    let value = 0;
    for (let i = 0; i < count; ++i) list[i] = (value += steps.signed()) * scale;
    return list;
  });
  return { at, values };
}

// The nodes of an instance: [first, last).
export function nodesOf(nodes, position) {
  const from = lowerBound(nodes.parent, 0, nodes.count, position);
  return [from, lowerBound(nodes.parent, from, nodes.count, position + 1)];
}

// The inside of an instance, each { launch, start, end }: its recorded nodes, or else the instance divided in
// proportion to its task's node times measured after the run.
export function insideOf({ head, instances, nodes }, position) {
  const [from, to] = nodesOf(nodes, position), list = [];
  for (let i = from; i < to; ++i) list.push({ launch: nodes.launch[i], start: nodes.start[i], end: nodes.end[i] });
  const shares = list.length ? undefined : head.insides?.[head.tasks[instances.task[position]].inside];
  const begin = instances.start[position], took = instances.end[position] - begin;
  let before = 0;
  for (const [launch, share] of shares ?? []) {
    list.push({ launch, start: begin + before * took, end: begin + (before + share) * took });
    before += share;
  }
  return list;
}

// The first index in [from, to) of an ascending array whose value is at least `value`; `to` if there is none.
export function lowerBound(array, from, to, value) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (array[middle] < value) from = middle + 1;
    else to = middle;
  }
  return from;
}

// The same for values that are greater.
export function upperBound(array, from, to, value) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (array[middle] <= value) from = middle + 1;
    else to = middle;
  }
  return from;
}
