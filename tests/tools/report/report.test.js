// SPDX-License-Identifier: Apache-2.0

// Plots, thinning, tables of options and CSV, against brute force if there is one.

import assert from "node:assert/strict";
import { test } from "node:test";

import { tickText, ticks, written } from "../../../tools/report/page/axes.js";
import { differing, settingsOf, settingsTable } from "../../../tools/report/page/options.js";
import { whereText } from "../../../tools/report/page/plot.js";
import { bestValidation, csvOf, endOf, graphOf, judgedBy, nearest, plotsOf, pointedAt, smoothed, spanOf, thinned, valueAt } from "../../../tools/report/page/series.js";
import { generator } from "../view/numbers.js";

function points(values, count) {
  const at = Array.from({ length: count }, (_, i) => i);
  return { epochs: at.map((i) => i / 2), iteration: at.map((i) => 10 * i), seconds: at.map((i) => i * i),
    values: Object.fromEntries(Object.entries(values).map(([name, value]) => [name, { at: value.map((_, i) => count - value.length + i), value }])) };
}

function run(name, changes = {}) {
  return { name, start: null, progress: points({ loss: [3, 2, 1], images_per_second: [5, 6, 7] }, 3), epochs: points({ loss: [2.5] }, 1),
    validations: points({ loss: [2], accuracy: [0.5], "auc/cat": [0.25] }, 2), tunes: [], checkpoints: [], end: null, error: null, skipped: 0, faults: [], faulty_lines: 0, ...changes };
}

test("there is a plot a quantity, loss first, speed after metrics, parts last", () => {
  const plots = plotsOf([run("a"), run("b")]);
  assert.deepEqual(plots.map((plot) => plot.name), ["loss", "accuracy", "images_per_second", "auc/cat"]);
  assert.deepEqual(plots.map((plot) => plot.part), [false, false, false, true]);
  assert.deepEqual(plots[0].series.map((series) => [series.run, series.kind]), [[0, "training"], [0, "epoch"], [0, "validation"], [1, "training"], [1, "epoch"], [1, "validation"]]);
});

test("a value that some points lack stands where the others are", () => {
  const accuracy = plotsOf([run("a")]).find((plot) => plot.name === "accuracy").series[0];
  assert.deepEqual(accuracy, { run: 0, kind: "validation", epochs: [0.5], iteration: [10], seconds: [1], value: [0.5] });
});

test("learners are steps from the start on", () => {
  const tunes = [{ epoch: 1, iteration: 50, seconds: 3, learners: 1, next_learners: 2 }, { epoch: 1, iteration: 80, seconds: 5, learners: 2, next_learners: 4 }];
  // Epochs have fewer iterations as learners become more.
  const progress = { ...points({}, 3), iteration: [20, 60, 80], epochs: [0.2, 1, 2] };
  const plot = plotsOf([run("a", { tunes, progress, start: { iterations_per_epoch: 100 } })]).find((one) => one.name === "learners");
  const longer = plotsOf([run("a", { tunes: tunes.map((tune) => ({ ...tune, iteration: tune.iteration / 10 })) })]).find((one) => one.name === "learners");
  assert.deepEqual([longer.series[0].iteration, longer.series[0].value], [[0, 5, 8, 20], [1, 2, 4, 4]]);
  assert.deepEqual(plot.series, [{ run: 0, kind: "steps", epochs: [0, 0.8, 2], iteration: [0, 50, 80], seconds: [0, 3, 5], value: [1, 2, 4] }]);
  assert.deepEqual(longer.series[0].epochs, [0, 0.25, 0.4, 1]);
  const early = plotsOf([run("a", { tunes: [{ ...tunes[0], iteration: 10 }], progress })]).find((one) => one.name === "learners");
  assert.deepEqual(early.series[0].epochs, [0, 0.1, 2]);
  const late = plotsOf([run("a", { tunes: [{ ...tunes[0], iteration: 90 }], progress })]).find((one) => one.name === "learners");
  assert.deepEqual(late.series[0].epochs, [0, 2]);
});

test("a value of the last point is reported where that point has it", () => {
  const validations = points({ loss: [3, 2] }, 2);
  validations.values.accuracy = { at: [0], value: [0.5] };
  assert.deepEqual(["loss", "accuracy", "toString"].map((name) => valueAt(validations, name)), [2, null, null]);
  assert.deepEqual([0, 1, -1].map((at) => valueAt(validations, "loss", at)), [3, 2, null]);
});

test("the best validation is the one whose model was saved, or that the end names", () => {
  const validations = { epochs: [1, 2, 3], iteration: [100, 200, 300], seconds: [1, 2, 3], values: { accuracy: { at: [0, 1, 2], value: [0.5, 0.9, 0.7] } } };
  const saved = (path, iteration) => ({ path, epoch: iteration / 100, iteration, seconds: 1 });
  const start = { options: { "save-best": "best.safetensors" } };
  assert.equal(bestValidation(run("a", { validations, start, checkpoints: [saved("best.safetensors", 100), saved("best.safetensors", 200), saved("last.safetensors", 300)] })), 1);
  assert.equal(bestValidation(run("a", { validations, end: { best_epoch: 2 } })), 1);
  assert.equal(bestValidation(run("a", { validations, start, end: { best_epoch: null } })), -1);
  assert.equal(bestValidation(run("a", { validations })), -1);
});

