#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes reference_vectors.json: outputs and gradients of operators as JAX computes them in double precision.

    python3 -m venv /tmp/jax && /tmp/jax/bin/pip install jax==0.10.2 optax==0.2.8
    /tmp/jax/bin/python tests/ops/vectors/make_reference.py

Formulas follow the definitions of ONNX and of the papers; nothing is taken from the kernels that are tested. Gradients
are JAX's own (jax.vjp), for a random gradient that flows back into the first output. Inputs are multiples of 1/64,
which float holds exactly.
"""
import json
import math
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)
random = np.random.default_rng(20)
cases = []
updates = []


def draw(*shape, low=-2.0, high=2.0):
    return np.round(random.uniform(low, high, shape) * 64) / 64


def distinct(*shape):
    count = math.prod(shape)
    return (random.permutation(count).reshape(shape) - count // 2) / 64.0


def plain(array):
    stated = {"shape": list(np.shape(array)),
              "values": [float(f"{v:.12g}") for v in np.ravel(np.asarray(array, float))]}
    return stated | ({"type": "bool"} if np.asarray(array).dtype == bool else {})


def case(name, op, function, inputs, attributes=None, labels=(), gradients=True, differentiable=None, gradient_of=0):
    """`function` maps the inputs to one output or a tuple of them; gradients flow back from output `gradient_of`."""
    arrays = [jnp.asarray(x) for x in inputs]
    outputs = function(*arrays)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    entry = {"name": name, "op": op, "attributes": attributes or {},
             "inputs": [plain(x) | ({"type": "int32"} if i in labels else {}) for i, x in enumerate(inputs)],
             "outputs": [plain(y) for y in outputs]}
    if gradients:
        chosen = differentiable if differentiable is not None else [i for i in range(len(inputs)) if i not in labels]

        def first(*wrt):
            full = list(arrays)
            for i, value in zip(chosen, wrt):
                full[i] = value
            found = function(*full)
            return found[gradient_of] if isinstance(found, tuple) else found

        back = jnp.asarray(draw(*outputs[gradient_of].shape, low=-1, high=1))
        _, pull = jax.vjp(first, *[arrays[i] for i in chosen])
        entry["output_gradient"] = plain(back)
        entry |= {"gradient_of": gradient_of} if gradient_of else {}
        entry["input_gradients"] = {str(i): plain(g) for i, g in zip(chosen, pull(back))}
    cases.append(entry)


def patches(x, kernel, strides, pads, dilations, fill):
    """(R*S, N, C, P, Q): what each position of the window sees."""
    (kr, ks), (sh, sw), (top, left, bottom, right), (dh, dw) = kernel, strides, pads, dilations
    x = jnp.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    p = (x.shape[2] - dh * (kr - 1) - 1) // sh + 1
    q = (x.shape[3] - dw * (ks - 1) - 1) // sw + 1
    return jnp.stack([x[:, :, r * dh:r * dh + sh * (p - 1) + 1:sh, s * dw:s * dw + sw * (q - 1) + 1:sw]
                      for r in range(kr) for s in range(ks)])


def conv(strides, pads, dilations, group):
    def run(x, w, bias=None):
        axes = x.ndim - 2
        y = jax.lax.conv_general_dilated(x, w, strides, list(zip(pads[:axes], pads[axes:])),
                                         rhs_dilation=dilations, feature_group_count=group)
        return y if bias is None else y + bias.reshape((1, -1) + (1,) * axes)
    return run


def conv_transpose(strides, pads, dilations, group, extents):
    """The transpose of the linear map that the convolution of Y is."""
    def run(x, w, bias):
        y = jnp.zeros((x.shape[0], w.shape[1] * group, *extents))
        _, transpose = jax.vjp(lambda y: conv(strides, pads, dilations, group)(y, w), y)
        return transpose(x)[0] + bias.reshape((1, -1) + (1,) * len(extents))
    return run


def add_convolutions():
    for name, x, w, bias, strides, pads, dilations, group in [
            ("plain", (2, 2, 5, 4), (3, 2, 3, 3), True, [1, 1], [0, 0, 0, 0], [1, 1], 1),
            ("strides and uneven pads", (1, 2, 6, 7), (4, 2, 3, 2), True, [2, 1], [1, 0, 2, 1], [1, 1], 1),
            ("dilations", (1, 3, 7, 8), (2, 3, 3, 3), False, [1, 2], [1, 2, 1, 2], [2, 3], 1),
            ("two groups", (2, 4, 4, 4), (6, 2, 3, 3), True, [1, 1], [1, 1, 1, 1], [1, 1], 2),
            ("depthwise, strided", (1, 3, 5, 5), (3, 1, 3, 3), False, [2, 2], [1, 1, 1, 1], [1, 1], 3),
            ("one by one", (2, 3, 3, 2), (5, 3, 1, 1), True, [1, 1], [0, 0, 0, 0], [1, 1], 1),
            ("one by one, strided", (2, 3, 5, 4), (2, 3, 1, 1), False, [2, 2], [0, 0, 0, 0], [1, 1], 1)]:
        inputs = [draw(*x), draw(*w)] + ([draw(w[0])] if bias else [])
        case(f"Conv, {name}", "Conv", conv(strides, pads, dilations, group), inputs,
             {"kernel_shape": list(w[2:]), "strides": strides, "pads": pads, "dilations": dilations, "group": group})


def add_other_convolutions():
    for name, x, w, strides, pads, dilations, group in [
            ("depthwise, dilated", (2, 5, 7, 6), (5, 1, 3, 3), [1, 1], [2, 2, 2, 2], [2, 2], 5),
            ("depthwise, 5 x 5", (1, 4, 6, 7), (4, 1, 5, 5), [1, 1], [2, 2, 2, 2], [1, 1], 4),
            ("sequence", (2, 4, 9), (6, 2, 3), [2], [1, 0], [1], 2),
            ("volume", (1, 2, 4, 3, 5), (3, 2, 2, 3, 3), [1, 1, 2], [0, 1, 1, 1, 1, 0], [1, 1, 1], 1)]:
        case(f"Conv, {name}", "Conv", conv(strides, pads, dilations, group), [draw(*x), draw(*w), draw(w[0])],
             {"strides": strides, "pads": pads, "dilations": dilations, "group": group})
    for name, pads, auto_pad in [("upper", [0, 1, 1, 1], "SAME_UPPER"), ("lower", [1, 1, 0, 1], "SAME_LOWER")]:
        case(f"Conv, same {name}", "Conv", conv([2, 2], pads, [1, 1], 1), [draw(2, 2, 6, 7), draw(3, 2, 3, 3)],
             {"strides": [2, 2], "auto_pad": auto_pad})
    for name, x, w, strides, pads, dilations, group, extents, attributes in [
            ("plain", (1, 2, 3, 4), (2, 3, 3, 3), [1, 1], [0, 0, 0, 0], [1, 1], 1, (5, 6), {}),
            ("output padding", (2, 4, 3, 3), (4, 2, 3, 3), [2, 2], [1, 1, 1, 1], [1, 1], 2, (6, 5),
             {"output_padding": [1, 0]}),
            ("uneven pads, dilated", (1, 3, 4, 3), (3, 2, 2, 3), [2, 1], [1, 0, 0, 1], [2, 1], 1, (8, 4), {}),
            ("sequence", (2, 3, 5), (3, 2, 4), [3], [0, 1], [1], 1, (15,), {})]:
        case(f"ConvTranspose, {name}", "ConvTranspose", conv_transpose(strides, pads, dilations, group, extents),
             [draw(*x), draw(*w), draw(w[1] * group)],
             {"strides": strides, "pads": pads, "dilations": dilations, "group": group} | attributes)


def add_average_pools():
    def pool(kernel, strides, pads, dilations, count_pads):
        def run(x):
            count = kernel[0] * kernel[1] if count_pads else patches(
                jnp.ones_like(x), kernel, strides, pads, dilations, 0).sum(0)
            return patches(x, kernel, strides, pads, dilations, 0).sum(0) / count
        return run

    for name, shape, kernel, strides, pads, dilations, count_pads in [
            ("plain", (2, 2, 4, 6), [2, 2], [2, 2], [0, 0, 0, 0], [1, 1], 0),
            ("uneven pads", (1, 3, 6, 5), [3, 3], [2, 2], [1, 0, 1, 2], [1, 1], 0),
            ("pads count", (1, 3, 6, 5), [3, 3], [2, 1], [1, 1, 1, 1], [1, 1], 1),
            ("dilated", (1, 2, 7, 7), [2, 3], [1, 2], [0, 1, 1, 0], [2, 2], 0)]:
        case(f"AveragePool, {name}", "AveragePool", pool(kernel, strides, pads, dilations, count_pads), [draw(*shape)],
             {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations,
              "count_include_pad": count_pads})
    case("GlobalMaxPool", "GlobalMaxPool", lambda x: x.max((2, 3), keepdims=True), [distinct(2, 3, 4, 5)])


def add_matrix_products():
    for a, b in [((3, 4), (4, 2)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 2)), ((2, 1, 3, 4), (3, 4, 2)), ((4,), (4,)),
                 ((4,), (2, 4, 3)), ((2, 3, 4), (4,))]:
        case(f"MatMul, {a} and {b}", "MatMul", jnp.matmul, [draw(*a), draw(*b)])


def add_sample_normalisation():
    def normal(x, axes, epsilon):
        return (x - x.mean(axes, keepdims=True)) / jnp.sqrt(x.var(axes, keepdims=True) + epsilon)

    def layer(axis, epsilon):
        return lambda x, scale, bias=0: normal(x, tuple(range(axis, x.ndim)), epsilon) * scale + bias

    def groups(count, epsilon):
        def run(x, scale, bias):
            shape = (1, -1) + (1,) * (x.ndim - 2)
            y = normal(x.reshape(x.shape[0], count, -1), 2, epsilon).reshape(x.shape)
            return y * scale.reshape(shape) + bias.reshape(shape)
        return run

    for shape, axis, with_bias in [((3, 8), 1, True), ((2, 3, 5), 2, False), ((2, 3, 2, 4), 2, True)]:
        parameters = [draw(*shape[axis:], low=0.5) for _ in range(1 + with_bias)]
        case(f"LayerNormalization, {shape}, axis {axis}", "LayerNormalization", layer(axis, 1e-3),
             [draw(*shape)] + parameters, {"axis": axis, "epsilon": 1e-3})
    case("GroupNormalization", "GroupNormalization", groups(3, 1e-3), [draw(2, 6, 3, 2), draw(6, low=0.5), draw(6)],
         {"num_groups": 3, "epsilon": 1e-3})
    case("InstanceNormalization", "InstanceNormalization", groups(4, 1e-3),
         [draw(2, 4, 3, 3), draw(4, low=0.5), draw(4)], {"epsilon": 1e-3})


def add_products():
    def gemm(alpha, beta, trans_a, trans_b):
        def run(a, b, c=None):
            y = alpha * ((a.T if trans_a else a) @ (b.T if trans_b else b))
            return y if c is None else y + beta * c
        return run

    for name, a, b, c, alpha, beta, trans_a, trans_b in [
            ("plain", (3, 4), (4, 5), None, 1.0, 1.0, 0, 0),
            ("B transposed, bias", (3, 4), (5, 4), (5,), 1.0, 1.0, 0, 1),
            ("A transposed, alpha, a matrix C", (4, 3), (4, 5), (3, 5), 0.75, 1.0, 1, 0),
            ("both transposed, a row of C", (4, 3), (5, 4), (1, 5), 0.5, -1.0, 1, 1)]:
        case(f"Gemm, {name}", "Gemm", gemm(alpha, beta, trans_a, trans_b),
             [draw(*a), draw(*b)] + ([draw(*c)] if c else []),
             {"alpha": alpha, "beta": beta, "transA": trans_a, "transB": trans_b})


def add_normalisation():
    def training(epsilon, momentum):
        def run(x, scale, bias, mean, variance):
            axes = (0,) + tuple(range(2, x.ndim))
            shape = (1, -1) + (1,) * (x.ndim - 2)
            batch_mean, batch_variance = x.mean(axes), x.var(axes)
            y = (x - batch_mean.reshape(shape)) / jnp.sqrt(batch_variance.reshape(shape) + epsilon)
            return (y * scale.reshape(shape) + bias.reshape(shape),
                    momentum * mean + (1 - momentum) * batch_mean,
                    momentum * variance + (1 - momentum) * batch_variance)
        return run

    def inference(epsilon):
        def run(x, scale, bias, mean, variance):
            shape = (1, -1) + (1,) * (x.ndim - 2)
            y = (x - mean.reshape(shape)) / jnp.sqrt(variance.reshape(shape) + epsilon)
            return y * scale.reshape(shape) + bias.reshape(shape)
        return run

    for shape in [(6, 3), (3, 2, 4, 3)]:
        channels = shape[1]
        inputs = [draw(*shape), draw(channels, low=0.5), draw(channels), draw(channels), draw(channels, low=0.5)]
        for mode, function, attributes in [
                ("training", training(1e-3, 0.7), {"epsilon": 1e-3, "momentum": 0.7, "training_mode": 1}),
                ("inference", inference(1e-3), {"epsilon": 1e-3})]:
            case(f"BatchNormalization, {mode}, rank {len(shape)}", "BatchNormalization", function, inputs, attributes,
                 differentiable=[0, 1, 2])


def add_pooling():
    def max_pool(kernel, strides, pads, dilations):
        return lambda x: patches(x, kernel, strides, pads, dilations, -jnp.inf).max(0)

    for name, shape, kernel, strides, pads, dilations in [
            ("plain", (2, 2, 4, 6), [2, 2], [2, 2], [0, 0, 0, 0], [1, 1]),
            ("overlapping, padded", (1, 3, 6, 5), [3, 3], [2, 2], [1, 1, 1, 1], [1, 1]),
            ("dilated, uneven pads", (1, 2, 7, 7), [2, 3], [1, 2], [0, 1, 1, 0], [2, 2])]:
        case(f"MaxPool, {name}", "MaxPool", max_pool(kernel, strides, pads, dilations), [distinct(*shape)],
             {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations})
    case("GlobalAveragePool", "GlobalAveragePool", lambda x: x.mean((2, 3), keepdims=True), [draw(2, 3, 4, 5)])


def add_shapes():
    for axis in [0, 1, 2, 3, -1]:
        case(f"Flatten, axis {axis}", "Flatten",
             lambda x, a=axis: x.reshape(math.prod(x.shape[:a]), -1), [draw(2, 3, 2, 4)], {"axis": axis})
    case("Identity", "Identity", lambda x: x, [draw(2, 3, 2)])


def add_losses():
    def loss(smoothing):
        def run(logits, label):
            k = logits.shape[1]
            target = (1 - smoothing) * jax.nn.one_hot(label.astype(int), k) + smoothing / k
            return -(target * jax.nn.log_softmax(logits)).sum(1).mean()
        return run

    label = np.array([2, 0, 4, 4, 1])
    for smoothing in [0.0, 0.1]:
        case(f"SoftmaxCrossEntropy, smoothing {smoothing}", "arbalest.SoftmaxCrossEntropy", loss(smoothing),
             [draw(5, 5, low=-4, high=4), label], {"label_smoothing": smoothing}, labels=[1])


def add_elementwise():
    """Inputs keep away from corners, where a gradient is a choice."""
    def apart(x, *corners):
        for corner in corners:
            x = np.where(np.abs(x - corner) < 1 / 16, corner + 1 / 8, x)
        return x

    inverse_sqrt2 = 1 / math.sqrt(2)
    selu = (1.67326319217681884765625, 1.05070102214813232421875)
    unary = {  # function, attributes, corners, range
        "Abs": (jnp.abs, {}, [0], (-3, 3)),
        "Celu": (lambda x: jnp.maximum(x, 0) + jnp.minimum(0, 1.5 * (jnp.exp(x / 1.5) - 1)),
                 {"alpha": 1.5}, [0], (-3, 3)),
        "Cos": (jnp.cos, {}, [], (-4, 4)),
        "Elu": (lambda x: jnp.where(x < 0, 0.75 * (jnp.exp(x) - 1), x), {"alpha": 0.75}, [0], (-3, 3)),
        "Erf": (jax.scipy.special.erf, {}, [], (-2, 2)),
        "Exp": (jnp.exp, {}, [], (-3, 3)),
        "Gelu": (lambda x: 0.5 * x * (1 + jax.scipy.special.erf(x * inverse_sqrt2)), {}, [], (-3, 3)),
        "HardSigmoid": (lambda x: jnp.clip(0.25 * x + 0.5, 0, 1), {"alpha": 0.25, "beta": 0.5}, [-2, 2], (-4, 4)),
        "HardSwish": (lambda x: x * jnp.clip(x / 6 + 0.5, 0, 1), {}, [-3, 3], (-4, 4)),
        "LeakyRelu": (lambda x: jnp.where(x < 0, 0.125 * x, x), {"alpha": 0.125}, [0], (-3, 3)),
        "Log": (jnp.log, {}, [], (0.25, 4)),
        "Mish": (lambda x: x * jnp.tanh(jnp.log1p(jnp.exp(x))), {}, [], (-3, 3)),
        "Neg": (jnp.negative, {}, [], (-3, 3)),
        "Reciprocal": (lambda x: 1 / x, {}, [], (0.5, 3)),
        "Relu": (lambda x: jnp.maximum(x, 0), {}, [0], (-3, 3)),
        "Selu": (lambda x: selu[1] * jnp.where(x > 0, x, selu[0] * (jnp.exp(x) - 1)), {}, [0], (-3, 3)),
        "Sigmoid": (lambda x: 1 / (1 + jnp.exp(-x)), {}, [], (-4, 4)),
        "Sign": (jnp.sign, {}, [0], (-3, 3)),
        "Sin": (jnp.sin, {}, [], (-4, 4)),
        "Softplus": (lambda x: jnp.log1p(jnp.exp(x)), {}, [], (-4, 4)),
        "Softsign": (lambda x: x / (1 + jnp.abs(x)), {}, [], (-3, 3)),
        "Sqrt": (jnp.sqrt, {}, [], (0.25, 4)),
        "Tanh": (jnp.tanh, {}, [], (-3, 3)),
        "ThresholdedRelu": (lambda x: jnp.where(x > 0.75, x, 0), {"alpha": 0.75}, [0.75], (-3, 3)),
    }
    for name, (function, attributes, corners, (low, high)) in unary.items():
        case(name, name, function, [apart(draw(3, 5, low=low, high=high), *corners)], attributes)
    case("Gelu, approximate", "Gelu",
         lambda x: 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
         [draw(3, 5, low=-3, high=3)], {"approximate": "tanh"})

    binary = {"Add": (jnp.add, -2), "Div": (jnp.divide, 0.5), "Max": (jnp.maximum, -2), "Min": (jnp.minimum, -2),
              "Mul": (jnp.multiply, -2), "Pow": (jnp.power, 0.5), "Sub": (jnp.subtract, -2)}
    for name, (function, low) in binary.items():
        for first, second in [((2, 3, 2, 2), (2, 3, 2, 2)), ((2, 3, 4), (4,)), ((3, 1), (2, 1, 4)), ((), (2, 3)),
                              ((2, 3, 2, 3), (3, 1, 1)), ((1, 3, 1, 2), (2, 1, 4, 2))]:
            a, b = draw(*first, low=low), draw(*second, low=low)
            if name in ("Max", "Min"):
                b = b + 1 / 128  # never equal
            case(f"{name}, {first} and {second}", name, function, [a, b])


def add_reductions():
    reductions = {
        "ReduceL1": (lambda x, **k: jnp.abs(x).sum(**k), 0.125),
        "ReduceL2": (lambda x, **k: jnp.sqrt((x * x).sum(**k)), -2),
        "ReduceLogSum": (lambda x, **k: jnp.log(x.sum(**k)), 0.25),
        "ReduceLogSumExp": (lambda x, **k: jnp.log(jnp.exp(x).sum(**k)), -2), "ReduceMax": (jnp.max, None),
        "ReduceMean": (jnp.mean, -2), "ReduceMin": (jnp.min, None), "ReduceSum": (jnp.sum, -2),
        "ReduceSumSquare": (lambda x, **k: (x * x).sum(**k), -2)}
    for name, (function, low) in reductions.items():
        for shape, axes, keepdims in [((2, 3, 2, 3), [2, 3], 1), ((3, 4), [0], 0), ((2, 5), [], 0)]:
            x = distinct(*shape) if low is None else draw(*shape, low=low)
            case(f"{name}, {shape} over {axes}", name,
                 lambda x, f=function, a=axes, k=keepdims: f(x, axis=tuple(a) or None, keepdims=bool(k)), [x],
                 {"axes": axes, "keepdims": keepdims})
    for axis in [0, -1]:
        case(f"LogSoftmax, axis {axis}", "LogSoftmax", lambda x, a=axis: jax.nn.log_softmax(x, axis=a), [draw(3, 4)],
             {"axis": axis})
    for name, function in [("ReduceMax", jnp.max), ("ReduceMin", jnp.min)]:
        case(f"{name}, equal ones", name, lambda x, f=function: f(x, axis=1, keepdims=True),
             [np.array([[1.0, 2, 2, 1, 1], [3, 3, 3, 3, 4]])], {"axes": [1]})


def add_moves():
    case("Slice, backwards", "Slice", lambda x: x[1:4:2, ::-2], [draw(5, 4)],
         {"starts": [1, -1], "ends": [4, -100], "axes": [0, 1], "steps": [2, -2]})
    case("Concat", "Concat", lambda a, b, c: jnp.concatenate([a, b, c], 1),
         [draw(2, 3, 2), draw(2, 1, 2), draw(2, 2, 2)], {"axis": 1})
    case("Expand", "Expand", lambda x: jnp.broadcast_to(x, (2, 3, 4)), [draw(3, 1)], {"shape": [2, 1, 4]})
    case("Tile", "Tile", lambda x: jnp.tile(x, (2, 1, 3)), [draw(2, 3, 2)], {"repeats": [2, 1, 3]})
    case("Pad", "Pad", lambda x: jnp.pad(x, ((1, 0), (2, 3)))[:, :-2], [draw(3, 4)], {"pads": [1, 2, 0, 1]})
    case("Gather", "Gather", lambda x, i: jnp.take(x, i.astype(int), axis=1),
         [draw(2, 4, 3), np.array([[3, 0, 3], [1, 3, 1]])], {"axis": 1}, labels=[1])
    for mode, method in [("linear", "linear"), ("cubic", "cubic")]:
        case(f"Resize, {mode}, antialiased", "Resize", lambda x, m=method: jax.image.resize(x, (1, 2, 3, 9), m),
             [draw(1, 2, 6, 5)],
             {"sizes": [1, 2, 3, 9], "mode": mode, "antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5})
    case("Resize, nearest", "Resize", lambda x: x.repeat(2, 2).repeat(3, 3), [draw(1, 2, 2, 3)],
         {"scales": [1.0, 1.0, 2.0, 3.0]})
    for mode, order in [("DCR", (0, 3, 4, 1, 5, 2)), ("CRD", (0, 1, 4, 2, 5, 3))]:
        split = (1, 2, 2, 3, 2, 2) if mode == "DCR" else (1, 3, 2, 2, 2, 2)
        case(f"DepthToSpace, {mode}", "DepthToSpace",
             lambda x, s=split, o=order: x.reshape(s).transpose(o).reshape(1, 3, 4, 4), [draw(1, 12, 2, 2)],
             {"blocksize": 2, "mode": mode})


def add_more_elementwise():
    """Operators that came later: the numbers drawn for the others stay as they are."""
    def apart(x, *corners):
        for corner in corners:
            x = np.where(np.abs(x - corner) < 1 / 16, corner + 1 / 8, x)
        return x

    unary = {  # function, attributes, corners, range
        "Acos": (jnp.arccos, {}, [], (-0.9, 0.9)),
        "Acosh": (jnp.arccosh, {}, [], (1.25, 4)),
        "Asin": (jnp.arcsin, {}, [], (-0.9, 0.9)),
        "Asinh": (jnp.arcsinh, {}, [], (-3, 3)),
        "Atanh": (jnp.arctanh, {}, [], (-0.9, 0.9)),
        "Ceil": (jnp.ceil, {}, [-1, 0, 1], (-1.9, 1.9)),
        "Clip": (lambda x: jnp.clip(x, -0.75, 1.25), {"min": -0.75, "max": 1.25}, [-0.75, 1.25], (-3, 3)),
        "Cosh": (jnp.cosh, {}, [], (-3, 3)),
        "Floor": (jnp.floor, {}, [-1, 0, 1], (-1.9, 1.9)),
        "Round": (jnp.round, {}, [-1.5, -0.5, 0.5, 1.5], (-1.9, 1.9)),
        "Shrink": (lambda x: jnp.where(x < -0.75, x + 0.25, jnp.where(x > 0.75, x - 0.25, 0)),
                   {"bias": 0.25, "lambd": 0.75}, [-0.75, 0.75], (-3, 3)),
        "Sinh": (jnp.sinh, {}, [], (-3, 3)),
        "Swish": (lambda x: x / (1 + jnp.exp(-1.5 * x)), {"alpha": 1.5}, [], (-3, 3)),
        "Tan": (jnp.tan, {}, [], (-1.2, 1.2)),
    }
    for name, (function, attributes, corners, (low, high)) in unary.items():
        case(name, name, function, [apart(draw(3, 5, low=low, high=high), *corners)], attributes)
    case("Not", "Not", jnp.logical_not, [np.array([[True, False, True], [False, False, True]])], gradients=False)
    case("Clip, one bound", "Clip", lambda x: jnp.minimum(x, 0.5), [apart(draw(3, 5), 0.5)], {"max": 0.5})
    for x, slope in [((2, 3, 2, 2), (2, 3, 2, 2)), ((2, 3, 4), (4,)), ((2, 3, 2, 3), (3, 1, 1)), ((2, 3), ())]:
        case(f"PRelu, {x} and {slope}", "PRelu", lambda a, b: jnp.where(a < 0, b * a, a),
             [apart(draw(*x), 0), draw(*slope)])
    for a, b in [((3, 5), (3, 5)), ((2, 3, 4), (4,))]:
        case(f"Mod, fmod, {a} and {b}", "Mod", jnp.fmod,
             [draw(*a, low=3, high=5) + 1 / 128, draw(*b, low=0.75, high=1.25)], {"fmod": 1})
        case(f"Mod, {a} and {b}", "Mod", lambda a, b: a - b * jnp.floor(a / b),
             [draw(*a, low=-5, high=-3) + 1 / 128, draw(*b, low=0.75, high=1.25)])


def add_indexed():
    """Indices repeat where ONNX allows it: several that put in one place leave open which one stays."""
    def along(data, indices, axis):
        """Where in `data` each element of `indices` is: an index array for each axis."""
        grid = list(jnp.indices(indices.shape))
        grid[axis] = indices.astype(int) % data.shape[axis]
        return tuple(grid)

    def scatter(where, reduction):
        return lambda x, i, u: (where(x, i).add if reduction == "add" else where(x, i).set)(u)

    def elements(axis):
        return lambda x, i: x.at[along(x, i, axis)]

    def tuples(x, i):
        return x.at[tuple(jnp.moveaxis(i.astype(int), -1, 0))]

    repeated, apart = np.array([[0, -1, 0, 2], [1, 1, -3, 1]]), np.array([[2, 0], [-1, 2], [1, -1]])
    for axis, shape in [(1, (2, 3)), (0, (3, 4))]:
        case(f"GatherElements, axis {axis}", "GatherElements", lambda x, i, a=axis: x[along(x, i, a)],
             [draw(*shape), repeated], {"axis": axis}, labels=[1])
    case("GatherND", "GatherND", lambda x, i: x[tuple(jnp.moveaxis(i.astype(int), -1, 0))],
         [draw(3, 4, 2), np.array([[[0, 1], [2, -1]], [[0, 1], [-1, 3]]])], labels=[1])
    case("GatherND, batches", "GatherND",
         lambda x, i: jax.vmap(lambda a, b: a[tuple(jnp.moveaxis(b.astype(int), -1, 0))])(x, i),
         [draw(2, 3, 2), np.array([[[0], [2], [0]], [[1], [-1], [-2]]])], {"batch_dims": 1}, labels=[1])
    case("ScatterElements", "ScatterElements", scatter(elements(1), "none"), [draw(3, 4), apart, draw(3, 2)],
         {"axis": 1}, labels=[1])
    case("ScatterElements, add", "ScatterElements", scatter(elements(0), "add"), [draw(3, 4), repeated, draw(2, 4)],
         {"axis": 0, "reduction": "add"}, labels=[1])
    case("ScatterND", "ScatterND", scatter(tuples, "none"), [draw(3, 4, 2), apart, draw(3, 2)], labels=[1])
    case("ScatterND, add", "ScatterND", scatter(tuples, "add"),
         [draw(4, 3), np.array([[[1], [-1]], [[1], [0]]]), draw(2, 2, 3)], {"reduction": "add"}, labels=[1])
    for largest in [0, 1]:
        case(f"TopK, largest {largest}", "TopK",
             lambda x, s=2 * largest - 1: s * jnp.moveaxis(jax.lax.top_k(s * jnp.moveaxis(x, 1, -1), 3)[0], -1, 1),
             [distinct(2, 5, 3)], {"K": [3], "axis": 1, "largest": largest})


def add_triangles_and_sums():
    for k, upper in [(0, 1), (-2, 1), (1, 0)]:
        case(f"Trilu, k {k}, upper {upper}", "Trilu", lambda x, k=k, f=jnp.triu if upper else jnp.tril: f(x, k),
             [draw(2, 3, 5)], {"k": k, "upper": upper})

    def sums(exclusive, reverse):
        def run(x):
            x = jnp.flip(x, 1) if reverse else x
            y = jnp.cumsum(x, 1) - (x if exclusive else 0)
            return jnp.flip(y, 1) if reverse else y
        return run

    for exclusive in [0, 1]:
        for reverse in [0, 1]:
            case(f"CumSum, exclusive {exclusive}, reverse {reverse}", "CumSum", sums(exclusive, reverse),
                 [draw(2, 5, 3)], {"axis": 1, "exclusive": exclusive, "reverse": reverse})


def add_response_normalisation():
    def lrn(size, alpha, beta, bias):
        def run(x):
            channels = x.shape[1]
            near = [[-((size - 1) // 2) <= other - c <= size // 2 for other in range(channels)]
                    for c in range(channels)]
            squares = jnp.einsum("cd,nd...->nc...", jnp.asarray(near, float), x * x)
            return x / (bias + alpha / size * squares) ** beta
        return run

    for size, alpha, beta, bias in [(3, 0.5, 0.75, 1.0), (4, 2.0, 0.5, 2.0), (9, 1.0, 1.0, 0.5)]:
        case(f"LRN, size {size}", "LRN", lrn(size, alpha, beta, bias), [draw(2, 5, 2, 3)],
             {"size": size, "alpha": alpha, "beta": beta, "bias": bias})


def add_updates():
    """Optimisers as Optax has them, over four updates with a rate that changes."""
    rates = [0.125, 0.125, 0.0625, 0.03125]

    def add(name, op, attributes, transformation):
        weights = jnp.asarray(draw(7))
        state = transformation.init(weights)
        entry = {"name": name, "op": op, "attributes": attributes, "weights": plain(weights), "steps": []}
        for rate in rates:
            gradients = jnp.asarray(draw(7))
            change, state = transformation.update(gradients, state, weights)
            weights = optax.apply_updates(weights, change)
            entry["steps"].append({"learning_rate": rate, "gradients": plain(gradients), "weights": plain(weights)})
        updates.append(entry)

    def rate(step):
        return jnp.asarray(rates)[step]

    for name, momentum, decay, nesterov in [("plain", 0.0, 0.0, False), ("momentum and decay", 0.875, 0.125, False),
                                            ("Nesterov", 0.75, 0.0625, True)]:
        attributes = {"momentum": momentum, "weight_decay": decay} | ({"nesterov": 1} if nesterov else {})
        add(f"Sgd, {name}", "arbalest.Sgd", attributes,
            optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, momentum or None, nesterov)))
    for name, beta1, beta2, epsilon, decay in [("defaults", 0.9, 0.999, 1e-8, 0.0),
                                               ("decay, large epsilon", 0.75, 0.9375, 0.125, 0.25)]:
        add(f"Adamw, {name}", "arbalest.Adamw",
            {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": decay},
            optax.adamw(rate, b1=beta1, b2=beta2, eps=epsilon, weight_decay=decay))


def add_more_losses():
    def softmax(smoothing, soft):
        def run(logits, label, weights):
            k = logits.shape[1]
            one_hot = label if soft else jax.nn.one_hot(label.astype(int), k)
            target = (1 - smoothing) * one_hot + smoothing / k
            losses = -(weights * target * jax.nn.log_softmax(logits)).sum(1)
            return losses.mean() if soft else losses.sum() / weights[label.astype(int)].sum()
        return run

    def sigmoid(logits, label, weights):
        shape = (1, -1) + (1,) * (logits.ndim - 2)
        losses = -(weights.reshape(shape) * label * jax.nn.log_sigmoid(logits)
                   + (1 - label) * jax.nn.log_sigmoid(-logits))
        return jnp.where(label == -1, 0, losses).sum() / (label != -1).sum()

    classes, rows = np.array([2, 0, 4, 4, 1]), random.integers(1, 9, (5, 5)) / 8
    for smoothing in [0.0, 0.1]:
        for soft in [False, True]:
            case(f"SoftmaxCrossEntropy, class weights, smoothing {smoothing}, {'soft' if soft else 'classes'}",
                 "arbalest.SoftmaxCrossEntropy", softmax(smoothing, soft),
                 [draw(5, 5, low=-4, high=4), rows if soft else classes, draw(5, low=0.25)],
                 {"label_smoothing": smoothing}, labels=[] if soft else [1], differentiable=[0])
    missing = random.integers(-1, 2, (4, 6))
    case("SigmoidCrossEntropy, missing labels", "arbalest.SigmoidCrossEntropy", sigmoid,
         [draw(4, 6, low=-4, high=4), missing, draw(6, low=0.25)], labels=[1], differentiable=[0])
    case("SigmoidCrossEntropy, soft labels", "arbalest.SigmoidCrossEntropy", sigmoid,
         [draw(4, 6, low=-4, high=4), random.integers(0, 9, (4, 6)) / 8, np.ones(6)], differentiable=[0])
    case("SigmoidCrossEntropy, masks", "arbalest.SigmoidCrossEntropy", sigmoid,
         [draw(2, 3, 2, 2, low=-4, high=4), random.integers(-1, 2, (2, 3, 2, 2)), draw(3, low=0.25)], labels=[1],
         differentiable=[0])
    for shape in [(4, 3), (2, 3, 2, 2)]:
        case(f"MeanSquaredError, {shape}", "arbalest.MeanSquaredError", lambda x, t: ((x - t) ** 2).mean(),
             [draw(*shape), draw(*shape)])
        case(f"L1Loss, {shape}", "arbalest.L1Loss", lambda x, t: jnp.abs(x - t).mean(),
             [draw(*shape), draw(*shape) + 1 / 128])


def add_more_updates():
    """Parameters of 66 and of 10 elements, as they lie in the flat arrays: each begins at a multiple of 64."""
    rates = [0.125, 0.125, 0.03125]

    def flat(tree):
        return np.concatenate([np.asarray(tree[0]), np.zeros(62), np.asarray(tree[1])])

    def add(name, op, attributes, transformation, alone=(0, 0)):
        weights = (jnp.asarray(draw(66)), jnp.asarray(draw(10)))
        state = transformation.init(weights)
        entry = {"name": name, "op": op, "attributes": attributes, "weights": plain(flat(weights)),
                 "tensors": plain(np.array([[0, alone[0]], [2, alone[1]]])) | {"type": "int32"}, "steps": []}
        for rate in rates:
            gradients = (jnp.asarray(draw(66)), jnp.asarray(draw(10)))
            change, state = transformation.update(gradients, state, weights)
            weights = optax.apply_updates(weights, change)
            entry["steps"].append(
                {"learning_rate": rate, "gradients": plain(flat(gradients)), "weights": plain(flat(weights))})
        updates.append(entry)

    def rate(step):
        return jnp.asarray(rates)[step]

    for name, alpha, epsilon, momentum, centered, decay in [
            ("defaults", 0.99, 1e-8, 0.0, False, 0.0), ("momentum, decay", 0.875, 0.125, 0.75, False, 0.25),
            ("centered", 0.75, 0.0625, 0.5, True, 0.0)]:
        scale = optax.scale_by_stddev if centered else optax.scale_by_rms
        add(f"Rmsprop, {name}", "arbalest.Rmsprop",
            {"alpha": alpha, "epsilon": epsilon, "momentum": momentum, "centered": int(centered),
             "weight_decay": decay},
            optax.chain(optax.add_decayed_weights(decay), scale(alpha, eps=epsilon, eps_in_sqrt=False),
                        optax.trace(momentum), optax.scale_by_learning_rate(rate)))
    for name, trust, momentum, nesterov, decay, alone in [
            ("plain", 0.5, 0.0, False, 0.0, (0, 0)), ("momentum, decay", 0.25, 0.875, False, 0.125, (0, 0)),
            ("Nesterov, one alone", 0.125, 0.5, True, 0.0, (0, 1))]:
        add(f"Lars, {name}", "arbalest.Lars",
            {"trust_coefficient": trust, "momentum": momentum, "weight_decay": decay}
            | ({"nesterov": 1} if nesterov else {}),
            optax.lars(rate, decay, trust_coefficient=trust, momentum=momentum, nesterov=nesterov,
                       trust_ratio_mask=(not alone[0], not alone[1])), alone)
    for name, beta1, beta2, epsilon, decay in [("defaults", 0.9, 0.999, 1e-8, 0.0),
                                               ("decay, large epsilon", 0.75, 0.9375, 0.125, 0.25)]:
        add(f"Lamb, {name}", "arbalest.Lamb",
            {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": decay},
            optax.lamb(rate, beta1, beta2, epsilon, weight_decay=decay))


def add_matrix_updates():
    """Muon of two matrices and a vector. Of the second matrix, columns are outputs."""
    rates, shapes, ratios = [0.125, 0.0625, 0.03125], [(13, 5), (4, 9), (10,)], [13 / 5, 9 / 4, 0]
    turn = optax.contrib._muon.orthogonalize_via_newton_schulz

    def flat(tree):
        return np.concatenate([np.pad(np.ravel(each), (0, padding)) for each, padding in zip(tree, (63, 28, 0))])

    def orthogonal(tree, _):
        return tuple(math.sqrt(max(1, ratio)) * turn(each, jnp.asarray([3.4445, -4.775, 2.0315]), 5, eps=1e-7)
                     if ratio else each for each, ratio in zip(tree, ratios))

    for name, momentum, decay, nesterov in [("plain", 0.0, 0.0, False), ("momentum and decay", 0.875, 0.125, False),
                                            ("Nesterov", 0.75, 0.0625, True)]:
        transformation = optax.chain(
            optax.trace(momentum, nesterov), optax.stateless(orthogonal), optax.add_decayed_weights(decay),
            optax.scale_by_learning_rate(lambda step: jnp.asarray(rates)[step]))
        weights = tuple(jnp.asarray(draw(*shape)) for shape in shapes)
        state = transformation.init(weights)
        entry = {"name": f"Muon, {name}", "op": "arbalest.Muon", "matrix_units": True,
                 "attributes": {"momentum": momentum, "nesterov": int(nesterov), "weight_decay": decay,
                                "matrices": [13, 5, 0, 4, 9, 1, 10, 1, 0]},
                 "weights": plain(flat(weights)),
                 "tensors": plain(np.array([[0, 0], [2, 0], [3, 0]])) | {"type": "int32"}, "steps": []}
        for rate in rates:
            gradients = tuple(jnp.asarray(draw(*shape)) for shape in shapes)
            change, state = transformation.update(gradients, state, weights)
            weights = optax.apply_updates(weights, change)
            entry["steps"].append(
                {"learning_rate": rate, "gradients": plain(flat(gradients)), "weights": plain(flat(weights))})
        updates.append(entry)


def add_recurrent():
    sigmoid = lambda x: 1 / (1 + jnp.exp(-x))

    def rnn_step(x, state, w, r, bias, peephole, activations, options):
        return (activations[0](x @ w.T + state[0] @ r.T + bias[0] + bias[1]),)

    def gru_step(x, state, w, r, bias, peephole, activations, options):
        (f, g), h = activations, state[0]
        wz, wr, wh, rz, rr, rh = *jnp.split(w, 3), *jnp.split(r, 3)
        (bz, br, bh), (cz, cr, ch) = jnp.split(bias[0], 3), jnp.split(bias[1], 3)
        z, reset = f(x @ wz.T + h @ rz.T + bz + cz), f(x @ wr.T + h @ rr.T + br + cr)
        later = reset * (h @ rh.T + ch) if options.get("linear_before_reset") else (reset * h) @ rh.T + ch
        return ((1 - z) * g(x @ wh.T + later + bh) + z * h,)

    def lstm_step(x, state, w, r, bias, peephole, activations, options):
        (f, g, out), (h, c) = activations, state
        i, o, keep, fresh = jnp.split(x @ w.T + h @ r.T + bias[0] + bias[1], 4, axis=1)
        pi, po, pf = jnp.split(peephole, 3)
        i = f(i + pi * c)
        c = ((1 - i) if options.get("input_forget") else f(keep + pf * c)) * c + i * g(fresh)
        return f(o + po * c) * out(c), c

    def layer(step, activations, options):
        def run(x, w, r, b=None, lengths=None, initial_h=None, initial_c=None, p=None):
            samples_first = options.get("layout", 0)
            x = x.swapaxes(0, 1) if samples_first else x
            steps, samples = x.shape[:2]
            directions, hidden = r.shape[0], r.shape[2]
            lengths = jnp.full(samples, steps) if lengths is None else lengths
            ys, lasts = [], []
            for d in range(directions):
                zeros = jnp.zeros((samples, hidden))
                initial = [zeros if s is None else (s[:, d] if samples_first else s[d]) for s in (initial_h, initial_c)]
                state = tuple(initial[:2 if step is lstm_step else 1])
                bias = jnp.zeros((2, w.shape[1])) if b is None else b[d].reshape(2, -1)
                backwards = d == 1 or options.get("direction") == "reverse"
                y = [None] * steps
                for t in reversed(range(steps)) if backwards else range(steps):
                    peephole = jnp.zeros(3 * hidden) if p is None else p[d]
                    own = activations[d * len(activations) // directions:]
                    own = own[:len(activations) // directions]
                    found = step(x[t], state, w[d], r[d], bias, peephole, own, options)
                    goes_on = (t < lengths)[:, None]
                    y[t] = jnp.where(goes_on, found[0], 0)
                    state = tuple(jnp.where(goes_on, after, before) for after, before in zip(found, state))
                ys.append(jnp.stack(y))
                lasts.append(state)
            y = jnp.stack(ys, 1)
            ends = [jnp.stack([last[i] for last in lasts]) for i in range(len(lasts[0]))]
            if samples_first:
                y, ends = y.transpose(2, 0, 1, 3), [end.swapaxes(0, 1) for end in ends]
            return y, *ends
        return run

    lengths = np.array([4, 2, 3])
    steps, samples, features, hidden = 4, 3, 2, 5
    for name, op, step, gates, activations, options, inputs, gradient_of in [
            ("RNN, two directions", "RNN", rnn_step, 1, [jax.nn.relu, jnp.tanh],
             {"direction": "bidirectional", "activations": ["Relu", "Tanh"]}, 4, 0),
            ("GRU, backwards", "GRU", gru_step, 3, [sigmoid, jnp.tanh], {"direction": "reverse"}, 4, 1),
            ("GRU, reset after the product", "GRU", gru_step, 3, [sigmoid, jnp.tanh], {"linear_before_reset": 1}, 6, 0),
            ("GRU, reset after the product, no state before", "GRU", gru_step, 3, [sigmoid, jnp.tanh],
             {"linear_before_reset": 1, "hidden_size": hidden}, 4, 0),
            ("LSTM", "LSTM", lstm_step, 4, [sigmoid, jnp.tanh, jnp.tanh], {}, 3, 2),
            ("LSTM, coupled gates, backwards", "LSTM", lstm_step, 4, [sigmoid, jax.nn.softplus, jax.nn.soft_sign],
             {"direction": "reverse", "input_forget": 1, "activations": ["Sigmoid", "Softplus", "Softsign"]}, 5, 1),
            ("LSTM, all operands, samples first, two directions", "LSTM", lstm_step, 4,
             [sigmoid, jnp.tanh, jnp.tanh] * 2, {"direction": "bidirectional", "layout": 1}, 8, 0)]:
        directions = 2 if options.get("direction") == "bidirectional" else 1
        state = (samples, directions, hidden) if options.get("layout") else (directions, samples, hidden)
        shapes = [(samples, steps, features) if options.get("layout") else (steps, samples, features),
                  (directions, gates * hidden, features), (directions, gates * hidden, hidden),
                  (directions, 2 * gates * hidden), None, state, state, (directions, 3 * hidden)]
        operands = [draw(*shape, low=-1, high=1) if shape else lengths for shape in shapes[:inputs]]
        case(name, op, layer(step, activations, options), operands, options, labels=[4],
             gradient_of=gradient_of)


def add_products_of_factors():
    """Zeros among the factors, and elements that are equal."""
    def met(places, function, neutral):
        def run(x, i, u):
            own = places(jnp.arange(x.size).reshape(x.shape), i).ravel()
            terms = jnp.where(own == jnp.arange(x.size)[:, None], u.ravel(), neutral)
            return function(jnp.concatenate([x.reshape(-1, 1), terms], 1), 1).reshape(x.shape)
        return run

    def whole(*shape):
        return random.integers(-1, 3, shape).astype(float)

    def elements(x, i):
        return jnp.take_along_axis(x, i.astype(int) % x.shape[0], 0)

    def tuples(x, i):
        return x[tuple(jnp.moveaxis(i.astype(int), -1, 0))]

    zeros = np.array([[1.5, 2, -3], [0, 2, 3], [0, 0, 2], [0, 0, 0]])
    for name, x, axes, keepdims in [("", draw(2, 3, 2, 3), [2, 3], 1), (", zeros", zeros, [1], 0),
                                    (", all", draw(2, 3), [], 0)]:
        case(f"ReduceProd{name}", "ReduceProd",
             lambda x, a=axes, k=keepdims: jnp.prod(x, axis=tuple(a) or None, keepdims=bool(k)), [x],
             {"axes": axes, "keepdims": keepdims})
    for reduction, function, neutral in [("max", jnp.max, -np.inf), ("min", jnp.min, np.inf), ("mul", jnp.prod, 1)]:
        case(f"ScatterElements, {reduction}", "ScatterElements", met(elements, function, neutral),
             [whole(3, 5), random.integers(-3, 3, (7, 5)), whole(7, 5)], {"axis": 0, "reduction": reduction},
             labels=[1])
        case(f"ScatterND, {reduction}", "ScatterND", met(tuples, function, neutral),
             [whole(4, 3), np.array([[[1], [-1]], [[1], [0]], [[3], [1]]]), whole(3, 2, 3)], {"reduction": reduction},
             labels=[1])


def add_class_losses():
    def loss(soft, reduction, ignored):
        def run(x, label, weights=None):
            logs = jax.nn.log_softmax(x, axis=1) if soft else x
            weight = jnp.moveaxis(jax.nn.one_hot(label.astype(int), x.shape[1]), -1, 1)
            weight *= 1 if weights is None else weights.reshape((-1,) + (1,) * (x.ndim - 2))
            weight *= 1 if ignored is None else (label != ignored)[:, None]
            each = -(logs * weight).sum(1)
            y = {"none": each, "sum": each.sum(), "mean": each.sum() / weight.sum()}[reduction]
            return (y, logs) if soft else y
        return run

    for soft, op in [(0, "NegativeLogLikelihoodLoss"), (1, "SoftmaxCrossEntropyLoss")]:
        for reduction, shape, ignored, weighed, back in [
                ("mean", (4, 3), None, 0, 0), ("mean", (3, 4, 2), -100, 1, soft), ("sum", (2, 3, 2, 3), 1, 1, 0),
                ("none", (2, 3, 4), 0, 0, 0), ("mean", (2, 5, 3), 255, 0, 0), ("none", (2, 3, 2, 1, 2), None, 1, 0)]:
            label = random.integers(0, shape[1], (shape[0],) + shape[2:])
            label.flat[::3] = label.flat[::3] if ignored is None else ignored
            case(f"{op}, {reduction} of {shape}, without {ignored}", op, loss(soft, reduction, ignored),
                 [draw(*shape), label] + ([draw(shape[1], low=0.25)] if weighed else []),
                 {"reduction": reduction} | ({} if ignored is None else {"ignore_index": ignored}), labels=[1],
                 differentiable=[0], gradient_of=back)


def add_attention_of_onnx():
    """Queries, keys and values by heads or side by side; masks of rows that see no key."""
    def attention(q, k, v, mask=None, *, scale=0.0, is_causal=0, softcap=0.0, q_num_heads=0, kv_num_heads=0):
        whole = q.ndim == 3
        if whole:
            q, k, v = (x.reshape(x.shape[0], x.shape[1], heads, -1).swapaxes(1, 2)
                       for x, heads in [(q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)])
        k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
        scores = (scale or q.shape[-1] ** -0.5) * q @ k.swapaxes(2, 3)
        scores = softcap * jnp.tanh(scores / softcap) if softcap else scores
        seen = jnp.ones(scores.shape, bool)
        if mask is not None:
            last = [(0, 0)] * (mask.ndim - 1) + [(0, k.shape[2] - mask.shape[-1])]
            if mask.dtype == bool:
                seen &= jnp.pad(mask, last)
            else:
                scores += jnp.pad(mask, last)
                seen &= jnp.pad(jnp.ones(mask.shape, bool), last)
        if is_causal:
            seen &= jnp.tril(jnp.ones(scores.shape[2:], bool))
        exponentials = jnp.where(seen, jnp.exp(jnp.where(seen, scores, 0)), 0)
        sums = exponentials.sum(-1, keepdims=True)
        y = (exponentials / jnp.where(sums == 0, 1, sums)) @ v
        return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1) if whole else y

    heads, whole = [(2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4)], [(2, 3, 8), (2, 5, 4), (2, 5, 6)]
    shared = [(2, 4, 3, 4), heads[1], heads[2]]
    of_samples = random.integers(0, 2, (2, 1, 3, 5)).astype(bool)
    of_samples[1, 0, 1] = False
    sides = {"q_num_heads": 4, "kv_num_heads": 2}
    for name, shapes, mask, options in [
            ("plain", heads, None, {}), ("causal, scale", heads, None, {"is_causal": 1, "scale": 0.5}),
            ("flags", heads, of_samples, {}),
            ("flags, causal, softcap", shared, of_samples, {"is_causal": 1, "softcap": 2.5}),
            ("bias", heads, draw(2, 3, 5), {}), ("short bias, causal", shared, draw(3, 3), {"is_causal": 1}),
            ("short flags", heads, of_samples[:, :, :, :3], {}), ("side by side", whole, None, sides),
            ("side by side, flags", whole, of_samples[1, 0], sides | {"is_causal": 1})]:
        operands = [draw(*shape) for shape in shapes] + ([] if mask is None else [mask])
        flags = mask is not None and mask.dtype == bool
        case(f"Attention, {name}", "Attention", lambda *x, o=options: attention(*x, **o), operands, options,
             differentiable=[0, 1, 2] if flags else None)


def add_transforms():
    def parts(y):
        return jnp.stack([y.real, y.imag], -1)

    def whole(x):
        return x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)

    def dft(x, axis, dft_length=None, inverse=0, onesided=0):
        axis %= x.ndim
        if onesided:
            if inverse:
                return jnp.fft.irfft(whole(x), dft_length, axis)[..., None]
            return parts(jnp.fft.rfft(x[..., 0], dft_length, axis))
        return parts((jnp.fft.ifft if inverse else jnp.fft.fft)(whole(x), dft_length, axis))

    both = {"inverse": 1, "onesided": 1}
    for shape, options in [((2, 5, 1), {}), ((2, 3, 6, 2), {}), ((2, 6, 2), {"axis": -2, "inverse": 1}),
                           ((2, 5, 3, 1), {"onesided": 1}), ((2, 6, 1), {"onesided": 1, "dft_length": 4}),
                           ((2, 3, 1), {"dft_length": 5}), ((2, 5, 2), {"dft_length": 3}), ((2, 4, 2), both),
                           ((2, 4, 3, 2), both | {"dft_length": 7}), ((2, 4, 2), both | {"dft_length": 4})]:
        options = {"axis": 1} | options
        case(f"DFT of {shape}, {options}", "DFT", lambda x, o=options: dft(x, **o), [draw(*shape)], options)

    def stft(x, frame_step, frame_length, onesided=1):
        count = 1 + (x.shape[1] - frame_length) // frame_step
        frames = jnp.stack([(whole(x) if x.ndim == 3 else x)[:, i * frame_step:i * frame_step + frame_length]
                            for i in range(count)], 1)
        return parts(jnp.fft.rfft(frames.real) if onesided else jnp.fft.fft(frames))

    for shape, options in [((2, 17, 1), {"frame_step": 3, "frame_length": 6}),
                           ((2, 12), {"frame_step": 2, "frame_length": 5, "onesided": 0}),
                           ((2, 11, 2), {"frame_step": 3, "frame_length": 4, "onesided": 0})]:
        case(f"STFT of {shape}, {options}", "STFT", lambda x, o=options: stft(x, **o), [draw(*shape)], options)


def add_rotations():
    def rotary(x, cosines, sines, places=None, *, interleaved=0, num_heads=0, rotary_embedding_dim=0):
        flat = x.ndim == 3
        rows = x.reshape(x.shape[0], x.shape[1], num_heads, -1) if flat else x.swapaxes(1, 2)
        turned = rotary_embedding_dim or rows.shape[-1]
        c, s = ((t if places is None else t[places.astype(int)])[:, :, None] for t in (cosines, sines))
        a, b = ((rows[..., 0:turned:2], rows[..., 1:turned:2]) if interleaved else
                (rows[..., :turned // 2], rows[..., turned // 2:turned]))
        a, b = c * a - s * b, s * a + c * b
        pairs = jnp.stack([a, b], -1).reshape(*a.shape[:-1], -1) if interleaved else jnp.concatenate([a, b], -1)
        y = jnp.concatenate([pairs, rows[..., turned:]], -1)
        return y.reshape(x.shape) if flat else y.swapaxes(1, 2)

    for shape, pairs, positions, options in [
            ((2, 2, 3, 4), 2, False, {}), ((2, 3, 12), 2, True, {"num_heads": 2, "rotary_embedding_dim": 4}),
            ((2, 2, 3, 6), 2, True, {"interleaved": 1, "rotary_embedding_dim": 4})]:
        tables = [draw(*((7,) if positions else (2, 3)), pairs) for _ in range(2)]
        places = [random.integers(0, 7, (2, 3))] if positions else []
        case(f"RotaryEmbedding of {shape}, {options}", "RotaryEmbedding", lambda *x, o=options: rotary(*x, **o),
             [draw(*shape)] + tables + places, options, labels=[3])


for add in [add_convolutions, add_products, add_normalisation, add_pooling, add_shapes, add_losses, add_elementwise,
            add_reductions, add_moves, add_updates, add_more_elementwise, add_other_convolutions, add_average_pools,
            add_matrix_products, add_sample_normalisation, add_more_losses, add_more_updates, add_indexed,
            add_triangles_and_sums, add_response_normalisation, add_matrix_updates, add_recurrent,
            add_products_of_factors, add_class_losses, add_attention_of_onnx, add_transforms, add_rotations]:
    add()
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference_vectors.json")
with open(path, "w") as file:
    versions = f"jax {jax.__version__}, optax {optax.__version__}, numpy {np.__version__}, float64"
    file.write('{"made_with": %s, "cases": [\n' % json.dumps(versions))
    file.write(",\n".join(json.dumps(entry, separators=(",", ":")) for entry in cases))
    file.write('\n], "updates": [\n')
    file.write(",\n".join(json.dumps(entry, separators=(",", ":")) for entry in updates))
    file.write("\n]}\n")
print(len(cases), "cases,", len(updates), "optimisers,", os.path.getsize(path), "bytes")
