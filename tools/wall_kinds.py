# SPDX-License-Identifier: Apache-2.0
"""Models that are no image classifiers, in the sizes that people train: language models, segmentation, diffusion,
sound, video and tables. For bench_wall, which calls them kind:NAME. PyTorch's newer exporter writes those that its
older one cannot, for a batch of two."""
import os

KINDS = {}
GRAPH = """<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1, "model" : 1]>
kind () => (float loss)
{{
  {fields}, target = arbalest.Prefetch <source = "tensors:{data}{query}", batch = 64, cache = "device"> ()
  out = model.net <file = "{file}"> ({fields})
  loss = {loss}
  trained = arbalest.Train <optimizer = "sgd", lr = 0.000001, momentum = 0.9> (loss)
}}
"""
LOSSES = {
    "numbers": "arbalest.MeanSquaredError (out, target)",
    "classes": "arbalest.SoftmaxCrossEntropy (out, target)",
    "places": "arbalest.SoftmaxCrossEntropy <axis = 1> (out, target)",
    "tokens": "arbalest.SoftmaxCrossEntropy <axis = -1> (out, target)",
}
SAMPLES = 256  # of the data


class Kind:
    """`inputs`: by field, a sample's shape; ((extents), below) are whole numbers from 0."""

    def __init__(self, make, loss, exporter, inputs):
        self.make, self.loss, self.exporter, self.inputs = make, loss, exporter, inputs


def kind(loss, exporter="older", **inputs):
    def register(make):
        KINDS[make.__name__] = Kind(make, loss, exporter, inputs)
        return make
    return register


def picked(model, pick, **fixed):
    """A module that gives what `pick` takes of the model's output."""
    import torch

    class Picked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            return pick(self.model(*inputs, **fixed))

    return Picked()


def logits(output):
    return output.logits


@kind("tokens", "newer", x=((128,), 30522))
def bert_base():
    from transformers import BertConfig, BertForMaskedLM

    return picked(BertForMaskedLM(BertConfig(pad_token_id=None)), logits)


@kind("classes", x=((128,), 30522), mask=((128,), 2))
def distilbert():
    import torch
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = DistilBertForSequenceClassification(DistilBertConfig(num_labels=4))

        def forward(self, x, mask):
            first = torch.arange(128, device=x.device) == 0  # no sample is masked as a whole
            return self.model(x, attention_mask=torch.where(first, 1, mask)).logits

    return Net()


@kind("tokens", "newer", x=((512,), 50257))
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return picked(GPT2LMHeadModel(GPT2Config(use_cache=False)), logits, use_cache=False)


@kind("tokens", "newer", x=((512,), 32000))
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return picked(LlamaForCausalLM(LlamaConfig(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4,
        max_position_embeddings=512, use_cache=False)), logits, use_cache=False)


@kind("tokens", x=((64,), 32128), y=((64,), 32128))
def t5_small():
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = T5ForConditionalGeneration(T5Config(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8,
                                                             use_cache=False))

        def forward(self, x, y):
            return self.model(input_ids=x, decoder_input_ids=y, use_cache=False).logits

    return Net()


@kind("places", x=(3, 256, 256))
def deeplabv3_resnet50():
    import torchvision

    deeplab = torchvision.models.segmentation.deeplabv3_resnet50
    return picked(deeplab(weights=None, weights_backbone=None, num_classes=21), lambda output: output["out"])


@kind("places", x=(3, 256, 256))
def segformer_b0():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return picked(SegformerForSemanticSegmentation(SegformerConfig(num_labels=21, drop_path_rate=0.0)), logits)


