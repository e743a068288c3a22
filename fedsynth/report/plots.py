"""Pictures of a run. Drawn without a screen; colours that survive colour blindness and grey printing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsynth.data.dataset import Schema


def plot_split(path: Path, counts: np.ndarray, clients: list[str], schema: Schema) -> None:
    """Who has what: a bubble per client and class, its area the number of training examples."""
    classes = schema.class_names or tuple(map(str, range(schema.classes)))
    width = min(16, 2 + 0.28 * len(clients))
    height = min(12, 1.5 + 0.28 * len(classes))
    figure = _figure(max(width, 4), max(height, 3))
    axes = figure.subplots()
    rows, columns = np.nonzero(counts)
    values = counts[rows, columns]
    largest = max(1, int(counts.max(initial=1)))
    axes.scatter(rows, columns, s=160 * values / largest, c=values, cmap="viridis_r", vmin=0, vmax=largest)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.set_title(f"Training examples by client and class (largest: {largest})", fontsize=10)
    axes.set_xlim(-0.7, len(clients) - 0.3)
    axes.set_ylim(-0.7, len(classes) - 0.3)
    if len(clients) <= 40:
        axes.set_xticks(range(len(clients)), clients, rotation=90 if len(clients) > 12 else 0, fontsize=8)
    if len(classes) <= 40:
        axes.set_yticks(range(len(classes)), classes, fontsize=8)
    figure.savefig(path, dpi=110)


def plot_curves(path: Path, runs: Mapping[str, list[dict[str, Any]]], title: str = "") -> None:
    """Accuracy over the rounds: validation for each run, and the global test where the run recorded it."""
    figure = _figure(7, 4)
    axes = figure.subplots()
    for number, (name, rows) in enumerate(runs.items()):
        colour = f"C{number % 10}"
        points = [(row["round"], 100 * row["validation"]["accuracy"]) for row in rows if "validation" in row]
        axes.plot(*zip(*points, strict=True), color=colour, label=f"{name}, validation")
        points = [(row["round"], 100 * row["test"]["accuracy"]) for row in rows if "test" in row]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle="--", label=f"{name}, test")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def _figure(width: float, height: float) -> Any:
    """An empty picture; matplotlib is imported here because it takes a second, and most commands draw nothing."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
