# SPDX-License-Identifier: Apache-2.0
"""What comparisons of a model in Arbalest and in PyTorch share: steps of both sides, and when a row is over a limit."""

import json
import subprocess

import numpy as np
import torch

# The rate of the step that shows gradients: so large that weights before it do not round them, and a power of two.
RATE = 2.0**22


def arbalest(program, *arguments, timeout=None):
    """What the command prints. Raises RuntimeError with its error."""
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        said = (' '.join(lines) or done.stderr or done.stdout).strip()[-1000:]
        raise RuntimeError(f"arbalest {arguments[0]}: {said}")
    return done.stdout


def torch_gradients(model, loss):
    """By parameter, in double; those that the loss does not reach are left out."""
    loss(model).backward()
    return {name: p.grad.double().cpu().numpy() for name, p in model.named_parameters() if p.grad is not None}


def torch_losses(model, loss, steps):
    """Of steps of SGD with momentum, before each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return np.array(losses)


def logged_losses(log, steps):
    """The same of a run with --log-every 1."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    found = np.array([event["loss"] for event in events if event.get("event") == "progress"])
    if len(found) != steps:
        raise RuntimeError(f"{len(found)} losses in the log, expected {steps}")
    return found


def gradients_of(before, stepped):
    """By parameter, from the weights before and after a step of SGD with RATE."""
    return {name: (before[name] - stepped[name].astype(np.float64).reshape(before[name].shape)) / RATE
            for name in before}


def over(result, limits):
    """The quantities, pairs of an error and PyTorch's own, that are above their limit and three times PyTorch's own."""
    return [key for key, limit in limits.items()
            if key in result and not result[key][0] <= max(limit, 3 * result[key][1])]
