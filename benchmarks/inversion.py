"""W3: inputs optimised against 10 models for 10 classes, 100 steps; nested loops against the server's work in fedsynth.

    python benchmarks/inversion.py --turns 3

Both run in turns in this process list, on random models, from the same starts. Nested loops: one model and one class at
a time with PyTorch's own Adam, on all threads or on one, whichever is faster here. fedsynth: `fed.compute`, worker
processes included from their start.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import fedsynth.methods  # noqa: F401  (registers the tasks)
from fedsynth.components.server_work import invert_model
from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.engines.local import LocalEngine, usable_cores
from fedsynth.federation import Federation
from fedsynth.federation.host import TaskHost
from fedsynth.federation.store import StateStore
from fedsynth.learning.models import ModelSpec, build_model, instantiate
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.synthesis.inversion import Inversion

SHAPE, CLASSES, MODELS, STEPS, RATE = (1, 28, 28), 10, 10, 100, 0.1
SPEC = ModelSpec(name="zda_cnn")


class NoData:
    """The server's own work needs no data."""

    schema = Schema(SHAPE, CLASSES)

    def client(self, client: str) -> ClientData:
        """Nobody."""
        raise KeyError(client)

    def pooled(self, part: str) -> Dataset:
        """Nothing."""
        raise KeyError(part)


def nested(models: list[Weights], start: torch.Tensor, threads: int) -> torch.Tensor:
    """One input at a time."""
    torch.set_num_threads(threads)
    made = []
    for weights in models:
        net = instantiate(SPEC, SHAPE, CLASSES, weights).eval().requires_grad_(False)
        for label in range(CLASSES):
            x = start[label : label + 1].clone().requires_grad_()
            optimizer = torch.optim.Adam([x], lr=RATE)
            for _ in range(STEPS):
                optimizer.zero_grad()
                F.cross_entropy(net(x), torch.tensor([label])).backward()
                optimizer.step()
                with torch.no_grad():
                    x.clamp_(0, 1)
            made.append(x.detach())
    return torch.cat(made)


def batched(models: list[Weights], start: torch.Tensor, workers: int) -> torch.Tensor:
    """As the server does it: a model's classes in one batch, models over the cores."""
    torch.set_num_threads(1)
    how = vars(Inversion(steps=STEPS, lr=RATE))
    with tempfile.TemporaryDirectory() as folder:
        engine = LocalEngine(TaskHost(NoData(), StateStore(Path(folder))), workers)
        fed = Federation(engine, [], NoData.schema)
        common = {"spec": SPEC, "start": start, "labels": torch.arange(CLASSES), "how": how}
        done = fed.compute(invert_model, {str(k): {"model": w, **common} for k, w in enumerate(models)})
        engine.close()
    return torch.cat([done[str(k)].images for k in range(len(models))])  # type: ignore[attr-defined]


def main() -> None:
    """Alternate, and print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    models = [weights_of(build_model(SPEC, SHAPE, CLASSES, seed=k)) for k in range(MODELS)]
    start = torch.from_numpy(np.random.default_rng(0).random((CLASSES, *SHAPE), dtype=np.float32))
    cores = usable_cores()
    contestants = {
        "nested, 1 thread": lambda: nested(models, start, 1),
        f"nested, {cores} threads": lambda: nested(models, start, cores),
        "fedsynth, in process": lambda: batched(models, start, 0),
        f"fedsynth, {cores} workers": lambda: batched(models, start, cores),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    results: dict[str, torch.Tensor] = {}
    for turn in range(turns):
        for name, run in contestants.items():
            began = time.perf_counter()
            results[name] = run()
            seconds[name].append(time.perf_counter() - began)
            print(f"turn {turn + 1}: {name}: {seconds[name][-1]:.2f} s", flush=True)
    fastest = min(statistics.median(times) for name, times in seconds.items() if name.startswith("nested"))
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"{name}: median {median:.2f} s, {fastest / median:.2f} times as fast as the faster nested loop")
    far = (results["nested, 1 thread"] - results[f"fedsynth, {cores} workers"]).abs().mean()
    print(f"mean difference of the images, float32: {float(far):.1e}")


if __name__ == "__main__":
    main()
