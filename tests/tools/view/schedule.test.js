// SPDX-License-Identifier: Apache-2.0

// Rows, levels of detail, edges between instances, the plan's layout, hash and words, against brute force.

import assert from "node:assert/strict";
import { test } from "node:test";

import { compared, comparedLayers } from "../../../tools/view/page/compare.js";
import { operatorsOf } from "../../../tools/view/page/costs.js";
import { byValue } from "../../../tools/page/dom.js";
import { hashOf, stateOf } from "../../../tools/view/page/hash.js";
import { keyOf, wheelFactor } from "../../../tools/view/page/input.js";
import { placed, planGraph, ranksOf } from "../../../tools/view/page/layout.js";
import { bytes, duration, inMilliseconds, instanceName, kindName, moment, percent, roundStep, shortName, shown, unbroken } from "../../../tools/page/names.js";
import { Dependencies, needingInstances, neededInstance } from "../../../tools/view/page/plan.js";
import { foundIn } from "../../../tools/view/page/navigation.js";
import { Rows } from "../../../tools/view/page/rows.js";
import { cardOf, imagesPerSecond } from "../../../tools/view/page/run_card.js";
import { readyAt } from "../../../tools/view/page/selection.js";
import { steadySpan, Timeline } from "../../../tools/view/page/timeline.js";
import { tracksOf } from "../../../tools/view/page/tracks.js";
import { generator, randomTrace } from "./numbers.js";

test("what is drawn covers what ran, at every zoom", () => {
  const random = generator(4);
  for (let round = 0; round < 60; ++round) {
    const { head, instances } = randomTrace(random, { count: 2000 });
    const rows = new Rows(head, instances);
    for (let number = 0; number < head.rows.length; ++number) {
      const { first, last } = rows.rows[number];
      const end = instances.end[last - 1];
      const from = random(end), to = from + random(end) + 1, least = [0, 1, 50, 3000, 1e6][random(5)];
      let expected = 0, wide = 0, time = -Infinity;
      for (let i = first; i < last; ++i) {
        const whole = instances.end[i] - instances.start[i];
        if (instances.end[i] < from || instances.start[i] > to) continue;
        expected += whole;
        wide += whole >= least;
      }
      let drawn = 0, outside = 0, instancesDrawn = 0;
      const inOrder = (start) => {
        assert.ok(start >= time);
        time = start;
      };
      rows.visit(number, from, to, least, (i) => {
        inOrder(instances.start[i]);
        assert.ok(instances.end[i] - instances.start[i] >= least);
        drawn += instances.end[i] - instances.start[i];
        ++instancesDrawn;
      }, (start, stop, busy) => {
        inOrder(start);
        assert.ok(busy <= stop - start && stop - start < Math.max(least, 1e-9) || stop === start);
        drawn += busy;
        if (start < from || stop > to) outside += busy;
      });
      assert.equal(instancesDrawn, wide);
      assert.ok(drawn >= expected - 1e-6 && drawn <= expected + outside + 1e-6);
    }
  }
});

test("a block's task is the one that ran longest in it", () => {
  const random = generator(5);
  for (let round = 0; round < 50; ++round) {
    const { instances } = randomTrace(random, { rows: 1, count: 200, tasks: 3 });
    if (instances.count <= 16) continue;
    const rows = new Rows({ rows: [{ lane: 0, count: instances.count }] }, instances);
    rows.rows[0].levels[0].most.forEach((most, block) => {
      const sums = [0, 0, 0];
      for (let i = 16 * block; i < Math.min(instances.count, 16 * (block + 1)); ++i) sums[instances.task[i]] += instances.end[i] - instances.start[i];
      assert.equal(sums[most], Math.max(...sums));
    });
  }
});

