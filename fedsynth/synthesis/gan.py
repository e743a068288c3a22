"""GANs (and a VAE in their place): the pair of networks, its weights, what it learns from, drawing images with it."""

import copy
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel, Field, PositiveInt
from torch import Tensor, nn

from fedsynth.errors import UserError
from fedsynth.learning.models import filled
from fedsynth.learning.weights import Weights, check_match, weights_of
from fedsynth.synthesis.gan_networks import Critic, Encoder, Generator, Shape

GENERATOR = "generator."
MOST_COMPARED = 200  # images of a class whose pairs are measured: enough for a mean, and a bounded table
COLLAPSED = 0.4  # of the mean distance: a class whose images are nearer to each other has collapsed


class GanSpec(BaseModel, frozen=True, extra="forbid"):
    """Which GAN, and how large."""

    kind: Literal["wgan_gp", "r1", "vae"] = Field(
        "wgan_gp",
        description="wgan_gp: Wasserstein with gradient penalty; r1: non-saturating with R1, faster; "
        "vae: a variational auto-encoder, stable and blurred.",
    )
    conditional: bool = Field(True, description="Whether images are generated for a class.")
    channels: PositiveInt = Field(16, description="Channels at the finest level; doubled at each coarser one.")
    latent: PositiveInt = Field(64, description="Length of the random vector an image is generated from.")
    averaged: bool | None = Field(
        None, description="Whether images are drawn by a running average of the generator; none given: of r1 alone."
    )

    @property
    def averages(self) -> bool:
        """Whether a running average draws."""
        return self.kind == "r1" if self.averaged is None else self.averaged


class Gan(nn.Module):
    """A generator to draw with and what it learns from: a critic, or the encoder of a VAE.

    Where the spec says so, the generator is a running average of one that learns (`learner`), and `followed` says over
    how many steps. With "r1" its images were better in each of seven runs, by one to two points of agreement.
    """

    followed: Tensor

    def __init__(self, spec: GanSpec, shape: Shape, classes: int) -> None:
        super().__init__()
        self.spec, self.shape, self.classes = spec, shape, classes
        given = classes if spec.conditional else 0
        self.generator = Generator(spec.latent, shape, given, spec.channels)
        self.learner = copy.deepcopy(self.generator) if spec.averages else None
        if spec.averages:
            self.register_buffer("followed", torch.zeros(()))
        self.critic: Critic | Encoder = (
            Encoder(spec.latent, shape, given, spec.channels)
            if spec.kind == "vae"
            else Critic(shape, given, spec.channels)
        )

    @property
    def learning(self) -> Generator:
        """The generator that training changes."""
        return self.generator if self.learner is None else self.learner

    @torch.no_grad()
    def follow(self, average: float) -> None:
        """Bring the generator that draws nearer to the one that learns; faster in the first steps, when both are far
        from good."""
        if self.learner is not None:
            self.followed += 1
            done = self.followed.item()
            kept = min(average, done / (done + 10))
            for mean, learned in zip(self.generator.parameters(), self.learner.parameters(), strict=True):
                mean.lerp_(learned, 1 - kept)

    def weights(self) -> Weights:
        """Copies of all weights, named "generator.…" and "critic.…" (and "learner.…" and "followed" of an average)."""
        return weights_of(self)


@dataclass(frozen=True)
class TrainingImages:
    """What a GAN learns from: images x (n, C, H, W) in [0, 1] with labels y.

    `known` says which classes are known to be there (by default those in y): the generator is asked for no other, and
    images of others are left out. A class that nobody has would come out as rubbish. `public_size` is the number of
    images that everybody may know (by default the true one): private training goes by it alone.
    """

    x: Tensor
    y: Tensor
    known: Tensor | None = None
    public_size: int | None = None

    def check(self, gan: Gan) -> None:
        """Refuse images that this GAN cannot learn from."""
        x, y = self.x, self.y
        if tuple(x.shape[1:]) != gan.shape or len(x) != len(y):
            raise UserError(
                f"This GAN is for images of shape {gan.shape}, each with a label; "
                f"it got {tuple(x.shape)} and {len(y)} labels."
            )
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < gan.classes:
            raise UserError(f"Labels run from {int(y.min())} to {int(y.max())} but must lie in 0..{gan.classes - 1}.")


