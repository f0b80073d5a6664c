// SPDX-License-Identifier: Apache-2.0

// A card of the run that a trace is of: its options, its machine and its speed.

import { counted, grouped, quoted, shown } from "../../page/names.js";

export function learnersOf(head) {
  return (head.lanes ?? []).filter((lane) => lane.kind === "compute").length;
}

// Samples per iteration: a batch for each learner. 0: the trace does not say.
export function samplesOf(head) {
  return (head.run?.batch ?? 0) * learnersOf(head);
}

// Images per second in the steady state; 0: unknown.
export function imagesPerSecond(head) {
  const iteration = head.steady?.iteration_ns ?? 0;
  return iteration > 0 ? samplesOf(head) / iteration * 1e9 : 0;
}

function processorsOf(models) {
  const counts = new Map();
  for (const model of models) counts.set(model, (counts.get(model) ?? 0) + 1);
  return [...counts].filter(([model]) => model).map(([model, count]) => (count > 1 ? `${count} × ` : "") + shown(model)).join(", ");
}

// [name, text] of everything that is known.
export function cardOf(head) {
  const { command = [], started = "", source = "", precision = "", batch = 0, models = [], strategy = "" } = head.run ?? {};
  const learners = learnersOf(head), speed = imagesPerSecond(head);
  const batches = learners > 1 ? `${grouped(batch)} a learner, ${grouped(batch * learners)} of ${counted(learners, "learner")}` : grouped(batch);
  return [
    ["graph", head.graph ? shown(head.graph) : ""],
    ["command", command.map((word) => shown(quoted(word))).join(" ")],
    ["data", shown(source)],
    ["batch", batch > 0 ? batches : ""],
    ["precision", shown(precision)],
    ["strategy", strategy === "none" || learners < 2 ? "" : shown(strategy)],
    ["images/s", speed > 0 ? `${grouped(speed, speed < 99.5 ? 1 : 0)} in the steady state` : ""],
    ["processor", processorsOf(models)],
    ["date", shown(started).replace("T", " ").replace("Z", " UTC")],
  ].filter(([, text]) => text !== "");
}