test("what runs at a time, and the nearest edge, are found", () => {
  const random = generator(6);
  const { head, instances } = randomTrace(random, { count: 300 });
  const rows = new Rows(head, instances);
  for (let round = 0; round < 2000; ++round) {
    const number = random(head.rows.length), { first, last } = rows.rows[number];
    const time = random(instances.end[last - 1] + 100);
    let running = -1, nearest = Infinity;
    for (let i = first; i < last; ++i) {
      if (instances.start[i] <= time && time <= instances.end[i]) running = i;
      for (const edge of [instances.start[i], instances.end[i]]) if (Math.abs(edge - time) < Math.abs(nearest - time)) nearest = edge;
    }
    const found = rows.at(number, time);
    if (running < 0) assert.equal(found, -1);
    else assert.ok(instances.start[found] <= time && time <= instances.end[found]);
    assert.equal(Math.abs(rows.nearestEdge(number, time) - time), Math.abs(nearest - time));
    const position = first + random(last - first);
    assert.equal(rows.rowOf(position), number);
  }
});

const clocks = [{ name: "batch", ticks: 100 }, { name: "report", ticks: 40 }];
const relation = { fine: 0, coarse: 1, group: 3, period: 7 };

function planOf(edges, tasks) {
  return { clocks, relations: [relation], edges, tasks, critical: { edges: [] }, lanes: [{ name: "host", kind: "host", device: -1 }] };
}

test("those that need an instance are those whose needed instance it is", () => {
  for (const [from, to, distance, which] of [[0, 0, 0, -1], [0, 0, 3, -1], [0, 1, 0, 0], [0, 1, 2, 0], [1, 0, 0, 0], [1, 0, 1, 0]]) {
    const edge = { from: 0, to: 1, distance, relation: which };
    const head = planOf([edge], [{ clock: from }, { clock: to }]);
    for (let n = 0; n < 60; ++n) {
      const expected = [];
      for (let m = 0; m < 400; ++m) if (neededInstance(head, edge, m) === n) expected.push(m);
      const range = needingInstances(head, edge, n);
      const found = [];
      if (range) for (let m = range[0]; m <= range[1]; ++m) found.push(m);
      assert.deepEqual(found, expected, `${from} → ${to}, distance ${distance}, instance ${n}`);
    }
  }
});

test("instances are found by task and number, and edges followed both ways", () => {
  const random = generator(7);
  const { head, instances } = randomTrace(random, { tasks: 3 });
  const edges = [{ from: 0, to: 1, distance: 0, relation: -1 }, { from: 1, to: 0, distance: 2, relation: -1 }, { from: 2, to: 2, distance: 1, relation: -1 }];
  const dependencies = new Dependencies(planOf(edges, [{ clock: 0 }, { clock: 0 }, { clock: 0 }]), instances);
  for (let i = 0; i < instances.count; ++i) assert.equal(dependencies.find(instances.task[i], instances.instance[i]), i);
  assert.equal(dependencies.find(0, 1e6), -1);
  for (let i = 0; i < instances.count; ++i) {
    for (const need of dependencies.needs(i)) {
      assert.equal(instances.instance[i] - edges[need.edge].distance, need.instance);
      if (need.position < 0) continue;
      assert.equal(instances.instance[need.position], need.instance);
      assert.ok(dependencies.neededBy(need.position).some((back) => back.position === i && back.edge === need.edge));
    }
    const times = dependencies.needs(i).map((need) => need.time);
    assert.deepEqual(times, [...times].sort((a, b) => b - a));
  }
});

test("a node's column is the longest way to it", () => {
  const random = generator(8);
  for (let round = 0; round < 100; ++round) {
    const count = 2 + random(9), links = [];
    for (let from = 0; from < count; ++from) {
      for (let to = from + 1; to < count; ++to) if (random(3) === 0) links.push({ from, to, distance: random(4) === 0 ? 1 : 0 });
    }
    const longest = Array(count).fill(0);
    for (let sweep = 0; sweep < count; ++sweep) {
      for (const { from, to, distance } of links) if (distance === 0) longest[to] = Math.max(longest[to], longest[from] + 1);
    }
    assert.deepEqual(ranksOf({ nodes: Array(count).fill({}), links }), longest);
  }
  assert.equal(ranksOf({ nodes: [{}, {}], links: [{ from: 0, to: 1, distance: 0 }, { from: 1, to: 0, distance: 0 }] }).length, 2);
});

