#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of a bench: a model trained in PyTorch's fastest way. Prints the JSON line that [peer] reads.

    tests/pytorch/peer.py MODEL --batch 64 [--learners 8]
    tests/pytorch/peer.py MODEL --batch 64 --measure accuracy --data cifar10:DIR --epochs 30 --rate 0.1 --seed 1

MODEL is lenet, resnet32, resnet50 or vgg16, the networks of the graphs of these names, or one of torchvision or timm.
It is trained in bf16 (autocast), channels-last, by SGD with momentum. --mode compile is
torch.compile(mode="reduce-overhead"); graph captures a whole step as a CUDA graph, which is faster for small networks;
eager is neither.

Throughput is that of noise on the device: the median images/s of five windows. Several learners are models that nothing
averages, each a CUDA graph on a stream of its own. Accuracy is that of one learner on cifar10:DIR (the binary files) or
mnist:DIR (the IDX files): crops and flips for CIFAR-10, a validation after each epoch. Compiling and
capturing come first, on noise, and weights start anew; the clock of "time_to" runs from the first touch of data on,
validations included. Needs torch and numpy.
"""

import argparse
import gzip
import json
import math
import os
import statistics
import sys
import time

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # hardware queues, for learners on streams of their own

WINDOWS, WARM_UP = 5, 12  # steps before anything is captured or timed
SETS = {"cifar10": {"mean": [0.4914, 0.4822, 0.4465], "std": [0.247, 0.2435, 0.2616], "pad": 4, "images": 50000},
        "mnist": {"mean": [0.1307], "std": [0.3081], "pad": 0, "images": 60000}}
SHAPES = {"lenet": ((1, 28, 28), 10), "resnet32": ((3, 32, 32), 10)}  # others: of ImageNet
MODEL_OF = {"cifar10": "resnet32", "mnist": "lenet"}
TARGETS = [f"{percent / 100:.2f}" for percent in range(50, 100)]


def shape_of(model):
    return SHAPES.get(model, ((3, 224, 224), 1000))


def build(name):
    from torch import nn

    def conv_norm(inputs, filters, size, stride=1):
        return nn.Conv2d(inputs, filters, size, stride, size // 2, bias=False), nn.BatchNorm2d(filters)

    class Residual(nn.Module):
        def __init__(self, inputs, outputs, trunk, stride):
            super().__init__()
            self.trunk = nn.Sequential(*trunk)
            same = stride == 1 and inputs == outputs
            self.shortcut = nn.Identity() if same else nn.Sequential(*conv_norm(inputs, outputs, 1, stride))

        def forward(self, x):
            return nn.functional.relu(self.trunk(x) + self.shortcut(x))

    def basic(inputs, filters, stride):
        trunk = *conv_norm(inputs, filters, 3, stride), nn.ReLU(), *conv_norm(filters, filters, 3)
        return Residual(inputs, filters, trunk, stride)

    def bottleneck(inputs, filters, stride):
        trunk = (*conv_norm(inputs, filters, 1), nn.ReLU(), *conv_norm(filters, filters, 3, stride), nn.ReLU(),
                 *conv_norm(filters, 4 * filters, 1))
        return Residual(inputs, 4 * filters, trunk, stride)

    def stages(block, inputs, widths, counts, grows):
        layers = []
        for stage, (width, count) in enumerate(zip(widths, counts)):
            for k in range(count):
                layers.append(block(inputs, width, 2 if k == 0 and stage > 0 else 1))
                inputs = width * grows
        return *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()

    if name == "lenet":
        return nn.Sequential(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(),
                             nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))
    if name == "resnet32":
        return nn.Sequential(*conv_norm(3, 16, 3), nn.ReLU(), *stages(basic, 16, (16, 32, 64), (5, 5, 5), 1),
                             nn.Linear(64, 10))
    if name == "resnet50":
        return nn.Sequential(*conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                             *stages(bottleneck, 64, (64, 128, 256, 512), (3, 4, 6, 3), 4), nn.Linear(2048, 1000))
    if name != "vgg16":
        import torchvision

        if hasattr(torchvision.models, name):
            return getattr(torchvision.models, name)(num_classes=1000)
        import timm

        return timm.create_model(name, num_classes=1000)
    layers, inputs = [], 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(inputs, width, 3, 1, 1), nn.ReLU()]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096),
                         nn.ReLU(), nn.Dropout(), nn.Linear(4096, 1000))


class Learner:
    """A model and its step, which `run` carries out on samples that `batch` makes."""

    def __init__(self, options, batch):
        import torch
        from torch import nn

        self.options, self.batch, self.torch = options, batch, torch
        self.on_gpu = options.device == "cuda"
        self.model = build(options.model)
        for module in self.model.modules():
            if options.model == "resnet32" and isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.model = self.model.to(options.device, memory_format=torch.channels_last)
        # A captured step reads its rate from the device.
        self.rate = torch.tensor(options.rate, device=options.device) if options.mode == "graph" else None
        rate = options.rate if self.rate is None else self.rate
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9, weight_decay=options.decay,
                                         fused=self.on_gpu or None)
        self.trained = self.model
        if options.mode == "compile":
            self.trained = torch.compile(self.model, mode="reduce-overhead")
        self.stream = torch.cuda.Stream() if self.on_gpu else None
        self.run = self.step

    def step(self):
        torch = self.torch
        x, y = self.batch()
        with torch.autocast(self.options.device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.trained(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.options.mode != "graph")

    def warm_up(self):
        torch = self.torch
        if not self.on_gpu:
            return [self.step() for _ in range(2)]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                self.step()
        torch.cuda.current_stream().wait_stream(self.stream)
        torch.cuda.synchronize()
        if self.options.mode == "graph":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                self.step()
            torch.cuda.synchronize()
            self.run = graph.replay

    def set_rate(self, rate):
        if self.rate is not None:
            self.rate.fill_(rate)
        else:
            self.optimizer.param_groups[0]["lr"] = rate

    def state(self):
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def start_from(self, state):
        with self.torch.no_grad():
            for name, value in self.model.state_dict().items():
                value.copy_(state[name])
            for each in self.optimizer.state.values():
                if each.get("momentum_buffer") is not None:
                    each["momentum_buffer"].zero_()


def synchronize(options):
    import torch

    if options.device == "cuda":
        torch.cuda.synchronize()


def throughput(options):
    import torch

    shape, classes = shape_of(options.model)

    def noise():
        x = torch.randn(options.batch, *shape, device=options.device).to(memory_format=torch.channels_last)
        y = torch.randint(0, classes, (options.batch,), device=options.device)
        return lambda: (x, y)

    learners = [Learner(options, noise()) for _ in range(options.learners)]
    for learner in learners:
        learner.warm_up()

    def rounds(count):
        for _ in range(count):
            for learner in learners:
                if options.learners == 1 or options.device == "cpu":
                    learner.run()
                else:
                    with torch.cuda.stream(learner.stream):
                        learner.run()

    def timed(count):
        synchronize(options)
        began = time.perf_counter()
        rounds(count)
        synchronize(options)
        return time.perf_counter() - began

    timed(1)
    count = max(1, round(options.seconds / (timed(3) / 3)))
    rates = [count * options.batch * options.learners / timed(count) for _ in range(WINDOWS)]
    return {"images_per_second": statistics.median(rates), "windows": rates}


def idx_file(folder, name):
    import numpy as np

    path = os.path.join(folder, name)
    opened = open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz", "rb")
    with opened as file:
        content = file.read()
    sizes = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(sizes)


def read_split(kind, folder, split):
    """Images as [N, C, H, W] of bytes, and labels."""
    import numpy as np

    if kind == "mnist":
        name = "train" if split == "train" else "t10k"
        return (idx_file(folder, f"{name}-images-idx3-ubyte")[:, None].copy(),
                idx_file(folder, f"{name}-labels-idx1-ubyte").astype(np.int64))
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if split == "train" else ["test_batch.bin"]
    rows = np.concatenate([np.fromfile(os.path.join(folder, name), np.uint8).reshape(-1, 3073) for name in names])
    return rows[:, 1:].reshape(-1, 3, 32, 32).copy(), rows[:, 0].astype(np.int64)


class Samples:
    """The training split on the device, normalised, and batches of it with crops and flips; noise until it is read."""

    def __init__(self, options, kind):
        import torch

        self.torch, self.options, self.pad = torch, options, SETS[kind]["pad"]
        (channels, self.size, _), _ = shape_of(MODEL_OF[kind])
        self.mean, self.std = (255 * torch.tensor(SETS[kind][what], device=options.device).view(1, channels, 1, 1)
                               for what in ("mean", "std"))
        self.along = torch.arange(self.size, device=options.device)
        count, width = SETS[kind]["images"], self.size + 2 * self.pad
        # A captured step reads these where they are.
        self.images = torch.randn(count, channels, width, width, device=options.device)
        self.labels = torch.zeros(count, dtype=torch.long, device=options.device)
        self.index = torch.zeros(options.batch, dtype=torch.long, device=options.device)

    def normalised(self, images):
        return (self.torch.from_numpy(images).to(self.options.device).float() - self.mean) / self.std

    def batch(self):
        torch, count = self.torch, self.options.batch
        if self.pad == 0:
            x = self.images[self.index]
        else:
            shifts = torch.randint(0, 2 * self.pad + 1, (2, count, 1), device=self.options.device)
            columns = shifts[1] + self.along
            columns = torch.where(torch.rand(count, 1, device=self.options.device) < 0.5, columns, columns.flip(1))
            rows = (shifts[0] + self.along).view(count, self.size, 1)
            columns = columns.view(count, 1, self.size)
            x = self.images[self.index.view(count, 1, 1), :, rows, columns].permute(0, 3, 1, 2)
        return x.contiguous(memory_format=torch.channels_last), self.labels[self.index]


def accuracy(options):
    import torch

    kind, folder = options.data
    train, samples = SETS[kind]["images"], Samples(options, kind)
    learner = Learner(options, samples.batch)
    state = learner.state()
    learner.warm_up()
    learner.start_from(state)
    synchronize(options)

    began = time.perf_counter()  # data is touched from here on
    images, labels = read_split(kind, folder, "train")
    samples.images.copy_(torch.nn.functional.pad(samples.normalised(images), (samples.pad,) * 4))
    samples.labels.copy_(torch.from_numpy(labels))
    images, labels = read_split(kind, folder, "test")
    images, labels = samples.normalised(images), torch.from_numpy(labels).to(options.device)
    images = images.to(memory_format=torch.channels_last)
    setup = time.perf_counter() - began
    per_epoch = train // options.batch
    steps, met, training, value = 0, {}, 0.0, 0.0
    for _ in range(options.epochs):
        from_here = time.perf_counter()
        order = torch.randperm(train, device=options.device)
        for i in range(per_epoch):
            warm = options.warmup * per_epoch
            share = max(0, steps - warm) / max(1, options.epochs * per_epoch - warm)
            falls = 1 - share if options.schedule == "linear" else (1 + math.cos(math.pi * share)) / 2
            learner.set_rate(options.rate * min(1, (steps + 1) / max(1, warm)) * falls)
            samples.index.copy_(order[i * options.batch:(i + 1) * options.batch])
            learner.run()
            steps += 1
        synchronize(options)
        training += time.perf_counter() - from_here
        learner.model.eval()
        with torch.no_grad(), torch.autocast(options.device, torch.bfloat16):
            right = sum((learner.model(images[k:k + 1000]).argmax(1) == labels[k:k + 1000]).sum().item()
                        for k in range(0, len(labels), 1000))
        learner.model.train()
        value, now = right / len(labels), round(time.perf_counter() - began - setup, 3)
        for target in options.targets:
            if value >= float(target):
                met.setdefault(target, now)
    return {"images_per_second": steps * options.batch / training, "time_to": met, "final": value,
            "seconds": time.perf_counter() - began - setup, "setup_seconds": setup}


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--learners", type=int, default=1)
    parser.add_argument("--mode", choices=["auto", "compile", "graph", "eager"], default="auto",
                        help="auto: graph for several learners and for networks of small images, or else compile")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a window of throughput")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--measure", choices=["throughput", "accuracy"], default="throughput")
    parser.add_argument("--data", default="", metavar="KIND:DIR", help="of accuracy: cifar10:DIR or mnist:DIR")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--decay", type=float, default=1e-4)
    parser.add_argument("--warmup", type=float, default=0, help="epochs")
    parser.add_argument("--schedule", choices=["cosine", "linear"], default="cosine")
    parser.add_argument("--targets", type=lambda text: text.split(","), default=TARGETS,
                        help="accuracies, as in 0.875,0.9; otherwise each whole percent from 50 on")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    if options.device == "cpu":
        options.mode = "eager" if options.mode in ("auto", "graph") else options.mode
    elif options.learners > 1 and options.mode not in ("auto", "graph"):
        parser.error(f"--mode {options.mode}: several learners are CUDA graphs; expected graph or auto")
    elif options.mode == "auto":
        options.mode = "graph" if options.learners > 1 or options.model in SHAPES else "compile"
    if options.measure == "accuracy":
        kind, _, folder = options.data.partition(":")
        if options.learners > 1:
            parser.error(f"--learners {options.learners}: nothing averages them; expected one for accuracy")
        if MODEL_OF.get(kind) != options.model or not folder:
            parser.error(f"--data '{options.data}' with {options.model}: expected cifar10:DIR with resnet32, or "
                         "mnist:DIR with lenet")
        options.data = kind, folder
    return options


def main():
    options = arguments(sys.argv[1:])
    import torch

    torch.manual_seed(options.seed)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    print(json.dumps(accuracy(options) if options.measure == "accuracy" else throughput(options)), flush=True)


if __name__ == "__main__":
    main()
