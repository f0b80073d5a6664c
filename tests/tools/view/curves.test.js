// SPDX-License-Identifier: Apache-2.0

// Curves and charts below the timeline, compared with counting by hand.

import { test } from "node:test";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { amount, countCurve, Curve, plannedBytes, plannedName, sampledCharts, slotCharts } from "../../../tools/view/page/curves.js";
import { fromBase64, inflate, readInstances, readSamples } from "../../../tools/view/page/decode.js";
import { Dependencies } from "../../../tools/view/page/plan.js";
import { generator } from "./numbers.js";

const fixture = JSON.parse(readFileSync(new URL("fixture.json", import.meta.url)));

test("a curve's mean is what summing over small steps gives", () => {
  const random = generator(7);
  for (let round = 0; round < 30; ++round) {
    const count = 1 + random(20), times = [], values = [];
    for (let i = 0, time = 0; i < count; ++i) {
      times.push(time += random(5));
      values.push(random(10));
    }
    const end = times.at(-1) + 3, curve = new Curve(times, values, end);
    for (let k = 0; k < 20; ++k) {
      const from = random(40) - 5, to = from + 1 + random(30);
      let sum = 0, seen = 0;
      for (let at = from; at < to; ++at) {
        if (at < times[0] || at >= end) continue;
        sum += curve.at(at);
        ++seen;
      }
      const mean = curve.mean(from, to);
      if (seen === 0) assert.ok(Number.isNaN(mean) || from === end || to === times[0]);
      else assert.ok(Math.abs(mean - sum / seen) < 1e-9, `${mean} instead of ${sum / seen}`);
    }
  }
  assert.ok(Number.isNaN(new Curve([], [], 0).mean(0, 1)));
});

test("what has come and not gone is counted", () => {
  const curve = countCurve([10, 0, 20], [30, 10], 50);
  assert.deepEqual([0, 5, 10, 15, 20, 29, 30, 49].map((time) => curve.at(time)), [1, 1, 1, 1, 2, 2, 1, 1]);
  assert.equal(curve.most, 2);
  assert.ok(Number.isNaN(curve.at(-1)) && Number.isNaN(curve.at(51)));
});

test("samples are what C++ wrote, and slots as many as lie between a fill and its reader", async () => {
  const one = fixture.traces[0], { head } = one, columns = {};
  for (const [name, text] of Object.entries(one.columns)) columns[name] = await inflate(fromBase64(text));
  const instances = readInstances(columns, head), samples = readSamples(columns, head);
  assert.deepEqual([...samples.at], one.samples.at);
  samples.values.forEach((values, i) => values.forEach((value, k) =>
    assert.ok(Math.abs(value - one.samples.values[i][k]) <= 1e-4 * Math.max(...one.samples.values[i]))));

  const [power, memory] = sampledCharts({ head, samples });
  assert.deepEqual([power.name, power.unit, power.most, power.lines.length], ["GPU power", "W", 700, 1]);
  assert.equal(power.lines[0].name, "cuda:0");
  // A sample tells of the time before it.
  assert.ok(Math.abs(power.lines[0].curve.at(1_500_000) - one.samples.values[0][1]) < 0.1);
  assert.equal(memory.planned, plannedBytes(head, -1));
  assert.equal(memory.plannedAs, "pinned");
  assert.equal(amount(memory.lines[0].curve.most, memory.unit), "3.00 GiB");

  const [fill, copy] = slotCharts({ head, instances, dependencies: new Dependencies(head, instances) });
  assert.deepEqual([fill.name, fill.most, copy.name, copy.most], ["fill", 3, "copy", 2]);
  const end = (task, instance) => instances.end[instances.task.findIndex((t, i) => t === task && instances.instance[i] === instance)];
  for (let time = 1000; time < 4e6; time += 7777) {
    let filled = 0;
    for (let i = 0; i < 40; ++i) filled += end(0, i) <= time && Math.max(end(1, i), end(0, i)) > time;
    assert.equal(fill.lines[0].curve.at(time) || 0, filled);
  }

  // A slot that is filled anew is free by then, however late the end of its reader was reported.
  for (let i = 0; i < instances.task.length; ++i) instances.end[i] += instances.task[i] === 1 ? 1e6 : 0;
  const [late] = slotCharts({ head, instances, dependencies: new Dependencies(head, instances) });
  assert.equal(late.lines[0].curve.most, 3);
});

test("of a process that feeds GPUs pinned memory is planned, and where it computes its arenas too", () => {
  const arenas = [{ device: 0, memory: "device", bytes: 100 }, { device: 0, memory: "pinned", bytes: 7 }, { device: 1, memory: "device", bytes: 30 }];
  const gpus = { devices: ["cuda:0", "cuda:1"], arenas }, mixed = { devices: ["cuda:0", "cpu:0"], arenas };
  assert.deepEqual([plannedName(gpus, -1), plannedBytes(gpus, -1)], ["pinned", 7]);
  assert.deepEqual([plannedName(mixed, -1), plannedBytes(mixed, -1)], ["planned", 37]);
  assert.deepEqual([plannedName(gpus, 0), plannedBytes(gpus, 0)], ["planned", 100]);
  const world = { devices: ["a/cpu:0", "b/cuda:0"], arenas: [arenas[0], { ...arenas[1], device: 1 }, arenas[2]] };
  assert.deepEqual([plannedName(world, -1, "a"), plannedBytes(world, -1, "a")], ["planned", 100]);
  assert.deepEqual([plannedName(world, -1, "b"), plannedBytes(world, -1, "b")], ["pinned", 7]);
  assert.equal(amount(1980, "MHz"), "1\u202f980 MHz");
});
