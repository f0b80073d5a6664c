// SPDX-License-Identifier: Apache-2.0

// Measurements of runs as series for plots, thinned for drawing and complete as CSV.

export const kAxes = { epochs: "epochs", iteration: "iterations", seconds: "seconds" };

// A Map, as for all names from a log: "constructor" and the like are names too.
const kTitles = new Map([["loss", "Loss"], ["images_per_second", "Images/s"], ["learning_rate", "Learning rate"], ["learners", "Learners per device"],
  ["late_batches", "Share of batches that were late"], ["left_out", "Samples left out of validation"], ["rate_factor", "Factor of the rate after plateaus"]]);
const kLast = ["images_per_second", "learning_rate", "rate_factor", "learners", "late_batches", "left_out"];
const kKinds = [["progress", "training"], ["epochs", "epoch"], ["validations", "validation"]];

function seriesOf(points, column) {
  const pick = (axis) => column.at.map((at) => points[axis][at]);
  return { epochs: pick("epochs"), iteration: pick("iteration"), seconds: pick("seconds"), value: column.value };
}

// The end of a run, from its last event. If a run was cut short, that event names the epoch it was in; the result then
// has the epochs up to its last report.
export function endOf(run) {
  const of = (axis) => Math.max(...[run.progress, run.epochs, run.validations].map((points) => points[axis].at(-1) ?? 0));
  if (!run.end) return { epoch: of("epochs"), iteration: of("iteration"), seconds: run.error?.seconds ?? of("seconds"), images_per_second: null, targets: [] };
  return run.end.reason === "complete" ? run.end : { ...run.end, epoch: Math.min(run.end.epoch, of("epochs")) };
}

// The number of epochs that had passed at an iteration, interpolated between points: iterations per epoch change with
// the number of learners. After the last point it is that point's; undefined if there are no points.
function epochsAt({ iteration, epochs }, at) {
  const next = iteration.findIndex((one) => one >= at);
  if (next < 0) return epochs.at(-1);
  const from = iteration[next - 1] ?? 0, done = epochs[next - 1] ?? 0;
  return iteration[next] > from ? done + (epochs[next] - done) * (at - from) / (iteration[next] - from) : epochs[next];
}

// The number of learners over time, from the start on; null if the run did not tune it.
function learnersOf(run) {
  if (run.tunes.length === 0) return null;
  const series = { epochs: [0], iteration: [0], seconds: [0], value: [run.tunes[0].learners] };
  for (const tune of run.tunes) {
    series.epochs.push(epochsAt(run.progress, tune.iteration) ?? tune.epoch);
    series.iteration.push(tune.iteration);
    series.seconds.push(tune.seconds);
    series.value.push(tune.next_learners);
  }
  const { progress } = run;
  if (progress.iteration.at(-1) > series.iteration.at(-1)) {  // to the end of the run
    for (const axis of Object.keys(kAxes)) series[axis].push(progress[axis].at(-1));
    series.value.push(series.value.at(-1));
  }
  return series;
}

function rankOf(name) {
  if (name === "loss") return 0;
  if (kLast.includes(name)) return 2 + kLast.indexOf(name);
  if (name.endsWith(" µs a sample")) return 20;
  return name.includes("/") ? 30 : 1;
}

// [{ name, title, part, series: [{ run, kind, epochs, iteration, seconds, value }] }], loss first. `run` is the run's
// index; kinds are "training", "epoch", "validation" and "steps"; a part is what a metric is the mean of ("auc/edema").
export function plotsOf(runs) {
  const plots = new Map();
  const add = (name, series) => {
    if (!plots.has(name)) plots.set(name, { name, title: kTitles.get(name) ?? name, part: rankOf(name) === 30, series: [] });
    plots.get(name).series.push(series);
  };
  runs.forEach((run, index) => {
    for (const [of, kind] of kKinds) {
      for (const [name, column] of Object.entries(run[of].values)) add(name, { run: index, kind, ...seriesOf(run[of], column) });
    }
    const learners = learnersOf(run);
    if (learners) add("learners", { run: index, kind: "steps", ...learners });
  });
  return [...plots.values()].map((plot, at) => [plot, at]).sort(([a, i], [b, j]) => rankOf(a.name) - rankOf(b.name) || i - j).map(([plot]) => plot);
}

// A value of a point, or null if that point lacks it; without a position, of the last point.
export function valueAt(points, name, position = points.iteration.length - 1) {
  const column = Object.hasOwn(points.values, name) ? points.values[name] : null, at = column ? column.at.indexOf(position) : -1;
  return at < 0 ? null : column.value[at];
}

// The position of the validation whose model the run has kept as its best, by --save-best. Otherwise that of the one
// that its end names, or whose metric is the best so far; −1: the log has none.
export function bestValidation(run) {
  const { validations } = run, file = run.start?.options?.["save-best"];
  const saved = typeof file === "string" ? run.checkpoints.findLast((one) => one.path === file) : undefined;
  const at = saved ? validations.iteration.lastIndexOf(saved.iteration) : -1;
  if (at >= 0) return at;
  return run.end?.best_epoch > 0 ? validations.epochs.lastIndexOf(run.end.best_epoch) : foremost(validations, run.start);
}