def build_gan(spec: GanSpec, shape: tuple[int, ...], classes: int, seed: int) -> Gan:
    """A fresh GAN. Its weights depend on the seed alone; PyTorch's global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        gan = Gan(spec, _image_shape(shape), classes)
    return gan.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def load_gan(spec: GanSpec, shape: tuple[int, ...], classes: int, weights: Mapping[str, Tensor]) -> Gan:
    """A GAN with copies of the given weights, without the cost of initialising it first."""
    blank = _blank(spec, _image_shape(shape), classes)
    check_match(blank.state_dict(), weights)
    return filled(blank, weights, "")


def generator_weights(weights: Mapping[str, Tensor]) -> Weights:
    """The generator's part of the weights of a GAN, under the same names: all that drawing images needs."""
    return {name: tensor for name, tensor in weights.items() if name.startswith(GENERATOR)}


def load_generator(spec: GanSpec, shape: tuple[int, ...], classes: int, weights: Mapping[str, Tensor]) -> Generator:
    """The generator alone, from the weights of a GAN or from their generator's part."""
    blank = _blank(spec, _image_shape(shape), classes).generator
    part = {name.removeprefix(GENERATOR): tensor for name, tensor in generator_weights(weights).items()}
    check_match(blank.state_dict(), part)
    return filled(blank, part, "")


def _image_shape(shape: tuple[int, ...]) -> Shape:
    if len(shape) != 3 or min(shape) < 1:
        raise UserError(f"A GAN makes images (channels, height, width), and this data has the shape {tuple(shape)}.")
    return shape[0], shape[1], shape[2]


@functools.lru_cache(maxsize=32)
def _blank(spec: GanSpec, shape: Shape, classes: int) -> Gan:
    """The networks without any numbers."""
    with torch.device("meta"):
        return Gan(spec, shape, classes)


def make_images(
    generator: Generator,
    spec: GanSpec,
    labels: Tensor | None,
    rng: np.random.Generator,
    count: int | None = None,
    batch: int = 256,
) -> Tensor:
    """Images in [0, 1], one for each label; an unconditional generator takes a `count` and no labels."""
    if spec.conditional != (labels is not None):
        raise UserError("A conditional generator needs the labels to draw, an unconditional one takes a count instead.")
    total = len(labels) if labels is not None else count
    if total is None:
        raise UserError("Say how many images an unconditional generator shall draw: give a count.")
    like = generator.linear.weight
    z = torch.randn((total, spec.latent), generator=torch_generator(rng), dtype=torch.float32).to(like)
    drawn = [z.new_empty((0, *generator.shape))]
    with torch.inference_mode():
        for start in range(0, total, batch):
            here = slice(start, start + batch)
            drawn.append(generator(z[here], None if labels is None else labels[here].to(like.device)))
    return torch.cat(drawn).clone(memory_format=torch.contiguous_format)


def draw_some(
    generator: Generator, spec: GanSpec, known: Sequence[int] | np.ndarray, count: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """So many images of each known class, with their labels; of a generator that knows no classes, so many of any."""
    if not spec.conditional:
        return make_images(generator, spec, None, rng, count=count), torch.zeros(count, dtype=torch.int64)
    labels = torch.as_tensor(known, dtype=torch.int64).repeat_interleave(count)
    return make_images(generator, spec, labels, rng), labels


def mean_distance(images: Tensor) -> float:
    """The mean distance between two of these images; nan for fewer than two."""
    if len(images) < 2:
        return math.nan
    return float(torch.pdist(images[:MOST_COMPARED].flatten(1).float()).mean())


def torch_generator(rng: np.random.Generator) -> torch.Generator:
    """A PyTorch source of randomness that depends on the next number of `rng` alone."""
    return torch.Generator().manual_seed(int(rng.integers(2**63)))
