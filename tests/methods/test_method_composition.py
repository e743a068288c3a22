"""Slots can be combined: another aggregator or server optimiser on any method of the loop; mistakes are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from by_hand import LINEAR, close, theta
from federations import SMALL, Finished, farthest, same_bits, some_clients

from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError, UserError
from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.files import override

RunMethod = Callable[..., Finished]

COMBINATIONS: list[tuple[str, dict[str, Any]]] = [
    ("fedprox", {"aggregator": "median"}),
    ("fedprox", {"aggregator": {"name": "trimmed_mean", "trim": 0.2}}),
    ("fedprox", {"aggregator": "fednova"}),
    ("moon", {"server": {"name": "fedopt", "optimizer": "yogi", "server_lr": 0.05}}),
    ("moon", {"aggregator": {"name": "krum", "byzantine": 1, "keep": 2}}),
    ("fedmix", {"server": {"name": "fedopt", "optimizer": "sgd", "momentum": 0.9, "server_lr": 1.0}}),
    ("scaffold", {"server": {"name": "fedopt", "optimizer": "adam"}}),
    ("qffl", {"server": {"name": "fedopt", "optimizer": "sgd", "server_lr": 0.5}}),
    ("fedopt", {"objective": {"name": "proximal", "mu": 0.5}}),
    ("fedbn", {"objective": {"name": "contrastive", "mu": 1.0}}),
    ("finetune", {"aggregator": {"name": "mean", "weights": "equal"}}),
    ("median", {"objective": {"name": "proximal", "mu": 0.5}}),
    ("scaffold", {"post_aggregation": {"name": "interior_points", "steps": 2, "tune_epochs": 1}}),
    ("krum", {"post_aggregation": {"name": "zero_shot", "steps": 2, "per_class": 1}}),
    ("fedmix", {"local_data": {"name": "zero_shot", "steps": 2, "per_class": 1}}),
    ("logit_adjustment", {"local_data": {"name": "zero_shot", "steps": 2, "amounts": "missing"}}),
    (
        "agg_enhance",
        {"post_aggregation": {"name": "zero_shot", "steps": 2}, "local_data": {"name": "zero_shot", "steps": 2}},
    ),
]


@pytest.mark.parametrize(
    ("method", "slots"), COMBINATIONS, ids=[f"{method}-{number}" for number, (method, _) in enumerate(COMBINATIONS)]
)
def test_a_combination_runs_on_both_engines_and_differs_from_its_base(
    method: str, slots: dict[str, Any], digits: FederatedData, run_method: RunMethod
) -> None:
    train = {"model": SMALL["zda_cnn"], "rounds": 2}
    base = run_method(method, digits, settings={"steps": 2} if method == "agg_enhance" else {}, **train)
    here = run_method(method, digits, settings=slots, **train)
    assert farthest(here.model, base.model) > 1e-6
    assert same_bits(here.model, run_method(method, digits, settings=slots, engine="wire", **train).model)


def test_proximal_objective_on_fedavg_is_fedprox(digits: FederatedData, run_method: RunMethod) -> None:
    settings = {"objective": {"name": "proximal", "mu": 0.3}}
    composed = run_method("fedavg", digits, settings=settings)
    assert same_bits(composed.model, run_method("fedprox", digits, settings={"mu": 0.3}).model)


def test_median_aggregator_on_fedavg_is_the_median(digits: FederatedData, run_method: RunMethod) -> None:
    composed = run_method("fedavg", digits, settings={"aggregator": "median"})
    assert same_bits(composed.model, run_method("median", digits).model)


def test_fedopt_server_on_fedavg_is_fedopt(digits: FederatedData, run_method: RunMethod) -> None:
    settings = {"optimizer": "yogi", "server_lr": 0.03, "tau": 0.01}
    composed = run_method("fedavg", digits, settings={"server": {"name": "fedopt", **settings}})
    assert same_bits(composed.model, run_method("fedopt", digits, settings=settings).model)


SERVER_RULES: list[tuple[str, dict[str, Any]]] = [
    ("feddyn", {"objective": "dynamic", "aggregator": "feddyn"}),
    ("scaffold", {"objective": {"name": "control_variates", "option": "II"}, "aggregator": "scaffold"}),
    ("fedopt", {"server": "fedopt"}),
    ("trimmed_mean", {"aggregator": "trimmed_mean"}),
]


@pytest.mark.parametrize(("method", "slots"), SERVER_RULES, ids=[method for method, _ in SERVER_RULES])
def test_feddpms_goes_with_every_server_rule(
    method: str, slots: dict[str, Any], digits: FederatedData, run_method: RunMethod
) -> None:
    """Without synthesis it is that method, bit-identical: the auto-encoder stands beside the classifier."""
    train = {"model": SMALL["cnn"], "rounds": 3}
    off = run_method("feddpms", digits, settings={**slots, "synthetic": "none"}, **train)
    assert same_bits(off.model, run_method(method, digits, **train).model)
    with_synthesis = run_method("feddpms", digits, settings=slots, **train)
    assert farthest(with_synthesis.model, off.model) > 1e-6


ZERO_SHOT = {"steps": 2, "per_class": 1}


@pytest.mark.parametrize(
    ("slots", "method", "settings"),
    [
        ({"post_aggregation": {"name": "interior_points", "steps": 2}}, "agg_enhance", {"steps": 2}),
        ({"post_aggregation": {"name": "zero_shot", **ZERO_SHOT}}, "fed_zdas", ZERO_SHOT),
        ({"post_aggregation": {"name": "ccvr", "draws": 20}}, "ccvr", {"draws": 20}),
        ({"post_aggregation": {"name": "class_bias", "count": 20}}, "class_bias", {"count": 20}),
        ({"local_data": {"name": "zero_shot", **ZERO_SHOT}}, "fed_zdac", ZERO_SHOT),
        (
            {slot: {"name": "zero_shot", **ZERO_SHOT} for slot in ("post_aggregation", "local_data")},
            "fed_zda",
            ZERO_SHOT,
        ),
    ],
)
def test_slots_of_synthetic_data_on_fedavg_are_the_methods(
    slots: dict[str, Any], method: str, settings: dict[str, Any], digits: FederatedData, run_method: RunMethod
) -> None:
    model = SMALL["zda_cnn"]
    composed = run_method("fedavg", digits, model=model, settings=slots)
    assert same_bits(composed.model, run_method(method, digits, model=model, settings=settings).model)


def test_slots_that_do_nothing_change_nothing(digits: FederatedData, run_method: RunMethod) -> None:
    composed = run_method("fedprox", digits, settings={"post_aggregation": "nothing", "local_data": "own"})
    plain = run_method("fedprox", digits)
    assert same_bits(composed.model, plain.model)
    assert [set(ask.fields) for ask in composed.asks] == [set(ask.fields) for ask in plain.asks]


def test_median_of_fedprox_updates_by_hand(run_method: RunMethod) -> None:
    data = some_clients(5, 9, 7)
    finished = run_method("fedprox", data, model=LINEAR, settings={"mu": 0.5, "aggregator": "median"}, rounds=1)
    sent = [theta(reply["model"]) for reply in finished.rounds()[0].replies.values()]
    assert close(theta(finished.model), np.median(sent, axis=0))
    assert finished.rounds()[0].fields["request"]["objective"] == {"name": "proximal", "mu": 0.5}


WRONG: list[tuple[str, str]] = [
    ("method.aggregator=medain", 'There is no aggregator "medain". Did you mean "median"?'),
    ('method.aggregator={name="trimed_mean"}', 'no aggregator "trimed_mean". Did you mean "trimmed_mean"?'),
    ('method.aggregator={name="trimmed_mean", trm=0.2}', 'no setting "trm". Did you mean "trim"?'),
    ('method.aggregator={name="trimmed_mean", trim=0.7}', 'key "trim": input should be less than 0.5'),
    ("method.server=fedop", 'There is no server "fedop". Did you mean "fedopt"?'),
    ('method.server={name="fedopt", server_rl=1}', 'no setting "server_rl". Did you mean "server_lr"?'),
    ("method.objective=proximl", 'There is no objective "proximl". Did you mean "proximal"?'),
    ("method.agregator=median", 'has no setting "agregator". Did you mean "aggregator"?'),
    ("method.muu=0.1", 'method "fedprox" has no setting "muu". Did you mean "mu"?'),
    ("method.mu=-1", 'method "fedprox": mu = -1 cannot be used'),
    ("method.aggregator=3", "There is no aggregator"),
    (
        "method.post_aggregation=interior_point",
        'There is no post_aggregation "interior_point". Did you mean "interior_points"?',
    ),
    ("method.local_data=zeroshot", 'There is no local_data "zeroshot". Did you mean "zero_shot"?'),
    ('method.post_aggregation={name="zero_shot", per_clas=3}', 'no setting "per_clas". Did you mean "per_class"?'),
]


@pytest.mark.parametrize(("word", "sentence"), WRONG)
def test_a_wrong_slot_or_setting_is_named_with_the_nearest_right_one(word: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_experiment(override({"method": {"name": "fedprox"}}, [word]))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("scaffold", {"aggregator": "median"}),
        ("scaffold", {"objective": "plain"}),
        ("qffl", {"objective": "plain"}),
        ("fedavg", {"aggregator": "qffl"}),
        ("fedavg", {"aggregator": "scaffold"}),
        ("fedavg", {"objective": "control_variates"}),
    ],
)
def test_halves_of_a_method_that_do_not_fit_are_refused(
    method: str, settings: dict[str, Any], run_method: RunMethod
) -> None:
    """SCAFFOLD and q-FFL have a client's and a server's half that speak to each other; one without the other cannot."""
    with pytest.raises(UserError) as caught:
        run_method(method, some_clients(5, 7), model=LINEAR, settings=settings)
    assert "needs" in str(caught.value)
