#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small models of many kinds, exported to ONNX, trained by Arbalest and by PyTorch and taken away again: a table.

    tests/pytorch/kinds.py ARBALEST [--models unet_smp,llama] [--exporters older,newer,fixed] [--folder FOLDER]
                           [--jsonl FILE]

The models are those of kinds_models.py, with random weights that are the same on both sides, in training mode. Both of
PyTorch's exporters write each of them; `fixed` is the newer one for a batch of two, half of what is trained, and
`opset23` or another number the newer one in that opset of ONNX. All compute in fp32:
  gradients  of every parameter for one batch, as a step of SGD with a large rate leaves them in the weights: the norm
             of the difference over all parameters, over that of the gradient. In brackets the worst parameter.
  losses     of five steps of SGD with momentum: the largest relative difference.
  export     the trained model exported, run by onnxruntime, against `arbalest predict`: the largest difference over the
             largest number.
Gradients and losses are held against PyTorch in double precision, and so are PyTorch's own in fp32, after a slash. A
model is over the limit where Arbalest is further off than both the limit and three times PyTorch's own error. Models
that draw random numbers have no gradients to compare with. What is refused is a row with the first line of the error.
Needs torch, torchvision, timm, transformers, segmentation-models-pytorch, onnx, onnxscript, onnxruntime and
safetensors. The exit status is 1 where a model is over a limit; a refusal is none.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time
import warnings

import numpy as np
import onnx
import torch
from safetensors.numpy import load_file, save_file

from comparison import RATE, arbalest, gradients_of, logged_losses, over, torch_gradients, torch_losses
from kinds_models import CASES, SAMPLES

LIMITS = {"gradients": 1e-4, "losses": 1e-4, "export": 1e-4}
STEPS = 5

GRAPH = """<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1, "model" : 1]>
kind () => (float loss)
{{
  {fields}, target = arbalest.Prefetch <source = "tensors:{data}{query}", batch = {samples}> ()
  {outs} = model.net ({fields})
  {loss}
  trained = arbalest.Train <lr = {rate}, momentum = {momentum}, frozen = [{frozen}]> (loss)
}}
"""
LOSSES = {
    "numbers": "arbalest.MeanSquaredError (out, target)",
    "classes": "arbalest.SoftmaxCrossEntropy (out, target)",
    "places": "arbalest.SoftmaxCrossEntropy <axis = 1, ignore_index = [-1]> (out, target)",
    "tokens": "arbalest.SoftmaxCrossEntropy <axis = -1, ignore_index = [-1]> (out, target)",
}


def loss_text(kind, outs):
    """Of the first output against the target; of others the mean of squares."""
    lines = [f"loss = {LOSSES[kind]}"]
    if len(outs) > 1:
        lines = [f"part = {LOSSES[kind]}", f"loss = Sum (part, {', '.join('of_' + name for name in outs[1:])})"]
    for name in outs[1:]:
        lines[1:1] = [f"square_{name} = Mul ({name}, {name})", f"of_{name} = ReduceMean <keepdims = 0> (square_{name})"]
    return "\n  ".join(lines)


def loss_of(kind, out, target):
    if isinstance(out, tuple):
        return loss_of(kind, out[0], target) + sum(more.square().mean() for more in out[1:])
    if kind == "numbers":
        return torch.nn.functional.mse_loss(out, target.to(out.dtype))
    if kind == "tokens":
        out = out.movedim(-1, 1)
    return torch.nn.functional.cross_entropy(out, target.long(), ignore_index=-1)


def drawn(shapes):
    """Random inputs, by field; those of a field depend on its name and shape alone."""
    inputs = {}
    for field, shape in shapes.items():
        rng = np.random.default_rng([*field.encode()])
        if shape and isinstance(shape[0], tuple):
            inputs[field] = rng.integers(0, shape[1], (SAMPLES, *shape[0]), dtype=np.int64)
        else:
            inputs[field] = rng.standard_normal((SAMPLES, *shape), dtype=np.float32)
    return inputs


def quiet(model):
    """The module in training mode, without what no two frameworks draw the same and what is in no file."""
    for module in model.train().modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if type(module).__name__ == "_SpectralNorm":
            module.eval()  # an estimate that training carries on
    return model


