"""Pictures of personalised results: a heat map with chosen cells, and a dot for every client."""

from __future__ import annotations

import numpy as np
from PIL import Image

from fedsynth.report.plots import plot_clients, plot_matrix


def pixels(path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def test_marks_and_values_show_in_the_heat_map(tmp_path):
    values = np.array([[0.0, 1.0], [np.nan, 0.0]])
    plain, marked, other = (tmp_path / name for name in ("plain.png", "marked.png", "other.png"))
    plot_matrix(plain, values, ["a", "b"], ["a", "b"], [])
    plot_matrix(marked, values, ["a", "b"], ["a", "b"], [(0, 1)], "distances")
    plot_matrix(other, values.T, ["a", "b"], ["a", "b"], [])
    assert (pixels(plain) != pixels(other)).any()
    assert pixels(marked).shape[2] == 3
    assert (pixels(marked) == 255).all(axis=2).sum() > 0


def test_every_client_has_a_dot_in_the_colour_of_its_row(tmp_path):
    path = tmp_path / "clients.png"
    plot_clients(path, {"local": {"a": 0.5, "b": 0.6}, "pfl_gan": {"a": 0.7, "b": 0.9, "c": 0.8}}, "seed 0")
    seen = pixels(path)
    blue = (seen[:, :, 2] > seen[:, :, 0] + 60).sum()
    orange = (seen[:, :, 0] > seen[:, :, 2] + 60).sum()
    assert blue > 40
    assert orange > blue  # three dots and two
