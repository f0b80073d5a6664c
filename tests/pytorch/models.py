#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of torchvision and timm, exported to ONNX and run by Arbalest and by PyTorch: a table, model by model.

    tests/pytorch/models.py ARBALEST [--devices cuda:0] [--models resnet18,densenet121] [--folder FOLDER] [--smooth]
    tests/pytorch/models.py ARBALEST --models vgg19 --into docs/results/models_torch.jsonl --commit 4de4638c
                            [--card CPU]

For each model, with random weights that are the same on both sides and eight images, all in fp32:
  logits     of `arbalest predict` against the model's in inference mode: the largest difference over the largest logit;
  gradients  of every parameter for one batch in training mode, as a step of SGD with a large rate leaves them in the
             weights: the median over parameters of |difference| / |gradient|, the worst in brackets;
  losses     of ten steps of SGD with momentum: the largest relative difference;
  export     the trained model exported, run by onnxruntime: logits as above, against `arbalest predict`.
Gradients and losses are held against PyTorch in double precision, and so are PyTorch's own in fp32, after a slash:
where rounding decides which side of a kink an activation is on (Relu, MaxPool), no two fp32 programs agree closely. A
model is over the limit where Arbalest is further off than both the limit and three times PyTorch's own error. With
--smooth the models have no kinks: Silu stands for Relu, Relu6 and HardSwish, Sigmoid for HardSigmoid and AveragePool
for MaxPool. Then gradients of every parameter can be held against the limit, and that is all that is printed. Dropout
and stochastic depth are off, since no two frameworks draw the same. With --into each model's row goes into that results
file, in place of the model's; `tools/results` then makes the pages, and the wall's column "correct" of it. Needs torch,
torchvision, timm, onnx, onnxruntime and safetensors. The exit status is 1 where a model fails or is over a limit.
"""

import argparse
import json
import pathlib
import sys
import traceback
import warnings

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import result_rows
import wall_models
from comparison import RATE, arbalest, gradients_of, logged_losses, over, torch_gradients, torch_losses

MODELS = [
    "resnet18", "resnet50", "densenet121", "vgg16_bn", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny",
    "timm:vit_small_patch16_224", "regnet_y_400mf", "shufflenet_v2_x1_0", "squeezenet1_1", "googlenet", "swin_t",
]
LIMITS = {"logits": 1e-4, "gradients": 1e-3, "losses": 1e-3, "export": 1e-4}
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
IMAGES, CLASSES, STEPS = 8, wall_models.CLASSES, 10

TRAINING = """<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1, "model" : 1]>
compare () => (float loss)
{{
  image, label = arbalest.Prefetch <source = "tensors:{data}?classes={classes}", batch = {images}> ()
  x = arbalest.Augment <mean = {mean}, std = {std}> (image)
  logits = model.net (x)
  loss = arbalest.SoftmaxCrossEntropy (logits, label)
  trained = arbalest.Train <lr = {rate}, momentum = {momentum}> (loss)
  {report}
}}
"""


def without_kinks(model):
    """Modules of ReLU go through torch.nn.functional.relu, which main() has replaced."""
    for name, module in model.named_children():
        if isinstance(module, (torch.nn.ReLU6, torch.nn.Hardswish)):
            setattr(model, name, torch.nn.SiLU())
        elif isinstance(module, torch.nn.Hardsigmoid):
            setattr(model, name, torch.nn.Sigmoid())
        elif isinstance(module, torch.nn.MaxPool2d):
            setattr(model, name,
                    torch.nn.AvgPool2d(module.kernel_size, module.stride, module.padding, module.ceil_mode))
        else:
            without_kinks(module)


def relative(found, expected):
    return float(np.abs(found - expected).max() / np.abs(expected).max())


class Comparison:
    def __init__(self, options, name):
        self.options, self.name = options, name
        self.folder = pathlib.Path(options.folder) / name.replace(":", "_")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.device = "cuda" if "cuda" in options.devices else "cpu"
        self.common = ["--devices", options.devices, "--precision", "fp32"]
        rng = np.random.default_rng(1)
        self.images = rng.integers(0, 256, (IMAGES, 3, 224, 224), dtype=np.uint8)
        self.labels = rng.integers(0, CLASSES, IMAGES, dtype=np.int32)
        for split in ("train", "test"):
            save_file({"image": self.images, "label": self.labels}, self.folder / f"{split}.safetensors")
        column = lambda numbers: torch.tensor(numbers, dtype=torch.float64)[:, None, None]
        self.x64 = ((torch.from_numpy(self.images).double() / 255 - column(MEAN)) / column(STD)).to(self.device)
        self.x = self.x64.float()
        self.y = torch.from_numpy(self.labels).long().to(self.device)

    def make(self):
        model = wall_models.make(self.name)
        if self.options.smooth:
            without_kinks(model)
        return model

    def graph(self, name, rate, momentum, validates=True):
        path = self.folder / f"{name}.onnxtxt"
        report = f'report = arbalest.Validate <split = "test", batch = {IMAGES}> (trained, loss)' if validates else ""
        path.write_text(TRAINING.format(data=self.folder, classes=CLASSES, images=IMAGES, mean=MEAN, std=STD, rate=rate,
                                        momentum=momentum, report=report))
        return path

    def export_from_torch(self, model, training):
        path = self.folder / ("training.onnx" if training else "inference.onnx")
        mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
        model.train(training)
        torch.onnx.export(model, (self.x,), str(path), input_names=["x"], output_names=["logits"], opset_version=17,
                          training=mode, do_constant_folding=not training, dynamo=False,
                          dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}})
        return ["--model", path]

    def predicted(self, graph, *arguments):
        lines = arbalest(self.options.arbalest, "predict", graph, *self.common, *arguments, "--value", "logits",
                         "--format", "json").splitlines()
        return np.array([json.loads(line)["value"] for line in lines], dtype=np.float64).reshape(IMAGES, CLASSES)

    def logits(self, model):
        model.eval()
        with torch.no_grad():
            expected = model(self.x).double().cpu().numpy()
        file = self.export_from_torch(model, False)
        return relative(self.predicted(self.graph("logits", 0.1, 0), *file), expected)

    def in_torch(self, dtype):
        """The model in training mode, and its loss."""
        x = self.x64.to(dtype)
        return (self.make().to(self.device, dtype).train(),
                lambda model: torch.nn.functional.cross_entropy(model(x), self.y))

    def gradients(self):
        model = self.make().to(self.device)
        file = self.export_from_torch(model, True)
        saved = self.folder / "stepped.safetensors"
        arbalest(self.options.arbalest, "run", self.graph("gradients", RATE, 0, validates=False), *self.common, *file,
                 "--iterations", 1, "--epochs", 1, "--save", saved)
        stepped = load_file(saved)
        before = {name: p.detach().double().cpu().numpy() for name, p in self.make().named_parameters()}
        missing = sorted(set(before) - set(stepped))
        if missing:
            raise RuntimeError(f"no parameters of the graph: {', '.join(missing[:8])}; "
                               f"it has {', '.join(sorted(stepped)[:8])}")
        found = gradients_of(before, stepped)
        exact, single = (torch_gradients(*self.in_torch(dtype)) for dtype in (torch.float64, torch.float32))
        # The gradient of a bias before a batch norm is rounding error alone.
        names = [n for n in exact if np.linalg.norm(exact[n]) > 1e-9 * max(1.0, np.linalg.norm(before[n]))]
        error = lambda other: {n: float(np.linalg.norm(other[n] - exact[n]) / np.linalg.norm(exact[n])) for n in names}
        return error(found), error(single)

    def losses(self):
        file = self.export_from_torch(self.make().to(self.device), True)
        log, saved = self.folder / "log.jsonl", self.folder / "trained.safetensors"
        graph = self.graph("training", 0.01, 0.9)
        arbalest(self.options.arbalest, "run", graph, *self.common, *file, "--iterations", STEPS, "--epochs", STEPS,
                 "--log-every", 1, "--log", log, "--save", saved)
        found = logged_losses(log, STEPS)
        exact, single = (torch_losses(*self.in_torch(dtype), STEPS) for dtype in (torch.float64, torch.float32))
        error = lambda other: float(np.abs(other / exact - 1).max())
        return error(found), error(single), found, graph, file, saved

    def exported(self, graph, file, saved):
        import onnxruntime

        target = self.folder / "exported.onnx"
        arbalest(self.options.arbalest, "export", graph, target, *file, "--weights", saved)
        session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
        found = session.run(None, {session.get_inputs()[0].name: self.x.cpu().numpy()})[0]
        return relative(found.reshape(IMAGES, CLASSES), self.predicted(graph, *file, "--weights", saved))

    def run(self):
        found, single = self.gradients()
        result = {"logits": (self.logits(self.make().to(self.device)), 0.0),
                  "gradients": (float(np.median(list(found.values()))), float(np.median(list(single.values()))))}
        result["worst"] = max(found, key=found.get)
        result["worst error"] = found[result["worst"]]
        loss, loss_single, curve, graph, file, saved = self.losses()
        result["losses"] = (loss, loss_single)
        result["curve"] = (curve[0], curve[-1])
        result["export"] = (self.exported(graph, file, saved), 0.0)
        return result


def compare_gradients(options):
    status = 0
    print("| model | median | worst | parameter | PyTorch's worst |\n| --- | --- | --- | --- | --- |", flush=True)
    for name in options.models.split(","):
        try:
            found, single = Comparison(options, name).gradients()
        except RuntimeError as error:
            status = 1
            print(f"| {name} | FAILED: {str(error)[-500:]!r} |", flush=True)
            continue
        worst = max(found, key=found.get)
        if not found[worst] <= max(LIMITS["gradients"], 3 * max(single.values())):
            status = 1
        print(f"| {name} | {np.median(list(found.values())):.1e} | {found[worst]:.1e} | {worst} | "
              f"{max(single.values()):.1e} |", flush=True)
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arbalest")
    parser.add_argument("--devices", default="cpu:0")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--folder", default="/tmp/arbalest-models")
    parser.add_argument("--smooth", action="store_true")
    result_rows.declare_into(parser)
    options = parser.parse_args()
    if options.smooth and options.into:
        parser.error("--into: found next to --smooth, expected the rows of models as they are")
    result_rows.check_into(parser, options, result_rows.COMPARED)
    options.arbalest = str(pathlib.Path(options.arbalest).resolve())
    warnings.filterwarnings("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if options.smooth:
        torch.nn.functional.relu = lambda x, inplace=False: torch.nn.functional.silu(x)
        sys.exit(compare_gradients(options))
    failed = 0
    print("| model | logits | gradients (worst) / PyTorch | losses / PyTorch | export | loss |\n"
          "| --- | --- | --- | --- | --- | --- |", flush=True)
    for name in options.models.split(","):
        try:
            r = Comparison(options, name).run()
        except Exception as error:  # the next model may do
            failed += 1
            print(f"| {name} | FAILED: {str(error)[-500:]!r} |", flush=True)
            if not isinstance(error, RuntimeError):
                traceback.print_exc()
            continue
        worse = over(r, LIMITS)
        failed += bool(worse)
        cells = [name, f"{r['logits'][0]:.1e}",
                 f"{r['gradients'][0]:.1e} ({r['worst error']:.1e}) / {r['gradients'][1]:.1e}",
                 f"{r['losses'][0]:.1e} / {r['losses'][1]:.1e}", f"{r['export'][0]:.1e}",
                 f"{r['curve'][0]:.4f} → {r['curve'][1]:.4f}"]
        print(f"| {' | '.join(cells)} |" + (f" over: {', '.join(worse)}, worst {r['worst']}" if worse else ""),
              flush=True)
        if options.into:
            result_rows.put(options.into, dict(zip(result_rows.COMPARED, [*cells, options.commit, options.card])),
                            ["model"])
    sys.exit(1 if failed else 0)


main()
