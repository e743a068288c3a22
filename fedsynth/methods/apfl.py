"""APFL (Deng, Kamani and Mahdavi 2020, algorithm 1): each client mixes a model of its own with the global one.

At every step, on the same batch (w is the client's copy of the global model, v its own, v̄ = α v + (1 − α) w):

    w ← w − η ∇f(w)
    v ← v − η ∇_v f(v̄) = v − η α ∇f(v̄)
    α ← α − η ⟨v − w, ∇f(v̄)⟩, cut to [0, 1]

The server averages the w, which is FedAvg, bit-identical. A client is evaluated with α v + (1 − α) w of the global w.

Deviations: replies are weighted by examples (the paper's plain mean is `aggregator = {name = "mean", weights =
"equal"}`). α moves at the first step of each round alone, where w is the global model, as in the authors' program
(which shrinks it a little besides); `form = "published"` moves it at every step, as its equation is written. There w
has learnt the client's data itself, α falls to 0, and stays, because v stands still at 0. v takes the optimiser of
`[train]`, α always plain steps at its rate. BatchNorm's statistics of the mixture are the client's own.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from fedsynth.components.settings import PublishedForm
from fedsynth.components.slots import LocalContext, LocalObjective
from fedsynth.federation import Client, method
from fedsynth.federation.personal import personal
from fedsynth.learning.effort import count_examples
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining, make_optimizer
from fedsynth.learning.training import CrossEntropy, FitResult, Objective
from fedsynth.learning.weights import Weights, load_weights, weights_of

ALPHA_STEPS = {"rounds": 1, "steps": math.inf, "no": 0}  # of one visit

MIXED = "mixed model"  # in the private state: v, with BatchNorm's statistics of the mixture, and α


class Mixture(CrossEntropy):
    """The loss of w; before each of its steps v takes one on the same batch, and α for the first `alpha_steps`."""

    def __init__(self, net: nn.Module, own: Weights, alpha: float, training: LocalTraining, alpha_steps: float) -> None:
        self.net = copy.deepcopy(net)
        load_weights(self.net, own)
        self.alpha = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        self.alpha_steps = alpha_steps
        self.own = dict(self.net.named_parameters())
        self.training, self.optimizer = training, make_optimizer(self.own.values(), training)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        self.step(dict(model.named_parameters()), x, y)
        return super().loss(model, x, y)

    def step(self, shared: Mapping[str, Tensor], x: Tensor, y: Tensor) -> None:
        """Move v and α, with w as it stands."""
        mixed = mix(self.alpha, self.own, {name: w.detach() for name, w in shared.items()})
        self.net.train(len(y) > 1)  # one example has no spread for BatchNorm
        self.optimizer.zero_grad()
        self.alpha.grad = None
        F.cross_entropy(functional_call(self.net, mixed, (x,)), y).backward()
        slope = self.alpha.grad  # ⟨v − w, ∇f(v̄)⟩, by the chain rule
        if self.training.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.own.values(), self.training.max_grad_norm)
        self.optimizer.step()
        if self.alpha_steps > 0 and slope is not None:
            self.alpha_steps -= 1
            with torch.no_grad():
                self.alpha.sub_(self.training.lr * slope).clamp_(0, 1)


def mix(alpha: float | Tensor, own: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Weights:
    """v̄ = α v + (1 − α) w."""
    return {name: alpha * v + (1 - alpha) * shared[name] for name, v in own.items()}


@personal("mixed")
def mixed_model(client: Client, model: Weights, spec: ModelSpec, settings: object) -> Weights:
    """The client's mixture with the global model; the global model where it never trained."""
    kept: dict[str, Any] | None = client.state.get(MIXED)
    if kept is None:
        return model
    trained = {name for name, _ in client.build(spec, model).named_parameters()}
    return kept["own"] | mix(kept["alpha"], {n: v for n, v in kept["own"].items() if n in trained}, model)


@method("apfl")
class MixedObjective(PublishedForm, LocalObjective, name="mixed"):
    """FedAvg, and for each client a learnt mixture of the global model with one of its own."""

    published: ClassVar[dict[str, Any]] = {"adaptive": "steps"}

    personal: ClassVar[str] = "mixed"

    unprotected: ClassVar[str] = "the client's own model is trained on its data without protection"

    alpha: float = Field(0.5, ge=0, le=1, description="α: the share of a client's own model in the mixture, at first")
    adaptive: Literal["rounds", "steps", "no"] = Field(
        "rounds", description="when a client's α moves: at the first step of each round, at every step, or not at all"
    )

    def begin(self, local: LocalContext) -> Objective:
        kept = local.client.state.get(MIXED, {"own": local.received, "alpha": self.alpha})
        mixture = Mixture(local.net, kept["own"], kept["alpha"], local.training, ALPHA_STEPS[self.adaptive])
        local.scratch["mixture"] = mixture
        return mixture

    def finish(self, local: LocalContext, fit: FitResult) -> Weights:
        mixture: Mixture = local.scratch["mixture"]
        local.client.state[MIXED] = {"own": weights_of(mixture.net), "alpha": mixture.alpha.item()}
        count_examples(fit.epochs * fit.examples)
        return {}
