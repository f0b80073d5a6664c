#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A long trace made of a short one: long_trace.py TRACE OUT INSTANCES

The run is repeated, each time with other durations (up to a fifth shorter, so that nothing overlaps that did not),
until the trace has so many task instances. For the browser test, and for trying the viewer with more than a run here
records.
"""
import gzip
import json
import random
import sys


def read(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)["traceEvents"]


def main():
    source, out, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
    events = read(source)
    record = next(event for event in events if event["ph"] == "M" and event["name"] == "arbalest")
    plan = record["args"]["plan"]
    tasks = [event for event in events if event.get("cat") == "task"]
    turns = -(-wanted // len(tasks))
    length = max(event["ts"] + event["dur"] for event in tasks) + 1
    ticks = [clock["ticks"] for clock in plan["clocks"]]
    for clock in plan["clocks"]:
        clock["ticks"] *= turns
    chance = random.Random(1)
    with gzip.open(out, "wt", encoding="utf-8", compresslevel=1) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        file.write(json.dumps(record))
        for turn in range(turns):
            for event in tasks:
                task, at = event["args"]["task"], turn * length
                early = event["dur"] * 0.1 * chance.random()
                args = {"task": task,
                        "iteration": event["args"]["iteration"] + turn * ticks[plan["tasks"][task]["clock"]]}
                for moment in ("ready", "issued"):
                    if moment in event["args"]:
                        args[moment] = round(event["args"][moment] + at - 0.2 * chance.random() * (turn > 0), 3)
                file.write(',\n{"ph":"X","cat":"task","name":"","pid":1,"tid":1,"ts":%.3f,"dur":%.3f,"args":%s}' % (
                    event["ts"] + at + early, (event["dur"] - early) * (0.9 + 0.1 * chance.random()), json.dumps(args)))
        file.write("\n]}\n")


main()
