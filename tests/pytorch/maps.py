#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights of torchvision's and timm's models in the examples, through the maps in examples/transfer.

    tests/pytorch/maps.py ARBALEST [--folder FOLDER]

For each map a model with random weights and statistics is saved as safetensors and read by the example; the table holds
the largest difference of the logits of three images over the largest logit, in fp32 on the CPU. The exit status is 1
where one is above 1e-5. Needs torch, torchvision, timm and safetensors.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np
import timm
import torch
import torchvision
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
MAPS = [  # example, the map's names, whose model
    ("resnet18", "torchvision", "torchvision:resnet18"), ("resnet18", "torchvision", "timm:resnet18"),
    ("resnet50", "torchvision", "torchvision:resnet50"), ("resnet50", "torchvision", "timm:resnet50"),
    ("resnet101", "torchvision", "torchvision:resnet101"), ("resnet101", "torchvision", "timm:resnet101"),
    ("vgg16", "torchvision", "torchvision:vgg16"), ("vgg16_bn", "torchvision", "torchvision:vgg16_bn"),
    ("densenet121", "torchvision", "torchvision:densenet121"), ("densenet121", "torchvision", "timm:densenet121"),
    ("mobilenet_v3_large", "torchvision", "torchvision:mobilenet_v3_large"),
    ("efficientnet_b0", "torchvision", "torchvision:efficientnet_b0"),
    ("efficientnet_b0", "timm", "timm:efficientnet_b0"),
    ("convnext_tiny", "torchvision", "torchvision:convnext_tiny"), ("convnext_tiny", "timm", "timm:convnext_tiny"),
    ("vit_s16", "timm", "timm:vit_small_patch16_224"),
]
IMAGES, LIMIT = 3, 1e-5


def random_model(name):
    library, model = name.split(":")
    made = timm.create_model(model) if library == "timm" else getattr(torchvision.models, model)(weights=None)
    for key, tensor in made.state_dict().items():
        if key.endswith("running_mean"):
            tensor.normal_(0, 0.1)
        elif key.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
        elif key.endswith(("layer_scale", "gamma")):
            tensor.normal_(0, 0.3)
        elif tensor.dim() == 1:
            tensor.add_(0.1 * torch.randn_like(tensor))
    return made.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arbalest")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/tmp/arbalest-maps"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    images = np.random.default_rng(0).integers(0, 256, (IMAGES, 3, 224, 224), dtype=np.uint8)
    for split in ("train", "test"):
        save_file({"image": images, "label": np.arange(IMAGES, dtype=np.int32)},
                  options.folder / f"{split}.safetensors")
    column = lambda numbers: torch.tensor(numbers).view(3, 1, 1)
    x = (torch.from_numpy(images).float() / 255 - column([0.485, 0.456, 0.406])) / column([0.229, 0.224, 0.225])
    failed = False
    print("| example | model | map | logits |\n| --- | --- | --- | --- |")
    for example, names, model in MAPS:
        made = random_model(model)
        with torch.no_grad():
            expected = made(x).numpy()
        weights, rules = options.folder / "weights.safetensors", EXAMPLES / "transfer" / f"{example}.{names}.map"
        save_tensors({key: tensor.contiguous() for key, tensor in made.state_dict().items()}, weights)
        command = [options.arbalest, "predict", EXAMPLES / f"{example}.onnxtxt", "--devices", "cpu:0", "--weights",
                   weights, "--weights-map", rules, "--set", f"prefetch.source=tensors:{options.folder}?classes=1000",
                   "--set", f"prefetch.batch={IMAGES}", "--set", f"validate.batch={IMAGES}", "--value", "logits",
                   "--format", "json"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode != 0:
            failed = True
            print(f"| {example} | {model} | {rules.name} | {done.stderr.strip()[-300:]} |", flush=True)
            continue
        found = np.array([json.loads(line)["value"] for line in done.stdout.splitlines()])
        error = float(np.abs(found - expected).max() / np.abs(expected).max())
        failed |= not error <= LIMIT
        print(f"| {example} | {model} | {rules.name} | {error:.1e} |", flush=True)
    sys.exit(1 if failed else 0)


main()