test("without an end the best validation is judged as the log says, which may be by the least", () => {
  const validations = { epochs: [1, 2, 3], iteration: [100, 200, 300], seconds: [1, 2, 3], values: { focal: { at: [1, 2], value: [0.0755, 0.1376] }, accuracy: { at: [0, 1, 2], value: [0.5, 0.9, 0.9] } } };
  const judged = (best_metric, better) => bestValidation(run("a", { validations, start: { best_metric, better } }));
  assert.deepEqual([judged("focal", "lower"), judged("focal", "higher"), judged("accuracy", "higher"), judged("focal", null), judged("gone", "lower"), judged(7, "lower")], [1, 2, 1, -1, -1, -1]);
  assert.deepEqual([{ best_metric: "focal", better: "lower" }, { best_metric: "focal", better: null }, null].map((start) => judgedBy({ start })), ["focal, lower is better", "", ""]);
});

test("a run's graph is called as its file is", () => {
  assert.deepEqual(["lenet", "examples/resnet20.onnxtxt", "a/b.onnx", undefined].map((graph) => graphOf({ start: { graph } })), ["lenet", "resnet20", "b", ""]);
  assert.equal(graphOf({ start: null }), "");
});

test("what is smoothed begins at the first value and forgets by its weight", () => {
  assert.deepEqual(smoothed([4, 8, 2], 0), [4, 8, 2]);
  assert.deepEqual(smoothed([4, 8, 2], 0.5), [4, (0.5 * 4 + 8) / 1.5, (0.25 * 4 + 0.5 * 8 + 2) / 1.75]);
  assert.ok(smoothed(Array(1000).fill(3), 0.99).every((value) => Math.abs(value - 3) < 1e-9));
});

test("a pointer shows the nearest point, and each series at that place", () => {
  const series = [{ epochs: [0.5, 0.9, 1.4, 2.6], value: [9, 8, 7, 6] }, { epochs: [1, 2], value: [0.1, 0.2] }];
  const at = (x) => {
    const pointed = pointedAt(series, "epochs", x);
    return [pointed.x, ...pointed.points.map((one) => one.series.value[one.at])];
  };
  assert.deepEqual(at(1.9), [2, 7, 0.2]);  // 1.4 and 2.6 are as far
  assert.deepEqual(at(0.2), [0.5, 9, 0.1]);
  assert.deepEqual(at(9), [2.6, 6, 0.2]);
  assert.equal(pointedAt([{ epochs: [], value: [] }], "epochs", 1), null);
  assert.deepEqual([["epochs", 2], ["iteration", 1234], ["seconds", 1.5]].map(([axis, x]) => whereText(axis, x)), ["epoch 2", "iteration 1234", "1.5 s"]);
});

test("what is thinned has the extremes of every pixel, and no more than four points of each", () => {
  const random = generator(11);
  for (let round = 0; round < 200; ++round) {
    const count = 1 + random(3000), columns = 1 + random(90);
    const x = [], y = [];
    for (let i = 0; i < count; ++i) {
      x.push((x[i - 1] ?? 0) + random(5));
      y.push(random(1000));
    }
    const from = random(x[count - 1] + 1), to = from + 1 + random(x[count - 1] + 1);
    const kept = thinned(x, y, from, to, columns);
    assert.ok(kept.every((position, i) => i === 0 || position > kept[i - 1]), "in order, none twice");
    const pixel = (i) => Math.floor((x[i] - from) / (to - from) * columns);
    const inside = x.map((_, i) => i).filter((i) => x[i] >= from && x[i] <= to);
    const byPixel = new Map();
    for (const i of inside) byPixel.set(pixel(i), [...(byPixel.get(pixel(i)) ?? []), i]);
    for (const positions of byPixel.values()) {
      const those = kept.filter((i) => positions.includes(i)).map((i) => y[i]);
      assert.ok(those.length <= 4);
      assert.equal(Math.max(...those), Math.max(...positions.map((i) => y[i])));
      assert.equal(Math.min(...those), Math.min(...positions.map((i) => y[i])));
    }
    const outside = kept.filter((i) => x[i] < from || x[i] > to);
    assert.ok(outside.length <= 2 && outside.every((i) => i === x.findLastIndex((one) => one < from) || i === x.findIndex((one) => one > to)));
  }
});

test("the nearest point is the nearest, also where times go back", () => {
  assert.equal(nearest([], 3), -1);
  assert.equal(nearest([0, 10, 4, 30], 5), 2);
});

