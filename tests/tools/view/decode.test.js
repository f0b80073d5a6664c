// SPDX-License-Identifier: Apache-2.0

// Columns and what is decoded from them; fixture.json is written by viewer_data_test.cpp.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

import { fromBase64, inflate, insideOf, lowerBound, nodesOf, readInstances, readNodes, Reader, upperBound } from "../../../tools/view/page/decode.js";
import { neededInstance } from "../../../tools/view/page/plan.js";
import { bytesOf, generator, zigzag } from "./numbers.js";

const fixture = JSON.parse(readFileSync(new URL("fixture.json", import.meta.url), "utf8"));

test("numbers come back as they were written", () => {
  const random = generator(1);
  const numbers = [0, 1, 127, 128, 16383, 16384, 2 ** 31 - 1, 2 ** 31, 2 ** 40, 2 ** 52];
  for (let i = 0; i < 1000; ++i) numbers.push(random(2 ** random(32)));
  const unsigned = new Reader(bytesOf(numbers));
  for (const number of numbers) assert.equal(unsigned.unsigned(), number);
  const signs = numbers.filter((number) => number < 2 ** 51).flatMap((number) => [number, -number]);
  const signed = new Reader(bytesOf(signs.map(zigzag)));
  for (const number of signs) assert.equal(signed.signed() + 0, number + 0);
});

test("a column that ends within a number is an error", () => {
  assert.throws(() => new Reader(new Uint8Array([200])).unsigned(), /ends within a number/);
  assert.throws(() => new Reader(new Uint8Array()).unsigned(), /ends within a number/);
});

test("base64 and zlib's format are read", async () => {
  const random = generator(2);
  for (const size of [0, 1, 2, 3, 1000, 100_000]) {
    const bytes = Uint8Array.from({ length: size }, () => random(256));
    assert.deepEqual(fromBase64(Buffer.from(bytes).toString("base64")), bytes);
    assert.deepEqual(await inflate(deflateSync(bytes)), bytes);
  }
  await assert.rejects(inflate(deflateSync(new Uint8Array(1000)).subarray(0, 8)));
});

async function decoded(trace) {
  const columns = {};
  for (const [name, text] of Object.entries(trace.columns)) columns[name] = await inflate(fromBase64(text));
  return columns;
}

test("nodes that were timed after the run divide an instance as their times are, recorded ones are where they were", async () => {
  const [rich, timed] = await Promise.all(fixture.traces.map(async ({ head, columns: texts }) => {
    const columns = await decoded({ columns: texts }), instances = readInstances(columns, head);
    return { head, instances, nodes: readNodes(columns, head, instances) };
  }));
  const step = (trace) => trace.instances.task.findIndex((task, at) => task === 2 && trace.instances.instance[at] === 5);
  const at = 5 * 100000;
  assert.deepEqual(insideOf(timed, step(timed)), [
    { launch: 0, start: at + 20000, end: at + 80000 }, { launch: 1, start: at + 80000, end: at + 100000 }]);
  assert.deepEqual(insideOf(rich, step(rich)), [
    { launch: 0, start: at + 20010, end: at + 50000 }, { launch: 1, start: at + 50020, end: at + 100000 }]);
  assert.deepEqual(insideOf(timed, timed.instances.task.indexOf(0)), []);
});

test("instances and nodes are what C++ wrote", async () => {
  for (const trace of fixture.traces) {
    const columns = await decoded(trace), { head } = trace;
    const instances = readInstances(columns, head);
    const spans = [];
    for (let i = 0; i < instances.count; ++i) {
      const start = instances.start[i], known = (before) => (Number.isNaN(before) ? -1 : start - before);
      spans.push([instances.task[i], instances.instance[i], known(instances.ready[i]), known(instances.issued[i]), start, instances.end[i]]);
    }
    const order = (a, b) => a[4] - b[4] || a[0] - b[0] || a[1] - b[1];
    assert.deepEqual(spans.sort(order), trace.spans.sort(order));
    const nodes = readNodes(columns, head, instances);
    assert.equal(nodes.count, trace.nodes.length);
    const read = [];
    for (let i = 0; i < nodes.count; ++i) {
      const parent = nodes.parent[i];
      const [from, to] = nodesOf(nodes, parent);
      assert.ok(from <= i && i < to);
      read.push([nodes.launch[i], instances.task[parent], instances.instance[parent], nodes.start[i], nodes.end[i]]);
    }
    const byStart = (a, b) => a[3] - b[3] || a[4] - b[4];
    assert.deepEqual(read.sort(byStart), trace.nodes.sort(byStart));
  }
});

test("a column that is missing or short is an error", async () => {
  const trace = fixture.traces[0];
  const columns = await decoded(trace);
  assert.throws(() => readInstances({ ...columns, gap: undefined }, trace.head), /'gap' is incomplete/);
  assert.throws(() => readInstances({ ...columns, gap: columns.gap.subarray(0, 3) }, trace.head), /'gap' is incomplete/);
});

test("needed instances are those that C++ says", () => {
  for (const trace of fixture.traces) {
    for (const [edge, instance, needed] of trace.needed) {
      assert.equal(Math.max(-1, neededInstance(trace.head, trace.head.edges[edge], instance)), needed);
    }
  }
});

test("bounds are those that a search from the start finds", () => {
  const random = generator(3);
  for (let round = 0; round < 200; ++round) {
    const list = Array.from({ length: random(30) }, () => random(20)).sort((a, b) => a - b);
    const value = random(22) - 1, from = random(list.length + 1);
    const lower = list.findIndex((one, i) => i >= from && one >= value), upper = list.findIndex((one, i) => i >= from && one > value);
    assert.equal(lowerBound(list, from, list.length, value), lower < 0 ? list.length : lower);
    assert.equal(upperBound(list, from, list.length, value), upper < 0 ? list.length : upper);
  }
});
