"""The picture of synthetic samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsynth.data.dataset import Schema
from fedsynth.report.plots import plot_samples

NAMES = ("boot", "coat", "trouser", "bag")
SCHEMA = Schema((1, 8, 8), 4, NAMES)


def drawn(path: Path, *args: object, **options: object) -> np.ndarray:
    plot_samples(path, *args, **options)  # type: ignore[arg-type]
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def share(pixels: np.ndarray, colour: tuple[int, int, int]) -> float:
    """The share of the picture that has this colour."""
    return float((np.abs(pixels - np.array(colour)).max(axis=2) <= 2).mean())


def test_colour_images_keep_their_colours(tmp_path: Path) -> None:
    images = np.zeros((20, 3, 6, 6), dtype=np.float32)
    images[:, 1] = 1
    pixels = drawn(tmp_path / "green.png", images, np.arange(20) % 2, Schema((3, 6, 6), 2))
    assert share(pixels, (0, 255, 0)) > 0.4
    assert share(pixels, (255, 0, 0)) == 0


@pytest.mark.parametrize("channels", [1, 2])
def test_values_are_scaled_by_the_range_of_the_data(tmp_path: Path, channels: int) -> None:
    images = np.full((40, channels, 8, 8), 3.0, dtype=np.float32)
    labels = np.arange(40) % 4
    grey = drawn(tmp_path / "grey.png", images, labels, SCHEMA, low=1.0, high=5.0)
    assert share(grey, (127, 127, 127)) > 0.4
    beyond = drawn(tmp_path / "white.png", images, labels, SCHEMA)
    assert share(beyond, (255, 255, 255)) > 0.4
    assert share(beyond, (127, 127, 127)) < 0.05


def test_at_most_ten_of_a_class_are_shown_and_a_class_without_any_stays_empty(tmp_path: Path) -> None:
    black = np.zeros((1, 8, 8), dtype=np.float32)
    shares = []
    for counts in ([10, 10, 10, 10], [50, 10, 10, 10], [10, 10, 0, 10], [10, 5, 0, 10]):
        labels = np.repeat(np.arange(4), counts)
        pixels = drawn(tmp_path / "black.png", np.stack([black] * len(labels)), labels, SCHEMA)
        shares.append(share(pixels, (0, 0, 0)))
    assert shares[0] == shares[1]
    assert shares[2] == pytest.approx(0.75 * shares[0], rel=0.05)
    assert shares[3] == pytest.approx(0.625 * shares[0], rel=0.05)


@pytest.mark.parametrize("classes", [1, 10, 200])
def test_any_number_of_classes_and_no_sample_at_all(tmp_path: Path, classes: int) -> None:
    pixels = drawn(tmp_path / "none.png", np.zeros((0, 1, 8, 8)), np.zeros(0, int), Schema((1, 8, 8), classes))
    assert max(pixels.shape) < 10_000


def test_values_that_are_no_numbers_and_a_range_of_nothing_can_be_drawn(tmp_path: Path) -> None:
    images = np.full((4, 1, 8, 8), np.nan)
    assert share(drawn(tmp_path / "nan.png", images, np.arange(4), SCHEMA, "not a number"), (0, 0, 0)) > 0.02
    drawn(tmp_path / "flat.png", np.zeros((4, 1, 8, 8)), np.arange(4), SCHEMA, low=2.0, high=2.0)


def test_what_is_not_a_set_of_images_is_refused(tmp_path: Path) -> None:
    for images, labels in ((np.zeros((3, 8)), np.zeros(3)), (np.zeros((3, 1, 8, 8)), np.zeros(2))):
        with pytest.raises(ValueError, match="must be"):
            plot_samples(tmp_path / "no.png", images, labels, SCHEMA)
    assert not (tmp_path / "no.png").exists()
