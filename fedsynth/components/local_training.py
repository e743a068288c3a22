"""A client's part of a round: train the received model, and release what comes of it as update privacy allows.

`UpdatePrivacy` is what protects an update, in two halves: `update` at the client, the rest at the server. This one
protects nothing; `dp_sgd_updates.py`, `clipped_updates.py`, `noisy_updates.py` and `secure_updates.py` hold the others.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny
from torch import Tensor, nn

from fedsynth.components.samples import Samples
from fedsynth.components.slots import (
    Kept,
    LocalContext,
    LocalData,
    LocalDataSlot,
    LocalObjective,
    ObjectiveSlot,
    OwnExamples,
    Plain,
    SecureSettings,
    SlotValue,
)
from fedsynth.federation import Client, Federation, Message, Reply, leaves, task
from fedsynth.federation.personal import personal
from fedsynth.learning.models import ModelSpec, last_layers
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import FitResult, Objective, fit
from fedsynth.learning.weights import Weights, buffer_entries, norm_entries, weights_of
from fedsynth.privacy import Guarantee, PrivacyConfig

if TYPE_CHECKING:
    from fedsynth.components.loop import Loop


class Update(Reply):
    """What a client sends after training."""

    model: Weights = leaves("weights of the model after local training")
    examples: int = leaves("number of training examples", default=1)
    loss: float = leaves("mean training loss", default=0.0)
    steps: int = leaves("number of optimiser steps", default=0)
    extra: Weights = leaves(
        "what the method's objective adds (control variates, a loss, class counts; see its page)", default={}
    )


class UpdatePrivacy(SlotValue, slot="updates"):
    """What protects an update on its way from a client to the average. A client checks it: who asks may be lying."""

    hides_records: ClassVar[bool] = False  # by DP-SGD

    @classmethod
    def planned(cls, privacy: PrivacyConfig, trainings: int) -> "UpdatePrivacy":
        """What an experiment asks for; a client will be asked to train so many times, at most."""
        return cls()

    # -- at the server ----------------------------------------------------------------------------------------------

    def check(self, loop: "Loop") -> None:
        """Refuse what cannot be protected, before anything has left a client."""

    def prepare(self, fed: Federation, objective: LocalObjective) -> None:
        """Before the first round: ask for what clients need to protect their updates."""

    @property
    def secure(self) -> SecureSettings | None:
        """How sums are kept secure; None where the server sees what each client sends."""
        return None

    def at_clients(self) -> "UpdatePrivacy":
        """What requests to clients name."""
        return self

    def collect(
        self, fed: Federation, clients: list[str], model: Weights, request: "TrainRequest", equal: bool
    ) -> Mapping[str, Update]:
        """What the clients send back; `equal`: all are to have equal weights, where that is decided before."""
        return fed.broadcast(train, to=clients, model=model, request=request)

    def protect_mean(self, fed: Federation, mean: Weights, names: set[str], replies: int) -> Weights:
        """What the server adds to the mean of so many updates."""
        return mean

    # -- at a client ------------------------------------------------------------------------------------------------

    def check_here(self, objective: LocalObjective, local_data: LocalData, net: nn.Module) -> None:
        """What a proof rests on, checked where the data is: the server's own checks may have been left out."""

    def update(self, local: LocalContext, x: Tensor, request: "TrainRequest", model: Weights) -> Update:
        """Train on these examples and release the update; `model` is what was received of the shared weights."""
        client, net = local.client, local.net
        result, extra = fit_objective(local, request.objective, x, local.labels)
        request.local_data.restore(client, net)
        shared = shared_entries(client, net, request.keeps)
        trained = [name for name, _ in net.named_parameters() if name in shared]
        shared, guarantees = self.with_noise(client, shared, trained, "model")
        if request.remember:
            client.state[TRAINED] = weights_of(net) | shared
        done = Update(model=shared, examples=len(client.data.train), loss=result.loss, steps=result.steps, extra=extra)
        return client.release(done, **guarantees)

    def with_noise(
        self, client: Client, weights: Weights, names: Collection[str], field: str
    ) -> tuple[Weights, dict[str, Guarantee]]:
        """Weights as they leave in this field of a reply, noise on the named entries, and what is said about them."""
        return weights, {}

    def noise_of(self, client: Client, place: str, rate: float, steps: int) -> float:
        """The noise multiplier for so many steps of DP-SGD, where this `hides_records`."""
        raise NotImplementedError


