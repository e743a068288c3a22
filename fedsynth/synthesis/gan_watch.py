"""Watching a GAN: whether it still makes different images, whether it makes every class, and when to stop.

`train_to_the_end` trains one GAN by itself, with a checkpoint after every part, and goes on where it was killed as if
nothing had happened.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedsynth.errors import FedsynthError, UserError
from fedsynth.learning.weights import load_weights
from fedsynth.synthesis.gan_model import Gan
from fedsynth.synthesis.gan_training import GanTraining, Moments, train_gan

LOOKED_AT = 200  # images of a class whose pairs are measured: enough for a mean, and a bounded table
COLLAPSED = 0.4  # of the real images' distances
CHECKPOINT = "gan.safetensors"


def diversity(images: Tensor, labels: Tensor, real: Tensor, real_labels: Tensor, classes: int) -> Tensor:
    """The mean distance between two images of a class, over that of the real ones: 1 is as diverse as real images,
    0 is one image again and again. nan for a class with fewer than two images on either side. A share per class.
    """
    return torch.stack(
        [mean_distance(images[labels == c]) / mean_distance(real[real_labels == c]) for c in range(classes)]
    )


def collapsed(diversities: Tensor, least: float = COLLAPSED) -> list[int]:
    """The classes whose images are too much alike."""
    return torch.nonzero(diversities < least).flatten().tolist()


def mean_distance(images: Tensor) -> Tensor:
    """The mean distance between two of these images; nan for fewer than two."""
    if len(images) < 2:
        return torch.tensor(math.nan)
    return torch.pdist(images[:LOOKED_AT].flatten(1).float()).mean().cpu()


@torch.no_grad()
def class_coverage(classifier: nn.Module, images: Tensor, classes: int, batch: int = 512) -> Tensor:
    """The share of the images that a classifier, trained on real data by the caller, takes for each class."""
    classifier.eval()
    counts = torch.zeros(classes)
    for part in images.split(batch):
        counts += torch.bincount(classifier(part).argmax(1).cpu(), minlength=classes)
    return counts / max(1, len(images))


def flat(losses: Sequence[float], window: int, tolerance: float) -> bool:
    """Whether a loss has stopped moving: its means over the last `window` values and over the window before differ by
    no more than `tolerance` times the standard deviation within the windows."""
    if len(losses) < 2 * window:
        return False
    before, last = np.asarray(losses[-2 * window : -window]), np.asarray(losses[-window:])
    noise = math.sqrt((before.var() + last.var()) / 2)
    return bool(abs(last.mean() - before.mean()) <= tolerance * noise)


@dataclass
class GanRun:
    """A training so far: mean losses of each part of it, and why it ended ("" while it has not)."""

    steps: int = 0
    generator_losses: list[float] = field(default_factory=list)
    critic_losses: list[float] = field(default_factory=list)
    stopped: Literal["", "flat", "limit", "not finite"] = ""
    moments: Moments = field(default_factory=dict, repr=False)


def train_to_the_end(
    gan: Gan,
    x: Tensor,
    y: Tensor,
    training: GanTraining,
    limit: int,
    every: int,
    folder: Path | None,
    rng: np.random.Generator,
    *,
    window: int = 10,
    tolerance: float = 0.5,
    known: Tensor | None = None,
    after: Callable[[Gan, GanRun], None] | None = None,
) -> GanRun:
    """Train the GAN in place until both losses are flat, or for `limit` generator steps.

    After every `every` steps there is a checkpoint in `folder`, then `after` is called: for a line of progress, or to
    draw samples (with random numbers of its own). Called again with a folder that holds a checkpoint, training goes on
    from there, to the same weights as without the interruption; `rng` is then set to where it was.
    """
    file = folder / CHECKPOINT if folder else None
    about = _about(gan, x, y, training, limit, every, window, tolerance, known)
    run = _resumed(file, gan, rng, about) if file and file.is_file() else GanRun()
    while not run.stopped:
        fit = train_gan(gan, x, y, training, min(every, limit - run.steps), rng, run.moments, known)
        run.steps, run.moments = run.steps + fit.steps, fit.moments
        run.generator_losses.append(fit.generator_loss)
        run.critic_losses.append(fit.critic_loss)
        run.stopped = _why_stop(run, fit.steps, limit, window, tolerance)
        if file:
            _checkpoint(file, gan, run, rng, about)
        if after:
            after(gan, run)
    return run


def _why_stop(
    run: GanRun, done: int, limit: int, window: int, tolerance: float
) -> Literal["", "flat", "limit", "not finite"]:
    if not math.isfinite(run.generator_losses[-1] + run.critic_losses[-1]):
        return "not finite"
    if run.steps >= limit or done == 0:
        return "limit"
    still = all(flat(losses, window, tolerance) for losses in (run.generator_losses, run.critic_losses))
    return "flat" if still else ""


def _about(gan: Gan, x: Tensor, y: Tensor, training: GanTraining, *rest: Any) -> str:
    """What a checkpoint belongs to: the settings and the data."""
    settings = [gan.spec.model_dump(), gan.shape, gan.classes, training.model_dump(), *map(_plain, rest)]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for part in (x, y):
        digest.update(part.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _checkpoint(file: Path, gan: Gan, run: GanRun, rng: np.random.Generator, about: str) -> None:
    """One file with everything, replaced at once: weights and counters can never disagree."""
    story = {
        "about": about,
        "steps": run.steps,
        "generator_losses": run.generator_losses,
        "critic_losses": run.critic_losses,
        "stopped": run.stopped,
        "rng": rng.bit_generator.state,
    }
    tensors = {f"weights/{name}": tensor for name, tensor in gan.weights().items()}
    tensors |= {f"moments/{name}": tensor for name, tensor in run.moments.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}.tmp")
    with temporary.open("wb") as stream:
        stream.write(save(tensors, metadata={"story": json.dumps(story)}))
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)


def _resumed(file: Path, gan: Gan, rng: np.random.Generator, about: str) -> GanRun:
    try:
        with safe_open(file, framework="pt") as stored:
            story = json.loads(stored.metadata()["story"])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  (not a dictionary)
    except Exception as error:
        raise FedsynthError(f"The checkpoint {file} cannot be read ({error}); delete it to start anew.") from error
    if story["about"] != about:
        raise UserError(
            f"The checkpoint {file} belongs to a training with other data or settings: "
            "choose another folder, or delete it to start anew."
        )
    load_weights(gan, _under("weights/", tensors))
    rng.bit_generator.state = story["rng"]
    losses = (story["generator_losses"], story["critic_losses"])
    return GanRun(story["steps"], *losses, story["stopped"], _under("moments/", tensors))


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
