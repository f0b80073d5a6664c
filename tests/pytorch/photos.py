# SPDX-License-Identifier: Apache-2.0
"""Trains the models of examples/photos in PyTorch, by the same recipes, to hold Arbalest's results against.

    python3 tests/pytorch/photos.py photos FOLDER --seeds 1,2,3 --epochs 60 --depth 18
    python3 tests/pytorch/photos.py xrays TABLE.csv --seeds 1,2,3 --epochs 30

FOLDER has train/CLASS and test/CLASS; TABLE.csv the columns path, split, pneumonia, bacteria, virus. Prints, for each
seed, the best and the last test accuracy or mean AUC, seconds, and images/s of training alone.
"""

import argparse
import csv
import math
import os
import time

import torch
import torchvision
from PIL import Image
from torchvision import transforms


class Table(torch.utils.data.Dataset):
    """X-rays, decoded once: 264 x 264 grey."""

    labels = ("pneumonia", "bacteria", "virus")

    def __init__(self, path, split, transform):
        with open(path, newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["split"] == split]
        root = os.path.dirname(path)
        resize = transforms.Compose([transforms.Resize(264), transforms.CenterCrop(264)])
        self.images = [resize(Image.open(os.path.join(root, row["path"])).convert("L")).copy() for row in rows]
        self.targets = torch.tensor([[float(row[label]) for label in self.labels] for row in rows])
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(self.images[index]), self.targets[index]


def auc(scores, targets):
    """Mean over labels of the area under the ROC curve; ties count half."""
    areas = []
    for column in range(scores.shape[1]):
        positive, negative = scores[targets[:, column] > 0.5, column], scores[targets[:, column] <= 0.5, column]
        above = (positive[:, None] > negative[None, :]).double()
        equal = (positive[:, None] == negative[None, :]).double()
        areas.append((above + 0.5 * equal).mean().item())
    return sum(areas) / len(areas)


def photos(arguments):
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    normalise = [transforms.ToTensor(), transforms.Normalize(mean, deviation)]
    train = torchvision.datasets.ImageFolder(
        os.path.join(arguments.data, "train"),
        transforms.Compose([transforms.RandomResizedCrop(224, scale=(0.35, 1)), transforms.RandomHorizontalFlip(),
                            *normalise]))
    test = torchvision.datasets.ImageFolder(
        os.path.join(arguments.data, "test"),
        transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), *normalise]))
    model = getattr(torchvision.models, f"resnet{arguments.depth}")(num_classes=len(train.classes))
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD([{"params": decayed, "weight_decay": 5e-4}, {"params": others, "weight_decay": 0}],
                                lr=0.05, momentum=0.9, nesterov=True)
    warmup, epochs = 5, arguments.epochs

    def rate(epoch):
        if epoch < warmup:
            return epoch / warmup
        return 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup)))

    def measure(scores, targets):
        return (scores.argmax(1) == targets).double().mean().item()

    return train, test, model, loss, optimizer, rate, measure, 64


def xrays(arguments):
    normalise = [transforms.ToTensor(), transforms.Normalize((0.482,), (0.236,)),
                 transforms.Lambda(lambda x: x.expand(3, -1, -1))]
    train = Table(arguments.data, "train",
                  transforms.Compose([transforms.RandomCrop(224), transforms.RandomHorizontalFlip(), *normalise]))
    test = Table(arguments.data, "test", transforms.Compose([transforms.CenterCrop(224), *normalise]))
    model = torchvision.models.densenet121(num_classes=3)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0}],
                                  lr=3e-4)
    return train, test, model, torch.nn.BCEWithLogitsLoss(), optimizer, lambda epoch: min(1.0, epoch), auc, 16


def run(arguments, seed):
    torch.manual_seed(seed)
    task = photos if arguments.task == "photos" else xrays
    train, test, model, loss, optimizer, rate, measure, batch = task(arguments)
    workers = {}
    if arguments.workers:
        workers = {"num_workers": arguments.workers, "persistent_workers": True, "pin_memory": True}
    loader = torch.utils.data.DataLoader(train, batch, shuffle=True, drop_last=True, **workers)
    tester = torch.utils.data.DataLoader(test, 101, **workers)
    model = model.cuda().to(memory_format=torch.channels_last)
    base, factor, since, best, last, trained = [g["lr"] for g in optimizer.param_groups], 1.0, 0, 0.0, 0.0, 0.0
    began = time.time()
    for epoch in range(arguments.epochs):
        model.train()
        start = time.time()
        for step, (x, y) in enumerate(loader):
            for group, lr in zip(optimizer.param_groups, base):
                group["lr"] = lr * factor * rate(epoch + step / len(loader))
            x, y = x.cuda(non_blocking=True).to(memory_format=torch.channels_last), y.cuda(non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(x)
            optimizer.zero_grad(set_to_none=True)
            loss(logits.float(), y).backward()
            optimizer.step()
        torch.cuda.synchronize()
        trained += time.time() - start
        model.eval()
        scores, targets = [], []
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            for x, y in tester:
                scores.append(model(x.cuda().to(memory_format=torch.channels_last)).float().cpu())
                targets.append(y)
        last = measure(torch.cat(scores), torch.cat(targets))
        since = 0 if last > best else since + 1
        best = max(best, last)
        if arguments.task == "xrays" and since == 4:  # a plateau
            factor, since = 0.3 * factor, 0
    images = arguments.epochs * len(loader) * batch
    print(f"seed {seed}: best {best:.4f}  last {last:.4f}  {time.time() - began:.1f} s  "
          f"{images / trained:.0f} images/s", flush=True)
    return best, last


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("photos", "xrays"))
    parser.add_argument("data")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--depth", type=int, default=18)
    parser.add_argument("--workers", type=int, default=14)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    results = [run(arguments, int(seed)) for seed in arguments.seeds.split(",")]
    for name, values in zip(("best", "last"), zip(*results)):
        print(f"mean {name} {sum(values) / len(values):.4f}")


if __name__ == "__main__":
    main()
