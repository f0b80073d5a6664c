// SPDX-License-Identifier: Apache-2.0

// The plan as a graph.

import { css } from "../../page/theme.js";
import { fitting } from "./canvas.js";
import { kindColour, slackColour } from "./colours.js";
import { el, link, svg } from "../../page/dom.js";
import { kBands, placed, planGraph, turnsNote } from "./layout.js";
import { counted, duration, kindName, shown } from "../../page/names.js";

const kHeight = 46;
const kNarrowest = 150, kWidest = 270;  // of boxes, which are as wide as their texts need
const kRim = 12;                         // within a box, around its text
const kBetween = 50;                     // boxes of neighbouring columns
const kNameFont = "600 13px system-ui, 'DejaVu Sans', sans-serif", kFont = "12px system-ui, 'DejaVu Sans', sans-serif";
const kLeastScale = 10.5 / 12;           // of the picture in a narrow window: its texts stay above 10 pixels
const kSize = { left: 90, right: 10, top: 4, bottom: 26, row: 60, gap: 48 };
const kQuiet = new Set(["lane", "self", "pace"]);  // edges of order, which are drawn when asked for or critical

function distanceInWords(edge) {
  if (edge.why === "reuse") return counted(edge.distance, "slot");
  if (edge.why === "clock" && edge.what) return cut(shown(edge.what), 30);
  return edge.distance === 0 ? "" : edge.distance === 1 ? "next iteration" : `${edge.distance} iterations later`;
}

function linkTitle(edge, nodes) {
  const what = edge.what ? ` (${shown(edge.what)})` : "";
  const slack = Number.isFinite(edge.slack) ? `\n${duration(edge.slack * 1000)} to spare` : "";
  const needs = edge.distance === 0 ? "the same instance" : `the instance ${edge.distance} before`;
  return `${shown(nodes[edge.to].name)} needs ${needs} of ${shown(nodes[edge.from].name)}\n${edge.why}${what}${slack}`;
}

function pathOf(a, b, cyclic) {
  const { width } = a;
  if (a === b) {
    const x = a.x + width / 2 - 26, y = a.y - kHeight / 2;
    return { d: `M${x},${y} c-10,-26 42,-26 26,14`, x: x + 24, y: y - 15 };
  }
  const forward = b.x > a.x;
  if (!cyclic && forward) {
    const [x0, x1] = [a.x + width / 2, b.x - width / 2], half = Math.max(20, (x1 - x0) / 2);
    return { d: `M${x0},${a.y} C${x0 + half},${a.y} ${x1 - half},${b.y} ${x1 - 3},${b.y}`, x: (x0 + x1) / 2, y: (a.y + b.y) / 2 };
  }
  // Back: out of the lower edge of the one and into the lower edge of the other.
  const y0 = a.y + kHeight / 2, y1 = b.y + kHeight / 2;
  const [x0, x1] = [a.x + (forward ? 22 : -22), b.x + (forward ? -22 : 22)];
  const deep = Math.max(y0, y1) + Math.min(46, 16 + Math.abs(x1 - x0) * 0.05);
  return { d: `M${x0},${y0} C${x0},${deep} ${x1},${deep} ${x1},${y1 + 3}`, x: (x0 + x1) / 2, y: deep - (deep - Math.max(y0, y1)) * 0.25 + 9 };
}

function drawLink(edge, nodes, iteration) {
  const cyclic = edge.distance > 0;
  const { d, x, y } = pathOf(nodes[edge.from], nodes[edge.to], cyclic);
  const kind = `edge ${edge.why}${cyclic ? " cyclic" : ""}${edge.critical ? " critical" : ""}`;
  const words = distanceInWords(edge);
  return svg("g", { class: kind }, svg("title", {}), svg("path", { d, class: "wide" }),
    svg("path", { d, "marker-end": `url(#${edge.critical ? "tip-critical" : cyclic ? "tip-cyclic" : "tip-plain"})` }),
    words && edge.from !== edge.to ? svg("text", { x, y, "text-anchor": "middle" }) : null, iteration);
}

