"""Where class moments and the closed form lose: texture that low frequencies miss, and few records.

    FEDSYNTH_DATA=/path/to/data python benchmarks/limits.py --runs /tmp/limits --jobs 2
    python benchmarks/limits.py --runs /tmp/limits --table docs/results/limits.csv

`texture`: 28×28 gratings of ten directions with a wave of 2.25 pixels, any phase, in noise; made here, written as an
NPZ file. The mean of a class is grey, and its waves are finer than the coefficients that are kept. `few`: 300 images of
Fashion-MNIST, ten clients. Clients that differ in kind under the same labels are in the study of PFL-GAN.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from feddpms import setting
from harness import BESIDE, Part, Table, main

SIDE, CLASSES, WAVE = 28, 10, 2.25
ROWS: dict[str, Table] = {
    "fedavg": {"name": "fedavg"},
    **BESIDE,
    "moments, noise": {"name": "moments", "synthetic": "noise"},
    "moments, real samples": {"name": "moments", "synthetic": "real"},
    "analytic, pixels": {"name": "analytic", "features": "pixels"},
    "logit adjustment": {"name": "logit_adjustment"},
    "GANDALF": {"name": "gandalf"},
}


def gratings(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Images of waves, and their directions."""
    y = rng.integers(CLASSES, size=count)
    angle = (np.pi * y / CLASSES)[:, None, None]
    down, right = np.mgrid[:SIDE, :SIDE]
    phase = rng.uniform(0, 2 * np.pi, (count, 1, 1))
    wave = np.sin(2 * np.pi / WAVE * (np.cos(angle) * right + np.sin(angle) * down) + phase)
    return np.clip(0.5 + 0.2 * wave + 0.2 * rng.standard_normal(wave.shape), 0, 1)[:, None].astype(np.float32), y


def texture_file() -> str:
    """The gratings as a file: 3,000 for training, 2,000 for testing."""
    path = Path(tempfile.gettempdir()) / "fedsynth-gratings.npz"
    rng = np.random.default_rng(0)
    (x, y), (x_test, y_test) = gratings(3000, rng), gratings(2000, rng)
    np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return f"npz:{path}"


PARTS = [
    Part("texture", lambda: setting(texture_file(), 0.1, 3000, 20), ROWS),
    Part("few", partial(setting, "fashion-mnist", 0.1, 300, 20), ROWS),
]

if __name__ == "__main__":
    main(PARTS, __doc__)
