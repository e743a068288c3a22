"""Class-bias correction: mean scores become equal, by hand; what they are measured on; other methods; refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import SMALL, Finished, farthest, same_bits, some_clients

import fedsynth
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.learning.models import build_model
from fedsynth.methods.class_bias import ClassBias, equalised
from fedsynth.privacy import PrivacyConfig
from fedsynth.seeding import generator

RunMethod = Callable[..., Finished]
TINY = {"model": SMALL["cnn"], "local_epochs": 1, "batch_size": 64}
CLASSES = 10


def asked(done: Finished, task: str) -> list[Any]:
    return [ask for ask in done.asks if ask.name == task]


def mean_scores(model: dict[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    net = build_model(SMALL["cnn"], (1, 8, 8), CLASSES, seed=0)
    net.load_state_dict(model)
    with torch.no_grad():
        return net.eval()(images).mean(0)


@pytest.mark.parametrize("through", ["bias", "weights"])
@pytest.mark.parametrize("inputs", ["noise", "points", "real"])
def test_mean_scores_are_equal_afterwards(
    inputs: str, through: str, digits: FederatedData, run_method: RunMethod
) -> None:
    done = run_method("class_bias", digits, settings={"inputs": inputs, "through": through}, **TINY)
    for ask in asked(done, "equalise_head"):
        images, before = ask.fields["images"], ask.fields["model"]
        (after,) = (reply["model"] for reply in ask.replies.values())
        apart = mean_scores(before, images)
        assert float((apart - apart.mean()).abs().max()) > 1e-3
        assert torch.allclose(mean_scores(after, images), apart.mean().expand(CLASSES), atol=1e-5)
        assert all(torch.equal(before[n], after[n]) for n in before if not n.startswith("head.")), "the body stays"
        assert torch.equal(before["head.weight"], after["head.weight"]) == (through == "bias")


def test_the_correction_by_hand() -> None:
    weight, bias = torch.tensor([[1.0, 2.0], [3.0, -1.0]]).double(), torch.tensor([0.5, -0.5]).double()
    mean = torch.tensor([2.0, 1.0]).double()  # mean scores 4 and 5, those of W alone; with b 4.5 and 4.5
    assert equalised(weight, bias, mean, "bias", 1.0)[1].tolist() == [0.5, -0.5]
    changed, b = equalised(weight, bias, mean, "weights", 1.0)
    # d_W = (−0.5, 0.5); f̄ / ‖f̄‖² = (0.4, 0.2)
    assert torch.allclose(changed, torch.tensor([[1.2, 2.1], [2.8, -1.1]]).double())
    assert b.tolist() == [0.0, 0.0]
    half, b = equalised(weight, bias, mean, "weights", 0.5)
    assert torch.allclose(half, (weight + changed) / 2)
    assert b.tolist() == [0.25, -0.25]


def test_weights_are_right_for_features_of_any_length() -> None:
    drawn = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(4, 6, generator=drawn).double(), torch.randn(4, generator=drawn).double()
    mean = torch.rand(6, generator=drawn).double()
    changed, b = equalised(weight, bias, mean, "weights", 1.0)
    for length in (0.1, 1.0, 7.0):
        assert float((changed @ (length * mean) + b).std()) < 1e-9
    only = equalised(weight, bias, mean, "bias", 1.0)[1]
    assert float((weight @ mean + only).std()) < 1e-9
    assert float((weight @ (7 * mean) + only).std()) > 0.1


def test_noise_is_new_in_every_round(digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("class_bias", digits, settings={"count": 30}, **TINY)
    for index, ask in enumerate(asked(done, "equalise_head")):
        drawn = generator(0, "class bias", "server", index + 1).random((30, 1, 8, 8))
        assert torch.equal(ask.fields["images"], torch.from_numpy(drawn).float())


def test_points_are_one_of_each_class_and_the_models_opinion_is_asked(
    digits: FederatedData, run_method: RunMethod
) -> None:
    done = run_method("class_bias", digits, settings={"inputs": "points"}, rounds=1, **TINY)
    assert [ask.name for ask in done.asks][1:] == ["invert_model", "classify_images", "equalise_head"]
    assert len(asked(done, "equalise_head")[0].fields["images"]) == CLASSES


@pytest.mark.parametrize("method", ["fedprox", "trimmed_mean", "fedopt", "feddpms"])
def test_it_stands_on_other_methods(method: str, digits: FederatedData, run_method: RunMethod) -> None:
    plain = run_method(method, digits, **TINY)
    off = {"post_aggregation": {"name": "class_bias", "strength": 0.0}}
    assert same_bits(run_method(method, digits, settings=off, **TINY).model, plain.model)
    done = run_method(method, digits, settings={"post_aggregation": "class_bias"}, **TINY)
    assert farthest(done.model, plain.model) > 1e-6


def test_it_goes_with_sums_and_with_noise_where_it_looks_at_noise(run_method: RunMethod) -> None:
    data = some_clients(9, 12, 10)
    for privacy in (
        PrivacyConfig(secure_aggregation=True),
        PrivacyConfig(updates="clipped"),
        PrivacyConfig(updates="clipped", noise_at="server"),
    ):
        done = run_method("class_bias", data, model=SMALL["mlp"], settings={"privacy": privacy})
        plain = run_method("fedavg", data, model=SMALL["mlp"], settings={"privacy": privacy})
        assert done.fed.participation.ledger.as_dict() == plain.fed.participation.ledger.as_dict()
    settings = {"inputs": "points", "privacy": PrivacyConfig(secure_aggregation=True)}
    with pytest.raises(ConfigError, match="works with the model of each client"):
        run_method("class_bias", data, model=SMALL["mlp"], settings=settings)


def test_a_head_without_biases_is_refused() -> None:
    net = build_model(SMALL["mlp"], (3,), 3, seed=0)
    net.head = torch.nn.Linear(net.head.in_features, 3, bias=False)  # type: ignore[union-attr,arg-type]
    with pytest.raises(ConfigError, match="corrects a linear head with biases"):
        ClassBias().check(net, PrivacyConfig())


def test_how_far_classes_lie_apart_is_in_the_metrics(tmp_path: Path) -> None:
    result = fedsynth.run(
        "class_bias",
        runs=str(tmp_path),
        data={"name": "digits", "limit": 200},
        partition={"name": "dirichlet", "num_clients": 3, "alpha": 1.0},
        model={"name": "mlp", "hidden": [6]},
        train={"rounds": 2, "local_epochs": 1},
        engine={"workers": 1},
    )
    assert all(row.measured["class bias"] > 0 for row in result.metrics)
