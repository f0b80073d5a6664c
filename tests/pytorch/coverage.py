#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which architectures of torchvision and timm Arbalest takes: one of each family, exported and checked for training.

    tests/pytorch/coverage.py ARBALEST [--exporter older,newer] [--models swin_t,timm:beit_base_patch16_224]
                              [--folder FOLDER]

`older` is torch.onnx.export with dynamo=False and TrainingMode.PRESERVE of a model in eval mode, `newer` with
dynamo=True and optimize=False. A model is taken where `arbalest check` finds a training graph that calls it sound:
every operator is there, all types fit, and gradients reach the parameters. What the numbers are models.py says. What an
exporter itself refuses is told apart. Weights are random. Needs torch, torchvision, timm, onnx and onnxscript. The exit
status is 1 where a model is not taken.
"""

import argparse
import contextlib
import logging
import os
import pathlib
import subprocess
import sys
import warnings

import timm
import torch
import torchvision

TORCHVISION = """alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t
mnasnet0_5 mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5
squeezenet1_1 swin_t swin_v2_t vgg11 vit_b_32 wide_resnet50_2""".split()
TIMM = """bat_resnext26ts beit_base_patch16_224 botnet26t_256 caformer_s18 cait_xxs24_224 coat_tiny coatnet_nano_rw_224
convit_tiny convmixer_768_32 convnextv2_atto crossvit_9_240 cspresnet50 davit_tiny deit_tiny_patch16_224 dla34 dpn68
eca_resnet33ts edgenext_xx_small efficientformer_l1 efficientnet_lite0 efficientvit_b0 ese_vovnet19b_dw
eva02_tiny_patch14_224 fastvit_t8 fbnetc_100 focalnet_tiny_srf gcvit_xxtiny gernet_s ghostnet_100 gmixer_24_224
halonet26t hgnet_tiny hiera_tiny_224 hrnet_w18_small inception_next_tiny lambda_resnet26t lcnet_050 legacy_seresnet18
levit_128s mambaout_femto mixer_s32_224 mobilenetv4_conv_small mobileone_s0 mobilevit_xxs mobilevitv2_050 mvitv2_tiny
nest_tiny nf_resnet26 nfnet_l0 pit_ti_224 poolformer_s12 pvt_v2_b0 rdnet_tiny regnetz_b16 repvgg_a0 repvit_m0_9
res2net50_26w_4s resmlp_12_224 resnest14d resnet50_gn resnetaa50 resnetv2_50 rexnet_100 samvit_base_patch16_224
sebotnet33ts_256 selecsls42 semnasnet_075 sequencer2d_s shvit_s1 skresnet18 spnasnet_100 starnet_s1
swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 tf_efficientnet_b0 tiny_vit_5m_224 tinynet_e tnt_s_patch16_224
tresnet_m twins_svt_small visformer_tiny vit_relpos_small_patch16_224 vit_tiny_r_s16_p8_224 volo_d1_224 xception41
xcit_nano_12_p16_224""".split()
CLASSES = 10

GRAPH = """<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1, "model" : 1]>
coverage () => (float loss)
{{
  image, label = arbalest.Prefetch <source = "synthetic:?shape=3x{size}x{size}&classes={classes}&size=64", batch = 2> ()
  x = arbalest.Augment <mean = [0.5], std = [0.25]> (image)
  logits = model.net (x)
  loss = arbalest.SoftmaxCrossEntropy (logits, label)
  trained = arbalest.Train <lr = 0.1> (loss)
}}
"""


def make(name):
    if name.startswith("timm:"):
        model = timm.create_model(name[5:], num_classes=CLASSES)
        return model.eval(), model.default_cfg["input_size"][-1]
    inception = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model = getattr(torchvision.models, name)(num_classes=CLASSES, **inception)
    return model.eval(), 299 if name == "inception_v3" else 224


@contextlib.contextmanager
def silent():
    """Exporters print graphs that they fail at, from C++ too."""
    kept, nothing = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    sys.stdout.flush()
    try:
        os.dup2(nothing, 1), os.dup2(nothing, 2)
        yield
    finally:
        sys.stdout.flush()
        for stream, before in enumerate(kept, 1):
            os.dup2(before, stream)
            os.close(before)
        os.close(nothing)


def export(model, size, exporter, path):
    options = {"input_names": ["x"], "output_names": ["logits"]}
    if exporter == "newer":
        options |= {"dynamo": True, "optimize": False, "dynamic_shapes": ({0: "batch"},), "verbose": False}
    else:
        options |= {"dynamo": False, "training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False,
                    "dynamic_axes": {"x": {0: "batch"}}, "opset_version": 17}
    with silent():
        torch.onnx.export(model, (torch.randn(2, 3, size, size),), str(path), **options)


def verdict(options, name, exporter):
    model, size = make(name)
    path, graph = options.folder / "model.onnx", options.folder / "graph.onnxtxt"
    try:
        export(model, size, exporter, path)
    except Exception as error:
        return "not exported", f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"
    graph.write_text(GRAPH.format(size=size, classes=CLASSES))
    done = subprocess.run([options.arbalest, "check", graph, "--model", path, "--devices", "cpu:0"],
                          capture_output=True, text=True)
    return ("taken", "") if done.returncode == 0 else ("refused", " ".join((done.stderr or done.stdout).split())[:300])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arbalest")
    parser.add_argument("--exporter", default="older,newer")
    parser.add_argument("--models", default=",".join(TORCHVISION + [f"timm:{name}" for name in TIMM]))
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/tmp/arbalest-coverage"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    refused = 0
    for exporter in options.exporter.split(","):
        counts = {}
        for name in options.models.split(","):
            found, why = verdict(options, name, exporter)
            counts[found] = counts.get(found, 0) + 1
            if why:
                print(f"{exporter}: {name}: {found}: {why}", flush=True)
        refused += counts.get("refused", 0)
        print(f"{exporter}: " + ", ".join(f"{count} {found}" for found, count in sorted(counts.items())), flush=True)
    sys.exit(1 if refused else 0)


main()
