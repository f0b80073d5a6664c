#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning compared with PyTorch: a trained ResNet-18 from its .onnx file, with a new head and a frozen stem.

    tests/pytorch/finetune.py ARBALEST [--devices cuda:0] [--epochs 30] [--folder FOLDER]

PyTorch trains ResNet-18 on ten kinds of generated images and exports it. Both sides then put a head for five other
kinds on its features, with the same numbers in it, freeze the stem and the first stage, and train the rest by SGD with
momentum in fp32. An epoch is one batch, since no two programs shuffle alike, and is followed by a validation on other
images. The table holds both curves against PyTorch's in double precision; the frozen weights have to be those of the
file, bit by bit. The exit status is 1 where Arbalest is further from PyTorch's double than three times PyTorch's own
fp32 and 0.0001. Needs torch, torchvision, onnx and safetensors.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import torch
import torchvision
from safetensors.numpy import load_file, save_file

MEAN, STD, SIZE = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], 64
OLD, NEW, TRAINING, VALIDATION = 10, 5, 60, 200
RATE, MOMENTUM, DECAY, LIMIT = 0.02, 0.9, 1e-4, 1e-4
FROZEN = ["conv1.", "bn1.", "layer1."]

GRAPH = """<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1, "model" : 1]>
finetune () => (float loss)
{{
  image, label = arbalest.Prefetch <source = "tensors:{folder}?classes={classes}", batch = {batch}> ()
  x = arbalest.Augment <mean = {mean}, std = {std}> (image)
  features = model.trunk <outputs = ["/Flatten_output_0"]> (x)
  logits = arbalest.Linear <units = {classes}> (features)
  loss = arbalest.SoftmaxCrossEntropy (logits, label)
  accuracy = arbalest.Accuracy (logits, label)
  trained = arbalest.Train <lr = {rate}, momentum = {momentum}, weight_decay = {decay}, frozen = [{frozen}]> (loss)
  report = arbalest.Validate <split = "test", batch = {validation}> (trained, loss, accuracy)
}}
"""


def images(rng, kinds, count):
    """A smooth pattern for each kind, faint under noise of each image's own."""
    labels = np.arange(count, dtype=np.int32) % len(kinds)
    pictures = 128 + 14 * kinds[labels] + 40 * rng.standard_normal((count, 3, SIZE, SIZE))
    return np.clip(pictures, 0, 255).astype(np.uint8), labels


def patterns(rng, count):
    coarse = torch.from_numpy(rng.standard_normal((count, 3, 6, 6)))
    return torch.nn.functional.interpolate(coarse, SIZE, mode="bicubic").numpy()


def normalised(pictures, dtype, device):
    column = lambda numbers: torch.tensor(numbers, dtype=torch.float64)[:, None, None]
    return ((torch.from_numpy(pictures).double() / 255 - column(MEAN)) / column(STD)).to(device, dtype)


def pretrained(rng, device):
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=OLD).to(device).train()
    pictures, labels = images(rng, patterns(rng, OLD), 320)
    x, y = normalised(pictures, torch.float32, device), torch.from_numpy(labels).long().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=MOMENTUM)
    for step in range(30):
        part = torch.arange(64, device=device) + step * 64 % 320
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
    return model


