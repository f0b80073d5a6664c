// SPDX-License-Identifier: Apache-2.0

// The options and settings that runs were started with, and the differences between runs.

// Settings that are shown elsewhere on the page, or that differ in every run.
const kElsewhere = ["time", "command", "note", "setup_seconds", "class_names"];

function wordsOf(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.map(wordsOf).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// A Map from names to words: "--epochs", "train.lr", "version of cuda", "host: cores", "learners".
export function settingsOf(run) {
  const settings = new Map();
  const prefixes = new Map([["options", "--"], ["attributes", ""], ["versions", "version of "], ["host", "host: "]]);
  for (const [key, value] of Object.entries(run.start ?? {})) {
    if (kElsewhere.includes(key)) continue;
    if (!prefixes.has(key)) settings.set(key, wordsOf(value));
    else if (value !== null && typeof value === "object") for (const [name, one] of Object.entries(value)) settings.set((name === "GRAPH" ? "" : prefixes.get(key)) + name, wordsOf(one));
  }
  return settings;
}

// [[name, [words by run; undefined: the run's log does not say]]], in the order in which logs have them.
export function settingsTable(runs) {
  const all = runs.map(settingsOf);
  const names = new Set(all.flatMap((settings) => [...settings.keys()]));
  return [...names].map((name) => [name, all.map((settings) => settings.get(name))]);
}

// Outputs differ in every run; values of --set are among the attributes, and --seed is shown as the seed.
const kNoDifference = ["--log", "--tensorboard", "--trace", "--save", "--save-best", "--set", "--seed", "host: name"];

export function differing(table) {
  return table.filter(([name, words]) => !kNoDifference.includes(name) && words.some((word) => word !== words[0]));
}
