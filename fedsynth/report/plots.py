"""Pictures of a run. Drawn without a screen; colours that survive colour blindness and grey printing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedsynth.data.dataset import Schema
from fedsynth.evaluation.results import MetricsRow, StressRow
from fedsynth.evaluation.scores import WORDS, Metric

MOST_CLIENTS = 100  # that a picture has room for
TIMELINE_BARS = 20_000
PER_CLASS = 10  # images that are shown
SAMPLE_GROUND = (0.86, 0.89, 0.95)  # neither black nor white, so that the edges of grey images show


def plot_split(path: Path, counts: np.ndarray, clients: list[str], schema: Schema) -> None:
    """Who has what: the training examples of the first clients, by class; what they lack stays empty."""
    counts, clients = counts[:MOST_CLIENTS], clients[:MOST_CLIENTS]
    title = f"Training examples by client and class (largest: {counts.max(initial=0)})"
    values = np.where(counts > 0, counts, np.nan).T
    plot_matrix(path, values, _class_names(schema), clients, (), title, axes=("client", "class"))


def plot_timeline(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Who worked when on the simulated clock: a bar per request, light where it failed (rows of timeline.csv)."""
    rows = [row for row in rows if float(row["simulated_end"]) > float(row["simulated_start"])][:TIMELINE_BARS]
    clients = sorted({row["client"] for row in rows}, key=lambda name: (len(name), name))
    place = {client: number for number, client in enumerate(clients)}
    with _draw(path, 9, min(14, max(2.5, 1 + 0.22 * len(clients)))) as axes:
        for answered, colour, label in ((True, "tab:blue", "answered"), (False, "tab:orange", "did not answer")):
            part = [row for row in rows if (row["outcome"] == "answered") == answered]
            starts = np.array([float(row["simulated_start"]) / 60 for row in part])
            ends = np.array([float(row["simulated_end"]) / 60 for row in part])
            if part:
                axes.barh([place[row["client"]] for row in part], ends - starts, 0.8, starts, color=colour, label=label)
        axes.set(xlabel="simulated minutes", ylabel="client")
        if len(clients) <= 60:
            axes.set_yticks(range(len(clients)), clients, fontsize=7)
        axes.invert_yaxis()
        axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)


def plot_curves(
    path: Path, runs: Mapping[str, Sequence[MetricsRow]], title: str = "", metric: Metric = "accuracy"
) -> None:
    """A metric over the rounds: validation for each run, and the global test where the run recorded it.

    Runs that were not evaluated are left out; without any other there is no picture.
    """
    shown = {name: rows for name, rows in runs.items() if _points(rows, metric)}
    if not shown:
        return
    with _draw(path, 7, 4) as axes:
        for number, (name, rows) in enumerate(shown.items()):
            validation = _points(rows, metric)
            tested = [(row.round, row.test.of(metric)) for row in rows if row.test]
            test = [(round, 100 * value) for round, value in tested if value is not None]
            axes.plot(*zip(*validation, strict=True), color=f"C{number % 10}", label=f"{name}, validation")
            if test:
                axes.plot(*zip(*test, strict=True), color=f"C{number % 10}", linestyle="--", label=f"{name}, test")
        axes.set_title(title, fontsize=10)
        axes.set(xlabel="round", ylabel=f"{WORDS[metric]}, %")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


def _points(rows: Sequence[MetricsRow], metric: Metric) -> list[tuple[int, float]]:
    """Rounds and their validation by a metric in percent, as far as it is known."""
    found = [(row.round, row.validation.of(metric)) for row in rows if row.validation]
    return [(round, 100 * value) for round, value in found if value is not None]


