# SPDX-License-Identifier: Apache-2.0
"""Small models of many kinds, each with inputs and a target: the cases of kinds.py.

A case is (make, inputs, loss). make() gives a module. Inputs are arrays with samples first. The loss is "numbers" (mean
squared error against random numbers), "classes", "places" (a class for each element but those along axis 1) or "tokens"
(a class for each element but those along the last axis).
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

CASES = {}
SAMPLES = 4


def case(loss="numbers", **inputs):
    """Registers the function under its name. Inputs: a shape of floats, or (shape, n) of whole numbers below n."""
    def register(make):
        CASES[make.__name__] = (make, inputs, loss)
        return make
    return register


class Wrapped(nn.Module):
    """One tensor of a model that gives several, as dictionaries or tuples."""

    def __init__(self, model, pick, **fixed):
        super().__init__()
        self.model, self.pick, self.fixed = model, pick, fixed

    def forward(self, *inputs):
        return self.pick(self.model(*inputs, **self.fixed))


def conv(i, o, stride=1, size=3):
    return nn.Sequential(nn.Conv2d(i, o, size, stride, size // 2, bias=False), nn.BatchNorm2d(o), nn.SiLU())


# Segmentation

def torchvision_segmentation(name):
    import torchvision
    return Wrapped(getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None, num_classes=5),
                   lambda out: out["out"])


@case("places", x=(3, 64, 64))
def fcn_resnet50():
    return torchvision_segmentation("fcn_resnet50")


@case("places", x=(3, 64, 64))
def deeplabv3_mobilenet():
    return torchvision_segmentation("deeplabv3_mobilenet_v3_large")


@case("places", x=(3, 64, 64))
def lraspp_mobilenet():
    return torchvision_segmentation("lraspp_mobilenet_v3_large")


@case("places", x=(3, 64, 64))
def unet_smp():
    import segmentation_models_pytorch as smp
    return smp.Unet("resnet18", encoder_weights=None, classes=4, decoder_channels=(32, 16, 16, 8, 8))


@case("places", x=(3, 64, 64))
def unet_plus_plus_smp():
    import segmentation_models_pytorch as smp
    return smp.UnetPlusPlus("resnet18", encoder_weights=None, classes=4, decoder_channels=(32, 16, 16, 8, 8))


@case("places", x=(3, 64, 64))
def segformer():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation
    config = SegformerConfig(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 32, 32], decoder_hidden_size=16, num_labels=4,
                             num_attention_heads=[1, 2, 4, 4], hidden_dropout_prob=0.0, drop_path_rate=0.0,
                             attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0)
    return Wrapped(SegformerForSemanticSegmentation(config), lambda out: out.logits)


# Detection

@case(x=(3, 64, 64))
def feature_pyramid():
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
    return Wrapped(resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5),
                   lambda out: torch.cat([level.flatten(2) for level in out.values()], 2))


@case(x=(3, 64, 64))
def retina_head():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            from torchvision.models.detection.retinanet import RetinaNetHead
            self.trunk = nn.Sequential(conv(3, 16, 2), conv(16, 16, 2))
            self.more = conv(16, 16, 2)
            self.head = RetinaNetHead(16, 3, 4, norm_layer=lambda n: nn.GroupNorm(4, n))

        def forward(self, x):
            a = self.trunk(x)
            out = self.head([a, self.more(a)])
            return torch.cat([out["cls_logits"], out["bbox_regression"]], 2)
    return Net()


@case(x=(3, 64, 64))
def detr():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(conv(3, 16, 2), conv(16, 32, 2), conv(32, 32, 2))
            self.transformer = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True)
            self.queries, self.rows = nn.Parameter(torch.rand(10, 32)), nn.Parameter(torch.rand(8, 16))
            self.columns = nn.Parameter(torch.rand(8, 16))
            self.classes, self.boxes = nn.Linear(32, 5), nn.Linear(32, 4)

        def forward(self, x):
            h = self.trunk(x)
            places = torch.cat([self.columns.unsqueeze(0).repeat(8, 1, 1), self.rows.unsqueeze(1).repeat(1, 8, 1)], -1)
            tokens = h.flatten(2).permute(0, 2, 1) + places.flatten(0, 1).unsqueeze(0)
            out = self.transformer(tokens, self.queries.unsqueeze(0).repeat(x.shape[0], 1, 1))
            return torch.cat([self.classes(out), self.boxes(out).sigmoid()], -1)
    return Net()


@case(x=(3, 64, 64))
def yolo_like():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = conv(3, 16, 2), conv(16, 32, 2), conv(32, 32, 2)
            self.spp, self.lateral, self.head = conv(128, 32), conv(64, 16), nn.Conv2d(16, 3 * 7, 1)

        def forward(self, x):
            b = self.b(self.a(x))
            c = self.c(b)
            pools = [c] + [F.max_pool2d(c, k, 1, k // 2) for k in (5, 9, 13)]
            c = self.spp(torch.cat(pools, 1))
            h = self.head(self.lateral(torch.cat([F.interpolate(c, scale_factor=2.0, mode="nearest"), b], 1)))
            h = h.view(x.shape[0], 3, 7, 16, 16).permute(0, 1, 3, 4, 2)
            ys, xs = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
            grid = torch.stack([xs, ys], -1)
            xy = (h[..., :2].sigmoid() * 2 - 0.5 + grid) / 16
            wh = (h[..., 2:4].sigmoid() * 2) ** 2
            return torch.cat([xy, wh, h[..., 4:].sigmoid()], -1).flatten(1, 3)
    return Net()


# Sampling at computed places

class SpatialTransformer(nn.Module):
    def __init__(self, align_corners=False, mode="bilinear", padding_mode="zeros"):
        super().__init__()
        self.find = nn.Sequential(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(5), nn.Flatten(),
                                  nn.Linear(200, 6))
        self.net = nn.Sequential(conv(3, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
        self.find[-1].weight.data.mul_(0.3)
        self.find[-1].bias.data.copy_(torch.tensor([0.9, 0.1, 0.05, -0.1, 1.1, 0]))
        self.options = {"align_corners": align_corners, "mode": mode, "padding_mode": padding_mode}

    def forward(self, x):
        theta = self.find(x).view(-1, 2, 3)
        line = torch.linspace(-1, 1, 24, dtype=x.dtype)
        ys, xs = torch.meshgrid(line, line, indexing="ij")
        base = torch.stack([xs, ys, torch.ones_like(xs)], -1).view(1, -1, 3)
        grid = torch.matmul(base, theta.transpose(1, 2)).view(-1, 24, 24, 2)
        return self.net(F.grid_sample(x, grid, **self.options))


@case("classes", x=(3, 24, 24))
def spatial_transformer_cubic():
    return SpatialTransformer(False, "bicubic", "reflection")


@case(x=(3, 32, 32), y=(3, 32, 32))
def optical_flow_warp():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.flow = nn.Sequential(conv(6, 16), nn.Conv2d(16, 2, 3, 1, 1), nn.Tanh())

        def forward(self, x, y):
            flow = self.flow(torch.cat([x, y], 1)) * 0.2
            rows, columns = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
            grid = torch.stack([columns, rows], -1).unsqueeze(0) + flow.permute(0, 2, 3, 1)
            return F.grid_sample(y, grid, align_corners=True, padding_mode="border")
    return Net()


@case(x=(16, 12, 12))
def deformable_attention():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Parameter(torch.randn(6, 16))
            self.offsets, self.weights = nn.Linear(16, 2 * 8), nn.Linear(16, 2 * 4)
            self.value, self.out = nn.Conv2d(16, 16, 1), nn.Linear(16, 16)

        def forward(self, x):
            n = x.shape[0]
            q = self.query.unsqueeze(0) + x.mean((2, 3)).unsqueeze(1)
            value = self.value(x).view(n * 2, 8, 12, 12)
            places = self.offsets(q).view(n, 6, 2, 4, 2).tanh().permute(0, 2, 1, 3, 4).reshape(n * 2, 6, 4, 2)
            share = self.weights(q).view(n, 6, 2, 4).softmax(-1).permute(0, 2, 1, 3).reshape(n * 2, 1, 6, 4)
            taken = F.grid_sample(value, places, align_corners=False)
            return self.out((taken * share).sum(-1).view(n, 16, 6).transpose(1, 2))
    return Net()


# Images from images

@case(x=(3, 16, 16))
def edsr_unshuffle():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.tail = nn.Conv2d(12, 16, 3, 1, 1), nn.Conv2d(16, 48, 3, 1, 1)
            self.body = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.GELU(), nn.Conv2d(16, 16, 3, 1, 1))

        def forward(self, x):
            h = self.head(F.pixel_unshuffle(x, 2))
            return F.pixel_shuffle(self.tail(h + 0.1 * self.body(h)), 4) + F.interpolate(
                x, scale_factor=2, mode="bicubic", align_corners=False)
    return Net()


@case(x=(1, 28, 28))
def vq_autoencoder():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 4, 2, 1))
            self.codes = nn.Embedding(12, 8)
            self.decode = nn.Sequential(nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.ReLU(),
                                        nn.ConvTranspose2d(16, 1, 4, 2, 1))

        def forward(self, x):
            z = self.encode(x)
            rows = z.permute(0, 2, 3, 1).reshape(-1, 8)
            nearest = torch.cdist(rows, self.codes.weight).argmin(1)
            taken = self.codes(nearest).view(x.shape[0], 7, 7, 8).permute(0, 3, 1, 2)
            return self.decode(z + (taken - z).detach()) + ((taken - z.detach()) ** 2).mean()
    return Net()


@case(x=(3, 32, 32))
def discriminator_spectral():
    from torch.nn.utils.parametrizations import spectral_norm
    return nn.Sequential(spectral_norm(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2),
                         spectral_norm(nn.Conv2d(8, 16, 4, 2, 1)), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 4))


@case(x=(16,))
def generator_style():
    class Net(nn.Module):
        """Modulated convolutions: a filter of its own for each sample."""

        def __init__(self):
            super().__init__()
            self.start, self.style = nn.Parameter(torch.randn(1, 8, 8, 8)), nn.Linear(16, 8)
            self.weight, self.rgb = nn.Parameter(torch.randn(8, 8, 3, 3)), nn.Conv2d(8, 3, 1)

        def forward(self, z):
            w = self.weight.unsqueeze(0) * (self.style(z) + 1).view(-1, 1, 8, 1, 1)
            w = w * (w.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
            x = self.start.repeat(1, SAMPLES, 1, 1).view(1, SAMPLES * 8, 8, 8)
            x = F.conv2d(x, w.reshape(SAMPLES * 8, 8, 3, 3), padding=1, groups=SAMPLES).view(SAMPLES, 8, 8, 8)
            return self.rgb(F.leaky_relu(x, 0.2))
    return Net()


@case(x=(3, 32, 32), t=(1,))
def diffusion_unet():
    class Block(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.a, self.b = nn.Conv2d(i, o, 3, 1, 1), nn.Conv2d(o, o, 3, 1, 1)
            self.na, self.nb, self.t = nn.GroupNorm(4, i), nn.GroupNorm(4, o), nn.Linear(32, 2 * o)
            self.skip = nn.Conv2d(i, o, 1)

        def forward(self, x, t):
            scale, shift = self.t(t)[:, :, None, None].chunk(2, 1)
            h = self.nb(self.a(F.silu(self.na(x)))) * (1 + scale) + shift
            return self.skip(x) + self.b(F.silu(h))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32))
            self.head, self.down = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 2, 1)
            self.a, self.b, self.c = Block(16, 16), Block(16, 16), Block(32, 16)
            self.norm, self.qkv, self.out = nn.GroupNorm(4, 16), nn.Conv1d(16, 48, 1), nn.Conv2d(16, 3, 3, 1, 1)

        def forward(self, x, t):
            freq = torch.exp(-math.log(10000) * torch.arange(16) / 16)
            angles = t * 100 * freq
            t = self.time(torch.cat([angles.sin(), angles.cos()], -1))
            a = self.a(self.head(x), t)
            b = self.b(self.down(a), t)
            q, k, v = self.qkv(self.norm(b).flatten(2)).transpose(1, 2).unsqueeze(1).chunk(3, -1)
            b = b + F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).reshape(b.shape)
            return self.out(self.c(torch.cat([a, F.interpolate(b, scale_factor=2)], 1), t))
    return Net()


# Sound and series

@case(x=(2000,))
def wav2vec2():
    from transformers import Wav2Vec2Config, Wav2Vec2Model
    config = Wav2Vec2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                            conv_dim=(16, 16, 16), conv_stride=(5, 4, 4), conv_kernel=(10, 8, 4), layerdrop=0.0,
                            num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, hidden_dropout=0.0,
                            attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, mask_time_prob=0.0)
    return Wrapped(Wav2Vec2Model(config), lambda out: out.last_hidden_state)


@case(x=(256,))
def spectrogram_conv():
    class Net(nn.Module):
        """A short-time Fourier transform as a convolution, then a mel-like bank and a network."""

        def __init__(self):
            super().__init__()
            t = torch.arange(32.0)
            angles = 2 * math.pi * torch.arange(17.0)[:, None] * t / 32
            window = torch.hann_window(32)
            self.register_buffer("basis", torch.cat([angles.cos() * window, angles.sin() * window])[:, None])
            self.bank = nn.Parameter(torch.rand(8, 17))
            self.net = nn.GRU(8, 12, batch_first=True, bidirectional=True)

        def forward(self, x):
            parts = F.conv1d(x[:, None], self.basis, stride=8)
            power = parts[:, :17].square() + parts[:, 17:].square()
            mel = torch.matmul(self.bank.abs(), power).clamp(min=1e-5).log()
            return self.net(mel.transpose(1, 2))[0]
    return Net()


@case(x=(4, 64))
def wavenet():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            from torch.nn.utils.parametrizations import weight_norm
            self.head = nn.Conv1d(4, 8, 1)
            self.gates = nn.ModuleList(weight_norm(nn.Conv1d(8, 16, 2, dilation=2**i)) for i in range(4))
            self.outs = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4))

        def forward(self, x):
            h, skips = self.head(x), 0
            for i, (gate, out) in enumerate(zip(self.gates, self.outs)):
                a, b = gate(F.pad(h, (2**i, 0))).chunk(2, 1)
                o = out(a.tanh() * b.sigmoid())
                h, skips = h + o, skips + o
            return skips
    return Net()


@case(x=(96, 3))
def patch_tst():
    class Net(nn.Module):
        """Patches of series by unfold, reversible instance norm, a transformer."""

        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Linear(16, 32), nn.Linear(32 * 11, 24)
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)

        def forward(self, x):
            mean = x.mean(1, keepdim=True).detach()
            std = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()
            h = ((x - mean) / std).transpose(1, 2).unfold(-1, 16, 8)
            h = self.layer(self.embed(h).flatten(0, 1)).view(x.shape[0], 3, -1)
            return self.head(h).transpose(1, 2) * std + mean
    return Net()


# Text

WORDS = 50


@case("tokens", x=((12,), WORDS))
def bert_masked():
    from transformers import BertConfig, BertForMaskedLM
    config = BertConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0, pad_token_id=None)
    return Wrapped(BertForMaskedLM(config), lambda out: out.logits)


@case("classes", x=((12,), WORDS), mask=((12,), 2))
def distilbert():
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = DistilBertForSequenceClassification(DistilBertConfig(
                vocab_size=WORDS, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=32, dropout=0.0,
                attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=4))

        def forward(self, x, mask):
            first = torch.arange(12) == 0
            return self.model(x, attention_mask=torch.where(first, 1, mask)).logits
    return Net()


@case("tokens", x=((12,), WORDS))
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    config = GPT2Config(vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return Wrapped(GPT2LMHeadModel(config), lambda out: out.logits, use_cache=False)


@case("tokens", x=((12,), WORDS))
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, use_cache=False)
    return Wrapped(LlamaForCausalLM(config), lambda out: out.logits, use_cache=False)


@case(x=((12,), WORDS))
def t5_encoder():
    from transformers import T5Config, T5EncoderModel
    config = T5Config(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
                      feed_forward_proj="gated-gelu", use_cache=False)
    return Wrapped(T5EncoderModel(config), lambda out: out.last_hidden_state)


@case("tokens", x=((12,), WORDS), y=((10,), WORDS))
def t5_both():
    from transformers import T5Config, T5ForConditionalGeneration

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = T5ForConditionalGeneration(T5Config(
                vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, dropout_rate=0.0,
                use_cache=False))

        def forward(self, x, y):
            return self.model(input_ids=x, decoder_input_ids=y, use_cache=False).logits
    return Net()


@case("tokens", x=((10,), WORDS))
def mamba_scan():
    class Net(nn.Module):
        """A selective state space, its scan unrolled."""

        def __init__(self):
            super().__init__()
            self.embed, self.inner, self.gate = nn.Embedding(WORDS, 16), nn.Linear(16, 24), nn.Linear(16, 24)
            self.conv = nn.Conv1d(24, 24, 4, padding=3, groups=24)
            self.parts, self.rate = nn.Linear(24, 8 + 8), nn.Linear(24, 24)
            self.a = nn.Parameter(torch.log(torch.arange(1.0, 9.0).repeat(24, 1)))
            self.d, self.out = nn.Parameter(torch.ones(24)), nn.Linear(24, WORDS)

        def forward(self, x):
            e = self.embed(x)
            u = F.silu(self.conv(self.inner(e).transpose(1, 2))[:, :, :10].transpose(1, 2))
            b, c = self.parts(u).split([8, 8], -1)
            rate = F.softplus(self.rate(u))
            decay = torch.exp(-rate.unsqueeze(-1) * self.a.exp())
            drive = (rate * u).unsqueeze(-1) * b.unsqueeze(2)
            h, ys = drive[:, 0], []
            for t in range(10):
                h = drive[:, t] if t == 0 else decay[:, t] * h + drive[:, t]
                ys.append((h * c[:, t].unsqueeze(1)).sum(-1))
            return self.out((torch.stack(ys, 1) + self.d * u) * F.silu(self.gate(e)))
    return Net()


@case("tokens", x=((9,), WORDS), y=((7,), WORDS))
def seq2seq_gru():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.target = nn.Embedding(WORDS, 16), nn.Embedding(WORDS, 16)
            self.encoder, self.decoder = nn.GRU(16, 20, batch_first=True), nn.GRU(16, 20, batch_first=True)
            self.attend, self.out = nn.Linear(20, 20, bias=False), nn.Linear(40, WORDS)

        def forward(self, x, y):
            memory, state = self.encoder(self.source(x))
            h = self.decoder(self.target(y), state)[0]
            weights = torch.bmm(self.attend(h), memory.transpose(1, 2)).softmax(-1)
            return self.out(torch.cat([h, torch.bmm(weights, memory)], -1))
    return Net()


@case("tokens", x=((12,), WORDS))
def mixture_of_experts():
    class Net(nn.Module):
        """Top-2 routing of tokens: all experts compute, two count."""

        def __init__(self):
            super().__init__()
            self.embed, self.route, self.out = nn.Embedding(WORDS, 16), nn.Linear(16, 4), nn.Linear(16, WORDS)
            self.a, self.b = nn.Parameter(torch.randn(4, 16, 32) * 0.2), nn.Parameter(torch.randn(4, 32, 16) * 0.2)

        def forward(self, x):
            h = self.embed(x)
            score, which = self.route(h).topk(2, -1)
            gate = torch.zeros(h.shape[0], 12, 4, dtype=h.dtype).scatter(-1, which, score.softmax(-1))
            made = torch.einsum("nte,xef->ntxf", h, self.a).relu()
            made = torch.einsum("ntxf,xfe->ntxe", made, self.b)
            return self.out(h + (made * gate.unsqueeze(-1)).sum(2))
    return Net()


# Graphs, tables, sets

@case("classes", x=(3, 40))
def edge_conv():
    class Net(nn.Module):
        """The nearest points by top-k, then a convolution over edges (DGCNN)."""

        def __init__(self):
            super().__init__()
            self.conv, self.out = nn.Conv2d(6, 16, 1), nn.Linear(16, 5)

        def forward(self, x):
            inner = -2 * torch.matmul(x.transpose(2, 1), x)
            square = x.square().sum(1, keepdim=True)
            near = (-square - inner - square.transpose(2, 1)).topk(5, -1)[1]
            n = x.shape[0]
            taken = torch.gather(x.unsqueeze(2).expand(-1, -1, 40, -1), 3, near.unsqueeze(1).expand(-1, 3, -1, -1))
            own = x.unsqueeze(-1).expand(-1, -1, -1, 5)
            h = self.conv(torch.cat([taken - own, own], 1))
            return self.out(F.leaky_relu(h, 0.2).amax(-1).mean(-1))
    return Net()


@case("classes", x=(12,))
def tab_net():
    class Net(nn.Module):
        """Sparsemax masks: sorted scores and sums of them."""

        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(12)
            self.attend = nn.ModuleList(nn.Linear(8, 12) for _ in range(2))
            self.feature = nn.ModuleList(nn.Linear(12, 32) for _ in range(3))
            self.out = nn.Linear(8, 4)

        @staticmethod
        def sparsemax(z):
            ordered, _ = torch.sort(z, dim=-1, descending=True)
            k = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
            sums = ordered.cumsum(-1)
            support = (1 + k * ordered > sums).to(z.dtype)
            count = support.sum(-1, keepdim=True)
            tau = ((sums * (support.cumsum(-1) == count).to(z.dtype) * support).sum(-1, keepdim=True) - 1) / count
            return (z - tau).clamp(min=0)

        def forward(self, x):
            x = self.norm(x)
            h, out, prior = F.glu(self.feature[0](x)), 0, torch.ones_like(x)
            for step in range(2):
                mask = self.sparsemax(self.attend[step](h[:, 8:]) * prior)
                prior = prior * (1.3 - mask)
                h = F.glu(self.feature[step + 1](x * mask))
                out = out + h[:, :8].relu()
            return self.out(out)
    return Net()


# Other kinds

@case(x=(3, 12, 12))
def invertible_conv():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.up = nn.Parameter(torch.randn(12, 12) * 0.1), nn.Parameter(torch.randn(12, 12) * 0.1)
            self.diagonal = nn.Parameter(torch.rand(12))
            self.register_buffer("order", torch.eye(12)[torch.randperm(12)])

        def forward(self, x):
            low = torch.tril(self.low, -1) + torch.eye(12)
            up = torch.triu(self.up, 1) + torch.diag(self.diagonal.exp())
            w = self.order @ low @ up
            return F.conv2d(F.pixel_unshuffle(x, 2), w.view(12, 12, 1, 1)) + self.diagonal.sum()
    return Net()


@case("classes", x=(1, 28, 28))
def capsules():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 16, 9, 2), nn.Conv2d(16, 32, 5, 2)
            self.weight = nn.Parameter(torch.randn(1, 36, 5, 8, 8) * 0.1 + 0.01)

        @staticmethod
        def squash(v):
            square = v.square().sum(-1, keepdim=True)
            return v * (square.sqrt() / (1 + square))

        def forward(self, x):
            u = self.squash(self.b(self.a(x).relu()).reshape(x.shape[0], 36, 8))
            votes = (self.weight * u[:, :, None, None, :]).sum(-1)
            routes = torch.zeros(x.shape[0], 36, 5)
            for i in range(3):
                share = routes.softmax(-1).unsqueeze(-1)
                v = self.squash((share * (votes if i == 2 else votes.detach())).sum(1))
                if i < 2:
                    routes = routes + (votes.detach() * v.unsqueeze(1)).sum(-1)
            return v.norm(dim=-1)
    return Net()


@case(x=(5,))
def kan():
    class Layer(nn.Module):
        """B-splines of degree 3 by Cox and de Boor."""

        def __init__(self, i, o):
            super().__init__()
            self.register_buffer("knots", torch.arange(-3.0, 9.0).mul(0.4).sub(1).expand(i, -1).contiguous())
            self.base, self.spline = nn.Parameter(torch.randn(o, i)), nn.Parameter(torch.randn(o, i, 8) * 0.1)

        def forward(self, x):
            x1, k = x.unsqueeze(-1), self.knots
            b = ((x1 >= k[:, :-1]) & (x1 < k[:, 1:])).to(x.dtype)
            for d in range(1, 4):
                b = ((x1 - k[:, :-(d + 1)]) / (k[:, d:-1] - k[:, :-(d + 1)]) * b[:, :, :-1]
                     + (k[:, d + 1:] - x1) / (k[:, d + 1:] - k[:, 1:-d]) * b[:, :, 1:])
            return F.linear(F.silu(x), self.base) + F.linear(b.flatten(1), self.spline.flatten(1))
    return nn.Sequential(Layer(5, 6), Layer(6, 2))


@case(x=(3, 32, 32))
def swin_v2_like():
    import timm
    return timm.create_model("swinv2_cr_tiny_224", img_size=32, window_size=4, num_classes=4, embed_dim=16,
                             depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 2))


@case("classes", x=(3, 64, 64))
def max_vit():
    import torchvision
    return torchvision.models.MaxVit((64, 64), 16, 2, [16, 16], [1, 1], 8, stochastic_depth_prob=0.0, num_classes=5)


@case("classes", x=(3, 64, 64))
def mobile_vit():
    import timm
    return timm.create_model("mobilevitv2_050", num_classes=5)


@case("classes", x=(3, 4, 32, 32))
def video_r3d():
    import torchvision
    return torchvision.models.video.mc3_18(weights=None, num_classes=5)


@case("classes", x=(3, 16, 16))
def scaled_convolutions():
    from timm.layers import ScaledStdConv2d, StdConv2d
    return nn.Sequential(ScaledStdConv2d(3, 8, 3, padding=1), nn.GELU(), ScaledStdConv2d(8, 8, 1), nn.GELU(),
                         StdConv2d(8, 8, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


@case(x=(3, 32, 32))
def vit_rotary():
    from transformers import Dinov2Config, Dinov2Model
    config = Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8,
                          use_swiglu_ffn=True)
    return Wrapped(Dinov2Model(config), lambda out: out.last_hidden_state)


class HeadsOfAttention(nn.Module):
    """Attention of eight heads, with as many or fewer of keys and values. `seen` says which rows are."""

    def __init__(self, shared, causal=False, biased=False):
        super().__init__()
        self.shared, self.causal = shared, causal
        self.q, self.k, self.v = nn.Linear(32, 64), nn.Linear(32, 8 * shared), nn.Linear(32, 8 * shared)
        self.bias = nn.Parameter(torch.randn(8, 6, 6)) if biased else None
        self.out = nn.Linear(64, 5)

    def forward(self, x, seen=None):
        heads = lambda y, n: y.unflatten(-1, (n, 8)).transpose(1, 2)
        mask = self.bias if seen is None else (seen > 0)[:, None, None, :]
        y = F.scaled_dot_product_attention(heads(self.q(x), 8), heads(self.k(x), self.shared),
                                           heads(self.v(x), self.shared), attn_mask=mask, is_causal=self.causal,
                                           enable_gqa=self.shared < 8, scale=0.3)
        return self.out(y.transpose(1, 2).flatten(2))


@case("tokens", x=(6, 32))
def heads_causal():
    return HeadsOfAttention(8, causal=True)


@case("tokens", x=(6, 32))
def heads_shared():
    return HeadsOfAttention(2, causal=True)


@case("tokens", x=(6, 32))
def heads_biased():
    return HeadsOfAttention(8, biased=True)


@case("tokens", x=(6, 32), seen=((6,), 2))
def heads_masked():
    return HeadsOfAttention(8)


@case("classes", x=(400,))
def spectrogram():
    class Spectrogram(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.hann_window(64))
            self.gain, self.layers = nn.Parameter(torch.ones(400)), nn.Sequential(conv(1, 8), nn.Flatten())
            self.out = nn.Linear(8 * 33 * 13, 5)

        def forward(self, x):
            y = torch.view_as_real(torch.stft(x * self.gain, 64, 32, window=self.window, return_complex=True))
            return self.out(self.layers((y.square().sum(-1) + 1).log().unsqueeze(1)))
    return Spectrogram()


@case("classes", x=(12, 16))
def fourier_mixer():
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 5)
            self.real, self.imaginary = nn.Parameter(torch.randn(7, 16)), nn.Parameter(torch.randn(7, 16))

        def forward(self, x):
            x = self.before(x) + torch.fft.fft2(x, dim=(1, 2)).real
            spectrum = torch.fft.rfft(self.after(x), dim=1) * torch.complex(self.real, self.imaginary)
            return self.out(torch.fft.irfft(spectrum, n=12, dim=1).mean(1))
    return Mixer()