// The first of the validations whose metric is the best, by the log's own word for which way that is.
function foremost({ values }, start) {
  const column = judgedBy({ start }) && Object.hasOwn(values, start.best_metric) ? values[start.best_metric] : null;
  const sign = start?.better === "lower" ? -1 : 1;
  let best = -1;
  for (let i = 0; i < (column?.value.length ?? 0); ++i) {
    if (best < 0 || sign * column.value[i] > sign * column.value[best]) best = i;
  }
  return best < 0 ? -1 : column.at[best];
}

// "accuracy, higher is better"; "" if the log does not say.
export function judgedBy({ start }) {
  const told = typeof start?.best_metric === "string" && (start.better === "lower" || start.better === "higher");
  return told ? `${start.best_metric}, ${start.better} is better` : "";
}

// The graph that a run trained: "lenet" for "examples/lenet.onnxtxt"; "" if the log does not say.
export function graphOf(run) {
  const file = typeof run.start?.graph === "string" ? run.start.graph : "";
  return file.slice(file.lastIndexOf("/") + 1).replace(/\.onnx(txt)?$/, "");
}

// Moving averages in which each value weighs `weight` times as much as the next one; 0 leaves all values as they are.
export function smoothed(values, weight) {
  let sum = 0, weights = 0;
  return values.map((value) => {
    sum = weight * sum + value;
    weights = weight * weights + 1;
    return sum / weights;
  });
}

// The points to show at the pointer: `x` is that of the nearest point of any series, and `points` has { series, at },
// each series' point nearest to that x. Null if there are no points.
export function pointedAt(seen, axis, x) {
  const points = seen.map((series) => ({ series, at: nearest(series[axis], x) })).filter(({ at }) => at >= 0);
  if (points.length === 0) return null;
  const xOf = ({ series, at }) => series[axis][at];
  const closest = points.reduce((a, b) => (Math.abs(xOf(b) - x) < Math.abs(xOf(a) - x) ? b : a));
  const where = xOf(closest);
  return { x: where, points: seen.map((series) => ({ series, at: nearest(series[axis], where) })).filter(({ at }) => at >= 0) };
}

// The least and the greatest value of the arrays, or null if there is none. `log`: only numbers above 0 count.
export function spanOf(arrays, log = false) {
  let least = Infinity, most = -Infinity;
  for (const array of arrays) {
    for (const value of array) {
      if (!Number.isFinite(value) || (log && value <= 0)) continue;
      if (value < least) least = value;
      if (value > most) most = value;
    }
  }
  return least <= most ? [least, most] : null;
}

// Positions of as many points as can be distinguished on `columns` pixels between two x. These are the first, last,
// lowest and highest of each pixel's points, and the neighbours of what is seen, so that lines lead out of the picture.
export function thinned(x, y, from, to, columns) {
  const kept = [];
  const keep = (position) => {
    if (position >= 0 && kept[kept.length - 1] !== position) kept.push(position);
  };
  let column = -1, first = -1, last = -1, low = -1, high = -1, before = -1, after = -1;
  const flush = () => {
    for (const position of [first, ...[low, high].sort((a, b) => a - b), last]) if (position > (kept[kept.length - 1] ?? -1)) keep(position);
  };
  for (let i = 0; i < x.length; ++i) {
    if (x[i] < from) {
      before = i;
      continue;
    }
    if (x[i] > to) {
      after = i;
      break;
    }
    if (before >= 0) {
      keep(before);
      before = -1;
    }
    const at = Math.floor((x[i] - from) / (to - from || 1) * columns);
    if (at !== column) {
      if (first >= 0) flush();
      column = at;
      first = low = high = i;
    }
    last = i;
    if (y[i] < y[low]) low = i;
    if (y[i] > y[high]) high = i;
  }
  if (first >= 0) flush();
  else keep(before);
  keep(after);
  return kept;
}

// The position whose x is nearest, or −1.
export function nearest(x, value) {
  let best = -1;
  for (let i = 0; i < x.length; ++i) if (best < 0 || Math.abs(x[i] - value) < Math.abs(x[best] - value)) best = i;
  return best;
}

// A cell that spreadsheets take for a text, however a name begins.
function cell(text) {
  const safe = /^[=+\-@\t\r]/.test(text) ? "'" + text : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}

// All points of a plot, a line each.
export function csvOf(plot, runs) {
  const lines = [["run", "series", "epochs", "iteration", "seconds", cell(plot.name)].join(",")];
  for (const series of plot.series) {
    for (let i = 0; i < series.value.length; ++i) {
      lines.push([cell(runs[series.run].name), series.kind, series.epochs[i], series.iteration[i], series.seconds[i], series.value[i]].join(","));
    }
  }
  return lines.join("\n") + "\n";
}
