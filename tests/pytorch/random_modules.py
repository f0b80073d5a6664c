#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random modules of PyTorch, by seed, compared as kinds.py compares its models: what no list of models names.

    tests/pytorch/random_modules.py ARBALEST [--seeds 0:100] [--exporters older,newer] [--folder FOLDER] [--jsonl FILE]

A module is made step by step. A row of random_rows.py is drawn, filled in and run; it is kept if it runs and its result
is a value worth going on with (Draft.admit):
  - finite, not huge, and of samples that stay apart: exchanged samples give exchanged results along one axis, which is
    the batch's. It need not be the first one.
  - smooth there: all gradients stay the same when every value is nudged. So no kink, tie or jump lies within rounding.
A case that fails is shrunk while it fails in the same way: an earlier value becomes the output, a step becomes an
input. It is printed as PyTorch code. The exit status is 1 where numbers differ; a refusal is none.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import warnings

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import nn
from torch.onnx._internal.exporter._registration import ONNXRegistry
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import random_rows
from kinds import Comparison, drawn, quiet
from kinds_models import CASES, SAMPLES

LIMITS = {"gradients": 1e-4, "one gradient": 1e-3, "losses": 1e-4, "export": 1e-4}
NUDGE, SMOOTH = 1e-6, 3e-5  # relative changes: of each value, and the largest that gradients may then show
LETTERS = re.compile(r"(?<![\w.'\"])([xyzkb])\b(?!\s*=[^=])")


def P(*shape):
    return nn.Parameter(torch.randn(*shape) * 0.5)


def assigned(x, index, value):
    x = x.clone()
    x[index] = value
    return x


ONNXRUNTIME = """
import sys
import numpy, onnxruntime
from safetensors.numpy import load_file
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
inputs = load_file(sys.argv[2])
numpy.save(sys.argv[3], session.run(None, {x.name: inputs[x.name] for x in session.get_inputs()})[0])
"""
UNTOLD = "detach", "padding_idx"  # of which files of the older exporter have no trace
ROWS = random_rows.all_rows()
WORDS = {"torch": torch, "nn": nn, "F": F, "math": math, "P": P, "assigned": assigned, "weight_norm": weight_norm,
         "spectral_norm": spectral_norm}


@dataclasses.dataclass(frozen=True)
class Step:
    names: tuple  # of its results
    made: str  # the module's attribute, or nothing
    code: str
    uses: tuple  # names of values

    @property
    def member(self):
        return f"m_{self.names[0]}"

    def text(self):
        return self.code.replace("$", f"self.{self.member}")


def several(result):
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


class Net(nn.Module):
    """The steps, each with an attribute of its own numbers, whatever other steps there are."""

    def __init__(self, case):
        super().__init__()
        self.case = case
        for step in case.steps:
            self.add(step)

    def add(self, step):
        if step.made:
            torch.manual_seed(int(step.names[0][1:]))
            made = eval(step.made, dict(WORDS))
            setattr(self, step.member, made)
            with torch.no_grad():  # ones and zeros hide faults, and samples that lie along the axis of a parameter
                for p in made.parameters() if isinstance(made, nn.Module) else []:
                    p += 0.1 * torch.randn_like(p)

    def forward(self, *inputs):
        values = dict(zip(self.case.fields, inputs))
        for step in self.case.steps:
            values.update(zip(step.names, several(eval(step.text(), {**WORDS, **values, "self": self}))))
        out = tuple(values[name] for name in self.case.outputs)
        return out[0] if len(out) == 1 else out


