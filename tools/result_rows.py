# SPDX-License-Identifier: Apache-2.0
"""Rows of the files in docs/results: judged, counted, and put in the place of earlier ones. For results,
bench_wall and tests/pytorch/models.py."""
import datetime
import json
import math
import os
import pathlib
import statistics

from wall_models import peer_of

FIELDS = ("page", "order", "title", "card", "date", "commit", "commands", "columns")
NONE = "–"  # a cell without a value
RATES = "Arbalest, images/s", "PyTorch, images/s"
PEAKS = "peak, GiB", "PyTorch's peak, GiB"
SETUPS = "set-up, s", "PyTorch's set-up, s"
COMPARED = ("model", "logits", "gradients, median (worst) / PyTorch", "losses of ten steps / PyTorch",
            "export in onnxruntime", "loss, first → tenth", "commit", "card")
WALL = ("model", "batch", *RATES, "ratio", *PEAKS, *SETUPS, "correct", "commit", "remark")


class Wrong(Exception):
    pass


def read_lines(path):
    """The head and the rows, whatever these have."""
    try:
        head, *rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except ValueError as error:
        raise Wrong(f"{path.name}: {error}; expected JSON lines, the first of which says what was measured") from None
    missing = [field for field in FIELDS if field not in head]
    if missing:
        raise Wrong(f"{path.name}: line 1 lacks {', '.join(missing)}")
    return head, rows


def read(path):
    """The head and the rows. Raises Wrong where a row does not have the columns that the head states, or the wall two
    of one model and batch."""
    head, rows = read_lines(path)
    own = [column for column in head["columns"] if column not in head.get("judged", [])]
    for number, row in enumerate(rows, 2):
        if set(row) != set(own):
            raise Wrong(f"{path.name}: line {number} has {', '.join(row)}; expected {', '.join(own)}")
    if head.get("counted"):
        keys = [(row["model"], row["batch"]) for row in rows]
        twice = [number for number, key in enumerate(keys, 2) if key in keys[: number - 2]]
        if twice:
            row_of = " at batch ".join(map(str, keys[twice[0] - 2]))
            raise Wrong(f"{path.name}: line {twice[0]} is another row of {row_of}")
    return head, rows


def write(path, head, rows):
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [head, *rows]))
    os.replace(partial, path)


def put(path, row, keys, order=None):
    """Puts the row in the place of that with the same values of `keys`, or after all, then in order. The head's date
    becomes one from the first row to the last."""
    head, rows = read(path)
    same = [i for i, other in enumerate(rows) if all(other[key] == row[key] for key in keys)]
    at = same[0] if same else len(rows)
    rows[at : at + len(same)] = [row]
    began, today = head["date"].split(" to ")[0], datetime.date.today().isoformat()
    head["date"] = began if began == today else f"{began} to {today}"
    write(path, head, sorted(rows, key=order) if order else rows)


def declare_into(parser):
    parser.add_argument("--into", type=pathlib.Path, metavar="FILE", help="the results file that takes the rows")
    parser.add_argument("--commit", help="of ARBALEST, for --into")
    parser.add_argument("--card", default="", help="for --into, if it is not what the file's first line names")


def check_into(parser, options, columns):
    """Ends the program, before it measures, where put() would fail."""
    if not options.into:
        if options.commit or options.card:
            parser.error("--commit and --card: found no --into, expected the file whose rows they are for")
        return
    if not options.commit:
        parser.error("--into: found no --commit, expected that of ARBALEST")
    try:
        head, _ = read(options.into)
    except (Wrong, OSError) as error:
        parser.error(f"--into: {error}")
    if head["columns"] != list(columns):
        parser.error(f"--into: {options.into.name} has the columns {', '.join(head['columns'])}; "
                     f"expected {', '.join(columns)}")


