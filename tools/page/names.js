// SPDX-License-Identifier: Apache-2.0

// Words and numbers as the page shows them.

// Names come from graph files and may hold anything: control characters and those that turn the direction of text are
// shown as what they are.
export function shown(name) {
  return String(name).replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

// Numbers stay with their units where lines are broken.
export function unbroken(text) {
  return text.replace(/(\d) (%|ms|µs|ns|s)\b|(\d) %/g, (part) => part.replace(" ", "\u00a0"));
}

// The last part of "cuda:0/learner 3/step".
export function shortName(name) {
  return shown(String(name).slice(String(name).lastIndexOf("/") + 1)) || shown(name);
}

// An instance of a task: "step 40", and "step 1 · 40" if the task's name ends with a number.
export function instanceName(name, instance) {
  return /\d$/.test(name) ? `${name} · ${instance}` : `${name} ${instance}`;
}

// "cuda:*/learner */step" is "step", and "cpu:0/validation/fill" "validation/fill": without device and learner.
export function kindName(name) {
  return shown(String(name).replace(/^(cuda|cpu):[*\d]+\//, "").replace(/^learner [*\d]+\//, "")) || shown(name);
}

// The process that a device, or what a process has, is called after: "node07.3" of "node07.3/cpu:0"; "": there is one.
export function processOf(name) {
  return name.slice(0, Math.max(0, name.lastIndexOf("/")));
}

export function isCpu(device) {
  return device.slice(device.lastIndexOf("/") + 1).startsWith("cpu");
}

// A kind of lane, as the plan calls it, in words.
export function laneWords(kind) {
  return kind === "validate" ? "validation" : kind.replace("_", " ");
}

// Thousands apart, by a narrow space where no line is broken: "12 345.60". So are all counts and amounts; numbers of
// instances, epochs and iterations, which are names, are not.
export function grouped(value, decimals = 0) {
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replaceAll(",", "\u202f");
}

function digits(value) {
  const size = Math.abs(value);
  return grouped(value, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

// 1234567 ns: "1.23 ms".
export function duration(ns) {
  const size = Math.abs(ns);
  if (size < 999.5) return Math.round(ns) + " ns";
  if (size < 999.5e3) return digits(ns / 1e3) + " µs";
  if (size < 999.5e6) return digits(ns / 1e6) + " ms";
  return digits(ns / 1e9) + " s";
}

export function percent(share) {
  if (share !== 0 && Math.abs(share) < 0.0005) return (share < 0 ? "−" : "") + "<0.1 %";
  if (share >= 0.995 && share < 1) return share < 0.9995 ? (100 * share).toFixed(1) + " %" : ">99.9 %";
  const text = (100 * Math.abs(share)).toFixed(Math.abs(share) < 0.0995 ? 1 : 0);
  return (share < 0 && Number(text) !== 0 ? "−" : "") + text + " %";
}

export function counted(count, one, many = one + "s") {
  return `${grouped(count)} ${count === 1 ? one : many}`;
}

// 1234567 bytes: "1.18 MiB".
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; count >= 999.5 && unit + 1 < units.length; ++unit) count /= 1024;
  return (unit === 0 ? count : digits(count)) + " " + units[unit];
}

// A moment on the axis, with as many digits as ticks `step` apart need: all of one axis in one unit.
export function moment(ns, step) {
  const [unit, name] = step >= 1e8 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"] : step >= 1e2 ? [1e3, "µs"] : [1, "ns"];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  return grouped(ns / unit, decimals) + " " + name;
}

// 1234567 ns: "1.235 ms", in ms always, so that moments can be compared.
export function inMilliseconds(ns) {
  return grouped(ns / 1e6, 3) + " ms";
}

// The smallest of 1, 2, 5 times a power of ten that is at least `least`.
export function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  for (const factor of [1, 2, 5]) if (factor * power >= least * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

// A word as a shell takes it.
export function quoted(word) {
  const text = String(word);
  return /^[\w@%+=:,./~-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`;
}
