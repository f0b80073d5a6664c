// SPDX-License-Identifier: Apache-2.0

// A sweep's data as plots over epochs, and in words.

import { counted, grouped, shown } from "../../../page/names.js";
import { written } from "../../page/axes.js";

// "train.lr 0.1, train.momentum 0.9".
export function groupName(data, group) {
  const words = data.settings.map((setting, i) => [setting.name, data.groups[group].settings[i]]).filter(([, value]) => value !== null);
  return words.map(([name, value]) => `${shown(name)} ${shown(value)}`).join(", ") || "all trials";
}

// How far a group or a trial was trained: its epochs, or its iterations where trials ended within an epoch.
export function lengthOf(data, { epochs, iterations }) {
  return data.in_iterations ? iterations : epochs;
}

// The plots over epochs, as plotPicture() takes them: a group of trials is a run. Lines mark where a search judges.
export function curvePlots(data) {
  const plot = (name, title, curves) => ({ name, title, marks: data.rungs.slice(0, -1),
    series: curves.map(({ group, epochs, mean, low, high, count }) => ({ run: group, kind: "folded", epochs, value: mean, low, high, count })) });
  return [plot("validation", `Validation ${data.metric}`, data.validation), plot("loss", "Loss of training", data.loss)].filter((one) => one.series.length > 0);
}

// The first groups that have curves.
export function bestGroups(data, most) {
  const drawn = new Set([...data.validation, ...data.loss].map((curve) => curve.group));
  return data.groups.map((_, group) => group).filter((group) => drawn.has(group)).slice(0, most);
}

// "0.592 ± 0.036", "—" without a value.
export function valueText({ mean, high, deviation = null }) {
  if (mean === null) return "—";
  const around = deviation ?? (high === null ? null : high - mean);
  return around === null ? written(mean) : `${written(mean)} ± ${Number(around.toPrecision(2))}`;
}

// "3 (1 failed, 1 not ended)".
export function trialsText({ trials, failed, unfinished }) {
  const others = [failed > 0 ? `${failed} failed` : "", unfinished > 0 ? `${unfinished} not ended` : ""].filter((text) => text);
  return trials.length + (others.length > 0 ? ` (${others.join(", ")})` : "");
}

// The state of the sweep: "All 12 trials have ended, 1 of them has failed."
export function statusText(data) {
  const all = data.trials.length, over = data.trials_ended + data.trials_failed;
  const failed = data.trials_failed === 0 ? "" : `, ${grouped(data.trials_failed)} of them ${data.trials_failed === 1 ? "has" : "have"} failed`;
  if (data.finished) return `${over === all ? `All ${counted(all, "trial")}` : `${grouped(over)} of ${counted(all, "trial")}`} have ended${failed}.`;
  const begun = data.trials.filter((trial) => trial.state === "unfinished").length;
  return `The sweep still runs, or was interrupted: ${grouped(over)} of ${counted(all, "trial")} have ended${failed}, ${grouped(begun)} more ${begun === 1 ? "has" : "have"} begun.`;
}
