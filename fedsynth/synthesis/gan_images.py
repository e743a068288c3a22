"""What a GAN is trained with: batches of real images, and the labels and random vectors that images are made from."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsynth.errors import UserError
from fedsynth.synthesis.gan_model import Gan


class Draws:
    """What images are made from: labels with the given odds for each class, and random vectors."""

    def __init__(self, gan: Gan, odds: Tensor) -> None:
        self.odds = odds.double().cpu()
        self.conditional, self.latent = gan.spec.conditional, gan.spec.latent
        self.like = gan.generator.linear.weight.detach()

    def labels(self, count: int, draw: torch.Generator) -> Tensor | None:
        """Labels, for a conditional generator."""
        if not self.conditional:
            return None
        return torch.multinomial(self.odds, count, replacement=True, generator=draw).to(self.like.device)

    def latents(self, count: int, draw: torch.Generator) -> Tensor:
        """Random vectors."""
        return torch.randn((count, self.latent), generator=draw).to(self.like)


class Images:
    """The real images of known classes, in order of class, so that a batch of any classes is one gather."""

    def __init__(self, gan: Gan, x: Tensor, y: Tensor, balanced: bool, known: Tensor | None) -> None:
        check_images(gan, x, y)
        y = y.cpu()
        counts = torch.bincount(y, minlength=gan.classes)
        known = counts > 0 if known is None else known.bool().cpu()
        order = torch.argsort(y, stable=True)
        order = order[known[y[order]]].to(x.device)
        # Stored (n, height, width, channels); seen as NCHW that is channels_last.
        self.x = x[order].to(gan.generator.linear.weight).permute(0, 2, 3, 1).contiguous()
        self.counts = counts * known
        self.ends = self.counts.cumsum(0)
        self.classes = torch.nonzero(self.counts).flatten()
        self.balanced, self.conditional = balanced, gan.spec.conditional
        self.odds = known if balanced else self.counts

    def __len__(self) -> int:
        return len(self.x)

    def real(self, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """Images, and their labels if they are of use; drawn with replacement."""
        if self.balanced:
            labels = self.classes[torch.randint(len(self.classes), (count,), generator=draw)]
            back = torch.rand(count, generator=draw, dtype=torch.float64) * self.counts[labels]
            rows = self.ends[labels] - 1 - back.long()
        else:
            rows = torch.randint(len(self.x), (count,), generator=draw)
            labels = torch.searchsorted(self.ends, rows, right=True)
        x = self.x.index_select(0, rows.to(self.x.device)).permute(0, 3, 1, 2)
        return x, labels.to(x.device) if self.conditional else None


def check_images(gan: Gan, x: Tensor, y: Tensor) -> None:
    """Refuse images that this GAN cannot learn from."""
    if tuple(x.shape[1:]) != gan.shape or len(x) != len(y):
        raise UserError(
            f"This GAN is for images of shape {gan.shape}, each with a label; "
            f"it got {tuple(x.shape)} and {len(y)} labels."
        )
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < gan.classes:
        raise UserError(f"Labels run from {int(y.min())} to {int(y.max())} but must lie in 0..{gan.classes - 1}.")