@kind("places", x=(3, 256, 256))
def unet():
    import torch
    nn = torch.nn

    def twice(i, o):
        parts = [part for n in (i, o) for part in (nn.Conv2d(n, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())]
        return nn.Sequential(*parts)

    class Net(nn.Module):
        def __init__(self, widths=(64, 128, 256, 512)):
            super().__init__()
            self.down = nn.ModuleList([twice(i, o) for i, o in zip((3, *widths), widths)])
            self.middle = twice(widths[-1], 2 * widths[-1])
            self.wider = nn.ModuleList([nn.ConvTranspose2d(2 * o, o, 2, 2) for o in reversed(widths)])
            self.up = nn.ModuleList([twice(2 * o, o) for o in reversed(widths)])
            self.head = nn.Conv2d(widths[0], 21, 1)

        def forward(self, x):
            kept = []
            for down in self.down:
                kept.append(down(x))
                x = nn.functional.max_pool2d(kept[-1], 2)
            x = self.middle(x)
            for wider, up in zip(self.wider, self.up):
                x = up(torch.cat([wider(x), kept.pop()], 1))
            return self.head(x)

    return Net()


@kind("numbers", x=(3, 64, 64), t=(1,))
def diffusion_unet():
    import math

    import torch
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.a, self.b = nn.Conv2d(i, o, 3, 1, 1), nn.Conv2d(o, o, 3, 1, 1)
            self.na, self.nb, self.t = nn.GroupNorm(32, i), nn.GroupNorm(32, o), nn.Linear(512, 2 * o)
            self.skip = nn.Conv2d(i, o, 1)

        def forward(self, x, t):
            scale, shift = self.t(t)[:, :, None, None].chunk(2, 1)
            h = self.nb(self.a(F.silu(self.na(x)))) * (1 + scale) + shift
            return self.skip(x) + self.b(F.silu(h))

    class Attention(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.norm, self.qkv, self.out = nn.GroupNorm(32, c), nn.Conv1d(c, 3 * c, 1), nn.Conv1d(c, c, 1)

        def forward(self, x):
            q, k, v = self.qkv(self.norm(x).flatten(2)).transpose(1, 2).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).transpose(1, 2)
            return x + self.out(read).reshape(x.shape)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(256, 512), nn.SiLU(), nn.Linear(512, 512))
            self.head = nn.Conv2d(3, 128, 3, 1, 1)
            self.d1, self.d2, self.d3 = Block(128, 128), Block(128, 256), Block(256, 256)
            self.s1, self.s2 = nn.Conv2d(128, 128, 3, 2, 1), nn.Conv2d(256, 256, 3, 2, 1)
            self.attention, self.middle = Attention(256), Block(256, 256)
            self.u1, self.u2, self.out = Block(512, 256), Block(384, 128), nn.Conv2d(128, 3, 3, 1, 1)

        def forward(self, x, t):
            angles = t * 100 * torch.exp(-math.log(10000) * torch.arange(128, device=x.device) / 128)
            t = self.time(torch.cat([angles.sin(), angles.cos()], -1))
            a = self.d1(self.head(x), t)
            b = self.d2(self.s1(a), t)
            c = self.middle(self.attention(self.d3(self.s2(b), t)), t)
            c = self.u1(torch.cat([F.interpolate(c, scale_factor=2), b], 1), t)
            return self.out(self.u2(torch.cat([F.interpolate(c, scale_factor=2), a], 1), t))

    return Net()


@kind("numbers", x=(16000,))
def wav2vec2_base():
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    return picked(Wav2Vec2Model(Wav2Vec2Config(layerdrop=0.0, mask_time_prob=0.0)),
                  lambda output: output.last_hidden_state)


@kind("classes", x=(3, 8, 112, 112))
def r3d_18():
    import torchvision

    return torchvision.models.video.r3d_18(num_classes=10)