test("learners and devices are one node, or each its own, and nodes lie apart", () => {
  const lanes = [{ name: "a", kind: "compute", device: 0 }, { name: "b", kind: "compute", device: 0 }];
  const task = (name, like, lane) => ({ name, like, lane, kind: "compute", clock: 0, total_ns: 5, count: 1, slack_us: lane });
  const head = { lanes, critical: { edges: [1] }, tasks: [task("l 0/step", "l */step", 0), task("l 1/step", "l */step", 1)],
    edges: [0, 1].map((id) => ({ from: id, to: id, distance: 1, why: "lane", what: "", relation: -1 })) };
  const together = planGraph(head, false), each = planGraph(head, true);
  assert.equal(together.nodes.length, 1);
  assert.equal(together.links.length, 1);
  assert.deepEqual(together.links[0].edges, [0, 1]);
  assert.equal(together.nodes[0].slack, 0);
  assert.ok(together.nodes[0].critical);
  assert.deepEqual(each.nodes.map((node) => node.critical), [false, true]);
  placed(each, { left: 0, right: 0, top: 0, bottom: 0, column: 100, row: 40, gap: 10 });
  assert.ok(Math.abs(each.nodes[0].y - each.nodes[1].y) >= 40);
});

test("rows of a device fold into one", () => {
  const head = { devices: ["cpu:0"], rows: [], lanes: [{ name: "host", kind: "host", device: -1 }] };
  for (let learner = 0; learner < 8; ++learner) head.lanes.push({ name: `cpu:0/learner ${learner}`, kind: "compute", device: 0, learner });
  head.lanes.forEach((_, lane) => head.rows.push({ lane, count: 1 }));
  const folded = tracksOf(head, new Map());
  assert.deepEqual(folded.map((track) => track.rows.length), [1, 8]);
  const open = tracksOf(head, new Map([[folded[1].key, true]]));
  assert.equal(open.length, 10);
});

// Processes with two host threads and a CPU of two learners each, called a, b, c, …
function headOfProcesses(count) {
  const names = [..."abcdefgh"].slice(0, count);
  const head = { devices: names.map((name) => `${name}/cpu:0`), rows: [], lanes: [], run: { clock_error: 1500 } };
  names.forEach((name, device) => {
    head.lanes.push({ name: `${name}/host`, kind: "host", device: -1 });
    for (const learner of [0, 1]) head.lanes.push({ name: `${name}/cpu:0/learner ${learner}`, kind: "compute", device });
  });
  head.lanes.forEach((_, lane) => {
    for (let i = 0; i < (lane % 3 === 0 ? 2 : 1); ++i) head.rows.push({ lane, count: 1 });
  });
  return head;
}

test("each process of a trace has a heading, which says how far its times may be off and folds its rows", () => {
  const head = headOfProcesses(2);
  const all = tracksOf(head, new Map([["a-1/host", false], ["b-1/host", false]]));
  const ofOne = ["2 host threads", "cpu:0 · 2 learners", "cpu:0/learner 0", "cpu:0/learner 1"];
  assert.deepEqual(all.map((track) => track.name), ["a", ...ofOne, "b", ...ofOne]);
  assert.deepEqual(all.map((track) => track.rows), [[], [0, 1], [2, 3], [2], [3], [], [4, 5], [6, 7], [6], [7]]);
  assert.deepEqual(all.map((track) => track.depth), [0, 1, 1, 1, 1, 0, 1, 1, 1, 1]);
  assert.ok(all.filter((track) => track.kind === "compute" && track.key).every((track) => track.turns));
  assert.deepEqual([all[0].note, all[5].note], ["", "times to within 1.50 µs of the first process's clock"]);
  const folded = tracksOf(head, new Map([[all[0].key, false]]));
  assert.deepEqual(folded[0].rows, [0, 1, 2, 3]);
  assert.equal(folded[1].name, "b");
});