@dataclasses.dataclass
class Case:
    fields: dict  # shapes as in kinds_models.py
    steps: list
    outputs: list
    loss: str = "numbers"

    def pruned(self):
        needed, steps = set(self.outputs), []
        for step in reversed(self.steps):
            if needed & set(step.names):
                needed |= set(step.uses)
                steps.insert(0, step)
        fields = {name: shape for name, shape in self.fields.items() if name in needed}
        return dataclasses.replace(self, steps=steps, fields=fields)

    def size(self):
        return sum(not whole_scale(step, self.fields) for step in self.steps), len(self.outputs), self.loss != "numbers"

    def text(self):
        lines = ["class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += [f"        self.{s.member} = {s.made}" for s in self.steps if s.made]
        lines += ["", f"    def forward(self, {', '.join(self.fields)}):"
                      f"  # {self.fields}, {SAMPLES} samples, {self.loss}"]
        lines += [f"        {', '.join(s.names)} = {s.text()}" for s in self.steps]
        return "\n".join([*lines, f"        return {', '.join(self.outputs)}"])


def whole_scale(step, fields):
    """The step by which a field gets a gradient that shows in a parameter."""
    return bool(step.made) and step.uses and step.uses[0] in fields and step.code == f"{step.uses[0]} * $"


class Draws(random.Random):
    """The words of the rows' braces."""

    n = random.Random.randint

    def pick(self, *choices):
        return self.choice(choices)

    def flag(self):
        return self.random() < 0.5

    def divisor(self, n):
        return self.choice([d for d in range(1, n + 1) if n % d == 0])

    def picks(self, n):
        return [self.randrange(n) for _ in range(self.n(1, 3))]

    def factored(self, shape):
        """The extents in other groups: two axes joined, or one divided."""
        shape = list(shape)
        at = self.randrange(1, len(shape))
        if len(shape) > 2 and at + 1 < len(shape) and self.flag():
            return (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2:])
        part = self.divisor(shape[at])
        return (*shape[:at], shape[at] // part, part, *shape[at + 1:])

    def einsum(self, shape):
        """A parameter's shape and an equation with the value that has this shape."""
        own = "nABCDEF"[:len(shape)]
        other = self.sample(own[1:], self.n(1, len(own) - 1)) + self.sample("PQ", self.n(0, 2))
        self.shuffle(other)
        kept = [c for c in {**dict.fromkeys(own[1:]), **dict.fromkeys(other)} if self.flag()]
        self.shuffle(kept)
        extents = dict(zip(own, shape))
        return (f"P({', '.join(str(extents.get(c, self.n(2, 3))) for c in other)})",
                f"{own},{''.join(other)}->n{''.join(kept)}")

    def words(self, s):
        axes = [*range(1, len(s))]
        i = self.choice(axes) if axes else None
        perm = self.sample(axes, len(axes))
        words = {"r": self, "s": tuple(s), "d": len(s) - 2, "last": s[-1], "i": i,
                 "linear": "linear bilinear trilinear".split()[max(0, min(len(s) - 3, 2))]}
        if not axes:
            return words
        letters = "nABCDEF"[:len(s)]
        return {**words, "i": i if self.flag() else i - len(s), "j": self.choice([a for a in axes if a != i] or axes),
                "c": s[1], "g": self.divisor(s[1]), "axes": tuple(self.sample(axes, self.n(1, len(axes)))),
                "perm": (0, *perm), "picks": self.picks(s[i]), "repeats": (1, *(self.n(1, 2) for _ in axes)),
                "factored": self.factored(s), "along": (*([1] * i), s[i], *([1] * (len(s) - 1 - i))),
                "ein": self.einsum(s),
                "self_ein": f"{letters},{letters}->n{''.join(a for a in letters[1:] if self.flag())}"}


class Draft:
    """A module that grows, run in double on a batch: as it is, nudged, and with its samples exchanged."""

    def __init__(self, seed):
        self.r = Draws(seed)
        self.first = ROWS[seed % len(ROWS)]
        self.case = Case(self.drawn_fields(), [], [])
        self.net = Net(self.case)
        self.order = torch.tensor([2, 0, 3, 1])[:SAMPLES]
        self.noise = torch.Generator().manual_seed(seed)
        inputs = {name: torch.from_numpy(x) for name, x in drawn(self.case.fields).items()}
        inputs = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
        self.values = [dict(inputs), dict(inputs), {name: x[self.order] for name, x in inputs.items()}]
        self.axis = {name: 0 for name in inputs}
        for name, x in inputs.items():
            if x.is_floating_point():
                self.attempt(0, "P(*{s[1:]}) | x * $", name)

    def drawn_fields(self):
        def shape(rank):
            extents = tuple(self.r.n(2, self.r.pick(5, 8))
                            for _ in range(rank - 1 if rank else self.r.pick(1, 2, 2, 3, 3, 4)))
            return extents if math.prod(extents) < 600 else tuple(min(n, 4) for n in extents)

        fields = {"a": shape(self.first[0])}
        if self.r.random() < 0.4:
            fields["e"] = fields["a"] if self.r.flag() else shape(0)
        if self.r.random() < 0.3:
            fields["w"] = (shape(self.r.n(1, 3)), self.r.n(2, 9))
        return fields

    def operand(self, letter, like):
        kinds = {"k": lambda v: not v.is_floating_point() and v.dtype != torch.bool,
                 "b": lambda v: v.dtype == torch.bool}
        kind = kinds.get(letter, lambda v: v.is_floating_point())
        names = [name for name, v in self.values[0].items()
                 if kind(v) and name not in self.case.fields or kind(v) and letter == "k"]
        same = [name for name in names if like is not None and self.values[0][name].shape == like.shape]
        if same and self.r.random() < 0.7:
            return self.r.choice(same)
        return names[-1] if self.r.random() < 0.6 else self.r.choice(names)

    def attempt(self, rank, row, first=None):
        """Whether the row became a step."""
        made, _, code = row.rpartition(" | ")
        letters = list(dict.fromkeys(LETTERS.findall(code)))
        for letter, makers in (("k", random_rows.WHOLE), ("b", random_rows.FLAGS)):
            if letter in letters and self.r.random() < 0.3:
                self.attempt(0, self.r.choice([maker for maker in makers if maker.startswith(("x", "(x"))]))
        names = {}
        for letter in letters:
            like = self.values[0][names[letters[0]]] if names else None
            names[letter] = first or self.operand(letter, like)
        s = self.values[0][names[letters[0]]].shape
        if rank and len(s) != rank:
            return False
        words = self.r.words(s)
        if "k" in names:
            words["top"] = int(self.values[0][names["k"]].max()) + 1
        fill = lambda text: eval(f'f"""{text} """', words).strip()
        made, code = fill(made), LETTERS.sub(lambda match: names[match[1]], fill(code))
        at = len(self.values[0])
        step = Step((f"v{at}",), made, code, tuple(names.values()))
        self.net.add(step)
        quiet(self.net.double())
        results = [several(self.evaluate(step, values)) for values in self.values]
        step = dataclasses.replace(step, names=tuple(f"v{at + n}" for n in range(len(results[0]))))
        kept = self.admit(step, results)
        if kept:
            self.case.steps.append(step)
        elif made:
            delattr(self.net, step.member)
        return kept

    def evaluate(self, step, values):
        return eval(step.text(), {**WORDS, **values, "self": self.net})

    def admit(self, step, results):
        axes, nudged = {}, []
        for name, plain, other, turned in zip(step.names, *results):
            if not isinstance(plain, torch.Tensor) or not 0 < plain.numel() <= 20000 or plain.dim() > 6:
                return False
            exchanged = lambda a: torch.allclose(plain.index_select(a, self.order).double(), turned.double(),
                                                 1e-6, 1e-9)
            axes[name] = next((a for a, n in enumerate(plain.shape)
                               if n == SAMPLES and turned.shape == plain.shape and exchanged(a)), None)
            if axes[name] is None:
                return False
            if plain.is_floating_point():
                rms = plain.detach().square().mean().sqrt()
                if not plain.isfinite().all() or not 1e-2 < rms < 30 or not plain.abs().max() < 300:
                    return False
                other = other + NUDGE * rms * torch.randn(other.shape, generator=self.noise, dtype=other.dtype)
                if not self.smooth(plain, other):
                    return False
            elif not torch.equal(plain, other):
                return False
            nudged.append(other)
        for values, new in zip(self.values, (results[0], nudged, results[2])):
            values.update(zip(step.names, new))
        self.axis.update(axes)
        return True

    def gradients(self, value):
        if not value.requires_grad:
            return []
        weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=value.dtype)
        weights = weights / math.sqrt(value.numel())
        found = torch.autograd.grad((value * weights).sum(), list(self.net.parameters()), retain_graph=True,
                                    allow_unused=True)
        return [g for g in found if g is not None]

    def smooth(self, plain, other):
        found, nudged = self.gradients(plain), self.gradients(other)
        least = 0.03 * math.sqrt(sum(g.square().sum() for g in found))
        return all((a - b).norm() <= SMOOTH * max(a.norm(), least) for a, b in zip(found, nudged))

    def grow(self):
        for _ in range(400):
            if len(self.case.steps) >= self.steps:
                return
            rank = self.r.choice([0, 0, self.values[0][next(reversed(self.values[0]))].dim()])
            self.tried(self.r.choice([row for row in ROWS if row[0] == rank] or ROWS))

    def tried(self, row):
        with contextlib.suppress(Exception):  # does not fit
            return self.attempt(*row)

    def finished(self):
        self.steps = self.r.n(6, 16)
        any(self.tried(self.first) for _ in range(60))
        self.grow()
        trained = [name for name, v in self.values[0].items() if v.is_floating_point() and any(
            g.norm() > 1e-4 for g in self.gradients(v)) and v.numel() < 5000]
        outputs = trained[-1:] + ([self.r.choice(trained)] if self.r.random() < 0.15 else [])
        for n, name in enumerate(outputs):
            if self.axis[name] != 0:
                self.case.steps.append(Step((f"v{1000 + n}",), "", f"{name}.movedim({self.axis[name]}, 0)", (name,)))
                outputs[n] = f"v{1000 + n}"
        loss = "numbers"
        shape = self.values[0][trained[-1]].shape
        if len(shape) > 1 and outputs[0] in trained and self.r.random() < 0.4:
            loss = "classes" if len(shape) == 2 else self.r.pick("places", "tokens")
            loss = loss if shape[-1 if loss == "tokens" else 1] > 1 else "numbers"
        return dataclasses.replace(self.case, outputs=list(dict.fromkeys(outputs)), loss=loss).pruned()


