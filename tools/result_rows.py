# SPDX-License-Identifier: Apache-2.0
"""Rows of the files in docs/results: judged, counted, and put in the place of earlier ones. For results and bench_wall."""
import datetime
import json
import math
import os
import statistics

FIELDS = ("page", "order", "title", "card", "date", "commit", "commands", "columns")
NONE = "–"  # a cell without a value
RATES = "Arbalest, images/s", "PyTorch, images/s"
PEAKS = "peak, GiB", "PyTorch's peak, GiB"
SETUPS = "set-up, s", "PyTorch's set-up, s"
WALL = ("model", "batch", *RATES, "ratio", *PEAKS, *SETUPS, "correct", "commit", "remark")
PEERS = {  # PyTorch's models; those of the other examples are torchvision's of the same name
    "example:vit_s16": "timm:vit_small_patch16_224", "keras:DenseNet121": "densenet121",
    "keras:EfficientNetB0": "efficientnet_b0", "keras:EfficientNetV2B0": "timm:tf_efficientnetv2_b0",
    "keras:InceptionV3": "inception_v3", "keras:MobileNetV2": "mobilenet_v2",
    "keras:MobileNetV3Small": "mobilenet_v3_small", "keras:ResNet50": "resnet50",
    "keras:ResNet50V2": "timm:resnetv2_50", "keras:VGG16": "vgg16", "keras:Xception": "timm:legacy_xception",
}


class Wrong(Exception):
    pass


def peer_of(model):
    return PEERS.get(model, model.removeprefix("example:"))


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
    """The head and the rows. Raises Wrong where a row does not have the columns that the head states."""
    head, rows = read_lines(path)
    own = [column for column in head["columns"] if column not in head.get("judged", [])]
    for number, row in enumerate(rows, 2):
        if set(row) != set(own):
            raise Wrong(f"{path.name}: line {number} has {', '.join(row)}; expected {', '.join(own)}")
    return head, rows


def write(path, head, rows):
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [head, *rows]))
    os.replace(partial, path)


def read_wall(path):
    head, rows = read(path)
    if head["columns"] != list(WALL):
        raise Wrong(f"{path.name}: has the columns {', '.join(head['columns'])}; expected {', '.join(WALL)}")
    return head, rows


def beyond(cell, limit):
    """Whether a cell such as "6.2e-06 (5.5e-03) / 4.2e-03", an error and then the other framework's own, is over both the
    limit and three times the other's. Brackets have the worst of what the error is the median of."""
    if cell == NONE:
        return False
    found, *own = (float(part.split()[0]) for part in cell.split(" / "))
    return not found <= max([limit, *(3 * each for each in own)])


def verdicts(files):
    """By model: "yes", or the quantities that differ. The head of a file that compares models has a limit by column."""
    faults = {}
    for head, rows in files:
        for row in rows if "limits" in head else []:
            faults.setdefault(row["model"], []).extend(
                column.split(",")[0].split(" / ")[0] for column, limit in head["limits"].items() if beyond(row[column], limit))
    return {model: ", ".join(dict.fromkeys(found)) or "yes" for model, found in faults.items()}


def verdict(model, found):
    """An example is the model of the same name; a Keras model has been compared with Keras."""
    return found.get(peer_of(model) if model.startswith("example:") else model, NONE)


def is_number(cell):
    return isinstance(cell, (int, float))


def rank(row):
    """Worst first: what Arbalest refused, then by ratio, then what only PyTorch refused."""
    return row["ratio"] if is_number(row["ratio"]) else 0 if row[RATES[0]] == NONE else math.inf, row["model"], row["batch"]


def wall_row(measured, commit, card=""):
    """A row of the wall from a line of bench_wall's. The remark says what failed, and what is not as in the other rows."""
    def cell(side, key, unit=1, digits=2):
        found = measured[side].get(key)
        return NONE if found is None else round(found / unit, digits)

    def rate(side):
        found = cell(side, "images_per_second")
        return round(found) if is_number(found) and found >= 100 else found

    sides = {"arbalest": "Arbalest", "torch": "PyTorch"}
    failed = [f"{name}: {' '.join(measured[side]['error'].split())[-120:]}".replace("|", "/")
              for side, name in sides.items() if "error" in measured[side]]
    mode = measured["torch"].get("mode", "compile-ro")
    remarks = [card] * bool(card) + [f"PyTorch's mode {mode}"] * (mode != "compile-ro") + failed
    ratio = round(measured["ratio"], 2) if "ratio" in measured else NONE
    cells = [measured["model"], measured["batch"], *map(rate, sides), ratio,
             *(cell(side, "peak_bytes", 2**30) for side in sides), *(cell(side, "setup_seconds", 1, 1) for side in sides),
             commit, "; ".join(remarks)]
    return dict(zip([column for column in WALL if column != "correct"], cells))


def place(path, row):
    """Puts the row into the wall: in place of that of the same model and batch, by ratio. A row that lacks one stays out
    where one with a ratio is, since it tells less. Returns whether it was put there."""
    head, rows = read_wall(path)
    same = [r for r in rows if (r["model"], r["batch"]) == (row["model"], row["batch"])]
    if same and is_number(same[0]["ratio"]) and not is_number(row["ratio"]):
        return False
    began, today = head["date"].split(" to ")[0], datetime.date.today().isoformat()
    head["date"] = began if began == today else f"{began} to {today}"
    write(path, head, sorted([r for r in rows if r not in same] + [row], key=rank))
    return True


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
