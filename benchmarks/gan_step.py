"""Training steps of a WGAN-GP: fedsynth's against a textbook PyTorch loop with the same networks, in turns.

    OMP_NUM_THREADS=1 python benchmarks/gan_step.py --turns 5

Both train a GAN of the default size (28x28, ten classes, B = 32), two critic steps to a generator step. The textbook:
the default memory format, a pass for real and one for synthetic images, these generated anew in every critic step, the
penalty by autograd's gradient of a gradient, Adam as it comes, batches by a DataLoader. Only the ratio means
something: on a busy machine both are slowed down. Times are of the processor, in one thread.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fedsynth.synthesis.gan import GanSpec, TrainingImages, build_gan
from fedsynth.synthesis.gan_networks import LEAK, Critic, Generator
from fedsynth.synthesis.gan_training import GanTraining, gradient_penalty, train_gan

SHAPE, CLASSES, IMAGES = (1, 28, 28), 10, 2000
SPEC, TRAINING = GanSpec(kind="wgan_gp"), GanTraining()


def slope_by_autograd(critic: Critic, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the scores over the images, to be differentiated again."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(critic(x, y).sum(), x, create_graph=True)[0]


class TextbookGenerator(Generator):
    """The same layers in the default memory format."""

    def logits(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """Linear, then normalise, weigh, rectify and double."""
        assert y is not None
        assert self.gains is not None
        x = self.linear(torch.cat([z, F.one_hot(y, CLASSES).float()], 1)).unflatten(1, (-1, *self.coarse))
        for gain, doubling in zip(self.gains, self.doublings, strict=True):
            x = x / (x.square().mean(1, keepdim=True) + 1e-8).sqrt() * gain(y)[:, :, None, None]
            x = doubling(F.relu(x))
        return x


class TextbookCritic(Critic):
    """The same layers in the default memory format."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Convolutions, a score, and a projection on the class."""
        for conv in self.body.convs:
            x = F.leaky_relu(conv(x), LEAK)
        x = x.flatten(1)
        assert self.by_class is not None
        return self.score(x).squeeze(1) + (x * self.by_class(y)).sum(1)


class Textbook:
    """The loop as tutorials have it."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.generator = TextbookGenerator(SPEC.latent, SHAPE, CLASSES, SPEC.channels)
        self.critic = TextbookCritic(SHAPE, CLASSES, SPEC.channels)
        rates = (TRAINING.generator_lr, TRAINING.critic_lr)
        self.adam = [
            torch.optim.Adam(network.parameters(), lr=rate, betas=TRAINING.betas)
            for network, rate in zip((self.generator, self.critic), rates, strict=True)
        ]
        loader = DataLoader(TensorDataset(x, y), TRAINING.batch_size, shuffle=True, drop_last=True)
        self.batches: Iterator[list[Tensor]] = itertools.chain.from_iterable(itertools.repeat(loader))

    def critic_step(self) -> None:
        """Algorithm 1, lines 8 to 12."""
        real, y = next(self.batches)
        made = self.generator(torch.randn(len(y), SPEC.latent), y).detach()
        mix = torch.rand(len(y), 1, 1, 1)
        slope = slope_by_autograd(self.critic, mix * real + (1 - mix) * made, y)
        penalty = (slope.flatten(1).norm(dim=1) - 1).square()
        loss = (self.critic(made, y) - self.critic(real, y) + TRAINING.penalty * penalty).mean()
        self.adam[1].zero_grad()
        loss.backward()
        self.adam[1].step()

    def train(self, steps: int) -> None:
        """So many generator steps with their critic steps."""
        for _ in range(steps):
            for _ in range(TRAINING.critic_steps):
                self.critic_step()
            y = torch.randint(CLASSES, (TRAINING.batch_size,))
            loss = -self.critic(self.generator(torch.randn(len(y), SPEC.latent), y), y).mean()
            self.adam[0].zero_grad()
            loss.backward()
            self.adam[0].step()


def penalty_steps(critic: Critic, x: Tensor, y: Tensor, times: int) -> None:
    """The penalty alone with its gradient over the weights, in either way."""
    mix = torch.full((len(x), 1, 1, 1), 0.5)
    for _ in range(times):
        if isinstance(critic, TextbookCritic):
            penalty = (slope_by_autograd(critic, x, y).flatten(1).norm(dim=1) - 1).square()
        else:
            penalty = gradient_penalty(critic, x, x, y, mix)
        torch.autograd.grad(penalty.sum(), list(critic.parameters()), allow_unused=True)


def main() -> None:
    """Alternate, and print milliseconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="generator steps a turn")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.rand(IMAGES, *SHAPE), torch.randint(CLASSES, (IMAGES,))
    gan, textbook, few = build_gan(SPEC, SHAPE, CLASSES, seed=0), Textbook(x, y), slice(0, TRAINING.batch_size)
    assert isinstance(gan.critic, Critic)
    critic = gan.critic
    contests: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "a generator step with its critic steps": (
            lambda: train_gan(gan, TrainingImages(x, y), TRAINING, arguments.steps, np.random.default_rng(0)),
            lambda: textbook.train(arguments.steps),
        ),
        "the penalty and its gradient": (
            lambda: penalty_steps(critic, x[few], y[few], arguments.steps),
            lambda: penalty_steps(textbook.critic, x[few], y[few], arguments.steps),
        ),
    }
    for name, runs in contests.items():
        spent: list[list[float]] = [[], []]
        for run in runs:
            run()  # once before it counts
        for turn in range(arguments.turns):
            for which, run in enumerate(runs):
                began = time.process_time()
                run()
                spent[which].append((time.process_time() - began) / arguments.steps * 1e3)
            print(f"turn {turn + 1}: fedsynth {spent[0][-1]:.1f} ms, textbook {spent[1][-1]:.1f} ms", flush=True)
        ratios = [theirs / mine for mine, theirs in zip(*spent, strict=True)]
        ours, theirs = (statistics.median(times) for times in spent)
        print(
            f"{name}: fedsynth {ours:.1f} ms, textbook {theirs:.1f} ms; "
            f"{statistics.median(ratios):.2f} times as fast (from {min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