export function planView(trace, state, act) {
  const { head } = trace;
  const graph = planGraph(head, state.each), width = fitTexts(graph.nodes);
  const picture = placed(graph, { ...kSize, column: width + kBetween });
  const iteration = head.steady.iteration_ns;
  const tip = (id) => svg("marker", { id, viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto", markerUnits: "userSpaceOnUse" },
    svg("path", { d: "M0,0 L8,4 L0,8 z" }));
  const root = svg("svg", { viewBox: `0 0 ${picture.width} ${picture.height}`, style: `width: 100%; min-width: ${Math.ceil(picture.width * kLeastScale)}px; max-width: ${picture.width}px`, role: "img" }, svg("defs", {}, tip("tip-plain"), tip("tip-cyclic"), tip("tip-critical")));
  for (const band of picture.bands) {
    const label = svg("text", { x: 14, y: band.y + band.height / 2, class: "band-name" });
    label.textContent = band.name;
    root.append(svg("rect", { x: 0, y: band.y, width: picture.width, height: band.height - 6, class: "band" }), label);
  }
  const seen = graph.links.filter((edge) => edge.critical || (!kQuiet.has(edge.why) && edge.from !== edge.to) || (state.order && kQuiet.has(edge.why)));
  seen.sort((a, b) => a.critical - b.critical);
  for (const edge of seen) {
    const drawn = drawLink(edge, graph.nodes);
    drawn.querySelector("title").textContent = linkTitle(edge, graph.nodes);
    const text = drawn.querySelector("text");
    if (text) text.textContent = distanceInWords(edge);
    root.append(drawn);
  }
  for (const node of graph.nodes) root.append(drawNode(node, head, iteration, state.dark, act));
  const critical = head.critical;
  const intro = critical.edges.length === 0 ? "This plan has no cycle that bounds it." :
    `The critical cycle (orange) costs ${duration(critical.bound_ns)} an iteration: no schedule of this plan is faster. Measured: ${duration(iteration)}.${turnsNote(head)}`;
  return el("div", { class: "plan" },
    el("div", { class: "toolbar" }, el("div", { class: "whole" }, intro),
      check("each learner and device", state.each, (on) => act.plan({ each: on })),
      check("order and pace", state.order, (on) => act.plan({ order: on })),
      link("critical cycle in the timeline", () => act.showCritical())),
    legend(state.dark), el("div", { class: "plan-picture" }, root));
}

function check(text, on, action) {
  const box = el("input", { type: "checkbox", onchange: () => action(box.checked) });
  box.checked = on;
  return el("label", {}, box, " ", text);
}

// Gives all boxes the same width, and each its texts, cut if they are longer than the widest box. Returns the width.
function fitTexts(nodes) {
  const context = document.createElement("canvas").getContext("2d");
  const widthOf = (font, text) => ((context.font = font), context.measureText(text).width);
  let width = kNarrowest;
  for (const node of nodes) {
    node.times = node.tasks.length > 1 ? ` × ${node.tasks.length}` : "";
    node.facts = node.count === 0 ? "never ran" : duration(node.total / node.count) + slackWords(node.slack);
    width = Math.max(width, widthOf(kNameFont, kindName(node.name) + node.times) + 2 * kRim, widthOf(kFont, node.facts) + 2 * kRim);
  }
  width = Math.ceil(Math.min(width, kWidest));
  for (const node of nodes) {
    node.width = width;
    const room = width - 2 * kRim - widthOf(kNameFont, node.times);
    node.label = fitting(context, kindName(node.name), room) + node.times;
  }
  return width;
}

function drawNode(node, head, iteration, dark, act) {
  const share = iteration > 0 ? (node.slack * 1000) / iteration : node.slack === 0 ? 0 : Infinity;
  const { width } = node, x = node.x - width / 2, y = node.y - kHeight / 2;
  const group = svg("g", { class: `node${node.critical ? " critical" : ""}`, tabindex: 0, role: "button",
    onclick: () => act.showTask(node.tasks), onkeydown: (event) => event.key === "Enter" && act.showTask(node.tasks) });
  const title = svg("title"), name = svg("text", { x: node.x + 3, y: node.y - 5, style: `font: ${kNameFont}` }), facts = svg("text", { x: node.x + 3, y: node.y + 13, style: `font: ${kFont}` });
  name.textContent = node.label;
  facts.textContent = node.facts;
  title.textContent = `${shown(node.name)}\n${counted(node.count, "instance")}, clock “${shown(head.clocks[node.clock].name)}”` +
    (Number.isFinite(node.slack) ? `\neach may take ${duration(node.slack * 1000)} longer before it were on the critical cycle` : "\non no cycle: it bounds nothing");
  group.append(title, svg("rect", { x, y, width, height: kHeight, rx: 7, fill: slackColour(share, dark) }),
    svg("rect", { x, y, width: 5, height: kHeight, rx: 2, fill: css(kindColour(kBands[node.band], dark)) }), name, facts);
  return group;
}

function cut(text, length) {
  return text.length > length ? text.slice(0, length - 1) + "…" : text;
}

function slackWords(slack) {
  if (!Number.isFinite(slack)) return "";
  return slack * 1000 < 1 ? ", no slack" : `, slack ${duration(slack * 1000)}`;
}

function legend(dark) {
  const swatch = (colour, text) => el("span", {}, el("i", { style: { background: colour } }), text);
  return el("div", { class: "legend" }, swatch(slackColour(0, dark), "no slack: it sets the pace"), swatch(slackColour(0.2, dark), "some"),
    swatch(slackColour(1, dark), "an iteration or more"), swatch(slackColour(Infinity, dark), "bounds nothing"),
    el("span", {}, "— within an iteration"), el("span", { class: "dashed" }, "╌ to a later one: a slot that is freed, or what is left for the next"));
}
