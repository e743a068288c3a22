"""What secure aggregation cannot be used with is refused before anything leaves a client, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from federations import SMALL, Clients, Finished, some_clients

from fedsynth.components import secure_updates
from fedsynth.errors import ConfigError, UserError
from fedsynth.experiment.config import make_experiment
from fedsynth.federation.methods import all_methods
from fedsynth.privacy import PrivacyConfig

RunMethod = Callable[..., Finished]
SECURE = {"privacy": PrivacyConfig(secure_aggregation=True)}


@pytest.fixture(scope="module")
def five() -> Clients:
    return some_clients(12, 20, 9, 30, 15)


@pytest.mark.parametrize(
    ("method", "settings", "sentence"),
    [
        ("scaffold", {}, 'aggregator "scaffold", which needs what each client sends'),
        ("fednova", {}, 'aggregator "fednova"'),
        ("qffl", {}, 'aggregator "qffl"'),
        ("feddyn", {}, 'aggregator "feddyn"'),
        ("median", {}, 'aggregator "median"'),
        ("krum", {}, 'aggregator "krum"'),
        ("trimmed_mean", {}, 'aggregator "trimmed_mean"'),
        (
            "agg_enhance",
            {},
            r'post_aggregation "interior_points", which works with the model of each client.*secure = true',
        ),
        ("fed_zda", {}, 'post_aggregation "zero_shot", which works with the model of each client'),
        ("fed_zdas", {}, 'post_aggregation "zero_shot", which works with the model of each client'),
    ],
)
def test_what_requires_individual_updates_is_refused(
    method: str, settings: dict[str, Any], sentence: str, run_method: RunMethod, digits: Any
) -> None:
    with pytest.raises(ConfigError, match=f"privacy.secure_aggregation = true cannot be used with {sentence}"):
        run_method(method, digits, model=SMALL["zda_cnn"], settings=settings | SECURE)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("gandalf", "models pass from client to client in it"),
        ("astraea", "models pass from client to client in it"),
        ("pfl_gan", "its server works with the generator of each client"),
        ("rfa_rfd", "its server weighs each client by itself"),
        *((name, "its server finds groups by what each client shares") for name in ("cluster_fedavg", "ifca", "cfl")),
        ("feddpms", "it trains in a task of its own"),
        ("faug", "it trains outside of the shared loop"),
        ("local", "it trains outside of the shared loop"),
    ],
)
def test_methods_outside_of_the_shared_loop_are_refused_by_their_settings(method: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_experiment({"method": {"name": method}, "privacy": {"secure_aggregation": True}})
    assert f"privacy.secure_aggregation = true cannot be used with this method: {sentence}" in str(refused.value)
    assert "choose a method of which the server needs only the mean, such as fedavg" in str(refused.value)


ALLOWED = [
    *("apfl", "ditto", "fedper", "fed_zdac", "fedavg", "fedbn", "fedmix", "fedopt", "fedprox", "fedrep", "finetune"),
    *("class_bias", "data_sharing", "logit_adjustment", "moon", "pfedme", "static_augmentation"),
]
QUICK: dict[str, dict[str, Any]] = {"fed_zdac": {"steps": 2, "per_class": 1, "start_round": 1}}


def test_every_method_refuses_it_or_keeps_to_it() -> None:
    built_in = [m for m in all_methods() if m.program.__module__.startswith("fedsynth.")]
    by_slots = {"scaffold", "fednova", "qffl", "feddyn", "median", "krum", "trimmed_mean"}
    by_slots |= {"agg_enhance", "fed_zdas", "fed_zda", "fedgen", "fedftg"}  # see above
    by_sums = {
        "moments",
        "analytic",
        "ccvr",
        "fedpft",
    }  # tests of their own: one sum in place of rounds, or before them
    assert {m.name for m in built_in if not m.config.requires_individual_updates} == {*ALLOWED, *by_slots, *by_sums}


@pytest.mark.parametrize("method", ALLOWED)
def test_no_single_update_leaves_in_any_method_that_allows_it(method: str, run_method: RunMethod, digits: Any) -> None:
    done = run_method(method, digits, model=SMALL["zda_cnn"], settings=QUICK.get(method, {}) | SECURE, rounds=1)
    tasks = [ask.name for ask in done.asks]
    assert "train_masked" in tasks
    assert "train" not in tasks


def test_other_settings_that_do_not_fit_are_refused(run_method: RunMethod, five: Clients, digits: Any) -> None:
    with pytest.raises(ConfigError, match=r'norm_buffers = "recalibrate", in which the server reads the statistics'):
        run_method("fedavg", digits, model=SMALL["zda_cnn"], settings=SECURE, norm_buffers="recalibrate")
    with pytest.raises(ConfigError, match=r"needs 3 clients in a round at least, and train.fraction = 0.4 of 5 is 2"):
        run_method("fedavg", five, model=SMALL["mlp"], settings=SECURE, fraction=0.4)
    with pytest.raises(ConfigError, match="secure_threshold does nothing alone"):
        make_experiment({"privacy": {"secure_threshold": 0.8}})
    with pytest.raises(ConfigError, match="greater than 0.5"):
        make_experiment({"privacy": {"secure_aggregation": True, "secure_threshold": 0.5}})
    with pytest.raises(ConfigError, match=r"faults.byzantine and faults.malicious .*privacy.secure_aggregation"):
        make_experiment({"privacy": {"secure_aggregation": True}, "faults": {"byzantine": 0.2}})


def test_a_missing_package_is_told_before_anything_leaves(
    monkeypatch: pytest.MonkeyPatch, run_method: RunMethod, five: Clients
) -> None:
    def missing() -> None:
        raise UserError("pip install")

    monkeypatch.setattr(secure_updates, "require_primitives", missing)
    with pytest.raises(UserError, match="pip install"):
        run_method("fedavg", five, model=SMALL["mlp"], settings=SECURE)
