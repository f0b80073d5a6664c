#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training throughput of examples on the CPU and PyTorch's, in turn, in images a second of processor time.

    tests/pytorch/throughput.py ARBALEST [--models densenet121,vit_s16] [--batch 8] [--rounds 3] [--steps 4]

Each side has one thread, and what is counted is the time that the processor gave it, so that other processes disturb little. A
step is forward, backward and update, by SGD with momentum (ViT-S/16: AdamW), in fp32 on noise that stays in memory. A round runs
Arbalest and each mode of PyTorch once, each in a process of its own; of Arbalest it is the difference of two runs, --steps apart
in length. The modes: eager; channels-last, eager with tensors and weights so; compiled, torch.compile of the model, with
channels-last images for convolutional nets. Figures are medians over the rounds, in brackets the least and the greatest. Needs
torch, torchvision and timm, and a C++ compiler for torch.compile.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODES = ["eager", "channels-last", "compiled"]
WARM_UP = 2


def one_mode(model, mode, batch, steps):
    import torch

    torch.set_num_threads(1)
    if model == "vit_s16":
        import timm

        net = timm.create_model("vit_small_patch16_224")
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6)
    else:
        import torchvision

        net = getattr(torchvision.models, model)()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.9)
    x, y = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))
    if mode == "channels-last" or (mode == "compiled" and model != "vit_s16"):
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    net.train()
    forward = torch.compile(net) if mode == "compiled" else net

    def step():
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(forward(x), y).backward()
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    began = time.process_time()
    for _ in range(steps):
        step()
    print(batch * steps / (time.process_time() - began))


def processor_seconds(command):
    """Of the command and what it starts, and what it printed."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1"})
        _, status, used = os.wait4(process.pid, 0)
        output.seek(0)
        text = output.read()
    if status != 0:
        sys.exit(f"{command[0]}: {text.strip()[-800:]}")
    return used.ru_utime + used.ru_stime, text


def arbalest(options, model):
    def run(steps):
        return processor_seconds([options.arbalest, "run", ROOT / "examples" / f"{model}.onnxtxt", "--devices", "cpu:0", "--threads", 1,
                                  "--iterations", steps, "--set", f"prefetch.batch={options.batch}", "--set", "train.warmup=0",
                                  "--set", "prefetch.source=synthetic:?shape=3x224x224&classes=1000&size=10000"])[0]

    return options.batch * options.steps / (run(WARM_UP + options.steps) - run(WARM_UP))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arbalest")
    parser.add_argument("--models", default="densenet121,vit_s16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
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
                _, printed = processor_seconds([sys.executable, __file__, options.arbalest, "--models", model, "--one", mode,
                                                "--batch", options.batch, "--steps", options.steps])
                rates[mode].append(float(printed.split()[-1]))
        cells = [f"{statistics.median(found):.2f} ({min(found):.2f} – {max(found):.2f})" for found in rates.values()]
        print(f"| {model} | " + " | ".join(cells) + " |", flush=True)


main()