@contextlib.contextmanager
def silent():
    """Nothing reaches the terminal, from libraries either: the older exporter prints graphs."""
    kept, nothing = [os.dup(fd) for fd in (1, 2)], os.open(os.devnull, os.O_WRONLY)
    try:
        for fd in (1, 2):
            os.dup2(nothing, fd)
        yield
    finally:
        for fd, old in zip((1, 2), kept):
            os.dup2(old, fd)
            os.close(old)
        os.close(nothing)


class RandomComparison(Comparison):
    exported_last = None  # the case in the folder's file

    def __init__(self, options, case, exporter):
        CASES["random"] = (lambda: Net(case), case.fields, case.loss)
        self.case = case
        if exporter == "older":
            self.exported_samples = SAMPLES - 1  # its files have an open batch
        super().__init__(options, "random", exporter)

    def buffers(self):
        model, loss = self.in_torch(torch.float64)
        loss(model).backward()
        kept = {x.name for x in onnx.load(self.folder / "model.onnx").graph.initializer}
        return super().buffers() + [name for name, p in model.named_parameters() if p.grad is None and name in kept]

    def exporter_error(self):
        """How far the exported file is from PyTorch where onnxruntime computes it, over the largest number."""
        found = self.folder / "found.npy"
        done = subprocess.run([sys.executable, "-c", ONNXRUNTIME, self.folder / "model.onnx",
                               self.folder / "train.safetensors", found],
                              capture_output=True, text=True)  # it may crash
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or ["onnxruntime crashed"])[-1][:200]
        found = torch.from_numpy(np.load(found))
        with torch.no_grad():
            expected = several(self.make()(*self.tensors(torch.float32)))[0]
        if found.shape != expected.shape:
            return "another shape"
        return float((found - expected).abs().max() / expected.abs().max())

    def in_torch(self, dtype):
        model, loss = super().in_torch(dtype)

        def whole(model):
            torch.set_default_dtype(dtype)
            try:
                return loss(model)
            finally:
                torch.set_default_dtype(torch.float32)
        return model, whole

    def export_from_torch(self):
        text = self.case.text() + self.exporter
        if RandomComparison.exported_last != text:
            RandomComparison.exported_last = None
            super().export_from_torch()
            RandomComparison.exported_last = text
        return ["--model", self.folder / "model.onnx"]

    def exports(self):
        untold = any(word in step.made + step.code for step in self.case.steps for word in UNTOLD)
        if self.exporter == "older" and untold:
            return False
        try:
            with silent():
                self.export_from_torch()
            return True
        except Exception:
            return False

    def row(self):
        with silent():
            row = super().row()
        # If PyTorch's own gradients in fp32 are rounding alone, no gradient is other than 0.
        if not row.get("gradients", (0, 0))[1] < 0.1:
            return {"model": row["model"], "exporter": row["exporter"], "outcome": "no gradient"}
        if row.get("expected", 0) > 10 * row.get("first", 0):  # training diverges: gradients are what is compared
            row["over"] = [key for key in row.pop("over", []) if key not in ("losses", "export")]
            row = row if row["over"] else {key: value for key, value in row.items() if key != "over"}
        if row.get("missing"):
            row["over"] = [*row.get("over", []), "missing"]
        if "over" in row or "refused" in row:
            row["exporter's error"] = self.exporter_error()
        return row


