// SPDX-License-Identifier: Apache-2.0

// The page of a sweep: its words, where points stand, and that it draws and hears clicks.

import assert from "node:assert/strict";
import { test } from "node:test";

import { axisTexts } from "../../../tools/report/page/axes.js";
import { pointText } from "../../../tools/report/page/plot.js";
import { cellTitle, goodness } from "../../../tools/report/sweep/page/pair_table.js";
import { ratePoints, settingAxis, settingPoints, valueSpan } from "../../../tools/report/sweep/page/setting_plot.js";
import { main } from "../../../tools/report/sweep/page/sweep.js";
import { bestGroups, curvePlots, groupName, lengthOf, statusText, trialsText, valueText } from "../../../tools/report/sweep/page/sweep_series.js";
import { openPage } from "./page_stub.js";

function trial(group, state, value, changes = {}) {
  return { settings: `train.lr ${group}`, group, state, value, epochs: 2, error: "", ...changes };
}

function group(at, trials, mean, changes = {}) {
  return { settings: [String(at), at > 1 ? "layer" : "batch"], at: [at, at > 1 ? 1 : 0], trials, values: 2, failed: 0, unfinished: 0, mean, low: mean === null ? null : mean - 0.25, high: mean === null ? null : mean + 0.25, epochs: 2, ...changes };
}

// Three groups: two that have ended, and one of which a trial failed and the other goes on.
function sweep(changes = {}) {
  const mean = (text, at, value, failed = 0) => ({ text, at, mean: value, low: value === null ? null : value - 0.1, high: value === null ? null : value + 0.1, values: value === null ? 0 : 2, failed });
  return {
    graph: "lenet", metric: "accuracy", lower: false, trials_ended: 4, trials_failed: 1, finished: false, rungs: [],
    settings: [{ name: "train.lr", scale: "log", means: [mean("0.001", 0.001, 0.5), mean("1", 1, 0.75), mean("1000", 1000, null, 1)] },
      { name: "h1.norm", scale: "names", means: [mean("batch", 0, 0.625), mean("layer", 1, null, 1)] }],
    groups: [group(1, [2, 3], 0.75), group(0.001, [0, 1], 0.5), group(1000, [4, 5], null, { values: 0, failed: 1, unfinished: 1, epochs: 0 })],
    trials: [trial(1, "ended", 0.4), trial(1, "ended", 0.6), trial(0, "ended", 0.7), trial(0, "ended", 0.8), trial(2, "failed", null, { error: "the loss is no <number>" }), trial(2, "unfinished", 0.1)],
    pairs: [{ down: 0, across: 1, cells: [[{ mean: 0.5, values: 2, failed: 0 }, null], [{ mean: 0.75, values: 2, failed: 0 }, null], [null, { mean: null, values: 0, failed: 1 }]] }],
    validation: [{ group: 0, epochs: [1, 2], mean: [0.5, 0.75], low: [0.4, 0.7], high: [0.6, 0.8], count: [2, 2] }, { group: 2, epochs: [1], mean: [0.1] }],
    loss: [{ group: 0, epochs: [1, 2], mean: [2, 1], low: [1, 1], high: [3, 1], count: [2, 1] }],
    curves_left_out: 0, rates: [], advice: "", notes: ["trial 2: log.jsonl:3: no JSON"], notes_left_out: 4, ...changes };
}

test("groups are called by their settings, and have values with intervals", () => {
  const data = sweep();
  assert.equal(groupName(data, 0), "train.lr 1, h1.norm batch");
  assert.equal(groupName({ settings: [], groups: [{ settings: [] }] }, 0), "all trials");
  assert.deepEqual(data.groups.map(valueText), ["0.75 ± 0.25", "0.5 ± 0.25", "—"]);
  assert.equal(valueText({ mean: 0.51234, high: null }), "0.5123");
  assert.equal(valueText({ mean: 0.51234, high: null, deviation: 0.0123 }), "0.5123 ± 0.012");
  assert.deepEqual(data.groups.map(trialsText), ["2", "2", "2 (1 failed, 1 not ended)"]);
});

test("lengths are iterations where trials ended within an epoch", () => {
  const data = sweep({ in_iterations: true });
  data.groups.forEach((group) => (group.iterations = 5));
  data.trials.forEach((trial) => (trial.iterations = 5));
  assert.equal(lengthOf(data, data.groups[0]), 5);
  assert.equal(lengthOf(sweep(), sweep().groups[0]), 2);
  assert.match(settingPoints(data, 0).dots[0].title, /0.4, 5 iterations$/);
});

