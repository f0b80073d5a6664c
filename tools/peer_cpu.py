#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LeNet and ResNet-20 on the CPU in TensorFlow and PyTorch: the peers of `arbalest bench scaling --devices cpu:0`.

The networks of examples/, trained by SGD with momentum and weight decay, in fp32, on all cores, with oneDNN's kernels.
Data is in memory already, as floats. Prints the median rate of five windows.
"""
import argparse
import os
import sys
import time

RATE, MOMENTUM, DECAY = 1e-4, 0.9, 5e-4
BATCHES = 8  # of data, taken in turn


def tensorflow_step(name, images, labels):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf
    layers = tf.keras.layers

    def conv_norm(x, filters, size, stride=1, relu=True):
        x = layers.Conv2D(filters, size, stride, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        return layers.ReLU()(x) if relu else x

    def block(x, filters, stride):
        y = conv_norm(conv_norm(x, filters, 3, stride), filters, 3, relu=False)
        shortcut = x if stride == 1 else conv_norm(x, filters, 1, stride, relu=False)
        return layers.ReLU()(layers.Add()([y, shortcut]))

    x = begin = layers.Input(images.shape[2:])
    if name == "lenet":
        for filters in (20, 50):
            x = layers.MaxPool2D(2)(layers.Conv2D(filters, 5)(x))
        x = layers.Dense(10)(layers.Dense(500, activation="relu")(layers.Flatten()(x)))
    else:
        x = conv_norm(x, 16, 3)
        for filters in (16, 32, 64):
            for k in range(3):
                x = block(x, filters, 2 if k == 0 and filters > 16 else 1)
        x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    model = tf.keras.Model(begin, x)
    variables = model.trainable_variables
    velocities = [tf.Variable(tf.zeros_like(v)) for v in variables]

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True)))
        for v, m, g in zip(variables, velocities, tape.gradient(loss, variables)):
            m.assign(MOMENTUM * m + g + DECAY * v)
            v.assign_sub(RATE * m)
        return loss

    batches = [(tf.constant(x), tf.constant(y)) for x, y in zip(images, labels)]
    return "tensorflow " + tf.__version__, lambda i: step(*batches[i % BATCHES]), lambda loss: loss.numpy()


def torch_step(name, images, labels, compiled):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs, filters, stride):
            super().__init__()
            self.trunk = nn.Sequential(*conv_norm(inputs, filters, 3, stride), nn.ReLU(),
                                       *conv_norm(filters, filters, 3))
            self.shortcut = nn.Sequential(*(conv_norm(inputs, filters, 1, stride) if stride > 1 else []))

        def forward(self, x):
            return nn.functional.relu(self.trunk(x) + self.shortcut(x))

    def conv_norm(inputs, filters, size, stride=1):
        return nn.Conv2d(inputs, filters, size, stride, size // 2, bias=False), nn.BatchNorm2d(filters)

    if name == "lenet":
        model = nn.Sequential(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(),
                              nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))
    else:
        blocks = [Block(max(16, filters // 2) if k == 0 else filters, filters, 2 if k == 0 and filters > 16 else 1)
                  for filters in (16, 32, 64) for k in range(3)]
        model = nn.Sequential(*conv_norm(3, 16, 3), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                              nn.Linear(64, 10))
    model = model.to(memory_format=torch.channels_last)
    update = torch.optim.SGD(model.parameters(), RATE, MOMENTUM, weight_decay=DECAY)
    forward = torch.compile(model) if compiled else model
    batches = [(torch.from_numpy(x.transpose(0, 3, 1, 2).copy()).to(memory_format=torch.channels_last),
                torch.from_numpy(y)) for x, y in zip(images, labels)]

    def step(i):
        x, y = batches[i % BATCHES]
        update.zero_grad()
        loss = nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        update.step()
        return loss

    return "torch " + torch.__version__ + (", compiled" if compiled else ""), step, lambda loss: loss.item()


def above_zero(kind):
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            whole = " whole" if kind is int else ""
            raise argparse.ArgumentTypeError(f"found '{text}', expected a{whole} number above 0")
        return value
    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=("tensorflow", "torch", "torch-compile"),
                        help="one compiled graph function; eager; by TorchInductor")
    parser.add_argument("model", choices=("lenet", "resnet20"))
    parser.add_argument("--batch", type=above_zero(int), help="default: 64 of LeNet, 128 of ResNet-20")
    parser.add_argument("--seconds", type=above_zero(float), default=3, help="of each window (default: 3)")
    options = parser.parse_args()
    batch = options.batch or (64 if options.model == "lenet" else 128)
    try:
        import numpy as np
        rng = np.random.default_rng(0)
        shape = (28, 28, 1) if options.model == "lenet" else (32, 32, 3)
        images = rng.random((BATCHES, batch, *shape), dtype=np.float32)
        labels = rng.integers(0, 10, (BATCHES, batch))
        version, step, wait = tensorflow_step(options.model, images, labels) if options.framework == "tensorflow" else \
            torch_step(options.model, images, labels, options.framework == "torch-compile")
    except ImportError as error:
        sys.exit(f"peer_cpu: {error}; pip install tensorflow-cpu, or torch")
    for i in range(10):
        wait(step(i))
    rates = []
    for _ in range(5):
        began, steps = time.perf_counter(), 0
        while steps == 0 or time.perf_counter() - began < options.seconds:
            loss = step(steps)
            steps += 1
        wait(loss)
        rates.append(batch * steps / (time.perf_counter() - began))
    rates.sort()
    print(f"{version}, {options.model}, batch {batch}: {rates[2]:.0f} images/s "
          f"(windows {rates[0]:.0f} to {rates[-1]:.0f})")


if __name__ == "__main__":
    main()