test("processes of one host stand under its name, and those of hosts that are folded are known", () => {
  const head = headOfProcesses(4);
  head.devices = ["n7.0/cpu:0", "n7.1/cpu:0", "n8.0/cpu:0", "n8.1/cpu:0"];
  head.hosts = [3, 3, 5, 5];
  ["n7.0", "n7.1", "n8.0", "n8.1"].forEach((name, i) => (head.lanes[3 * i].name = `${name}/host`));
  const headings = (open) => tracksOf(head, open).filter((track) => track.kind === "process");
  const all = headings(new Map());
  assert.deepEqual(all.map((track) => [track.name, track.depth]), [["n7", 0], ["n7.0", 1], ["n7.1", 1], ["n8", 0], ["n8.0", 1], ["n8.1", 1]]);
  assert.ok(tracksOf(head, new Map()).every((track) => track.kind === "process" || track.depth === 2));
  const folded = headings(new Map([["host n8", false], ["process n7.1", false]]));
  assert.deepEqual(folded.map((track) => track.owners), [[], [], ["n7.1"], ["n8.0", "n8.1"]]);
  assert.deepEqual(folded[3].rows, [8, 9, 10, 11, 12, 13, 14, 15]);
  head.hosts = [0, 1, 2, 3];  // of hosts with one process each, a name that ends in a number is the host's own
  assert.deepEqual(headings(new Map()).map((track) => [track.name, track.depth]), head.devices.map((name) => [name.slice(0, 4), 0]));
});

test("all hosts are folded at once, and one is opened alone", () => {
  const head = headOfProcesses(8);
  const timeline = Object.assign(Object.create(Timeline.prototype), { trace: { head }, open: new Map(), scroll: 0, height: 400, draw() {} });
  timeline.arrange();
  const isOpen = () => timeline.tracks.filter((track) => track.kind === "process").map((track) => track.isOpen);
  const at = (name) => timeline.tracks.findIndex((track) => track.name === name);
  timeline.foldAll();
  assert.equal(timeline.tracks.length, 8);
  assert.deepEqual([...timeline.folded], [..."abcdefgh"]);
  timeline.toggle(at("c"));
  timeline.toggle(at("f"), true);
  assert.deepEqual(isOpen(), [false, false, false, false, false, true, false, false]);
  assert.ok(!timeline.folded.has("f"));
  timeline.foldAll();
  assert.equal(timeline.tracks.length, 8);
  timeline.foldAll();
  assert.ok(isOpen().every((open) => open));
});

test("of many processes the first is open at first", () => {
  const tracks = tracksOf(headOfProcesses(5), new Map());
  assert.deepEqual(tracks.filter((track) => track.kind === "process").map((track) => track.isOpen), [true, false, false, false, false]);
});

test("an instance that is shown opens its process and then its group", () => {
  const head = headOfProcesses(3);
  for (const name of ["unit_ns", "begin_ns"]) head[name] = 0;
  const instances = { start: head.rows.map(() => 0), end: head.rows.map(() => 1), task: head.rows.map(() => 0) };
  const timeline = Object.assign(Object.create(Timeline.prototype), { trace: { head, rows: new Rows(head, instances) } });
  timeline.open = new Map([["process c", false], ["c-1/host", false], ["c2/compute", false]]);
  timeline.arrange();
  for (const row of [8, 11]) {
    const at = timeline.trackOf(row);
    assert.deepEqual(timeline.tracks[at].rows, [row]);
  }
  assert.deepEqual([...timeline.open.values()], [true, true, true]);
});

test("the hash brings back where the reader was, and anything else is left out", () => {
  const state = { view: "plan", trace: 1, from: 12345, to: 99999, task: 3, instance: 41, critical: true, measure: [5, 70], marks: [1, 2, 3], pair: [2, 0], charts: false };
  assert.deepEqual(stateOf(hashOf(state)), state);
  for (const hash of ["", "#", "#view=<script>", "#from=5&to=1", "#task=x", "#measure=1", "#trace=-1", "#from=1e999&to=2", "#a=b=c&&=&view", "#pair=1", "#pair=a,b"]) {
    const read = stateOf(hash);
    assert.equal(read.view, "timeline");
    assert.equal(read.trace, 0);
    assert.deepEqual(read.pair, [0, 1]);
    for (const name of ["from", "task", "measure"]) assert.equal(read[name], undefined);
  }
});