def kind_of(row):
    """The way in which a case failed, or nothing."""
    if "over" in row:
        return "over"
    text = re.sub(r"'[^']*'|\d+|\[[^]]*\]", "", row.get("refused", ""))
    return text.split("error")[-1][:90]


def exportable(case, values, exports):
    """The case up to its last value that is exported, or nothing. Steps after the first that is not are left out."""
    if exports(case):
        return case
    heads = [dataclasses.replace(case, outputs=[name], loss="numbers").pruned()
             for step in case.steps for name in step.names
             if values[name].requires_grad and values[name].shape[:1] == (SAMPLES,)]
    low, high = 0, len(heads)  # those before low are
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if exports(heads[middle]) else (low, middle)
    return heads[low - 1] if low else None


def shrunk(case, values, still_fails):
    def candidates(case):
        for step in case.steps:
            for name in step.names:
                if values[name].is_floating_point() and name not in case.outputs:
                    yield dataclasses.replace(case, outputs=[name], loss="numbers")
        for name in case.outputs:
            yield dataclasses.replace(case, outputs=[name])
        yield dataclasses.replace(case, loss="numbers")
        for at in reversed(range(len(case.steps))):
            step, name = case.steps[at], case.steps[at].names[0]
            value = values[name]
            if len(step.names) == 1 and value.shape[:1] == (SAMPLES,) and not whole_scale(step, case.fields):
                field, extents = f"f{name[1:]}", tuple(value.shape[1:])
                if value.is_floating_point() and extents:
                    new = Step((name,), f"P({', '.join(map(str, extents))})", f"{field} * $", (field,))
                    yield dataclasses.replace(case, fields={**case.fields, field: extents}, steps=[
                        *case.steps[:at], new, *case.steps[at + 1:]])

    progress = True
    while progress:
        progress = False
        for candidate in candidates(case):
            candidate = candidate.pruned()
            if candidate.fields and candidate.size() < case.size() and still_fails(candidate):
                case, progress = candidate, True
                break
    return case


