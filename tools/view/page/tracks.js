// SPDX-License-Identifier: Apache-2.0

// Which rows the timeline shows, in which order: the host, then each device with its queues; learners of a device and
// threads of the host fold into one row. In a trace of several processes each has a host of its own.

import { takesTurns } from "./layout.js";
import { laneWords } from "../../page/names.js";

const kOrder = ["host", "copy_in", "compute", "averaging", "copy_out", "validate", "collectives"];
const kFoldFrom = 5;  // so many rows of a kind are folded at first

// [{ name, rows, kind, key, isOpen, turns, inner }]: a track with several rows has a key; if it is open, its rows
// follow it as tracks of their own (inner).
export function tracksOf(head, open) {
  const groups = new Map();
  const seen = new Map();  // rows of each lane so far
  head.rows.forEach(({ lane }, row) => {
    const { kind, device, name } = head.lanes[lane];
    const owner = device < 0 && name.includes("/") ? name.slice(0, name.lastIndexOf("/")) : "";
    const key = `${owner}${device}/${kind}`;
    const number = seen.get(lane) ?? 0;
    seen.set(lane, number + 1);
    if (!groups.has(key)) groups.set(key, { key, kind, device, owner, rows: [] });
    groups.get(key).rows.push({ row, lane, name: number === 0 ? name : `${name} (${number + 1} at once)` });
  });
  const sorted = [...groups.values()].sort((a, b) => {
    const place = (group) => (group.kind === "host" ? -1 : group.device < 0 ? 1e6 : group.device);
    return place(a) - place(b) || kOrder.indexOf(a.kind) - kOrder.indexOf(b.kind);
  });
  const tracks = [];
  for (const group of sorted) {
    if (group.rows.length === 1) {
      tracks.push({ name: group.rows[0].name, rows: [group.rows[0].row], kind: group.kind });
      continue;
    }
    const isOpen = open.get(group.key) ?? group.rows.length < kFoldFrom;
    const device = group.device < 0 ? group.owner : head.devices[group.device];
    const words = { host: "host threads", compute: "learners" }[group.kind] ?? laneWords(group.kind);
    tracks.push({ name: `${device ? device + " · " : ""}${group.rows.length} ${words}`, key: group.key, isOpen,
      rows: group.rows.map((one) => one.row), kind: group.kind, turns: takesTurns(head, group) });
    if (isOpen) for (const one of group.rows) tracks.push({ name: one.name, rows: [one.row], kind: group.kind, inner: true });
  }
  return tracks;
}
