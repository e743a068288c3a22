"""The study in one table and one picture: each system where it is strongest, beside FedAvg and its own controls.

    python benchmarks/summary.py

Reads the tables in docs/results/, writes docs/results/summary.csv and docs/images/study.png. A system whose study has
not run is left out.
"""

from __future__ import annotations

import csv
import statistics
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

DOCS = Path(__file__).parent.parent / "docs"
COLOURS = {"baseline": "#666666", "method": "#0072b2", "control": "#e69f00"}  # told apart by the colour-blind too


@dataclass(frozen=True)
class Panel:
    """One system in one setting. Rows of the study's table and what they are called; the first is the baseline."""

    system: str
    setting: str
    table: str
    part: str
    rows: dict[str, str]
    method: str
    control: str
    controls: tuple[str, ...]
    source: str = ""

    def values(self) -> dict[str, list[float]]:
        """The accuracy of each seed, for each row that has run."""
        path = DOCS / "results" / f"{self.table}.csv"
        if not path.is_file():
            return {}
        with path.open(newline="", encoding="utf-8") as file:
            lines = {
                line["row"]: [float(value) for value in line["seeds"].split()]
                for line in csv.DictReader(file)
                if line["part"] == self.part and line.get("source", "") == self.source
            }
        return {row: lines[row] for row in self.rows if row in lines}

    def kind(self, row: str) -> str:
        """Baseline, method or control."""
        return "baseline" if row == next(iter(self.rows)) else "control" if row in self.controls else "method"


PANELS = [
    Panel(
        "Class moments",
        "Fashion-MNIST, 10 clients, Dirichlet 0.1",
        "moments",
        "evaluated",
        {
            "fedavg": "FedAvg",
            "moments": "class moments",
            "moments, even share": "class moments, even share",
            "GANDALF": "GANDALF",
            "FedDPMS": "FedDPMS",
            "moments, noise": "noise in place of images",
        },
        "moments",
        "moments, noise",
        ("moments, noise",),
    ),
    Panel(
        "FedDPMS",
        "Fashion-MNIST, 10 clients, Dirichlet 0.1",
        "feddpms",
        "fashion-0.1",
        {
            "fedavg": "FedAvg",
            "published": "as published",
            "ours, ε = 8": "ours, ε = 8",
            "ours, noise": "noise in place of images",
            "ours, real samples": "real images in their place",
        },
        "ours, ε = 8",
        "ours, noise",
        ("ours, noise", "ours, real samples"),
    ),
    Panel(
        "Fed-ZDA",
        "Fashion-MNIST, 100 clients, multimodal",
        "zero-shot",
        "fashion-multimodal",
        {
            "fedavg": "FedAvg",
            "ZDAC": "at the clients",
            "ZDAS": "at the server",
            "both": "both",
            "ZDAS, noise": "noise at the server",
            "ZDAS, real": "real images at the server",
        },
        "ZDAS",
        "ZDAS, noise",
        ("ZDAS, noise", "ZDAS, real"),
    ),
    Panel(
        "AggEnhance",
        "Fashion-MNIST, 100 clients, γ = 1",
        "interior-points",
        "fashion-mnist",
        {
            "fedavg": "FedAvg",
            "published": "as published",
            "ours": "ours",
            "noise": "noise in place of points",
            "class bias": "class bias corrected, no points",
            "real points": "real points in their place",
        },
        "ours",
        "noise",
        ("noise", "class bias", "real points"),
    ),
    Panel(
        "GANDALF",
        "Fashion-MNIST, 20 clients, 2 classes each",
        "gandalf",
        "fashion-mnist-2-class",
        {
            "fedavg": "FedAvg",
            "GANDALF": "GANDALF",
            "GANDALF, without synthesis": "in turn, no images, noisy counts",
            "Astraea": "in turn, no images",
            "GANDALF, noise": "noise in place of images",
            "GANDALF, real samples": "real images in their place",
        },
        "GANDALF",
        "Astraea",
        ("Astraea", "GANDALF, without synthesis", "GANDALF, noise", "GANDALF, real samples"),
    ),
    Panel(
        "PFL-GAN",
        "MNIST and Fashion-MNIST clients, 10 rounds: the latter",
        "pfl-gan",
        "two data sets",
        {
            "fedavg": "FedAvg",
            "pfl_gan": "PFL-GAN",
            "cluster_fedavg": "FedAvg in its groups",
            "cluster_fedavg, synthetic samples": "in its groups, synthetic samples",
            "local": "each alone",
            "local, balanced": "alone, classes balanced",
        },
        "pfl_gan",
        "local, balanced",
        ("local", "local, balanced"),
        "fashion-mnist",
    ),
    Panel(
        "GANDALF's images, private",
        "Fashion-MNIST, 10 clients, Dirichlet 0.1",
        "combinations",
        "private",
        {
            "fedavg": "FedAvg, private",
            "GANDALF's images, fewer, FedAvg": "with GANDALF's images",
            "logit adjustment, smoothed": "logit adjustment",
            "noise in place of the images": "noise in place of images",
        },
        "GANDALF's images, fewer, FedAvg",
        "noise in place of the images",
        ("noise in place of the images",),
    ),
]


def draw(axes: Axes, panel: Panel, found: dict[str, list[float]]) -> None:
    """A line for each row: every seed as a dot, the mean as a stroke."""
    for place, (row, values) in enumerate(found.items()):
        colour = COLOURS[panel.kind(row)]
        axes.scatter(values, [place] * len(values), s=22, color=colour, alpha=0.6, linewidths=0)
        axes.plot([statistics.mean(values)] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2.5)
    base = next(iter(found.values()))
    axes.axvline(statistics.mean(base), color=COLOURS["baseline"], linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(found)), [panel.rows[row] for row in found], fontsize=9)
    axes.invert_yaxis()
    axes.set_title(f"{panel.system}: {panel.setting}", fontsize=9, loc="left")
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.3)


def line(panel: Panel, found: dict[str, list[float]]) -> dict[str, str]:
    """The panel as a line of the table."""

    def tell(row: str) -> str:
        if row not in found:
            return "–"
        values = found[row]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.1f}{spread}"

    return {
        "system": panel.system,
        "where": panel.setting,
        "FedAvg": tell("fedavg"),
        "with it": tell(panel.method),
        "its control": f"{tell(panel.control)} ({panel.rows[panel.control]})",
        "seeds": str(len(found.get(panel.method, ()))),
    }


def main() -> None:
    """Write the table and the picture."""
    shown = [(panel, found) for panel in PANELS if len(found := panel.values()) > 1]
    lines = [line(panel, found) for panel, found in shown]
    with (DOCS / "results" / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    heights = [len(found) + 1.2 for _, found in shown]
    figure = Figure(figsize=(7, 0.27 * sum(heights) + 0.5), layout="constrained")
    grid = figure.subplots(len(shown), 1, height_ratios=heights, squeeze=False)
    for axes, (panel, found) in zip(grid[:, 0], shown, strict=True):
        draw(axes, panel, found)
    grid[-1, 0].set_xlabel("accuracy on test data, %: a dot for each seed, a stroke for the mean", fontsize=9)
    figure.savefig(DOCS / "images" / "study.png", dpi=110)


if __name__ == "__main__":
    main()