test("numbers are reported in a unit that fits", () => {
  assert.deepEqual([0, 12, 1234, 999_499, 999_600, 1.5e6, 2.5e9, -3000].map(duration), ["0 ns", "12 ns", "1.23 µs", "999 µs", "1.00 ms", "1.50 ms", "2.50 s", "-3.00 µs"]);
  assert.deepEqual([instanceName("step", 40), instanceName("all-reduce gradients 1", 0)], ["step 40", "all-reduce gradients 1 · 0"]);
  assert.deepEqual([0, 0.0004, 0.042, 0.41, -0.03, 0.9952, 0.99996, 1].map(percent), ["0.0 %", "<0.1 %", "4.2 %", "41 %", "−3.0 %", "99.5 %", ">99.9 %", "100 %"]);
  assert.deepEqual([1, 1.1, 3, 7, 0.02, 110].map(roundStep), [1, 2, 5, 10, 0.02, 200]);
  assert.deepEqual([0, 999, 1536, 3 << 20, 2 ** 41].map(bytes), ["0 B", "999 B", "1.50 KiB", "3.00 MiB", "2.00 TiB"]);
  assert.equal(moment(1_500_000_000, 5e8), "1.5 s");
  assert.equal(moment(1_500_000, 1e5), "1.5 ms");
  assert.equal(inMilliseconds(1_476_083_400), "1\u202f476.083 ms");
});

test("numbers stay with their units", () => {
  assert.equal(unbroken("takes 3 % of 12 ms, 4 slots"), "takes 3\u00a0% of 12\u00a0ms, 4 slots");
});

test("names are shown as what they are", () => {
  assert.equal(shown("a\u202eb\nc\u0007"), "a\\u202eb\\u000ac\\u0007");
  assert.equal(shown("conv1·שלום"), "conv1·שלום");
  assert.equal(shortName("cuda:0/learner 3/step"), "step");
  assert.equal(shortName("a/"), "a/");
  assert.equal(kindName("cuda:*/learner */step"), "step");
  assert.equal(kindName("cpu:0/validation/fill"), "validation/fill");
  assert.equal(kindName("all-reduce models"), "all-reduce models");
});

test("of two traces, what changed most and surely comes first", () => {
  const task = (like, mean, deviation, count = 100) => ({ name: like, like, clock: 0, mean_ns: mean, deviation_ns: deviation, count, total_ns: mean * count });
  const head = (tasks) => ({ tasks, steady: { iteration_ns: 100 } });
  const { rows } = compared(head([task("step", 1000, 10), task("copy", 50, 40), task("gone", 5, 0)]), head([task("step", 1100, 10), task("copy", 55, 40)]));
  assert.deepEqual(rows.map((row) => [row.name, row.sure, Math.round(row.cost)]), [["step", true, 100], ["gone", true, -5], ["copy", false, 5]]);
});

test("tasks of CPUs are compared with those of GPUs", () => {
  const task = (like) => ({ name: like, like, clock: 0, mean_ns: 10, deviation_ns: 1, count: 10, total_ns: 100 });
  const head = (device) => ({ tasks: [task(`${device}:*/learner */step`), task(`${device}:*/validation/fill`)], steady: { iteration_ns: 100 } });
  assert.deepEqual(compared(head("cpu"), head("cuda")).rows.map((row) => [row.name, Boolean(row.a && row.b)]), [["step", true], ["validation/fill", true]]);
});

test("a difference is sure only where both traces tell how far instances spread", () => {
  const task = (name, mean, count) => ({ name, like: "step", clock: 0, deviation_ns: 0, count, total_ns: mean * count });
  const sides = (a, b) => compared({ tasks: a, steady: { iteration_ns: 0 } }, { tasks: b, steady: { iteration_ns: 0 } }).rows[0];
  const flags = ({ sure, few }) => [sure, few];
  assert.deepEqual(flags(sides([task("0/step", 10, 2)], [task("0/step", 20, 2)])), [true, false]);
  assert.deepEqual(flags(sides([task("0/step", 10, 1)], [task("0/step", 20, 2)])), [false, true]);
  assert.deepEqual(flags(sides([task("0/step", 10, 2)], [task("0/step", 20, 1), task("1/step", 30, 1)])), [false, true]);
  assert.deepEqual(flags(sides([task("0/step", 10, 1)], [])), [true, true]);
});

