// SPDX-License-Identifier: Apache-2.0

// Pages of a contact sheet, and its search.

import assert from "node:assert/strict";
import { test } from "node:test";

import { extentOf, pageOf, rowsHaving } from "../../../tools/data/page/sheet.js";

const rows = Array.from({ length: 61 }, (_, i) => ({ class: 2 * i, name: `kind ${i}`, samples: [{}, {}] }));

test("pages have all rows, each once, and the nearest is shown where there is none", () => {
  const seen = [1, 2, 3].flatMap((page) => pageOf(rows, page).rows);
  assert.deepEqual(seen, rows);
  assert.deepEqual([0, -3, NaN, 3, 4, 1e6].map((page) => pageOf(rows, page).page), [1, 1, 1, 3, 3, 3]);
  assert.deepEqual(pageOf([], 5), { rows: [], page: 1, pages: 1 });
});

test("classes are found by their name or number", () => {
  assert.deepEqual(rowsHaving(rows, "KIND 60").map((row) => row.class), [120]);
  assert.deepEqual(rowsHaving(rows, "118").map((row) => row.name), ["kind 59"]);
  assert.equal(rowsHaving(rows, " ").length, 61);
  assert.equal(rowsHaving([{ samples: [] }], "x").length, 0);
});

test("it is said how much of the data set is there", () => {
  const sheet = { split: "train", samples: 5000, rows: rows.slice(0, 3) };
  assert.equal(extentOf({ ...sheet, classes: 3 }), "6 of 5\u202f000 samples of train, all 3 classes");
  assert.equal(extentOf({ ...sheet, classes: 20000 }), "6 of 5\u202f000 samples of train, 3 of 20\u202f000 classes, evenly spread");
  assert.equal(extentOf({ ...sheet, classes: 0 }), "6 of 5\u202f000 samples of train");
});
