"""The colours of classes can be told apart, with every kind of colour blindness, light and dark."""

from __future__ import annotations

import itertools
import re
from importlib import resources

import numpy as np
import pytest

CSS = resources.files("fedsynth.report").joinpath("templates/page.css").read_text(encoding="utf-8")
SEEN = {  # what is left of red, green and blue light (Machado et al. 2009, severity 1)
    "all": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
PLAIN = 20  # a difference (CIE 1976) that nobody overlooks; 2 can just be seen


def light(colour: str) -> np.ndarray:
    parts = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(seen: np.ndarray) -> np.ndarray:
    x, y, z = np.cbrt(np.clip(TO_XYZ @ np.clip(seen, 0, 1) / (0.9505, 1, 1.089), 0.0089, None))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kind", SEEN)
@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_no_two_classes_look_alike(kind, place):
    colours = [re.findall(rf"--c{label}:(#[0-9a-f]{{6}})", CSS)[place] for label in range(10)]
    seen = [lab(SEEN[kind] @ light(colour)) for colour in colours]
    apart = {(a, b): np.linalg.norm(seen[a] - seen[b]) for a, b in itertools.combinations(range(10), 2)}
    assert min(apart.values()) > PLAIN, min(apart, key=lambda pair: apart[pair])