test("layers are compared per iteration, what changed most first", () => {
  const head = (count, layers) => ({ tasks: [{ clock: 0, count }, { clock: 1, count: 1000 }], layers });
  const a = head(10, [{ name: "conv", forward_ns: 100, backward_ns: 200 }, { name: "fc", forward_ns: 50, backward_ns: 0 }]);
  const b = head(20, [{ name: "conv", forward_ns: 200, backward_ns: 500 }, { name: "norm", forward_ns: 40, backward_ns: 40 }]);
  assert.deepEqual(comparedLayers(a, b), [{ name: "conv", a: 30, b: 35 }, { name: "fc", a: 5, b: 0 }, { name: "norm", a: 0, b: 4 }]);
  assert.deepEqual(comparedLayers(a, head(5, [])), []);
});

test("where iterations are of different numbers of samples, traces are compared per sample", () => {
  const task = (mean) => ({ name: "step", like: "step", clock: 0, mean_ns: mean, deviation_ns: 10, count: 100, total_ns: mean * 100 });
  const head = (batch, iteration, mean) => ({ tasks: [task(mean)], steady: { iteration_ns: iteration }, lanes: [{ kind: "compute" }, { kind: "host" }],
    run: { batch }, layers: [{ name: "conv", forward_ns: mean * 60, backward_ns: mean * 40 }] });
  const a = head(32, 3200, 3000), b = head(128, 6400, 6000);  // twice the time for four times the samples
  const { unit, time, rows } = compared(a, b);
  assert.deepEqual([unit, time], ["sample", { a: 100, b: 50 }]);
  assert.deepEqual(rows.map((row) => [row.a.mean, row.b.mean, row.cost, row.sure]), [[93.75, 46.875, -46.875, true]]);
  assert.deepEqual(comparedLayers(a, b), [{ name: "conv", a: 93.75, b: 46.875 }]);
  assert.equal(compared(a, head(32, 6400, 6000)).unit, "iteration");
  assert.equal(compared(a, head(0, 6400, 6000)).unit, "iteration");  // which is an earlier version's
});

test("the card has what is known of the run", () => {
  const head = { graph: "lenet", steady: { iteration_ns: 2e6 }, lanes: [{ kind: "compute" }, { kind: "compute" }],
    run: { command: ["arbalest", "run", "my graph.onnxtxt"], started: "2025-03-01T12:30:00Z", source: "mnist:data", precision: "bf16", batch: 64, models: ["H200", "H200"], strategy: "sma" } };
  assert.equal(imagesPerSecond(head), 64000);
  assert.deepEqual(cardOf(head), [["graph", "lenet"], ["command", "arbalest run 'my graph.onnxtxt'"], ["data", "mnist:data"], ["batch", "64 a learner, 128 of 2 learners"],
    ["precision", "bf16"], ["strategy", "sma"], ["images/s", "64\u202f000 in the steady state"], ["processor", "2 × H200"], ["date", "2025-03-01 12:30:00 UTC"]]);
  assert.deepEqual(cardOf({ graph: "lenet" }), [["graph", "lenet"]]);
});

// A step of 100 ns each iteration (iteration 11: ten times that), and a host task at the same time.
function steadyTrace() {
  const start = [0], count = 20;
  for (let i = 1; i < count; ++i) start.push(start[i - 1] + (i - 1 === 11 ? 1000 : 100));
  const instances = { count, task: new Int32Array(count), instance: Float64Array.from(start.keys()), start: Float64Array.from(start), end: Float64Array.from(start, (at) => at + 90),
    ready: new Float64Array(count).fill(50), issued: new Float64Array(count).fill(5) };
  const head = { tasks: [{ name: "step", clock: 0, lane: 0, total_ns: 5 }], lanes: [{ kind: "compute" }], edges: [{ from: 0, to: 0, distance: 1, relation: -1, why: "self", what: "" }],
    relations: [], steady: { first: 4, last: 18, iteration_ns: 100 }, launches: ["conv1", "conv10", "conv1.grad", "fc"] };
  const nodes = { count: 2, parent: Int32Array.from([3, 3]), launch: Int32Array.from([0, 3]), start: Float64Array.from([300, 350]), end: Float64Array.from([340, 380]) };
  return { head, instances, nodes, dependencies: new Dependencies(head, instances) };
}

