// Tasks of two traces, matched by name but for learners and devices, of whichever kind these are.

import { kindName } from "../../page/names.js";

function iterationsOf(head) {
  return Math.max(1, ...head.tasks.filter((task) => task.clock === 0).map((task) => task.count));
}

// What layers take per iteration, of all learners together: [{ name, a, b }] in ns, what changed most first. A layer that one of
// the traces has not takes nothing there; none where one of them knows no layers.
export function comparedLayers(a, b) {
  if (!a.layers?.length || !b.layers?.length) return [];
  const timesOf = (head) => new Map(head.layers.map((layer) => [layer.name, (layer.forward_ns + layer.backward_ns) / iterationsOf(head)]));
  const [inA, inB] = [timesOf(a), timesOf(b)];
  const rows = [...new Set([...inA.keys(), ...inB.keys()])].map((name) => ({ name, a: inA.get(name) ?? 0, b: inB.get(name) ?? 0 }));
  return rows.sort((x, y) => Math.abs(y.b - y.a) - Math.abs(x.b - x.a));
}

function groupsOf(head) {
  const groups = new Map();
  const iterations = iterationsOf(head);
  head.tasks.forEach((task, id) => {
    if (task.count === 0) return;
    const name = kindName(task.like);
    if (!groups.has(name)) groups.set(name, { tasks: [], count: 0, total: 0, squares: 0 });
    const group = groups.get(name);
    group.tasks.push(id);
    group.count += task.count;
    group.total += task.total_ns;
    group.squares += (task.count - 1) * task.deviation_ns ** 2;
  });
  for (const group of groups.values()) {
    group.mean = group.total / group.count;
    group.deviation = Math.sqrt(group.squares / Math.max(1, group.count - group.tasks.length));
    group.perIteration = group.total / iterations;
  }
  return groups;
}

// What changed from `a` to `b`, what changed most first. `sure`: the means differ by more than twice their standard error;
// `few`: there is no such error, for on one side no task ran twice.
export function compared(a, b) {
  const [inA, inB] = [groupsOf(a), groupsOf(b)];
  const rows = [...new Set([...inA.keys(), ...inB.keys()])].map((name) => {
    const [one, other] = [inA.get(name), inB.get(name)];
    const cost = (other?.perIteration ?? 0) - (one?.perIteration ?? 0);
    const error = one && other ? Math.sqrt(one.deviation ** 2 / one.count + other.deviation ** 2 / other.count) : 0;
    const few = [one, other].some((group) => group && group.count === group.tasks.length);
    const sure = !one || !other || (!few && Math.abs(other.mean - one.mean) > 2 * error);
    return { name, a: one, b: other, cost, sure, few };
  });
  rows.sort((x, y) => y.sure - x.sure || Math.abs(y.cost) - Math.abs(x.cost));
  return { rows, iteration: { a: a.steady.iteration_ns, b: b.steady.iteration_ns } };
}
