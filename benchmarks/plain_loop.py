"""Contestant: federated averaging written plainly in PyTorch, one process, one thread, one client after another.

What a careful person writes first: index gathers in place of a DataLoader, NCHW images, ReLU before the pool, PyTorch's
default optimisers. `flower_loop.py` uses the same local training. Prints one JSON line a round.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from workloads import CLASSES, Split, Workload, workload


def arguments() -> argparse.Namespace:
    """What every contestant is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--data", type=Path, required=True, help="the split, made by speed.py")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    return parser.parse_args()


def tell(**values: object) -> None:
    """One JSON line for speed.py."""
    print(json.dumps(values), flush=True)


def make_model(work: Workload, side: int) -> nn.Sequential:
    """The workload's network, layer by layer as in its paper."""
    flat = 32 * (side // 4) ** 2
    if work.model == "zda_cnn":
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(flat, CLASSES)),
        )
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(flat, 32), nn.ReLU(), nn.Linear(32, CLASSES)),
    )


def train(model: nn.Module, x: Tensor, y: Tensor, work: Workload) -> int:
    """One client's local training; the number of steps."""
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[work.optimizer]
    optimizer = kind(model.parameters(), lr=work.lr)
    model.train()
    steps = 0
    for _ in range(work.epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x), work.batch_size):
            rows = order[start : start + work.batch_size]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            steps += 1
    return steps


def tensors(split: Split, client: int) -> tuple[Tensor, Tensor]:
    """One client's images in [0, 1] and labels."""
    rows = split.rows_of(client)
    return torch.from_numpy(split.x[rows]).float() / 255, torch.from_numpy(split.y[rows])


def accuracy(model: nn.Module, split: Split) -> float:
    """Right answers on the test set, to see that all contestants learn the same."""
    model.eval()
    x, y = torch.from_numpy(split.test_x).float() / 255, torch.from_numpy(split.test_y)
    with torch.inference_mode():
        right = sum(int((model(x[i : i + 500]).argmax(1) == y[i : i + 500]).sum()) for i in range(0, len(y), 500))
    return right / len(y)


def average(states: list[dict[str, Tensor]], sizes: list[int]) -> dict[str, Tensor]:
    """The mean of the clients' models, weighted by their numbers of examples."""
    shares = [size / sum(sizes) for size in sizes]
    return {
        name: torch.stack([state[name] * share for state, share in zip(states, shares, strict=True)])
        .sum(0)
        .to(entry.dtype)
        for name, entry in states[0].items()
    }


def main() -> None:
    """Train for some rounds."""
    args = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    work, split = workload(args.workload), Split.load(args.data)
    rng = np.random.default_rng(0)
    model = make_model(work, split.x.shape[-1])
    shared = {name: entry.clone() for name, entry in model.state_dict().items()}
    for number in range(1, args.rounds + 1):
        started = time.perf_counter()
        picked = rng.choice(work.clients, work.picked, replace=False)
        states, sizes, steps = [], [], 0
        for client in picked:
            model.load_state_dict(shared)
            x, y = tensors(split, int(client))
            steps += train(model, x, y, work)
            states.append({name: entry.clone() for name, entry in model.state_dict().items()})
            sizes.append(len(y))
        shared = average(states, sizes)
        tell(round=number, seconds=time.perf_counter() - started, steps=steps)
    model.load_state_dict(shared)
    tell(accuracy=accuracy(model, split))


if __name__ == "__main__":
    main()
