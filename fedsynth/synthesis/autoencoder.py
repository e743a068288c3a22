"""A small convolutional auto-encoder for images of any shape: what it is for here is its embedding."""

from itertools import pairwise
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsynth.data.readers.arrays import check_unpacked_size
from fedsynth.errors import UserError
from fedsynth.learning.effort import count_examples
from fedsynth.learning.weights import Weights, load_weights

CHANNELS = (16, 32, 64)
COARSEST = 4  # pixels a side: an image is halved at most until it is as small


class AutoEncoder(nn.Module):
    """Strided convolutions down to a latent, and their mirror image back to an image in [0, 1]."""

    def __init__(self, shape: tuple[int, int, int], latent: int) -> None:
        super().__init__()
        self.shape, self.latent = shape, latent
        sides = [shape[1:]]
        while len(sides) <= len(CHANNELS) and max(sides[-1]) > COARSEST:
            sides.append((-(-sides[-1][0] // 2), -(-sides[-1][1] // 2)))
        widths = [shape[0], *CHANNELS[: len(sides) - 1]]
        self.coarse = (widths[-1], *sides[-1])
        features = widths[-1] * sides[-1][0] * sides[-1][1]
        down = [nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths)]
        up = [nn.ConvTranspose2d(b, a, 4, stride=2, padding=1) for a, b in pairwise(widths)]
        self.down, self.up = nn.ModuleList(down), nn.ModuleList(reversed(up))
        self.squeeze, self.spread = nn.Linear(features, latent), nn.Linear(latent, features)

    def encode(self, x: Tensor) -> Tensor:
        """The latents of some images, one row each."""
        for layer in self.down:
            x = torch.relu(layer(x))
        return self.squeeze(x.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        """The images as the decoder makes them of their latents."""
        x = torch.relu(self.spread(self.encode(x))).unflatten(1, self.coarse)
        for number, layer in enumerate(self.up):
            x = layer(x if number == 0 else torch.relu(x))
        # A side that was rounded up on the way down comes out too long.
        return torch.sigmoid(x[:, :, : self.shape[1], : self.shape[2]])


def build_autoencoder(shape: tuple[int, ...], latent: int, seed: int) -> AutoEncoder:
    """A fresh auto-encoder. Its weights depend on the seed alone."""
    if len(shape) != 3 or min(shape) < 1:
        raise UserError(f"An auto-encoder here is for images (channels, height, width), not for the shape {shape}.")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**63)
        net = AutoEncoder((shape[0], shape[1], shape[2]), latent)
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def load_autoencoder(shape: tuple[int, ...], latent: int, weights: Weights) -> AutoEncoder:
    """An auto-encoder with copies of the given weights."""
    net = build_autoencoder(shape, latent, seed=0)
    load_weights(net, weights)
    return net


def train_autoencoder(
    net: AutoEncoder, x: Tensor, steps: int, rng: np.random.Generator, batch_size: int = 64, lr: float = 1e-3
) -> float:
    """Train in place to reconstruct x (squared error, Adam); the mean error per pixel over the last tenth of the steps.

    Images are drawn with replacement: the sets that are joined here may be of any size.
    """
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    errors: list[float] = []
    net.train()
    for _ in range(steps if len(x) else 0):
        batch = x[torch.from_numpy(rng.integers(len(x), size=batch_size))].contiguous(memory_format=torch.channels_last)
        loss = F.mse_loss(net(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(loss.item())
    count_examples(len(errors) * batch_size)
    return float(np.mean(errors[-max(1, len(errors) // 10) :])) if errors else float("nan")


def embed(net: AutoEncoder, x: Tensor, batch_size: int = 512) -> Tensor:
    """The latents of all images, without gradients."""
    net.eval()
    with torch.inference_mode():
        rows = [net.encode(batch) for batch in x.split(batch_size)]
    return torch.cat(rows).clone() if rows else torch.zeros((0, net.latent))


def reconstruction_errors(net: AutoEncoder, x: Tensor, batch_size: int = 512) -> Tensor:
    """The squared error per pixel of every image: large where an image is unlike those the network has learnt."""
    net.eval()
    with torch.inference_mode():
        rows = [(net(batch) - batch).square().flatten(1).mean(1) for batch in x.split(batch_size)]
    return torch.cat(rows).clone() if rows else torch.zeros(0)


def read_public_images(path: str, shape: tuple[int, ...]) -> Tensor:
    """The images of an .npz file (its array `x_train`, `x` or the first one), as floats in [0, 1] of this shape."""
    try:
        check_unpacked_size(Path(path))
        with np.load(path, allow_pickle=False) as file:
            name = next((key for key in ("x_train", "x") if key in file.files), file.files[0])
            images = np.asarray(file[name])
    except (OSError, ValueError, KeyError, IndexError, TypeError, BadZipFile, MemoryError) as error:
        raise UserError(f'The public images "{path}" cannot be read as an .npz file ({error}).') from None
    found = torch.from_numpy(images.astype(np.float32)) / (255 if images.dtype == np.uint8 else 1)
    if found.dim() == 3:
        found = found.unsqueeze(1)
    elif found.dim() == 4 and found.shape[-1] == shape[0] != found.shape[1]:
        found = found.permute(0, 3, 1, 2)
    if tuple(found.shape[1:]) != tuple(shape):
        raise UserError(
            f'The public images "{path}" have the shape {tuple(found.shape[1:])}, and the clients\' {tuple(shape)}; '
            "bring them to the same size and number of channels."
        )
    return found.contiguous()