test("spans are of numbers, on a logarithmic axis of those above 0", () => {
  assert.deepEqual(spanOf([[3, -1], [7]]), [-1, 7]);
  assert.deepEqual(spanOf([[3, -1, 0], [7]], true), [3, 7]);
  assert.equal(spanOf([[0, -1]], true), null);
  assert.equal(spanOf([]), null);
});

test("ticks are round, within what is seen, and not too many", () => {
  const random = generator(12);
  assert.deepEqual(ticks([0, 1], 5).values, [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(ticks([0.004, 3], 5, true).values, [0.01, 0.1, 1]);
  assert.deepEqual(ticks([2, 30], 5, true).values, [10, 20, 30]);
  for (let round = 0; round < 500; ++round) {
    const from = (random(2000) - 1000) * 10 ** (random(12) - 6), to = from + (1 + random(1000)) * 10 ** (random(12) - 6);
    const { values: all, step } = ticks([from, to], 6), room = (to - from) * 1e-6;
    assert.ok(all.length <= 7 && all.every((tick) => tick >= from - room && tick <= to + room), `${from} ${to}: ${all}`);
    assert.equal(new Set(all.map((tick) => tickText(tick, step))).size, all.length, `${from} ${to}: ${all.map((tick) => tickText(tick, step))}`);
  }
});

test("ticks are written with the digits of their step", () => {
  const texts = (span, log) => {
    const { values, step } = ticks(span, 5, log);
    return values.map((tick) => tickText(tick, step));
  };
  assert.deepEqual(texts([12345.1, 12345.9]), ["12\u202f345.2", "12\u202f345.4", "12\u202f345.6", "12\u202f345.8"]);
  assert.deepEqual(texts([0, 60000]), ["0", "20\u202f000", "40\u202f000", "60\u202f000"]);
  assert.deepEqual(texts([0.00001, 0.0000103]), ["1.00e-5", "1.01e-5", "1.02e-5", "1.03e-5"]);
  assert.deepEqual(texts([1e-6, 0.02], true), ["1e-6", "1e-5", "0.0001", "0.001", "0.01"]);
});

test("numbers are written with as many digits as they need", () => {
  assert.deepEqual([0, 1.23456, 0.00012345, 1e-7, 12345.6, 0.1 + 0.2].map(written), ["0", "1.235", "0.0001234", "1.00e-7", "12\u202f346", "0.3"]);
});

test("options that differ are reported, whichever log lacks them", () => {
  const start = (lr, extra = {}) => ({ graph: "lenet", time: String(lr), options: { epochs: 3, trace: null, set: ["a.b=1"] }, attributes: { "train.lr": lr }, versions: { tbb: "1" }, host: { cores: 2 }, ...extra });
  const runs = [run("a", { start: start(0.1) }), run("b", { start: start(0.2, { note: "n", seed: 7 }) })];
  assert.deepEqual([...settingsOf(runs[0])], [["graph", "lenet"], ["--epochs", "3"], ["--trace", ""], ["--set", "a.b=1"], ["train.lr", "0.1"], ["version of tbb", "1"], ["host: cores", "2"]]);
  assert.deepEqual(differing(settingsTable(runs)), [["train.lr", ["0.1", "0.2"]], ["seed", [undefined, "7"]]]);
  assert.deepEqual(settingsTable([run("c")]), []);
});

test("names that objects have by themselves are names like others", () => {
  const one = run("a", { validations: points({ constructor: [1], toString: [2] }, 1), start: { constructor: 5, toString: { a: 1 } } });
  assert.deepEqual(plotsOf([one]).map((plot) => plot.title), ["Loss", "constructor", "toString", "Images/s"]);
  assert.deepEqual([...settingsOf(one)], [["constructor", "5"], ["toString", '{"a":1}']]);
});

test("a CSV has all points, and names that are nothing but names", () => {
  const runs = [run('=cmd|"x",\ny', { validations: points({}, 0), epochs: points({}, 0) })];
  assert.equal(csvOf(plotsOf(runs)[0], runs), ["run,series,epochs,iteration,seconds,loss", `"'=cmd|""x"",\ny",training,0,0,0,3`, `"'=cmd|""x"",\ny",training,0.5,10,1,2`,
    `"'=cmd|""x"",\ny",training,1,20,4,1`, ""].join("\n"));
});

test("a run that was interrupted in its second epoch has not had two", () => {
  const points = (...epochs) => ({ epochs, iteration: epochs.map((epoch) => 100 * epoch), seconds: epochs });
  const run = { progress: points(0.5, 1, 1.4), epochs: points(1), validations: points(1) };
  const ended = (reason, epoch) => endOf({ ...run, end: { reason, epoch, iteration: 143 } });
  assert.deepEqual(ended("interrupted", 2), { reason: "interrupted", epoch: 1.4, iteration: 143 });
  assert.equal(ended("complete", 2).epoch, 2);
  assert.deepEqual([endOf(run).epoch, endOf(run).iteration], [1.4, 140]);
});
