#!/usr/bin/env python3
"""Training throughput of examples on the CPU beside PyTorch's, both on all cores, by turns.

    tests/pytorch/throughput.py ARBALEST [--models densenet121,vit_s16] [--batch 8] [--rounds 3] [--steps 6]

A round runs Arbalest (`bench scaling`, noise that stays in memory) and each mode of PyTorch once, in a process of its own. A
step is forward, backward and update, by SGD with momentum (ViT-S/16: AdamW). The modes: eager; channels-last, eager with
tensors and weights so; compiled, torch.compile of the model (with channels-last images for convolutional nets); and, beside the
fp32 that all of these are, bf16, compiled under torch.autocast. Figures are medians over the rounds, in brackets the least and
the greatest, in images/s. Needs torch, torchvision and timm, and a C++ compiler for torch.compile.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODES = ["eager", "channels-last", "compiled", "bf16"]
WARM_UP = 3


def one_mode(model, mode, batch, steps):
    import torch

    if model == "vit_s16":
        import timm

        net = timm.create_model("vit_small_patch16_224")
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6)
    else:
        import torchvision

        net = getattr(torchvision.models, model)()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.9)
    x, y = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))
    if mode == "channels-last" or (mode in ("compiled", "bf16") and model != "vit_s16"):
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    net.train()
    forward = torch.compile(net) if mode in ("compiled", "bf16") else net

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "bf16"):
            loss = torch.nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    print(batch * steps / (time.perf_counter() - began))


def output_of(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]}: {(done.stderr or done.stdout).strip()[-800:]}")
    return done.stdout


def arbalest(options, model):
    lines = output_of([options.arbalest, "bench", "scaling", ROOT / "examples" / f"{model}.onnxtxt", "--devices", "cpu:0",
                       "--batch", options.batch, "--windows", 3, "--window-seconds", 4, "--json",
                       "--set", "prefetch.source=synthetic:?shape=3x224x224&classes=1000&size=10000"]).splitlines()
    return next(record["images_per_second"] for record in map(json.loads, lines) if "images_per_second" in record)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arbalest")
    parser.add_argument("--models", default="densenet121,vit_s16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a mode to run in this process
    options = parser.parse_args()
    if options.one:
        return one_mode(options.models, options.one, options.batch, options.steps)
    print(f"batch {options.batch}, {options.rounds} rounds\n| model | Arbalest | " + options.modes.replace(",", " | ") + " |\n"
          + "| --- " * (2 + len(options.modes.split(","))) + "|")
    for model in options.models.split(","):
        rates = {side: [] for side in ["Arbalest", *options.modes.split(",")]}
        for _ in range(options.rounds):
            rates["Arbalest"].append(arbalest(options, model))
            for mode in options.modes.split(","):
                rates[mode].append(float(output_of([sys.executable, __file__, options.arbalest, "--models", model, "--one", mode,
                                                    "--batch", options.batch, "--steps", options.steps]).split()[-1]))
        cells = [f"{statistics.median(found):.2f} ({min(found):.2f} – {max(found):.2f})" for found in rates.values()]
        print(f"| {model} | " + " | ".join(cells) + " |", flush=True)


main()
