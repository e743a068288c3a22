"""Laplace noise on weights that are not clipped, as AggEnhance was published: it is there, and it proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from federations import SMALL, Finished, farthest, same_bits, some_clients

from fedsynth.components.loop import LoopConfig
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.experiment.config import load_experiment, make_experiment
from fedsynth.federation.methods import all_methods
from fedsynth.privacy import PrivacyConfig

RunMethod = Callable[..., Finished]
TINY = {"local_epochs": 1, "batch_size": 64}


def noisy(scale: float, **settings: Any) -> dict[str, Any]:
    return {"privacy": PrivacyConfig(updates="laplace", noise=scale), **settings}


def test_every_weight_gets_noise_of_the_given_scale_and_all_else_leaves_as_ever(
    digits: FederatedData, run_method: RunMethod
) -> None:
    common = {"model": SMALL["zda_cnn"], "rounds": 1, **TINY}
    [plain], [ask] = (
        run_method("fedavg", digits, settings=settings, **common).rounds() for settings in ({}, noisy(0.05))
    )
    drawn = []
    for client, reply in ask.replies.items():
        as_ever = plain.replies[client]
        assert {n: reply[n] for n in reply if n != "model"} == {n: as_ever[n] for n in as_ever if n != "model"}
        for name, entry in reply["model"].items():
            if "running" in name or "num_batches" in name:
                assert torch.equal(entry, as_ever["model"][name]), "BatchNorm's statistics get none"
            else:
                drawn.append((entry - as_ever["model"][name]).flatten())
    noise = torch.cat(drawn).double()
    assert (noise != 0).all()
    assert float(noise.mean()) == pytest.approx(0, abs=0.005)
    assert float(noise.abs().mean()) == pytest.approx(0.05, rel=0.05)
    assert float(noise.square().mean()) == pytest.approx(2 * 0.05**2, rel=0.15)
    assert len({float(part[0]) for part in drawn}) == len(drawn), "everybody draws noise of its own"


def test_next_to_no_noise_is_fedavg(digits: FederatedData, run_method: RunMethod) -> None:
    common = {"model": SMALL["cnn"], **TINY}
    plain = run_method("fedavg", digits, **common)
    assert farthest(plain.model, run_method("fedavg", digits, settings=noisy(1e-9), **common).model) < 1e-6


def test_the_ledger_says_that_nothing_is_proven(run_method: RunMethod) -> None:
    done = run_method("fedavg", some_clients(6, 9), model=SMALL["mlp"], settings=noisy(0.05))
    rows = done.fed.participation.ledger.rows(1e-5)
    assert {row.kind for row in rows} == {"release"}, "no total: there is nothing to add up"
    [weights] = [row for row in rows if row.field == "model"]
    assert (weights.epsilon, weights.proven, weights.times) == (None, "none", 2)
    assert weights.mechanism == "Laplace noise of scale 0.05 on every weight, without clipping"
    assert "a weight that is not clipped has no sensitivity" in weights.not_covered
    assert "gives no ε" in weights.claimed


def test_the_same_bits_on_the_wire(digits: FederatedData, run_method: RunMethod) -> None:
    here, wire = (
        run_method("agg_enhance", digits, model=SMALL["cnn"], engine=engine, settings=noisy(0.02, steps=2), **TINY)
        for engine in ("local", "wire")
    )
    assert same_bits(here.model, wire.model)


def test_points_come_from_what_was_sent(digits: FederatedData, run_method: RunMethod) -> None:
    """Also where clients make them: from the noisy weights, so the points tell no more than those."""
    few = {"steps": 2, "tune_epochs": 1}
    common = {"model": SMALL["cnn"], **TINY}
    done = run_method("agg_enhance", digits, settings=noisy(0.02, **few), **common)
    [made, _] = [ask for ask in done.asks if ask.name == "invert_model"]
    for client, reply in done.rounds()[0].replies.items():
        assert same_bits(made.requests["@" + client]["fields"]["model"], reply["model"])
    secure = run_method("agg_enhance", digits, settings=noisy(0.02, secure=True, **few), **common)
    assert same_bits(done.model, secure.model)


GANDALF = ("gandalf", "private_fl_gan", "sda_fl", "feddpgan")
LOOP = [
    m.name
    for m in all_methods()
    if m.config.protects and issubclass(m.config, LoopConfig) and m.program.__module__.startswith("fedsynth.")
]


@pytest.mark.parametrize("method", LOOP)
def test_it_goes_with_every_method_of_the_loop(method: str, digits: FederatedData, run_method: RunMethod) -> None:
    """Nothing is proven, so nothing can spoil a proof: not even BatchNorm or what a method sends besides."""
    quick: dict[str, Any] = {"steps": 1} if method.startswith(("fed_zd", "agg")) else {}
    if method in GANDALF:  # their class counts are protected unless told
        quick = {"gan_steps": 1, "visit_steps": 1, "gan_channels": 2, "counts_epsilon": None}
    done = run_method(method, digits, model=SMALL["zda_cnn"], settings=noisy(0.001, **quick), rounds=1, **TINY)
    rows = done.fed.participation.ledger.rows(1e-5)
    assert {row.proven for row in rows} == {"none"}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("target=8.0", 'target = 8.0 does not go with updates = "laplace", which cuts nothing and so proves nothing'),
        ("clip=0.5", 'clip = 0.5 does not go with updates = "laplace"'),
        ("noise_at=server", 'noise_at = "server" belongs to updates = "clipped", not "laplace"'),
        ("noise=0", "noise = 0 cannot be used: it must be more than 0"),
    ],
)
def test_what_has_no_meaning_with_it_is_refused(wrong: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_experiment(None, ["privacy.updates=laplace", f"privacy.{wrong}"])
    assert sentence in str(refused.value)


def test_methods_outside_of_the_loop_are_refused() -> None:
    with pytest.raises(ConfigError, match='privacy.updates = "laplace" protects the shared loop'):
        make_experiment({"method": {"name": "local"}, "privacy": {"updates": "laplace"}})
