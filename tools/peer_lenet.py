#!/usr/bin/env python3
"""LeNet on the CPU in TensorFlow: the peer of `arbalest run examples/lenet.onnxtxt`.

usage: peer_lenet.py [BATCH=64] [THREADS=all] [STEPS=300]      needs: pip install tensorflow-cpu
The same network, batch and update (SGD with momentum and weight decay), compiled to one graph function; oneDNN kernels.
Data already in memory as floats. Prints the median rate of five windows.
"""
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf

batch = int(sys.argv[1]) if len(sys.argv) > 1 else 64
if len(sys.argv) > 2 and sys.argv[2] != "all":
    tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[2]))
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 300

layers = tf.keras.layers
model = tf.keras.Sequential([
    layers.Input((28, 28, 1)),
    layers.Conv2D(20, 5), layers.MaxPool2D(2),
    layers.Conv2D(50, 5), layers.MaxPool2D(2),
    layers.Flatten(), layers.Dense(500, activation="relu"), layers.Dense(10)])
variables = model.trainable_variables
velocities = [tf.Variable(tf.zeros_like(v)) for v in variables]


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True)))
    for v, m, g in zip(variables, velocities, tape.gradient(loss, variables)):
        m.assign(0.9 * m + g + 5e-4 * v)
        v.assign_sub(0.03 * m)
    return loss


rng = np.random.default_rng(0)
images = tf.constant(rng.random((64, batch, 28, 28, 1), dtype=np.float32))
labels = tf.constant(rng.integers(0, 10, (64, batch)))
for i in range(30):
    step(images[i % 64], labels[i % 64])
rates = []
for _ in range(5):
    began = time.perf_counter()
    for i in range(steps):
        loss = step(images[i % 64], labels[i % 64])
    loss.numpy()
    rates.append(batch * steps / (time.perf_counter() - began))
rates.sort()
print(f"tensorflow {tf.__version__}: {rates[2]:.0f} images/s (windows {rates[0]:.0f} to {rates[-1]:.0f})")