class Comparison:
    def __init__(self, options, name, exporter):
        self.options, self.name, self.exporter = options, name, exporter
        self.make_module, shapes, self.loss = CASES[name]
        self.folder = pathlib.Path(options.folder) / f"{name}_{exporter}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.inputs, rng = drawn(shapes), np.random.default_rng(2)
        with torch.no_grad():
            out = self.make()(*self.tensors(torch.float32))
        outs = out if isinstance(out, tuple) else (out,)
        self.outs, shape = ["out", *(f"out{n}" for n in range(1, len(outs)))], outs[0].shape
        if self.loss == "numbers":
            self.target = rng.standard_normal(shape, dtype=np.float32)
        else:
            axis = -1 if self.loss == "tokens" else 1
            places = [extent for i, extent in enumerate(shape) if i != axis % len(shape)]
            least = 0 if self.loss == "classes" else -1  # which is ignored
            self.target = rng.integers(least, shape[axis], places).astype(np.int32)
        for split in ("train", "test"):
            save_file({**self.inputs, "target": self.target}, self.folder / f"{split}.safetensors")

    def make(self, dtype=torch.float32):
        torch.manual_seed(0)
        return quiet(self.make_module().to(dtype))

    def tensors(self, dtype):
        return [torch.from_numpy(x).to(dtype) if x.dtype == np.float32 else torch.from_numpy(x)
                for x in self.inputs.values()]

    exported_samples = SAMPLES

    def export_from_torch(self):
        samples = 2 if self.exporter == "fixed" else self.exported_samples
        path, example = self.folder / "model.onnx", tuple(x[:samples] for x in self.tensors(torch.float32))
        names = {"input_names": list(self.inputs), "output_names": self.outs}
        if self.exporter == "older":
            axes = {name: {0: "batch"} for name in [*self.inputs, *self.outs]}
            torch.onnx.export(self.make(), example, str(path), dynamo=False, dynamic_axes=axes,
                              do_constant_folding=False, training=torch.onnx.TrainingMode.TRAINING, **names)
        else:
            opset = {"opset_version": int(self.exporter[5:])} if self.exporter.startswith("opset") else {}
            torch.onnx.export(self.make(), example, str(path), dynamo=True, optimize=False,
                              verbose=False, **opset, **names)
        return ["--model", path]

    def buffers(self):
        """Names of buffers in the file that the older exporter does not tell from parameters."""
        if self.exporter != "older":
            return []
        kept = {x.name for x in onnx.load(self.folder / "model.onnx").graph.initializer}
        norms = torch.nn.modules.batchnorm._NormBase  # their operator shows which of its inputs are statistics
        return [f"{prefix}.{name}".strip(".") for prefix, module in self.make().named_modules()
                for name, buffer in module.named_buffers(recurse=False)
                if f"{prefix}.{name}".strip(".") in kept and buffer.is_floating_point()
                and not isinstance(module, norms)]

    def graph(self, rate, momentum):
        path = self.folder / "graph.onnxtxt"
        query = f"?classes={max(2, int(self.target.max()) + 1)}" if self.loss == "classes" else ""
        path.write_text(GRAPH.format(fields=", ".join(self.inputs), data=self.folder, samples=SAMPLES, rate=rate,
                                     query=query, momentum=momentum, loss=loss_text(self.loss, self.outs),
                                     outs=", ".join(self.outs),
                                     frozen=", ".join(f'"{name}"' for name in self.buffers())))
        return path

    def arbalest(self, command, *arguments):
        return arbalest(self.options.arbalest, command, *arguments, timeout=300)

    def run(self, graph, file, *arguments):
        return self.arbalest("run", graph, *file, "--devices", "cpu:0", "--precision", "fp32", *arguments)

    def in_torch(self, dtype):
        """The model, and its loss."""
        tensors, target = self.tensors(dtype), torch.from_numpy(self.target)
        return self.make(dtype), lambda model: loss_of(self.loss, model(*tensors), target)

    def gradients(self, file):
        saved = self.folder / "stepped.safetensors"
        began = time.perf_counter()
        self.run(self.graph(RATE, 0), file, "--iterations", 1, "--epochs", 1, "--save", saved)
        seconds = time.perf_counter() - began
        stepped = load_file(saved)
        model = self.make()
        # A parameter that is shared has one of its names in the file.
        for name, parameter in model.named_parameters(remove_duplicate=False):
            for other, same in model.named_parameters():
                if same is parameter and name in stepped:
                    stepped.setdefault(other, stepped[name])
        before = {name: p.detach().double().numpy() for name, p in self.make().named_parameters()}
        exact, single = (torch_gradients(*self.in_torch(dtype)) for dtype in (torch.float64, torch.float32))
        whole = np.sqrt(sum(np.square(g).sum() for g in exact.values()))
        names = [n for n in exact if n in stepped and stepped[n].size == before[n].size]
        missing = [n for n in exact if n not in names and np.linalg.norm(exact[n]) > 1e-9 * whole]
        found = gradients_of({n: before[n] for n in names}, stepped)
        off = lambda other, n: float(np.linalg.norm(other[n] - exact[n]))
        total = lambda other: float(np.sqrt(sum(off(other, n)**2 for n in names)) / whole)
        norm = lambda n: max(np.linalg.norm(exact[n]), 1e-5 * whole)
        worst = max(names, key=lambda n: off(found, n) / norm(n))
        one = lambda other: max(off(other, n) / max(np.linalg.norm(exact[n]), 1e-3 * whole) for n in names)
        return {"gradients": (total(found), total(single)), "one gradient": (one(found), one(single)), "worst": worst,
                "missing": missing, "seconds": round(seconds, 2), "worst error": off(found, worst) / norm(worst)}

    def losses(self, file):
        log, saved, graph = self.folder / "log.jsonl", self.folder / "trained.safetensors", self.graph(0.01, 0.9)
        self.run(graph, file, "--iterations", STEPS, "--epochs", STEPS, "--log-every", 1, "--log", log, "--save", saved)
        found = logged_losses(log, STEPS)
        exact, single = (torch_losses(*self.in_torch(dtype), STEPS) for dtype in (torch.float64, torch.float32))
        error = lambda other: float(np.abs(other / exact - 1).max())
        return {"losses": (error(found), error(single)), "first": float(found[0]), "last": float(found[-1]),
                "expected": float(exact[-1])}, graph, saved

    def exported(self, graph, file, saved):
        import onnxruntime

        target = self.folder / "exported.onnx"
        self.arbalest("export", graph, target, *file, "--weights", saved, "--value", "out")
        lines = self.arbalest("predict", graph, *file, "--weights", saved, "--value", "out", "--format", "json",
                              "--devices", "cpu:0", "--precision", "fp32").splitlines()
        predicted = np.array([json.loads(line)["value"] for line in lines], dtype=np.float64)
        session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
        kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32,
                 "tensor(bool)": bool}
        fed = {x.name: self.inputs[x.name].astype(kinds[x.type]) for x in session.get_inputs()}
        found = session.run(None, fed)[0].reshape(predicted.shape)
        return float(np.abs(found - predicted).max() / max(np.abs(predicted).max(), 1e-9))

    def row(self):
        result = {"model": self.name, "exporter": self.exporter}
        try:
            file = self.export_from_torch()
        except Exception as error:
            return {**result, "not exported": str(error).splitlines()[0][:200]}
        try:
            result.update(self.gradients(file))
            more, graph, saved = self.losses(file)
            result.update(more)
            result["export"] = (self.exported(graph, file, saved), 0.0)
        except subprocess.TimeoutExpired:
            result["refused"] = "took more than five minutes"
        except Exception as error:
            result["refused"] = f"{type(error).__name__}: {str(error)[:500]}"
        worse = over(result, LIMITS)
        return {**result, "over": worse} if worse else result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arbalest")
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--exporters", default="older,newer,fixed")
    parser.add_argument("--folder", default="/tmp/arbalest-kinds")
    parser.add_argument("--jsonl")
    options = parser.parse_args()
    options.arbalest = str(pathlib.Path(options.arbalest).resolve())
    warnings.filterwarnings("ignore")
    failed = False
    for name in options.models.split(","):
        for exporter in options.exporters.split(","):
            row = Comparison(options, name, exporter).row()
            failed = failed or "over" in row
            short = lambda v: f"{v:.4g}" if isinstance(v, float) else v
            show = lambda v: "/".join(f"{x:.1e}" for x in v) if isinstance(v, tuple) else short(v)
            print(" | ".join(f"{key} {show(value)}" for key, value in row.items()), flush=True)
            if options.jsonl:
                with open(options.jsonl, "a") as out:
                    out.write(json.dumps(row) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
