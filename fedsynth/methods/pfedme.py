"""pFedMe (Dinh, Tran and Nguyen 2020, algorithm 1): a client's own model θ, and Moreau envelopes that are averaged.

For each batch of a client (eq. 6 to 8; w is its copy of the global model):

    θ ← argmin_θ f(θ) + λ/2 ‖θ − w‖², by K gradient steps from the θ before
    w ← w − η λ (w − θ)

λ (w − θ) is the gradient of the envelope F(w) = min_θ f(θ) + λ/2 ‖θ − w‖². The server averages the w, and a client is
evaluated with its last θ. The steps of θ are those of `[train]`, where rates are made for f.

Deviations: only sampled clients train (in the paper all do, and some are averaged). Replies are weighted by examples
(the plain mean is `aggregator = {name = "mean", weights = "equal"}`), and β is 1 (another: `server = {name = "fedopt",
optimizer = "sgd", momentum = 0, server_lr = β}`). θ starts from the received model in each round, as in the authors'
program. BatchNorm's statistics are those of θ, for w too. `form = "published"` has the paper's λ, η and K for networks
on MNIST, where it trains for 800 rounds; in a few rounds w hardly moves with them.
"""

import copy
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedsynth.components.personal_training import LOCAL
from fedsynth.components.settings import PublishedForm
from fedsynth.components.slots import LocalContext, LocalObjective
from fedsynth.federation import method
from fedsynth.learning.effort import count_examples
from fedsynth.learning.objectives import add_distance
from fedsynth.learning.optimizers import LocalTraining, make_optimizer
from fedsynth.learning.training import CrossEntropy, FitResult, Objective
from fedsynth.learning.weights import Weights, weights_of


class Envelope(CrossEntropy):
    """F(w) on a batch, whose gradient is λ (w − θ); θ goes on from batch to batch."""

    def __init__(self, net: nn.Module, lam: float, steps: int, training: LocalTraining) -> None:
        self.theta = copy.deepcopy(net)
        self.lam, self.steps, self.longest = lam, steps, training.max_grad_norm
        self.optimizer = make_optimizer(self.theta.parameters(), training)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        own = self.minimise([w.detach() for w in model.parameters()], x, y)
        pairs = zip(model.parameters(), self.theta.parameters(), strict=True)
        return own + self.lam / 2 * torch.stack([(w - t.detach()).square().sum() for w, t in pairs]).sum()

    def minimise(self, near: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        """K steps of θ on f(θ) + λ/2 ‖θ − w‖² (eq. 7); f before the last of them."""
        self.theta.train(len(y) > 1)  # one example has no spread for BatchNorm
        own = x.new_zeros(())
        for _ in range(self.steps):
            self.optimizer.zero_grad()
            own = F.cross_entropy(self.theta(x), y)
            own.backward()
            add_distance(self.theta, near, self.lam)
            if self.longest is not None:
                nn.utils.clip_grad_norm_(self.theta.parameters(), self.longest)
            self.optimizer.step()
        return own.detach()


@method("pfedme", search={"lam": (0.1, 10.0), "eta": (0.05, 1.0)})
class EnvelopeObjective(PublishedForm, LocalObjective, name="moreau"):
    """A model of its own for each client, and an average that all of them stay near (Moreau envelopes)."""

    published: ClassVar[dict[str, Any]] = {"lam": 15.0, "eta": 0.005, "inner_steps": 5}

    personal: ClassVar[str] = "alone"

    unprotected: ClassVar[str] = "the client's own model is trained on its data without protection"

    lam: float = Field(1.0, gt=0, description="λ: how strongly a client's own model is drawn to the average")
    inner_steps: int = Field(3, ge=1, description="K: steps of a client's own model on each batch")
    eta: float = Field(0.8, gt=0, description="η: rate of the averaged model's steps; ηλ is best below 1")

    def training(self, asked: LocalTraining) -> LocalTraining:
        return LocalTraining(epochs=asked.epochs, batch_size=asked.batch_size, lr=self.eta)

    def begin(self, local: LocalContext) -> Objective:
        local.scratch["envelope"] = envelope = Envelope(local.net, self.lam, self.inner_steps, local.training)
        return envelope

    def finish(self, local: LocalContext, fit: FitResult) -> Weights:
        envelope: Envelope = local.scratch["envelope"]
        with torch.no_grad():
            for mine, its in zip(local.net.buffers(), envelope.theta.buffers(), strict=True):
                mine.copy_(its)
        local.client.state[LOCAL] = weights_of(envelope.theta)
        count_examples((self.inner_steps - 1) * fit.epochs * fit.examples)
        return {}