class Unprotected(UpdatePrivacy, name="none"):
    """Updates leave as they are."""


def _at_clients(updates: UpdatePrivacy) -> UpdatePrivacy:
    if updates.secure is not None:
        raise ValueError("a secure sum is the server's affair: clients are asked for masked updates")
    return updates


UpdatesSlot = Annotated[
    UpdatePrivacy, BeforeValidator(UpdatePrivacy.parse), AfterValidator(_at_clients), SerializeAsAny()
]
TRAINED = "trained"  # in the private state: the model as it was released, where the client will be asked about it


class TrainRequest(Message):
    """How a client is to train in this round; `given` is what the slot for local data sends along."""

    spec: ModelSpec
    training: LocalTraining
    objective: ObjectiveSlot = Plain()
    local_data: LocalDataSlot = OwnExamples()
    given: Samples | None = None
    updates: UpdatesSlot = Unprotected()
    sent: Weights = Field(default_factory=dict)
    keeps: Kept = "nothing"
    remember: bool = False


@task
def train(client: Client, model: Weights, request: TrainRequest) -> Update:
    """Train the received model on the client's data and send it back, protected where the request says how."""
    received = model if request.keeps == "nothing" else own_weights(client, model, request.spec)
    net = client.build(request.spec, received)
    request.updates.check_here(request.objective, request.local_data, net)
    x, y = request.local_data.examples(client, net, *client.data.train.tensors(), request.given)
    local = LocalContext(client, net, received, request.training, y, request.sent)
    return request.updates.update(local, x, request, model)


def fit_objective(
    local: LocalContext,
    objective: LocalObjective,
    x: Tensor,
    targets: Tensor,
    whole: nn.Module | None = None,
    around: Callable[[Objective], Objective] = lambda objective: objective,
) -> tuple[FitResult, Weights]:
    """Train on the objective of the slot; what came of it, and what the objective reports.

    `whole` is a network that the context's is a part of, and `around` makes its objective out of the slot's.
    """
    minimised = around(objective.begin(local))
    training = objective.training(local.training)
    result = fit(whole or local.net, x, targets, training, local.client.rng("batches"), minimised)
    return result, objective.finish(local, result)


# -- a part of the model stays at the clients -----------------------------------------------------------------------

OWN_PART = "own part of the model"  # in the private state


def kept_entries(net: nn.Module, keeps: Kept) -> set[str]:
    """Names of the entries that never leave a client."""
    if keeps == "norm":
        return norm_entries(net)
    if keeps == "buffers":
        return buffer_entries(net)
    if isinstance(keeps, int):
        return last_layers(net, keeps)
    return {name for name in net.state_dict() if name.startswith("head.")} if keeps == "head" else set()


def shared_entries(client: Client, net: nn.Module, keeps: Kept, protected: bool = False) -> Weights:
    """The weights that may leave; the client puts the others aside for the next round."""
    weights, held = weights_of(net), kept_entries(net, keeps)
    if held:
        keep = client.state.keep_public if protected else client.state.__setitem__
        keep(OWN_PART, {name: weights[name] for name in held})
    return {name: entry for name, entry in weights.items() if name not in held}


def own_weights(client: Client, model: Weights, spec: ModelSpec) -> Weights:
    """The received weights with the entries that this client keeps to itself; at first, those everybody starts from."""
    return client.initial_weights(spec) | model | client.state.get(OWN_PART, {})


@personal("kept")
def kept_model(client: Client, model: Weights, spec: ModelSpec, settings: object) -> Weights:
    """A client's own model where only a part of the weights is shared."""
    return own_weights(client, model, spec)
