// SPDX-License-Identifier: Apache-2.0

// The page of a bench: which numbers of a table become a plot.

import assert from "node:assert/strict";
import { test } from "node:test";

import { pointsOf, pricesOf, rangeOf, targetsOf, timesOf } from "../../../tools/experiment/answer/page/bench.js";

const rows = [
  [{ text: "one" }, { text: "5 (4–7)", number: 5, low: 4, high: 7 }],
  [{ text: "two" }, { text: "-" }],
  [{ text: "three" }, { text: "9", number: 9 }],
];

test("a plot has the rows with a number, and without an interval the number alone", () => {
  assert.deepEqual(pointsOf(rows, 1), [
    { name: "one", text: "5 (4–7)", value: 5, low: 4, high: 7 },
    { name: "three", text: "9", value: 9, low: 9, high: 9 },
  ]);
});

test("a plot begins at 0 and ends beyond the greatest bound", () => {
  const [from, to] = rangeOf(pointsOf(rows, 1));
  assert.equal(from, 0);
  assert.ok(to > 9 && to < 10);
  assert.deepEqual(rangeOf([{ high: 0 }]), [0, 1]);
});

const columns = [{ name: "cell" }, { name: "s to 0.8" }, { name: "s to 0.9" }, { name: "final" }];
const both = [{ name: "cell" }, { name: "s to 0.8" }, { name: "epochs to 0.8" }, { name: "s to 0.9" }, { name: "epochs to 0.9" }];

test("times over targets are lines of the cells that met two targets", () => {
  const targets = targetsOf(columns);
  assert.deepEqual(targets, [{ at: 1, target: 0.8 }, { at: 2, target: 0.9 }]);
  const times = [[{ text: "one" }, { number: 3 }, { number: 5 }, {}], [{ text: "two" }, { number: 2 }, { text: "not reached" }, {}]];
  assert.deepEqual(timesOf(times, targets), [{ name: "one", points: [[0.8, 3], [0.9, 5]] }]);
});

test("epochs over targets are lines as times are, and are no prices", () => {
  assert.deepEqual(targetsOf(both), [{ at: 1, target: 0.8 }, { at: 3, target: 0.9 }]);
  const targets = targetsOf(both, "epochs"), rows = [[{ text: "one" }, { number: 3 }, { number: 1 }, { number: 5 }, { number: 2 }]];
  assert.deepEqual(targets, [{ at: 2, target: 0.8 }, { at: 4, target: 0.9 }]);
  assert.deepEqual(timesOf(rows, targets), [{ name: "one", points: [[0.8, 1], [0.9, 2]] }]);
  assert.deepEqual(pricesOf({ columns: both, rows }), []);
});

test("prices against times say which cells no other is better than in both", () => {
  const row = (text, seconds, money) => [{ text }, { number: seconds }, { number: money }];
  const cost = { columns: [{ name: "cell" }, { name: "s to 0.9" }, { name: "EUR to 0.9" }], rows: [row("fast", 1, 9), row("cheap", 5, 2), row("neither", 6, 3), [{ text: "none" }, { text: "-" }, { text: "-" }]] };
  assert.deepEqual(pricesOf(cost).map((point) => [point.name, point.front]), [["fast", true], ["cheap", true], ["neither", false]]);
  assert.deepEqual(pricesOf({ columns, rows: [] }), []);
});