class Torch:
    """PyTorch's curves: the loss of each step, and the loss and accuracy of each validation."""

    def __init__(self, state, head, data, dtype, device, epochs):
        model = torchvision.models.resnet18(num_classes=OLD)
        model.load_state_dict(state)
        model.fc = torch.nn.Linear(512, NEW)
        model.fc.weight.data, model.fc.bias.data = (torch.from_numpy(each.copy()) for each in head)
        model.to(device, dtype)
        frozen = [module for name, module in model.named_modules() if (name + ".").startswith(tuple(FROZEN))]
        trained = [p for name, p in model.named_parameters() if not name.startswith(tuple(FROZEN))]
        optimizer = torch.optim.SGD(trained, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
        x, y, test, test_y = (normalised(each, dtype, device) if each.dtype == np.uint8 else
                              torch.from_numpy(each).long().to(device) for each in data)
        self.losses, self.validations, self.accuracies = [], [], []
        for _ in range(epochs):
            model.train()
            for module in frozen:
                module.eval()
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            self.losses.append(loss.item())
            model.eval()
            with torch.no_grad():
                logits = model(test)
                self.validations.append(torch.nn.functional.cross_entropy(logits, test_y).item())
                self.accuracies.append((logits.argmax(1) == test_y).double().mean().item())


def arbalest(options, folder, model, head, data):
    for split, (pictures, labels) in {"train": data[:2], "test": data[2:]}.items():
        save_file({"image": pictures, "label": labels}, folder / f"{split}.safetensors")
    torch.onnx.export(model.eval(), (torch.zeros(2, 3, SIZE, SIZE, device=options.device),), str(folder / "model.onnx"),
                      input_names=["x"], output_names=["logits"], dynamic_axes={"x": {0: "batch"}}, dynamo=False,
                      do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE)
    save_file(dict(zip(["logits.weight", "logits.bias"], head)), folder / "head.safetensors")
    graph, log, saved = folder / "finetune.onnxtxt", folder / "log.jsonl", folder / "tuned.safetensors"
    frozen = ", ".join(f'"{name}*"' for name in FROZEN)
    graph.write_text(GRAPH.format(folder=folder, classes=NEW, batch=TRAINING, mean=MEAN, std=STD, rate=RATE,
                                  momentum=MOMENTUM, decay=DECAY, frozen=frozen, validation=VALIDATION))
    done = subprocess.run(
        [options.arbalest, "run", graph, "--model", folder / "model.onnx", "--weights", folder / "head.safetensors",
         "--fresh", "conv1.*", "--fresh", "bn1.*", "--fresh", "layer*", "--devices", options.devices, "--precision",
         "fp32", "--epochs", str(options.epochs), "--log-every", "1", "--log", log, "--save", saved],
        capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"arbalest run: {(done.stderr or done.stdout).strip()}")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    curves = Torch.__new__(Torch)
    curves.losses = [event["loss"] for event in events if event["event"] == "progress"]
    validations = [event for event in events if event["event"] == "validation"]
    curves.validations = [event["loss"] for event in validations]
    curves.accuracies = [event["accuracy"] for event in validations]
    return curves, load_file(saved)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arbalest")
    parser.add_argument("--devices", default="cpu:0")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--folder", default="/tmp/arbalest-finetune")
    options = parser.parse_args()
    options.device = "cuda" if "cuda" in options.devices else "cpu"
    warnings.filterwarnings("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    folder = pathlib.Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)

    rng = np.random.default_rng(1)
    model = pretrained(rng, options.device)
    state = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    kinds = patterns(rng, NEW)
    data = images(rng, kinds, TRAINING) + images(rng, kinds, VALIDATION)
    head = ((rng.standard_normal((NEW, 512)) * 0.02).astype(np.float32), np.zeros(NEW, np.float32))

    found, saved = arbalest(options, folder, model, head, data)
    single = Torch(state, head, data, torch.float32, options.device, options.epochs)
    exact = Torch(state, head, data, torch.float64, options.device, options.epochs)

    print("| epoch | loss: Arbalest | PyTorch fp32 | fp64 | validation: Arbalest | PyTorch fp32 | fp64 | "
          "accuracy: Arbalest | PyTorch fp64 |\n|" + " --- |" * 9)
    for i in range(options.epochs):
        if i % max(1, options.epochs // 10) == 0 or i + 1 == options.epochs:
            print(f"| {i + 1} | {found.losses[i]:.5f} | {single.losses[i]:.5f} | {exact.losses[i]:.5f} | "
                  f"{found.validations[i]:.5f} | {single.validations[i]:.5f} | {exact.validations[i]:.5f} | "
                  f"{found.accuracies[i]:.3f} | {exact.accuracies[i]:.3f} |")

    failed = []
    for curve in ("losses", "validations"):
        expected = np.array(getattr(exact, curve))
        error = lambda other: float(np.abs(np.array(getattr(other, curve)) - expected).max() / expected.max())
        print(f"{curve}: largest difference from fp64 over the largest value: Arbalest {error(found):.1e}, "
              f"PyTorch fp32 {error(single):.1e}")
        if error(found) > max(LIMIT, 3 * error(single)):
            failed.append(curve)
    frozen = [name for name in state if name.startswith(tuple(FROZEN)) and "num_batches" not in name]
    moved = [name for name in frozen if not np.array_equal(saved[name], state[name].numpy())]
    trained = [name for name in saved if name in state and not name.startswith(tuple(FROZEN))]
    still = [name for name in trained if np.array_equal(saved[name], state[name].numpy())]
    print(f"of {len(frozen)} frozen tensors {len(moved)} moved; of {len(trained)} others {len(still)} did not")
    sys.exit(1 if failed or moved or still or not frozen else 0)


main()
