# SPDX-License-Identifier: Apache-2.0
"""A Keras model as an .onnx file that can be trained: with its batch norms, and with Keras' names of its weights.

    import keras
    from keras_export import export_for_training

    model = keras.applications.ResNet50(weights="imagenet", classifier_activation=None)
    export_for_training(model, "resnet50.onnx")

Keras' own export and tf2onnx write models for inference. Before they see a model TensorFlow folds its batch norms into
convolutions, or into a product and a sum, and leaves out biases that are zero; what is trained has none of them. Here
the weights are operands while TensorFlow and tf2onnx look at the model, so that nothing can be folded, and become
initialisers afterwards: `conv1_conv/kernel`, `conv1_bn/moving_mean`. Kernels have ONNX's order of axes, (filters,
channels, height, width).

`load_trained()` puts weights that `arbalest run --save` wrote into the Keras model.

Needs Keras 3 with TensorFlow as its backend, tf2onnx and onnx; `load_trained()` needs safetensors.
"""

import keras
import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
from onnx import helper, numpy_helper
from tf2onnx import handler, utils


def export_for_training(model, path, opset=17, training=False):
    """`training`: with dropouts and noise, which the model has in training."""
    copy = with_exported_batch_norms(model)
    proto, variables = convert(copy, opset, training)
    paths = {id(variable): variable.path for variable in copy.variables}
    paths |= {id(of_copy): own.path for of_copy, own in zip(copy.weights, model.weights, strict=True)}
    names = {f"weight_{i}": paths[id(variable)] for i, variable in enumerate(variables)}
    for node in proto.graph.node:
        for i, operand in enumerate(node.input):
            node.input[i] = names.get(operand, operand)
    for value in proto.graph.input:
        value.name = names.get(value.name, value.name)
    place_weights(proto.graph, {paths[id(variable)]: variable.numpy() for variable in variables})
    statistics = {paths[id(layer.moving_mean)]: layer for layer in batch_norms(copy)}
    learned = {paths[id(variable)] for variable in copy.trainable_variables}
    keep_constants(proto.graph,
                   learned | set(statistics) | {paths[id(layer.moving_variance)] for layer in batch_norms(copy)})
    state_momentum(proto.graph, statistics)
    onnx.checker.check_model(proto)
    onnx.save(proto, path)


def load_trained(model, path):
    """Weights of `arbalest run --save` into the Keras model."""
    from safetensors.numpy import load_file

    trained = load_file(path)
    for variable in model.weights:
        if variable.path in trained:
            variable.assign(in_keras_order(trained[variable.path], tuple(variable.shape), variable.path))


class ExportedBatchNormalization(keras.layers.BatchNormalization):
    """A batch norm as the one operator that tf2onnx knows as ONNX's BatchNormalization."""

    def call(self, inputs, training=None, mask=None):
        channels = inputs.shape[-1]
        if self.axis not in (-1, len(inputs.shape) - 1):
            raise ValueError(f"batch norm '{self.name}' is over axis {self.axis}, expected the last one")
        x = inputs if len(inputs.shape) == 4 else tf.reshape(inputs, [-1, 1, 1, channels])
        scale = self.gamma if self.scale else tf.ones(channels)
        shift = self.beta if self.center else tf.zeros(channels)
        y = tf.compat.v1.nn.fused_batch_norm(x, scale, shift, self.moving_mean, self.moving_variance,
                                             epsilon=self.epsilon, is_training=False)[0]
        return y if len(inputs.shape) == 4 else tf.reshape(y, tf.shape(inputs))


@handler.tf_op("Erfc")
class Erfc:
    """1 - Erf: TensorFlow's exact GELU has Erfc, which tf2onnx 1.17 does not know."""

    @classmethod
    def version_9(cls, graph, node, **kwargs):
        operand, result, shapes, types = node.input[0], node.output[0], node.output_shapes, node.output_dtypes
        graph.remove_node(node.name)
        one = graph.make_const(utils.make_name(node.name), np.float32(1)).output[0]
        erf = graph.make_node("Erf", [operand]).output[0]
        graph.make_node("Sub", [one, erf], name=node.name, outputs=[result], shapes=shapes, dtypes=types)


@handler.tf_op(["StatelessRandomUniformV2", "StatelessRandomNormalV2"])
class StatelessRandom:
    """Numbers that are drawn: ONNX's operators draw as well, but not by TensorFlow's keys and counters."""

    @classmethod
    def version_9(cls, graph, node, **kwargs):
        shape, result, shapes, types = node.input[0], node.output[0], node.output_shapes, node.output_dtypes
        onnx_type = "RandomUniformLike" if "Uniform" in node.type else "RandomNormalLike"
        graph.remove_node(node.name)
        extents = graph.make_node("Cast", [shape], attr={"to": onnx.TensorProto.INT64}).output[0]
        like = graph.make_node("ConstantOfShape", [extents]).output[0]
        graph.make_node(onnx_type, [like], name=node.name, outputs=[result], shapes=shapes, dtypes=types)


def with_exported_batch_norms(model):
    def clone(layer):
        kind = type(layer)
        if kind is keras.layers.BatchNormalization:
            kind = ExportedBatchNormalization
        return kind.from_config(layer.get_config())

    copy = keras.models.clone_model(model, clone_function=clone)
    copy.set_weights(model.get_weights())
    copy.trainable = True  # what is frozen the training graph says
    return copy


def batch_norms(model):
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]


