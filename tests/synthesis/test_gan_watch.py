"""The watch over a GAN: collapse is noticed, flat losses stop, an interrupted training ends as it would have."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedsynth.data.federated import FederatedData
from fedsynth.errors import FedsynthError, UserError
from fedsynth.synthesis.gan import Gan, GanSpec, GanTraining, build_gan
from fedsynth.synthesis.gan_watch import (
    CHECKPOINT,
    GanRun,
    class_coverage,
    collapsed,
    diversity,
    flat,
    train_to_the_end,
)

TRAINING = GanTraining(batch_size=4)
NEVER_FLAT = {"window": 1000}


def small() -> Gan:
    return build_gan(GanSpec(kind="wgan_gp", channels=2, latent=4), (1, 8, 8), 3, seed=0)


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand((9, 1, 8, 8), generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_a_collapsed_class_is_noticed(digits: FederatedData):
    x, y = digits.pooled("test").tensors()
    more, labels = (torch.cat(p) for p in zip(*(digits.client(c).train.tensors() for c in digits.clients), strict=True))
    healthy = diversity(x, y, more, labels, 10)
    assert collapsed(healthy) == []
    assert float(healthy.nanmean()) == pytest.approx(1, abs=0.15)
    broken = x.clone()
    faint = torch.rand(broken[y == 4].shape, generator=torch.Generator().manual_seed(0)) * 0.05
    broken[y == 4] = broken[y == 4][:1] + faint
    assert collapsed(diversity(broken, y, more, labels, 10)) == [4]


def test_diversity_by_hand():
    real = torch.tensor([0.0, 3.0, 0.0, 1.0]).view(4, 1, 1, 1)
    made = torch.tensor([0.0, 0.0, 6.0, 5.0]).view(4, 1, 1, 1)
    found = diversity(made, torch.tensor([0, 0, 0, 2]), real, torch.tensor([0, 0, 2, 2]), 3)
    assert float(found[0]) == pytest.approx(4 / 3)  # distances 0, 6, 6 against 3
    assert found[1:].isnan().all()  # no image of class 1, a single one of class 2


def test_coverage_shows_a_class_that_is_never_made():
    class Bright(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            level = x.flatten(1).mean(1, keepdim=True) * 2
            return -(level - torch.arange(3.0)).abs()

    made = torch.tensor([0.0, 0.0, 1.0, 0.0]).view(4, 1, 1, 1)
    assert class_coverage(Bright(), made, 3, batch=3).tolist() == [0.75, 0.0, 0.25]
    assert class_coverage(Bright(), made[:0], 3).tolist() == [0, 0, 0]


def test_flat_means_no_more_movement_than_noise():
    noise = np.random.default_rng(0).normal(size=40)
    assert flat([2.0] * 20, 10, 0.5)
    assert flat(list(5 + 0.1 * noise), 20, 0.5)
    assert not flat(list(5 + 0.1 * noise - np.arange(40) * 0.1), 20, 0.5)
    assert not flat(list(np.exp(-np.arange(40) / 10)), 10, 0.5)
    assert not flat([2.0] * 19, 10, 0.5)  # too short to tell
    assert not flat([float("nan")] * 20, 10, 0.5)


def test_it_ends_at_the_limit_or_when_losses_are_flat():
    told: list[tuple[int, str]] = []

    def note(gan: Gan, run: GanRun) -> None:
        told.append((run.steps, run.stopped))

    run = train_to_the_end(small(), *images(), TRAINING, 7, 3, None, rng(), after=note, **NEVER_FLAT)
    assert (run.steps, run.stopped) == (7, "limit")
    assert told == [(3, ""), (6, ""), (7, "limit")]
    assert len(run.generator_losses) == len(run.critic_losses) == 3
    run = train_to_the_end(small(), *images(), TRAINING, 100, 1, None, rng(), window=3, tolerance=1e9)
    assert (run.steps, run.stopped) == (6, "flat")


def test_a_loss_that_is_not_finite_ends_it():
    gan = small()
    with torch.no_grad():
        gan.generator.linear.weight.fill_(float("nan"))
    assert train_to_the_end(gan, *images(), TRAINING, 50, 5, None, rng()).stopped == "not finite"


def test_interrupted_and_resumed_it_ends_with_the_same_weights(tmp_path: Path):
    whole = small()
    straight = train_to_the_end(whole, *images(), TRAINING, 8, 2, None, rng(), **NEVER_FLAT)

    class InterruptionError(Exception):
        pass

    def interrupt(gan: Gan, run: GanRun) -> None:
        if run.steps == 4:
            raise InterruptionError

    with pytest.raises(InterruptionError):
        train_to_the_end(small(), *images(), TRAINING, 8, 2, tmp_path, rng(), after=interrupt, **NEVER_FLAT)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]
    gan, numbers = small(), rng()
    again = train_to_the_end(gan, *images(), TRAINING, 8, 2, tmp_path, numbers, **NEVER_FLAT)
    assert all(torch.equal(entry, gan.weights()[name]) for name, entry in whole.weights().items())
    assert again.critic_losses == straight.critic_losses
    late = small()  # a finished training is not done again
    finished = train_to_the_end(late, *images(), TRAINING, 8, 2, tmp_path, rng(), **NEVER_FLAT)
    assert finished.stopped == "limit"
    assert all(torch.equal(entry, late.weights()[name]) for name, entry in whole.weights().items())


PROGRAM = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[2])
from test_gan_watch import NEVER_FLAT, TRAINING, images, rng, small
from fedsynth.synthesis.gan_watch import train_to_the_end
torch.set_num_threads(1)
train_to_the_end(small(), *images(), TRAINING, 10**9, 2, Path(sys.argv[1]), rng(), **NEVER_FLAT)
"""


def test_a_killed_process_leaves_a_checkpoint_to_go_on_from(tmp_path: Path):
    """A real kill, in the middle of anything; what is left is whole, and leads where an undisturbed training goes."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(Path(__file__).parent)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 120
    while not (tmp_path / CHECKPOINT).is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait(timeout=30)

    class EnoughError(Exception):
        pass

    reached: dict[str, torch.Tensor] = {}
    steps = 0

    def stop(gan: Gan, run: GanRun) -> None:
        nonlocal steps
        if steps in (0, run.steps):
            steps = run.steps
            reached.update(gan.weights())
            raise EnoughError

    with pytest.raises(EnoughError):
        train_to_the_end(small(), *images(), TRAINING, 10**9, 2, tmp_path, rng(), after=stop, **NEVER_FLAT)
    gan = small()
    resumed = dict(reached)
    with pytest.raises(EnoughError):
        train_to_the_end(gan, *images(), TRAINING, 10**9, 2, None, rng(), after=stop, **NEVER_FLAT)
    assert steps >= 4
    assert all(torch.equal(entry, resumed[name]) for name, entry in gan.weights().items())


def test_a_checkpoint_of_something_else_or_a_broken_one_is_refused(tmp_path: Path):
    x, y = images()
    train_to_the_end(small(), x, y, TRAINING, 2, 2, tmp_path, rng())
    with pytest.raises(UserError, match="other data or settings"):
        train_to_the_end(small(), 1 - x, y, TRAINING, 2, 2, tmp_path, rng())
    with pytest.raises(UserError, match="other data or settings"):
        train_to_the_end(small(), x, y, GanTraining(batch_size=5), 2, 2, tmp_path, rng())
    (tmp_path / CHECKPOINT).write_bytes(b"half a file")
    with pytest.raises(FedsynthError, match="cannot be read"):
        train_to_the_end(small(), x, y, TRAINING, 2, 2, tmp_path, rng())