@kind("classes", x=(100,))
def ft_transformer():
    import torch
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self, width=192):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(100, width) * 0.1), nn.Parameter(torch.zeros(100, width))
            self.token = nn.Parameter(torch.zeros(1, 1, width))
            layer = nn.TransformerEncoderLayer(width, 8, 384, 0.0, "gelu", batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
            self.head = nn.Linear(width, 10)

        def forward(self, x):
            features = x.unsqueeze(-1) * self.weight + self.bias
            return self.head(self.layers(torch.cat([self.token.expand(x.shape[0], -1, -1), features], 1))[:, 0])

    return Net()


def make(name):
    """In training mode, always with the same weights, without dropout."""
    import torch

    torch.manual_seed(0)
    model = KINDS[name].make().train()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    for config in (module.config for module in model.modules() if hasattr(module, "config")):
        for rate in ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop", "dropout"):
            if hasattr(config, rate):
                setattr(config, rate, 0.0)  # which some read at each step
    return model


def drawn(name, samples):
    """The inputs and the target, as NumPy's arrays."""
    import numpy as np
    import torch

    which, arrays = KINDS[name], []
    for field, shape in which.inputs.items():
        random = np.random.default_rng([*field.encode()])
        whole = isinstance(shape[0], tuple)
        arrays.append(random.integers(0, shape[1], (samples, *shape[0]), dtype=np.int64) if whole else
                      random.standard_normal((samples, *shape), dtype=np.float32))
    with torch.no_grad():
        shape = make(name)(*(torch.from_numpy(array[:2]) for array in arrays)).shape
    random = np.random.default_rng(2)
    if which.loss == "numbers":
        return arrays, random.standard_normal((samples, *shape[1:]), dtype=np.float32)
    axis = len(shape) - 1 if which.loss == "tokens" else 1
    places = [extent for i, extent in enumerate(shape) if i not in (0, axis)]
    return arrays, random.integers(0, shape[axis], (samples, *places)).astype(np.int32)


def training(name, batch, compiled):
    """A function that gives the loss of a batch on the GPU, and the parameters. `compiled`: makes a function faster."""
    import torch

    model, (arrays, target) = make(name), drawn(name, batch)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    move = lambda array: torch.from_numpy(array).cuda().contiguous(
        memory_format=formats.get(array.ndim, torch.contiguous_format))
    inputs, target, loss = [move(array) for array in arrays], torch.from_numpy(target).cuda(), KINDS[name].loss
    model = model.cuda()
    if inputs[0].ndim in formats:
        model = model.to(memory_format=formats[inputs[0].ndim])

    def step():
        out = model(*inputs)
        if loss == "numbers":
            return torch.nn.functional.mse_loss(out, target)
        return torch.nn.functional.cross_entropy(out.movedim(-1, 1) if loss == "tokens" else out, target.long())

    return compiled(step), model.parameters()


def export(name, path):
    import torch

    which, (arrays, _) = KINDS[name], drawn(name, 2)
    names = {"input_names": list(which.inputs), "output_names": ["out"]}
    example = tuple(torch.from_numpy(array) for array in arrays)
    if which.exporter == "newer":
        torch.onnx.export(make(name), example, path, dynamo=True, optimize=False, verbose=False, external_data=False,
                          **names)
    else:
        torch.onnx.export(make(name), example, path, dynamo=False, opset_version=17, do_constant_folding=False,
                          training=torch.onnx.TrainingMode.TRAINING,
                          dynamic_axes={name: {0: "batch"} for name in [*which.inputs, "out"]}, **names)


def graph(name, folder, file):
    """The text of a graph that trains the model in `file`, on data that it writes to `folder`."""
    from safetensors.numpy import save_file

    which, (arrays, target) = KINDS[name], drawn(name, SAMPLES)
    os.makedirs(folder, exist_ok=True)
    for split in ("train", "test"):
        save_file({**dict(zip(which.inputs, arrays)), "target": target}, os.path.join(folder, f"{split}.safetensors"))
    return GRAPH.format(fields=", ".join(which.inputs), data=os.path.abspath(folder), file=file,
                        loss=LOSSES[which.loss],
                        query=f"?classes={int(target.max()) + 1}" if which.loss == "classes" else "")
