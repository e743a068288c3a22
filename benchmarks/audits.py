"""How often an audit refutes: honest mechanisms, which it must not, and the same with half of their noise.

    python benchmarks/audits.py --audits 25 --runs 400
    python benchmarks/audits.py --audits 5 --runs 1000 --halved

Every audit has other random numbers. Prints a line for each mechanism: audits, refuted, the largest lower bound of ε.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch

from fedsynth.audit.statistics_trials import count_trials, statistics_trial
from fedsynth.audit.training_trials import clipped_trial, dpsgd_trial, own_gan_trials, visit_trials
from fedsynth.audit.trials import run_trial
from fedsynth.components import protected_updates as protection
from fedsynth.components.class_counts import counts_guarantee
from fedsynth.components.protected_updates import ClippedUpdates, DpSgdUpdates
from fedsynth.data.dataset import Schema
from fedsynth.federation.trials import Trial
from fedsynth.methods.gandalf.settings import GandalfConfig
from fedsynth.privacy import (
    DiscreteGaussianEvent,
    GaussianEvent,
    Guarantee,
    SampledGaussianEvent,
    discrete,
    dpsgd,
    gaussian_sigma,
)
from fedsynth.privacy.mechanisms import gaussian_event
from fedsynth.synthesis import gan_private, latent_statistics
from fedsynth.synthesis.latent_statistics import Calibration

DELTA, CLASSES, NOISE, EPSILON = 1e-5, 10, 0.7, 6.0
PICTURES = Schema((1, 8, 8), CLASSES)
STEPS = Guarantee(mechanism="DP-SGD", events=(SampledGaussianEvent(rate=0.3, noise=NOISE, steps=5),))


PRIVATE = DpSgdUpdates(clip=0.5, delta=DELTA, noise=NOISE, target=None, trainings=1)


def clipped(noise: float, noise_at: Literal["client", "server"] = "client") -> ClippedUpdates:
    """Clipped updates, with the noise at the client or at the server."""
    return ClippedUpdates(clip=0.5, delta=DELTA, noise=noise, noise_at=noise_at)


def statistics() -> Trial:
    """FedDPMS's calibrated release."""
    events = (gaussian_event(gaussian_sigma(EPSILON, DELTA)),)
    return statistics_trial(32, Calibration(EPSILON, DELTA), CLASSES, events)


def counts() -> Trial:
    """Noisy class counts."""
    sigma = math.sqrt(discrete.discrete_gaussian_variance(EPSILON, DELTA))
    claimed = counts_guarantee(DiscreteGaussianEvent(sigma=sigma))
    return count_trials(claimed, GandalfConfig(counts_epsilon=EPSILON), PICTURES)[0]


TRIALS: dict[str, Callable[[], Trial]] = {
    "DP-SGD": lambda: dpsgd_trial(PRIVATE, NOISE, CLASSES, sampled=False),
    "DP-SGD, half of the batches": lambda: dpsgd_trial(PRIVATE, NOISE, CLASSES, sampled=True),
    "clipped, noise at the client": lambda: clipped_trial(clipped(2 * NOISE), CLASSES, (GaussianEvent(mu=1 / NOISE),)),
    "clipped, noise at the server": lambda: clipped_trial(
        clipped(NOISE, "server"), CLASSES, (GaussianEvent(mu=1 / NOISE),)
    ),
    "GAN visit": lambda: visit_trials(STEPS, None, PICTURES)[0],
    "GAN visit, before others": lambda: visit_trials(STEPS, None, PICTURES)[1],
    "own GAN": lambda: own_gan_trials(STEPS, None, PICTURES)[0],
    "statistics of latents": statistics,
    "class counts": counts,
}


def halve() -> None:
    """Half of the noise, everywhere."""
    summed, added, drawn = dpsgd.noisy_sum, protection.add_gaussian, discrete.discrete_gaussian
    for module in (dpsgd, gan_private):
        module.noisy_sum = lambda total, std, rng: summed(total, std / 2, rng)  # type: ignore[attr-defined]
    for other in (protection, latent_statistics):
        other.add_gaussian = lambda x, std, rng: added(x, std / 2, rng)  # type: ignore[attr-defined]
    discrete.discrete_gaussian = lambda variance, rng: drawn(variance / 4, rng)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audits", type=int, default=25, help="of each mechanism")
    parser.add_argument("--runs", type=int, default=400, help="on each of the two data sets")
    parser.add_argument("--halved", action="store_true", help="with half of the noise: each should be refuted")
    parser.add_argument("--only", default="", help="mechanisms whose name contains this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.halved:
        halve()
    for name, make in TRIALS.items():
        if args.only not in name:
            continue
        began, trial = time.perf_counter(), make()
        found = [
            run_trial(trial, args.runs, DELTA, 0.95, np.random.default_rng([seed, args.runs]))
            for seed in range(args.audits)
        ]
        refuted, largest = sum(one.refuted for one in found), max(one.bound.epsilon for one in found)
        claimed = found[0].claim[DELTA]
        seconds = (time.perf_counter() - began) / args.audits
        told = f"claimed {claimed:.2f}, at least {largest:.2f}; {seconds:.0f} s an audit"
        print(f"{name}: {refuted} of {args.audits} refuted; {told}")


if __name__ == "__main__":
    main()
