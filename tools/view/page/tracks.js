// SPDX-License-Identifier: Apache-2.0

// Which rows the timeline shows, in which order: the host, then each device with its queues; learners of a device and
// threads of the host fold into one row. A trace of several processes has a heading for each, which is called after its
// host and folds all of its rows. Several processes of one host stand under a heading of the host.

import { takesTurns } from "./layout.js";
import { duration, laneWords, processOf } from "../../page/names.js";

const kOrder = ["host", "copy_in", "compute", "averaging", "copy_out", "validate", "collectives"];
const kFoldFrom = 5;  // so many rows of a kind, or processes or hosts after the first, are folded at first

// The process that a lane belongs to, as devices are called after it; "": the trace has one process.
export function ownerOf(head, { device, name }) {
  return processOf(device < 0 ? name : head.devices[device]);
}

// [{ name, rows, kind, key, isOpen, turns, inner, depth, note, owners }]: a track with several rows has a key; if it is
// open, its rows follow it as tracks of their own (inner). The heading of a host or process has no rows while it is
// open. While it is folded it has those of all its processes, which `owners` names.
export function tracksOf(head, open) {
  const owners = new Map();  // rows of each process, of ranks in order
  const seen = new Map();    // rows of each lane so far
  head.rows.forEach(({ lane }, row) => {
    const owner = ownerOf(head, head.lanes[lane]);
    const number = seen.get(lane) ?? 0;
    seen.set(lane, number + 1);
    if (!owners.has(owner)) owners.set(owner, []);
    owners.get(owner).push({ row, lane, number });
  });
  if (owners.size < 2) return [...owners].flatMap(([, rows]) => processTracks(head, open, "", rows, 0));
  const processes = [...owners].map(([owner, rows], place) => ({ owner, rows, place }));
  const hosts = new Map();
  for (const process of processes) {
    const device = head.devices.findIndex((name) => processOf(name) === process.owner), host = head.hosts?.[device] ?? process.owner;
    hosts.set(host, [...(hosts.get(host) ?? []), process]);
  }
  const processHeading = (process, depth) => {
    const { owner, rows, place } = process, isOpen = open.get(`process ${owner}`) ?? (place === 0 || processes.length < kFoldFrom);
    return [heading("process", owner, [process], isOpen, depth, clockNote(head, place)), ...(isOpen ? processTracks(head, open, owner, rows, depth + 1) : [])];
  };
  return [...hosts.values()].flatMap((ofHost, place) => {
    if (ofHost.length === 1) return processHeading(ofHost[0], 0);
    const name = hostName(ofHost[0].owner), isOpen = open.get(`host ${name}`) ?? (place === 0 || hosts.size < kFoldFrom);
    return [heading("host", name, ofHost, isOpen, 0, ""), ...(isOpen ? ofHost.flatMap((process) => processHeading(process, 1)) : [])];
  });
}

function heading(of, name, processes, isOpen, depth, note) {
  return { name, key: `${of} ${name}`, isOpen, kind: "process", depth, note, owners: isOpen ? [] : processes.map(({ owner }) => owner),
    rows: isOpen ? [] : processes.flatMap(({ rows }) => rows.map(({ row }) => row)) };
}

// The host of one of several processes: "node07" of "node07.3".
function hostName(owner) {
  return owner.replace(/\.\d+$/, "");
}

// How far the times of a process may be off.
function clockNote(head, place) {
  const error = head.run?.clock_error ?? 0;
  return place === 0 || error <= 0 ? "" : `times to within ${duration(error)} of the first process's clock`;
}

// The tracks of one process, whose name is left out of theirs.
function processTracks(head, open, owner, rows, depth) {
  const own = (name) => (owner && name.startsWith(`${owner}/`) ? name.slice(owner.length + 1) : name);
  const groups = new Map();
  for (const { row, lane, number } of rows) {
    const { kind, device, name } = head.lanes[lane];
    const key = `${owner}${device}/${kind}`;
    if (!groups.has(key)) groups.set(key, { key, kind, device, rows: [] });
    groups.get(key).rows.push({ row, name: own(number === 0 ? name : `${name} (${number + 1} at once)`) });
  }
  const sorted = [...groups.values()].sort((a, b) => {
    const place = (group) => (group.kind === "host" ? -1 : group.device < 0 ? 1e6 : group.device);
    return place(a) - place(b) || kOrder.indexOf(a.kind) - kOrder.indexOf(b.kind);
  });
  const tracks = [];
  for (const group of sorted) {
    if (group.rows.length === 1) {
      tracks.push({ name: group.rows[0].name, rows: [group.rows[0].row], kind: group.kind, depth });
      continue;
    }
    const isOpen = open.get(group.key) ?? group.rows.length < kFoldFrom;
    const device = group.device < 0 ? "" : own(head.devices[group.device]);
    const words = { host: "host threads", compute: "learners" }[group.kind] ?? laneWords(group.kind);
    tracks.push({ name: `${device ? device + " · " : ""}${group.rows.length} ${words}`, key: group.key, isOpen, depth,
      rows: group.rows.map((one) => one.row), kind: group.kind, turns: takesTurns(head, group) });
    if (isOpen) for (const one of group.rows) tracks.push({ name: one.name, rows: [one.row], kind: group.kind, inner: true, depth });
  }
  return tracks;
}
