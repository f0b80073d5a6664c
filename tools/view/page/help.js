// SPDX-License-Identifier: Apache-2.0

// The text that "?" shows: keys, and an explanation of the page.

import { el, table } from "../../page/dom.js";

const kHelp = [
  ["wheel, W S", "zoom in and out, at the pointer"], ["drag, A D", "move; Shift+wheel moves in time, the wheel over names in rows"],
  ["I, F", "a few iterations of the steady state, the whole trace; Shift+F: the selected instance"],
  ["click", "select an instance: what it waited for and who waited for it; on a row's or chart's name: fold it"],
  ["H", "fold all hosts, or open them; Shift+click on the name of one: that one alone is open"],
  ["Shift+drag", "measure; both ends snap to starts and ends. R: every drag measures, or moves again"], ["[ ]", "to what the instance waited for last, to who waited for it first"],
  ["← → ↑ ↓", "the instance before or after, in the row above or below"], ["/", "search layers and tasks; Enter: the next match, “step 40”: an instance"],
  ["M", "mark a time; Shift+M: no marks"], ["C", "only the critical cycle"], ["G", "the charts under the timeline, or not"], ["1 … 6", "the views"], ["Esc", "nothing selected or measured"], ["?", "this text"],
];

export function helpText() {
  return [el("h2", {}, "Keys"), table([["", "left"], ["", "left"]], kHelp.map(([keys, what]) => [el("kbd", {}, keys), what])),
    el("h3", {}, "The plan"), el("p", {}, "Training repeats a plan: tasks bound to queues, with edges that say which instance of a task needs which instance of another. ",
      "Instance 40 of a task is its part in iteration 40 of its clock. What an instance needs may be of the same iteration, or of an earlier one: a slot that is freed, weights that are left. ",
      "A cycle of such edges bounds how fast iterations follow each other; the one that bounds most is the critical cycle, and slack is how much longer a task may take before it is on that cycle."),
    el("form", { method: "dialog" }, el("button", {}, "close"))];
}
