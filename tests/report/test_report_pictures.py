"""Pictures of personalised results: a heat map with chosen cells, and a dot for every client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from fedsynth.report.plots import plot_clients, plot_matrix

WHITE = (255, 255, 255)


class Pictures:
    """Files as they are drawn, and which of their pixels shows a point of the axes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.figures: dict[Path, Figure] = {}
        save = Figure.savefig

        def keep(figure: Figure, path: Path, **options: object) -> None:
            save(figure, path, **options)
            self.figures[path] = figure

        monkeypatch.setattr(Figure, "savefig", keep)

    def at(self, path: Path, across: float, down: float) -> tuple[int, ...]:
        """The colour of a point, given in numbers of the axes."""
        figure = self.figures[path]
        point = figure.axes[0].transData.transform((across, down))
        x, y = figure.transFigure.inverted().transform(point)  # from 0 to 1, whatever the resolution
        with Image.open(path) as image:
            return image.convert("RGB").getpixel((int(x * image.width), int((1 - y) * image.height)))


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Pictures:
    return Pictures(monkeypatch)


def test_marks_and_values_show_in_the_heat_map(pictures: Pictures, tmp_path: Path) -> None:
    values = np.array([[0.0, 1.0], [np.nan, 0.0]])
    plain, marked = tmp_path / "plain.png", tmp_path / "marked.png"
    plot_matrix(plain, values, ["a", "b"], ["a", "b"], [])
    plot_matrix(marked, values, ["a", "b"], ["a", "b"], [(0, 1)], "distances")
    low, high = pictures.at(plain, 0, 0), pictures.at(plain, 1, 0)
    assert len({low, high, WHITE}) == 3
    assert pictures.at(plain, 1, 1) == low
    assert pictures.at(plain, 0, 1) == WHITE  # not a number: an empty cell
    assert pictures.at(marked, 1, 0) == WHITE  # row 0, column 1 has the dot
    assert pictures.at(marked, 1.3, 0) == high  # beside it the value shows
    assert [pictures.at(marked, 0, 0), pictures.at(marked, 1, 1)] == [low, low]
    assert pictures.figures[marked].axes[0].get_title(loc="left") == "distances"


def test_every_client_has_a_dot_in_the_colour_of_its_row(pictures: Pictures, tmp_path: Path) -> None:
    path = tmp_path / "clients.png"
    rows = {"local": {"a": 0.5, "b": 0.6}, "pfl_gan": {"c": 0.8, "a": 0.7, "b": 0.9}}
    plot_clients(path, rows, "seed 0")
    for number, (name, of) in enumerate(rows.items()):
        colour = 255 * (0.85 * np.array(to_rgb(f"C{number}")) + 0.15)
        for client, accuracy in of.items():
            seen = pictures.at(path, "abc".index(client) + (-0.125, 0.125)[number], 100 * accuracy)
            assert np.allclose(seen, colour, atol=12), (name, client)  # lines of the grid shine through
    assert min(pictures.at(path, 2 - 0.125, 80)) > 200  # no dot of "local" at a client that it lacks
    axes = pictures.figures[path].axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c"]
    assert [label.get_text() for label in axes.get_legend().get_texts()] == ["local", "pfl_gan"]