def convert(model, opset, training):
    """The model with its variables as the inputs `weight_0`, `weight_1`, …, and these variables."""
    trained, others = model.trainable_variables, model.non_trainable_variables
    inputs = len(model.inputs)
    signature = [tf.TensorSpec(x.shape, x.dtype, name=f"x_{i}" if i else "x") for i, x in enumerate(model.inputs)]
    signature += [tf.TensorSpec(v.shape, v.dtype, name=f"weight_{i}") for i, v in enumerate(trained + others)]

    @tf.function(input_signature=signature)
    def forward(*operands):
        x = operands[0] if inputs == 1 else list(operands[:inputs])
        weights = operands[inputs:]
        outputs, _ = model.stateless_call(weights[:len(trained)], weights[len(trained):], x, training=training)
        return {f"y_{i}" if i else "y": y for i, y in enumerate(keras.tree.flatten(outputs))}

    return tf2onnx.convert.from_function(forward, signature, opset=opset)[0], trained + others


def place_weights(graph, weights):
    """Makes the graph's inputs of these names initialisers. Nodes that only reorder a weight are left out: the
    initialiser is what they made."""
    numbers = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes = list(graph.node)
    for name in weights:
        while True:
            readers = [node for node in nodes if name in node.input]
            made = reordered(readers[0], weights[name], numbers) if len(readers) == 1 else None
            if made is None:
                break
            weights[name] = np.ascontiguousarray(made)
            nodes.remove(readers[0])
            for node in nodes:
                for i, operand in enumerate(node.input):
                    if operand == readers[0].output[0]:
                        node.input[i] = name
    read = {operand for node in nodes for operand in node.input}
    # tf2onnx states tensors that TensorFlow has captured as inputs, also if it has folded them away.
    inputs = [value for value in graph.input if value.name not in weights and value.name in read]
    constants = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.input[:], graph.initializer[:], graph.node[:]
    graph.input.extend(inputs)
    graph.initializer.extend(numpy_helper.from_array(tensor, name) for name, tensor in weights.items() if name in read)
    graph.initializer.extend(constants)
    graph.node.extend(nodes)


def reordered(node, tensor, numbers):
    """What a node that only reorders or reshapes makes of the tensor; None where it does something else."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Identity":
        return tensor
    if node.op_type == "Transpose":
        return tensor.transpose(attributes.get("perm"))
    if node.op_type == "Squeeze" and len(node.input) == 1:
        return tensor.squeeze()
    if len(node.input) < 2 or node.input[1] not in numbers:
        return None
    if node.op_type == "Reshape":
        return tensor.reshape(numbers[node.input[1]])
    if node.op_type in ("Squeeze", "Unsqueeze"):
        axes = tuple(int(axis) for axis in numbers[node.input[1]])
        return tensor.squeeze(axes) if node.op_type == "Squeeze" else np.expand_dims(tensor, axes)
    return None


def keep_constants(graph, trained):
    """Makes nodes of all numbers but those of `trained`: Arbalest trains initialisers. Scales and shifts of batch norms
    that Keras does not train are computed, since Arbalest trains these operands where they are numbers of the file."""
    untrained = [tensor for tensor in graph.initializer if tensor.name not in trained]
    kept = [tensor for tensor in graph.initializer if tensor.name in trained]
    of_batch_norms = {name for node in graph.node if node.op_type == "BatchNormalization" for name in node.input[1:3]}
    nodes = []
    for tensor in untrained:
        name, numbers = tensor.name, numpy_helper.to_array(tensor)
        if name in of_batch_norms:  # all ones, or all zeros
            length = numpy_helper.from_array(np.array(numbers.shape, np.int64))
            number = numpy_helper.from_array(numbers[:1])
            nodes.append(helper.make_node("Constant", [], [f"{name}/length"], value=length))
            nodes.append(helper.make_node("Constant", [], [f"{name}/number"], value=number))
            nodes.append(helper.make_node("Expand", [f"{name}/number", f"{name}/length"], [name]))
        else:
            tensor.name = ""
            nodes.append(helper.make_node("Constant", [], [name], value=tensor))
    nodes += list(graph.node)
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)


def state_momentum(graph, layers):
    """Writes the momentum of each batch norm, found by the name of its running mean."""
    for node in graph.node:
        if node.op_type == "BatchNormalization" and node.input[3] in layers:
            attributes = [a for a in node.attribute if a.name != "momentum"]
            attributes.append(helper.make_attribute("momentum", float(layers[node.input[3]].momentum)))
            del node.attribute[:]
            node.attribute.extend(attributes)


def in_keras_order(tensor, shape, name):
    """The numbers of a weight of the file in the shape that Keras has it in."""
    rank = len(shape)
    if rank in (4, 5) and tensor.ndim == rank and tensor.shape[2:] == shape[:-2]:
        spatial = list(range(2, rank))
        if tensor.shape[:2] == (shape[-1], shape[-2]):  # (filters, channels, height, width)
            return tensor.transpose(spatial + [1, 0])
        if tensor.shape[:2] == (shape[-2] * shape[-1], 1):  # depthwise: (channels · multiplier, 1, height, width)
            return tensor.reshape(shape[-2:] + tensor.shape[2:]).transpose(spatial + [0, 1])
    if tensor.size == np.prod(shape) and rank < 4:
        return tensor.reshape(shape)
    raise ValueError(f"'{name}' is {list(tensor.shape)} in the file, which does not fit {list(shape)} in the model")
