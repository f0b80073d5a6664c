# SPDX-License-Identifier: Apache-2.0
"""Models by the names that the wall has for them, without what no two frameworks draw alike. For bench_wall and
tests/pytorch/models.py."""
PEERS = {  # PyTorch's models; those of the other examples are torchvision's of the same name
    "example:vit_s16": "timm:vit_small_patch16_224", "keras:DenseNet121": "densenet121",
    "keras:EfficientNetB0": "efficientnet_b0", "keras:EfficientNetV2B0": "timm:tf_efficientnetv2_b0",
    "keras:InceptionV3": "inception_v3", "keras:MobileNetV2": "mobilenet_v2",
    "keras:MobileNetV3Small": "mobilenet_v3_small", "keras:ResNet50": "resnet50",
    "keras:ResNet50V2": "timm:resnetv2_50", "keras:VGG16": "vgg16", "keras:Xception": "timm:legacy_xception",
}
CLASSES = 1000


def peer_of(name):
    return PEERS.get(name, name.removeprefix("example:"))


def recurrent(kind):
    """The layer over the 224 rows of an image in grey, 128 elements wide, and classes of its last output."""
    import torch

    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = getattr(torch.nn, kind)(224, 128, batch_first=True)
            self.head = torch.nn.Linear(128, CLASSES)

        def forward(self, x):
            return self.head(self.layer(x.mean(1))[0][:, -1])

    return Rows()


def make(name):
    """In training mode, always with the same weights. Dropout and stochastic depth are off."""
    import torch
    import torchvision

    torch.manual_seed(0)
    name = peer_of(name)
    if name.startswith("timm:"):
        import timm

        try:
            model = timm.create_model(name[5:], pretrained=False, num_classes=CLASSES, drop_path_rate=0.0)
        except TypeError:  # a model without stochastic depth takes no rate of it
            model = timm.create_model(name[5:], pretrained=False, num_classes=CLASSES)
    elif name.startswith("rows:"):
        model = recurrent(name[5:])
    else:
        options = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
        model = getattr(torchvision.models, name)(num_classes=CLASSES, **options)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0
    return model.train()