test("the page says how far the sweep has come", () => {
  assert.equal(statusText(sweep()), "The sweep still runs, or was interrupted: 5 of 6 trials have ended, 1 of them has failed, 1 more has begun.");
  assert.equal(statusText(sweep({ finished: true, trials_ended: 4, trials_failed: 2 })), "All 6 trials have ended, 2 of them have failed.");
});

test("curves are plots of groups, with lines where a search judges", () => {
  const plots = curvePlots(sweep({ rungs: [1, 3, 9] }));
  assert.deepEqual(plots.map((plot) => [plot.title, plot.marks, plot.series.map((series) => series.run)]), [["Validation accuracy", [1, 3], [0, 2]], ["Loss of training", [1, 3], [0]]]);
  assert.deepEqual(curvePlots(sweep({ validation: [] })).map((plot) => plot.name), ["loss"]);
  assert.deepEqual([bestGroups(sweep(), 1), bestGroups(sweep(), Infinity)], [[0], [0, 2]]);
  assert.deepEqual([0, 1].map((i) => pointText(plots[1].series[0], i)), ["2 (1 to 3 in 2 trials)", "1"]);
});

test("trials are dots over a setting, those that failed are crosses, and means are of all with a value", () => {
  const data = sweep(), points = settingPoints(data, 0);
  assert.deepEqual(points.dots.map(({ x, y, group }) => [x, y, group]), [[0.001, 0.4, 1], [0.001, 0.6, 1], [1, 0.7, 0], [1, 0.8, 0]]);
  assert.deepEqual(points.failed.map(({ x, title }) => [x, title]), [[1000, "trial 5: train.lr 2\nfailed: the loss is no <number>"]]);
  assert.deepEqual(points.means.map(({ x, y, count }) => [x, y, count]), [[0.001, 0.5, 2], [1, 0.75, 2]]);
  data.groups[1].at[0] = null;  // without the setting
  assert.equal(settingPoints(data, 0).dots.length, 2);
  const searched = sweep({ rungs: [1, 3] });
  searched.trials[0].first = { value: 0.3, epochs: 1 };
  assert.equal(settingPoints(searched, 0).dots[0].y, 0.3);
});

test("an axis of a setting holds all points, and names at whole numbers", () => {
  const data = sweep(), axis = settingAxis(data.settings[0], settingPoints(data, 0));
  assert.ok(axis.log && axis.range[0] < 0.001 && axis.range[0] > 0.0001 && axis.range[1] > 1000 && axis.range[1] < 10000);
  assert.deepEqual(settingAxis(data.settings[1], settingPoints(data, 1)), { range: [-0.5, 1.5], log: false, names: ["batch", "layer"] });
  const linear = settingAxis({ scale: "linear", means: [] }, { dots: [{ x: 3 }], failed: [], means: [] });
  assert.ok(linear.range[0] < 3 && linear.range[1] > 3 && !linear.log);
  assert.deepEqual(axisTexts({ names: ["fp32", "x".repeat(40)] }, 5).map(({ at, text, name }) => [at, text.length <= 14, name.length]), [[0, true, 4], [1, true, 40]]);
});

test("a wide interval does not flatten the values of the trials", () => {
  const dots = [{ y: 1 }, { y: 2 }];
  assert.deepEqual(valueSpan({ dots, means: [{ y: 1.5, low: -10, high: 1.9 }] }, false), [0.5, 2]);
  assert.deepEqual(valueSpan({ dots, means: [{ y: 1.5, low: -10, high: 10 }] }, true), [1, 2.5]);
  assert.deepEqual(valueSpan({ dots: [{ y: 1 }, { y: 9 }], means: [{ y: 5, low: -10, high: 10 }] }, true), [1, 10]);
  assert.equal(valueSpan({ dots: [], means: [] }, false), null);
});

test("a search for a rate has a line for each combination of the others, and crosses where the loss diverged", () => {
  const point = (rate, loss, error = "") => ({ group: 0, rate, loss, error });
  const points = ratePoints({ rates: [{ name: "momentum 0.9", points: [point(0.1, 2), point(1, null, "not finite")] }, { name: "", points: [point(0.1, 3)] }] });
  assert.deepEqual(points.lines.map((line) => line.map(({ x, y }) => [x, y])), [[[0.1, 2]], [[0.1, 3]]]);
  assert.deepEqual(points.failed.map(({ x, title }) => [x, title]), [[1, "momentum 0.9, rate 1\nfailed: not finite"]]);
  assert.equal(points.dots.length, 2);
});

