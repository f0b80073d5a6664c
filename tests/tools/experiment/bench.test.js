// SPDX-License-Identifier: Apache-2.0

// The page of a bench: which numbers of a table become a plot.

import assert from "node:assert/strict";
import { test } from "node:test";

import { pointsOf, rangeOf } from "../../../tools/experiment/answer/page/bench.js";

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