def values_of(case):
    inputs = {name: torch.from_numpy(x) for name, x in drawn(case.fields).items()}
    net = quiet(Net(case))
    for step in case.steps:
        inputs.update(zip(step.names, several(eval(step.text(), {**WORDS, **inputs, "self": net}))))
    return inputs


def judged(options, case, exporter, known):
    """The case's row, with the code of the smallest that fails so. Refusals whose text is known are not shrunk."""
    comparison = lambda case: RandomComparison(options, case, exporter)
    whole, values = case, values_of(case)
    case = exportable(case, values, lambda head: comparison(head).exports())
    if case is None:
        return {"outcome": "not exported"}
    row = comparison(case).row()
    failed = kind_of(row)
    theirs = row.get("exporter's error")  # text: onnxruntime does not run the file either
    outcome = "agreed" if not failed else "file at fault" if isinstance(theirs, str) or (theirs or 0) > 1e-3 else (
        "over" if failed == "over" else "refused")
    about = {"outcome": outcome, "steps": len(case.steps), "cut": case is not whole}
    if outcome in ("over", "refused") and (failed == "over" or failed not in known):
        known.add(failed)
        case = shrunk(case, values, lambda smaller: kind_of(comparison(smaller).row()) == failed)
        row = {**comparison(case).row(), "code": case.text()}
    return {**about, **row}  # whose outcome may be that there is no gradient


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arbalest")
    parser.add_argument("--seeds", default="0:100", help="FIRST:END")
    parser.add_argument("--exporters", default="older,newer")
    parser.add_argument("--folder", default="/tmp/arbalest-random")
    parser.add_argument("--jsonl")
    parser.add_argument("--draw", action="store_true", help="only prints the modules")
    options = parser.parse_args()
    options.arbalest = str(pathlib.Path(options.arbalest).resolve())
    warnings.filterwarnings("ignore")
    # Without the cache, this takes most of an export's time.
    ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))
    counts, known = collections.Counter(), set()
    for seed in range(*map(int, options.seeds.split(":"))):
        case = Draft(seed).finished()
        if options.draw:
            print(f"seed {seed}\n{case.text()}", flush=True)
            continue
        for exporter in options.exporters.split(","):
            row = judged(options, case, exporter, known)
            counts[exporter, row["outcome"]] += 1
            if "code" in row:
                shown = {key: value for key, value in row.items() if key in (
                    *row.get("over", []), "refused", "worst", "exporter's error", "missing")}
                print(f"seed {seed}, {exporter}: {shown}\n{row['code']}\n", flush=True)
            if options.jsonl:
                with open(options.jsonl, "a") as out:
                    out.write(json.dumps({"seed": seed, "exporter": exporter, **row}) + "\n")
    print(", ".join(f"{exporter} {outcome}: {n}" for (exporter, outcome), n in sorted(counts.items())))
    sys.exit(1 if any(outcome == "over" for _, outcome in counts) else 0)


if __name__ == "__main__":
    main()