test("the page opens at iterations of the steady state that are as long as most", () => {
  const trace = steadyTrace();  // the middle one begins at iteration 9, and would hold the long one
  const starts = trace.instances.start;
  assert.deepEqual(steadySpan(trace), [starts[7] - 10, starts[11] + 10]);
  trace.head.steady = { first: 0, last: 0, iteration_ns: 0 };
  assert.equal(steadySpan(trace), null);
});

test("layers are found by their names, in the tasks that have them inside", () => {
  const trace = steadyTrace(), found = (text) => foundIn(trace, text);
  const of = (one) => [[...one.tasks], [...one.launches], [...one.holders], one.layers];
  assert.deepEqual(of(found("CONV1")), [[], [0, 2], [0], 1]);  // the whole name of one
  assert.deepEqual(of(found("conv")), [[], [0, 1, 2], [0], 2]);
  assert.deepEqual(of(found("ste")), [[0], [], [], 0]);
  assert.deepEqual(of(found("nothing")), [[], [], [], 0]);
  assert.equal(found("  "), null);
});

test("when an instance was ready is when the last of what it needed had ended", () => {
  const trace = steadyTrace(), { start, end } = trace.instances;
  assert.equal(readyAt(trace, 5, trace.dependencies.needs(5)), end[4]);
  assert.equal(readyAt(trace, 0, trace.dependencies.needs(0)), start[0] - 50);  // what the run noted
  trace.instances.end[4] = start[5] + 3;  // by clocks that differ
  assert.equal(readyAt(trace, 5, trace.dependencies.needs(5)), start[5]);
});

test("a wheel zooms by as much whatever it counts in, and never by far", () => {
  const factor = (deltaY, more = {}) => wheelFactor({ deltaY, deltaMode: 0, ctrlKey: false, metaKey: false, ...more });
  assert.ok(Math.abs(factor(100) * factor(-100) - 1) < 1e-12 && factor(100) > 1.2 && factor(100) < 1.4);
  assert.ok(Math.abs(factor(99) - factor(3, { deltaMode: 1 })) < 1e-12);
  assert.equal(factor(1e6), factor(120));
  assert.ok(factor(10, { ctrlKey: true }) > factor(10));
});

test("Caps Lock changes no key", () => {
  assert.deepEqual(["w", "W"].map((key) => keyOf({ key, shiftKey: false })), ["w", "w"]);
  assert.deepEqual(["f", "F"].map((key) => keyOf({ key, shiftKey: true })), ["F", "F"]);
  assert.deepEqual(["[", "?", "ArrowLeft", "Escape"].map((key) => keyOf({ key, shiftKey: true })), ["[", "?", "ArrowLeft", "Escape"]);
});

test("layers of an operator are summed, forward and backward apart", () => {
  const layer = (name, operator, forward_ns, backward_ns) => ({ name, operator, forward_ns, backward_ns });
  const layers = [layer("bn2", "BatchNormalization", 50, 7), layer("conv1", "Conv", 10, 20), layer("conv2", "Conv", 5, 15), layer("bn1", "BatchNormalization", 1, 2)];
  assert.deepEqual(operatorsOf(layers), [{ name: "BatchNormalization", layers: 2, forward_ns: 51, backward_ns: 9 }, { name: "Conv", layers: 2, forward_ns: 15, backward_ns: 35 }]);
  assert.deepEqual(operatorsOf([layer("conv1", "", 1, 2)]), []);
});

test("columns are sorted as numbers, and names as people count", () => {
  assert.deepEqual(["conv10", "conv2", "bn"].sort(byValue), ["bn", "conv2", "conv10"]);
  assert.deepEqual([10, 9, -1, 9].sort(byValue), [-1, 9, 9, 10]);
});