def beyond(cell, limit):
    """Whether a cell such as "6.2e-06 (5.5e-03) / 4.2e-03", an error and then the other framework's own, is over both
    the limit and three times the other's. Brackets have the worst of what the error is the median of."""
    if cell == NONE:
        return False
    found, *own = (float(part.split()[0]) for part in cell.split(" / "))
    return not found <= max([limit, *(3 * each for each in own)])


def verdicts(files):
    """By model: "yes", or the quantities that differ. The head of a file that compares models has a limit by column."""
    faults = {}
    for head, rows in files:
        limits = head.get("limits", {})
        for row in rows:
            if all(row[column] == NONE for column in limits):
                continue
            faults.setdefault(row["model"], []).extend(
                column.split(",")[0].split(" / ")[0] for column, limit in limits.items() if beyond(row[column], limit))
    return {model: ", ".join(dict.fromkeys(found)) or "yes" for model, found in faults.items()}


def verdict(model, found):
    """An example is the model of the same name; a Keras model has been compared with Keras."""
    return found.get(peer_of(model) if model.startswith("example:") else model, NONE)


def is_number(cell):
    return isinstance(cell, (int, float))


def rank(row):
    """Worst first: what Arbalest refused, then by ratio, then what only PyTorch refused."""
    unmeasured = 0 if row[RATES[0]] == NONE else math.inf
    return row["ratio"] if is_number(row["ratio"]) else unmeasured, row["model"], row["batch"]


def wall_row(found, commit, card=""):
    """A row of the wall from a line of bench_wall's. The remark says what failed or differs from the other rows."""
    def cell(side, key, unit=1, digits=2):
        value = found[side].get(key)
        return NONE if value is None else round(value / unit, digits)

    def rate(side):
        value = cell(side, "images_per_second")
        return round(value) if is_number(value) and value >= 100 else value

    sides = {"arbalest": "Arbalest", "torch": "PyTorch"}
    failed = [f"{name}: {' '.join(found[side]['error'].split())[-120:]}".replace("|", "/")
              for side, name in sides.items() if "error" in found[side]]
    mode = found["torch"].get("mode", "compile-ro")
    remarks = [card] * bool(card) + [f"PyTorch's mode {mode}"] * (mode != "compile-ro") + failed
    ratio = round(found["ratio"], 2) if "ratio" in found else NONE
    cells = [found["model"], found["batch"], *map(rate, sides), ratio,
             *(cell(side, "peak_bytes", 2**30) for side in sides),
             *(cell(side, "setup_seconds", 1, 1) for side in sides), commit, "; ".join(remarks)]
    return dict(zip([column for column in WALL if column != "correct"], cells))


def measured(path):
    return {(row["model"], row["batch"]) for row in read(path)[1] if is_number(row["ratio"])}


def place(path, row):
    """Puts the row into the wall. One without a ratio tells less than one with a ratio, and does not take its place."""
    if is_number(row["ratio"]) or (row["model"], row["batch"]) not in measured(path):
        put(path, row, ("model", "batch"), rank)


def counts(rows):
    """The wall by batch, as columns and rows of a small table."""
    found = []
    for batch in sorted({row["batch"] for row in rows}, reverse=True):
        these = [row for row in rows if row["batch"] == batch]
        ratios = [row["ratio"] for row in these if is_number(row["ratio"])]
        large = [row["model"] for row in these
                 if all(is_number(row[peak]) for peak in PEAKS) and row[PEAKS[0]] > 1.05 * row[PEAKS[1]]]
        judged = [row["correct"] for row in these if row["correct"] != NONE]
        found.append({
            "batch": batch, "models": len(these), "ratios": len(ratios),
            "median": statistics.median(ratios) if ratios else NONE,
            "at least 1.15": sum(ratio >= 1.15 for ratio in ratios), "below 1": sum(ratio < 1 for ratio in ratios),
            "least": min(ratios, default=NONE), "peaks more than 5 % above PyTorch's": ", ".join(large) or 0,
            "compared": len(judged), "correct": judged.count("yes")})
    return found