def plot_samples(
    path: Path,
    images: np.ndarray,
    labels: np.ndarray,
    schema: Schema,
    title: str = "",
    low: float = 0.0,
    high: float = 1.0,
) -> None:
    """What synthetic data looks like: a row per class with its first few images; a class without any says "none".

    `images` are floats (n, channels, height, width); `low` and `high`, the range of the real data, become black and
    white. Three channels are colours, any other number is shown as its mean, in grey.
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if images.ndim != 4 or len(images) != len(labels):
        raise ValueError(
            f"Images {images.shape} and labels {labels.shape} must be (n, channels, height, width) and (n,)."
        )
    classes = _class_names(schema)
    canvas, counts = arrange_by_class(_colours(images, low, high), labels, len(classes), SAMPLE_GROUND)
    height, breadth = canvas.shape[0] / len(classes), 5.0
    with _draw(path, breadth + 1, min(60, max(2, 0.7 + breadth * canvas.shape[0] / canvas.shape[1]))) as axes:
        axes.imshow(canvas, interpolation="nearest")
        for row in (row for row, count in enumerate(counts) if not count):
            axes.text(height / 2, (row + 0.5) * height, "none", ha="left", va="center", fontsize=8, color="0.4")
        axes.set_xticks([])
        axes.set_yticks([(row + 0.5) * height for row in range(len(classes))], classes, fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title, fontsize=10)


def arrange_by_class(
    pixels: np.ndarray, labels: np.ndarray, classes: int, ground: float | tuple[float, ...]
) -> tuple[np.ndarray, list[int]]:
    """One large image with a row per class and a line between neighbours, and how many it shows of each class.

    `pixels` are (n, height, width, colours).
    """
    high, wide = pixels.shape[1] + 1, pixels.shape[2] + 1
    canvas = np.full((high * classes, wide * PER_CLASS, pixels.shape[3]), ground, pixels.dtype)
    counts = []
    for label in range(classes):
        chosen = np.flatnonzero(labels == label)[:PER_CLASS]
        counts.append(len(chosen))
        for place, row in enumerate(chosen):
            canvas[label * high : (label + 1) * high - 1, place * wide : (place + 1) * wide - 1] = pixels[row]
    return canvas, counts


def plot_matrix(
    path: Path,
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    marks: Sequence[tuple[int, int]],
    title: str = "",
    axes: tuple[str, str] = ("", ""),
) -> None:
    """Numbers by row and column as a heat map, the chosen cells with a dot; a cell that is not a number stays empty."""
    with _draw(path, min(15, 3.5 + 0.3 * len(columns)), min(14, 2.5 + 0.3 * len(rows))) as panel:
        drawn = panel.imshow(np.asarray(values, dtype=float), cmap="viridis_r", interpolation="nearest")
        if marks:
            down, across = zip(*marks, strict=True)
            panel.scatter(across, down, s=14, c="white", edgecolors="black", linewidths=0.8, label="chosen")
            panel.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, 1.08))
        panel.figure.colorbar(drawn, ax=panel, shrink=0.8)
        panel.set(xlabel=axes[0], ylabel=axes[1])
        _name_columns(panel, columns)
        if len(rows) <= 40:
            panel.set_yticks(range(len(rows)), rows, fontsize=8)
        panel.set_title(title, fontsize=10, loc="left")


def plot_clients(
    path: Path, scores: Mapping[str, Mapping[str, float]], title: str = "", metric: Metric = "accuracy"
) -> None:
    """A metric at every client, a dot in the colour of each row of results; clients across, in the order given.

    Without clients there is no picture, nor where they are too many.
    """
    scores = {label: of for label, of in scores.items() if of}
    if not scores or max(map(len, scores.values())) > MOST_CLIENTS:
        return
    clients = list(dict.fromkeys(client for of in scores.values() for client in of))
    with _draw(path, max(4, min(16, 2 + 0.3 * len(clients))), 4) as axes:
        for number, (label, of) in enumerate(scores.items()):
            # Dots stand beside each other, not over each other.
            spread = (number - (len(scores) - 1) / 2) * 0.5 / len(scores)
            places = [clients.index(client) + spread for client in of]
            heights = [100 * value for value in of.values()]
            axes.scatter(places, heights, s=22, alpha=0.85, label=label, **_sign(number))
        axes.set(xlabel="client", ylabel=f"{WORDS[metric]} on its own test part, %")
        axes.grid(alpha=0.3)
        _name_columns(axes, clients)
        axes.legend(fontsize=8)
        axes.set_title(title, fontsize=10)


def _name_columns(axes: Any, names: Sequence[str]) -> None:
    """Names below the columns, where there is room for them."""
    if len(names) <= 40:
        axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 12 else 0, fontsize=8)


def _class_names(schema: Schema) -> tuple[str, ...]:
    return schema.class_names or tuple(map(str, range(schema.classes)))


def _colours(images: np.ndarray, low: float, high: float) -> np.ndarray:
    """Images as (n, height, width, 3) in [0, 1]; what is not a number becomes black."""
    if images.shape[1] != 3:
        images = images.mean(axis=1, keepdims=True).repeat(3, axis=1)
    scaled = (images - low) / (high - low if high > low else 1.0)
    return np.nan_to_num(np.clip(scaled, 0, 1)).transpose(0, 2, 3, 1)


def _sign(number: int) -> dict[str, str]:
    """Colour and shape by which one of several is known."""
    return {"color": f"C{number % 10}", "marker": "osD^v<>pX*"[number % 10]}


@contextmanager
def _draw(path: Path, width: float, height: float, panels: int = 0) -> Iterator[Any]:
    """The axes of an empty picture (several beside each other, where so many panels are wanted), saved in the end.

    Matplotlib is imported here because it takes a second, and most commands draw nothing.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure.subplots(1, panels, sharey=True, squeeze=False)[0] if panels else figure.subplots()
    figure.savefig(path, dpi=110)


def plot_stress(path: Path, rows: Sequence[StressRow]) -> None:
    """Accuracy against the share of trouble: a panel for each kind, a line for each method."""
    troubles = list(dict.fromkeys(row.trouble for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    with _draw(path, 3.2 * len(troubles) + 0.8, 3.4, len(troubles)) as panels:
        for axes, trouble in zip(panels, troubles, strict=True):
            for number, method in enumerate(methods):
                found = [row for row in rows if (row.method, row.trouble) == (method, trouble)]
                shares, heights = [row.share for row in found], [100 * row.accuracy for row in found]
                spread = [100 * (row.std or 0) for row in found]
                axes.errorbar(shares, heights, spread, capsize=2, label=method, **_sign(number))
            axes.set_title(trouble, fontsize=10)
            axes.set_xlabel("share")
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("accuracy, %")
        panels[-1].legend(fontsize=8)