test("the best mean of a pair has the most colour, whichever way is better", () => {
  assert.deepEqual([1, 2, 3].map((mean) => goodness(mean, [1, 3], false)), [0, 0.5, 1]);
  assert.deepEqual([1, 2, 3].map((mean) => goodness(mean, [1, 3], true)), [1, 0.5, 0]);
  assert.equal(goodness(1, [1, 1], true), 1);
  assert.deepEqual([{ values: 2, failed: 1 }, { values: 1, failed: 0 }, { values: 0, failed: 3 }].map(cellTitle), ["mean of 2 trials, 1 trial failed", "mean of 1 trial", "3 trials failed"]);
});

function opened(data) {
  const page = openPage(["title", "theme", "whole", "report", "tip", "sweep"], { sweep: data });
  main();
  return { ...page, sweep: page.window.sweep, classed: (name) => page.all((element) => element.classes.includes(name)) };
}

test("the page draws a sweep, and a row that is clicked stands out", () => {
  const { find, all, sweep: page, classed } = opened(sweep());
  assert.equal(find("title").textContent, "lenet: a sweep of 6 trials");
  assert.deepEqual(["group-0", "group-2"].map((id) => find(id).textContent), ["11batch0.75 ± 0.2522", "—1000layerfailed2 (1 failed, 1 not ended)0"]);
  assert.equal(find("notes").textContent, "trial 2: log.jsonl:3: no JSON4 more such logs");
  assert.ok(find("failed").textContent.includes("the loss is no <number>"));
  assert.ok(find("unfinished").textContent.includes("accuracy so far"));
  assert.equal(classed("band").length, 2);
  assert.equal(classed("dot").length, 8);  // four trials over two settings
  find("group-0").click();
  assert.deepEqual([page.marked, find("group-0").classes, classed("dot").filter((dot) => dot.classes.includes("marked")).length], [0, ["marked"], 4]);
  assert.ok(all((element) => element.tag === "path" && element.classes.includes("folded")).some((line) => line.classes.includes("faded")));
  classed("dot").find((dot) => dot.classes.includes("faded")).click();
  assert.equal(page.marked, 1);
  find("group-1").click();
  assert.equal(page.marked, null);
});

test("curves are shown and hidden, plots take logarithmic axes, and a range of epochs is looked at", () => {
  const { find, all, sweep: page } = opened(sweep());
  const lines = () => all((element) => element.tag === "path" && element.classes.includes("folded")).length;
  assert.equal(lines(), 3);
  find("curves-0").click();
  assert.deepEqual([lines(), [...page.shown]], [1, [2]]);
  find("no-curves").click();
  assert.equal(lines(), 0);
  find("all-curves").click();
  assert.equal(lines(), 3);
  for (const name of ["validation", "loss", "setting-0", "setting-1"]) find(`log-${name}`).click();
  assert.equal(find("log-loss").getAttribute("aria-pressed"), "true");
  page.look(1, 1.5);
  assert.equal(find("whole").hidden, false);
  find("whole").click();
  assert.equal(page.range, null);
  find("theme").click();
});

test("the page of a sweep that has only begun says so, and draws the rest", () => {
  const waiting = { ...trial(0, "waiting", null), epochs: 0 };
  const { find } = opened(sweep({ metric: "", trials: [waiting], trials_ended: 0, trials_failed: 0, settings: [], pairs: [], validation: [], loss: [], notes: [], notes_left_out: 0,
    groups: [group(1, [0], null, { settings: [], at: [], values: 0, unfinished: 1 })] }));
  assert.equal(find("status").textContent, "The sweep still runs, or was interrupted: 0 of 1 trial have ended, 0 more have begun.");
  assert.equal(find("group-0").textContent, "——12");
});

test("a search for a rate is drawn with what it advises", () => {
  const rates = [{ name: "", points: [{ group: 0, rate: 0.1, loss: 2, error: "" }, { group: 1, rate: 1, loss: null, error: "not finite" }] }];
  const { find, classed } = opened(sweep({ rates, advice: "the loss is lowest at a rate of 0.1: 2\n" }));
  assert.equal(find("advice").textContent, "the loss is lowest at a rate of 0.1: 2");
  assert.equal(classed("failed").length, 3);  // of the rates and of two settings
});
