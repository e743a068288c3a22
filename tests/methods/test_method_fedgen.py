"""FedGen against equations 4 and 5 of its paper by hand; its identity, its two halves, what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from by_hand import batches
from federations import SMALL, Ask, Clients, Finished, same_bits, some_clients
from torch import Tensor

from fedsynth.components.loop import LoopConfig
from fedsynth.components.settings import TrainConfig
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.federation.tasks import TaskError
from fedsynth.learning.models import ModelSpec, build_model
from fedsynth.methods.fedgen import COUNTS, FREQUENCIES, GeneratedFeatures, Regularised
from fedsynth.privacy import PrivacyConfig
from fedsynth.seeding import generator as generator_of
from fedsynth.synthesis.feature_generator import (
    FeatureGenerator,
    GeneratorTraining,
    class_shares,
    ensemble_loss,
    sameness,
    train_generator,
)

RunMethod = Callable[..., Finished]
HIDDEN = ModelSpec(name="mlp", hidden=(6,))
NAMES = ("body.1.weight", "body.1.bias", "head.weight", "head.bias")
ALPHA, LR = 0.7, 0.2
QUICK = {"generator_steps": 5, "generator_batch": 8, "noise": 4, "hidden": 7}


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


# -- the losses -----------------------------------------------------------------------------------------------------


def heads_and_features(clients: int = 3, classes: int = 4, width: int = 5) -> tuple[list[dict[str, Tensor]], Tensor]:
    rng = np.random.default_rng(0)
    heads = [
        {
            "weight": torch.from_numpy(rng.normal(size=(classes, width))),
            "bias": torch.from_numpy(rng.normal(size=classes)),
        }
        for _ in range(clients)
    ]
    return heads, torch.from_numpy(rng.normal(size=(9, width)))


def test_equation_4_is_the_cross_entropy_of_the_mean_of_the_scores() -> None:
    heads, z = heads_and_features()
    labels = np.arange(9) % 4
    mean = sum(z.numpy() @ h["weight"].numpy().T + h["bias"].numpy() for h in heads) / 3
    by_hand = -np.log(softmax(mean)[np.arange(9), labels]).mean()
    equal = torch.full((3, 4), 1 / 3, dtype=torch.float64)
    assert float(ensemble_loss(z, torch.from_numpy(labels), heads, equal)) == pytest.approx(by_hand, rel=1e-12)


def test_heads_may_weigh_by_their_clients_share_of_the_class() -> None:
    heads, z = heads_and_features()
    counts = np.array([[6.0, 0, 1, 0], [2, 5, 1, 0], [0, 0, 2, 0]])
    labels = np.arange(9) % 4
    scores = np.stack([z.numpy() @ h["weight"].numpy().T + h["bias"].numpy() for h in heads])
    shares = np.array([[0.75, 0, 0.25, 1 / 3], [0.25, 1, 0.25, 1 / 3], [0, 0, 0.5, 1 / 3]])
    weighed = np.stack([sum(shares[k, y] * scores[k, n] for k in range(3)) for n, y in enumerate(labels)])
    by_hand = -np.log(softmax(weighed)[np.arange(9), labels]).mean()
    found = class_shares(torch.from_numpy(counts))
    assert np.allclose(found, shares)
    assert float(ensemble_loss(z, torch.from_numpy(labels), heads, found)) == pytest.approx(by_hand, rel=1e-12)


def test_sameness_by_hand() -> None:
    rng = np.random.default_rng(1)
    outputs, noise = rng.normal(size=(5, 2, 3)), rng.normal(size=(5, 4))
    pairs = [
        np.abs(outputs[i] - outputs[j]).mean() * ((noise[i] - noise[j]) ** 2).mean() for i in range(5) for j in range(5)
    ]
    found = sameness(torch.from_numpy(outputs), torch.from_numpy(noise))
    assert float(found) == pytest.approx(float(np.exp(-np.mean(pairs))), rel=1e-12)
    assert float(sameness(torch.ones((5, 3)), torch.from_numpy(noise).float())) == pytest.approx(1)


def test_a_generator_learns_what_the_heads_take_for_each_class() -> None:
    heads, _ = heads_and_features()
    heads = [{name: entry.float() for name, entry in head.items()} for head in heads]
    torch.manual_seed(0)
    generator = FeatureGenerator(4, 4, 16, 5)
    shares, how = torch.full((3, 4), 1 / 3), GeneratorTraining(steps=300, lr=0.01, diversity=0.0)
    random = torch.Generator().manual_seed(0)
    assert train_generator(generator, heads, shares, torch.tensor([0.5, 0.5, 0, 0]), how, random) < 0.05
    labels = torch.arange(2).repeat_interleave(20)
    with torch.no_grad():
        z = generator(torch.randn((40, 4), generator=random), labels)
        said = sum(F.linear(z, head["weight"], head["bias"]) for head in heads)
    assert torch.equal(said.argmax(1), labels)


# -- two rounds -----------------------------------------------------------------------------------------------------


def train_by_hand(ask: Ask, client: str, data: Clients, round: int) -> list[Tensor]:
    """Eq. 5 in float64: each step on a batch and on as many features of the generator that came with the model."""
    fields = ask.requests[client]["fields"]
    parts = [fields["model"][name].double().requires_grad_() for name in NAMES]
    sent = fields["request"]["sent"]
    x, y = torch.from_numpy(data.train[client].x).double(), torch.from_numpy(data.train[client].y)
    rng = generator_of(0, "generated features", client, round)
    for rows in batches(client, round, len(y), batch=4, epochs=2):
        body, bias, head, offset = parts
        loss = F.cross_entropy(torch.relu(x[rows] @ body.T + bias) @ head.T + offset, y[rows])
        if sent:
            labels = torch.from_numpy(rng.choice(3, len(rows), p=sent[FREQUENCIES].numpy()))
            noise = torch.from_numpy(rng.standard_normal((len(rows), 4), dtype=np.float32)).double()
            made = torch.relu(
                torch.cat([noise, F.one_hot(labels, 3)], 1) @ sent["generator.first.weight"].double().T
                + sent["generator.first.bias"]
            )
            z = made @ sent["generator.second.weight"].double().T + sent["generator.second.bias"]
            loss = loss + ALPHA * F.cross_entropy(z @ head.T + offset, labels)
        slopes = torch.autograd.grad(loss, parts)
        parts = [(p - LR * g).detach().requires_grad_() for p, g in zip(parts, slopes, strict=True)]
    return [part.detach() for part in parts]


def test_two_rounds_are_those_of_equation_5(run_method: RunMethod) -> None:
    data = some_clients(9, 14)
    settings = {"alpha": ALPHA, **QUICK}
    finished = run_method(
        "fedgen", data, model=HIDDEN, settings=settings, rounds=2, local_epochs=2, batch_size=4, lr=LR
    )
    rounds = finished.rounds()
    assert not rounds[0].fields["request"]["sent"]
    counts = sum(np.bincount(part.y, minlength=3) for part in data.train.values())
    assert np.allclose(rounds[1].fields["request"]["sent"][FREQUENCIES], counts / counts.sum())
    for round, ask in enumerate(rounds, 1):
        for client, reply in ask.replies.items():
            by_hand = train_by_hand(ask, client, data, round)
            for name, part in zip(NAMES, by_hand, strict=True):
                assert torch.allclose(reply["model"][name].double(), part, atol=1e-5)
            assert reply["extra"][COUNTS].tolist() == np.bincount(data.train[client].y, minlength=3).tolist()


def test_the_server_trains_on_the_heads_of_those_who_answered(digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("fedgen", digits, model=HIDDEN, settings=QUICK, fraction=0.6)
    trainings = [ask for ask in finished.asks if ask.name == "learn_features"]
    assert len(trainings) == 2
    for ask, round in zip(trainings, finished.rounds(), strict=True):
        [request] = ask.requests.values()
        heads = [reply["model"]["head.weight"] for reply in round.replies.values()]
        assert all(torch.equal(h["weight"], own) for h, own in zip(request["fields"]["heads"], heads, strict=True))
    assert set(finished.model) == set(NAMES)


def test_the_order_of_replies_and_the_wire_change_nothing(digits: FederatedData, run_method: RunMethod) -> None:
    one, mixed, wire = (
        run_method("fedgen", digits, model=SMALL["cnn"], settings=QUICK, **how)
        for how in ({}, {"shuffle": lambda order: order[2:] + order[1::-1]}, {"engine": "wire"})
    )
    assert same_bits(one.model, mixed.model)
    assert same_bits(one.model, wire.model)


@pytest.mark.parametrize("settings", [{"heads": "classes"}, {"features": "noise"}, {"diversity": 0.0}])
def test_each_setting_changes_the_result(
    settings: dict[str, Any], digits: FederatedData, run_method: RunMethod
) -> None:
    one, other = (run_method("fedgen", digits, model=HIDDEN, settings=QUICK | s) for s in ({}, settings))
    assert not same_bits(one.model, other.model)


def test_noise_in_place_of_features_has_the_width_of_the_head() -> None:
    generator = FeatureGenerator(4, 3, 7, 6)
    drawn = Regularised(generator, np.full(3, 1 / 3), 1.0, np.random.default_rng(0), only_noise=True)
    assert drawn.draw(torch.zeros(5, dtype=torch.long), 6).shape == (5, 6)


# -- refused, resumed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings", "sentence"),
    [
        ("fedavg", {"objective": "feature_generator"}, 'needs post_aggregation = "feature_generator", not "nothing"'),
        ("fedavg", {"post_aggregation": "feature_generator"}, 'needs objective = "feature_generator", not "plain"'),
        ("fedgen", {"post_aggregation": "ccvr"}, 'needs post_aggregation = "feature_generator", not "ccvr"'),
        ("fedgen", {"privacy": PrivacyConfig(updates="dp_sgd")}, "how many examples of each class they have"),
        ("fedgen", {"privacy": PrivacyConfig(secure_aggregation=True)}, "works with the model of each client"),
    ],
)
def test_one_half_alone_and_protected_updates_are_refused(
    method: str, settings: dict[str, Any], sentence: str, digits: Any, run_method: RunMethod
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run_method(method, digits, model=HIDDEN, settings=settings)


def test_both_halves_go_with_other_aggregators_and_servers(digits: FederatedData, run_method: RunMethod) -> None:
    halves = {"objective": "feature_generator", "post_aggregation": {"name": "feature_generator", **QUICK}}
    plain = run_method("fedgen", digits, model=HIDDEN, settings=QUICK)
    assert same_bits(plain.model, run_method("fedavg", digits, model=HIDDEN, settings=halves).model)
    for method in ("median", "fedopt", "trimmed_mean"):
        assert set(run_method(method, digits, model=HIDDEN, settings=halves, rounds=1).model) == set(NAMES)


class Local:
    """As much of a client's round as reading what came needs."""

    net = build_model(HIDDEN, (3,), 3, seed=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"generator.second.weight": torch.zeros((9, 7)), "generator.second.bias": torch.zeros(9)},
        {"generator.first.weight": torch.zeros((7, 2))},
        {FREQUENCIES: torch.zeros(3)},
        {FREQUENCIES: torch.tensor([1.0, float("nan"), 0.0])},
        {FREQUENCIES: torch.ones(4)},
    ],
)
def test_a_generator_that_does_not_fit_is_refused(wrong: dict[str, Tensor]) -> None:
    fitting = {f"generator.{name}": entry for name, entry in FeatureGenerator(4, 3, 7, 6).state_dict().items()}
    local: Any = Local()
    local.sent = {**fitting, FREQUENCIES: torch.ones(3), **wrong}
    with pytest.raises(TaskError, match="does not fit this client"):
        GeneratedFeatures().begin(local)


def test_a_resumed_run_ends_with_the_same_bits(whole_and_resumed: Callable[..., Any]) -> None:
    """The generator and the counts come back with the checkpoint."""
    halves = {"objective": "feature_generator", "post_aggregation": {"name": "feature_generator", **QUICK}}
    cfg = LoopConfig(train=TrainConfig(rounds=3, local_epochs=1), model=SMALL["mlp"], **halves)
    whole, resumed = whole_and_resumed(cfg, "learn_features", 3)
    assert same_bits(whole, resumed)
