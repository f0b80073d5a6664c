// SPDX-License-Identifier: Apache-2.0

// The state of the page as the URL's hash, so that a copied address opens at the same place.

const kViews = ["timeline", "plan", "idle", "pays", "tasks", "compare"];

export function hashOf(state) {
  const parts = [`view=${state.view}`];
  if (state.trace > 0) parts.push(`trace=${state.trace}`);
  if (state.from !== undefined) parts.push(`from=${Math.round(state.from)}`, `to=${Math.round(state.to)}`);
  if (state.task !== undefined) parts.push(`task=${state.task}`, `instance=${state.instance}`);
  if (state.pair && String(state.pair) !== "0,1") parts.push(`pair=${state.pair}`);
  if (state.critical) parts.push("critical=1");
  if (state.charts === false) parts.push("charts=0");
  if (state.measure) parts.push(`measure=${state.measure.map(Math.round).join(",")}`);
  if (state.marks?.length) parts.push(`marks=${state.marks.map(Math.round).join(",")}`);
  return "#" + parts.join("&");
}

// The state in a hash, which may be any text; parts that cannot be read are left out.
export function stateOf(hash) {
  const state = { view: "timeline", trace: 0, marks: [], pair: [0, 1] };
  const values = new Map(hash.replace(/^#/, "").split("&").map((part) => part.split("=")).filter((part) => part.length === 2));
  const numbers = (text) => (text ?? "").split(",").map(Number);
  const whole = (name) => (/^\d{1,15}$/.test(values.get(name) ?? "") ? Number(values.get(name)) : undefined);
  if (kViews.includes(values.get("view"))) state.view = values.get("view");
  state.trace = whole("trace") ?? 0;
  const from = whole("from"), to = whole("to");
  if (from !== undefined && to > from) Object.assign(state, { from, to });
  const task = whole("task"), instance = whole("instance");
  if (task !== undefined && instance !== undefined) Object.assign(state, { task, instance });
  state.critical = values.get("critical") === "1";
  state.charts = values.get("charts") !== "0";
  const measure = numbers(values.get("measure"));
  if (measure.length === 2 && measure.every(Number.isFinite)) state.measure = measure;
  const pair = /^(\d{1,4}),(\d{1,4})$/.exec(values.get("pair") ?? "");
  if (pair) state.pair = [Number(pair[1]), Number(pair[2])];
  if (values.has("marks")) state.marks = numbers(values.get("marks")).filter(Number.isFinite).slice(0, 100);
  return state;
}
