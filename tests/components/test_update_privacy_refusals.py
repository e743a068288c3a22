"""What cannot be protected is refused before anything leaves a client, with a sentence that says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from federations import SMALL, Finished, some_clients

import fedsynth
from fedsynth.components.loop import LoopConfig
from fedsynth.errors import ConfigError
from fedsynth.experiment.config import load_experiment, make_experiment
from fedsynth.federation.methods import all_methods
from fedsynth.privacy import PrivacyConfig

RunMethod = Callable[..., Finished]
OUTSIDE = [
    *(
        "analytic",
        "centralised",
        "cfl",
        "cluster_fedavg",
        "faug",
        "feddpms",
        "fedpft",
        "fedvae",
        "finetune",
        "ifca",
        "local",
        "rfa_rfd",
    )
]
"""Built-in methods that do not train in the shared loop, or not only."""

REASONS = {
    ("dp_sgd", "fedprox"): 'objective "proximal": the loss of every record must be clipped by itself',
    ("dp_sgd", "moon"): 'objective "contrastive": the loss of every record',
    ("dp_sgd", "fedmix"): 'objective "mean_mixup": the loss of every record',
    **{
        (updates, method): reason
        for updates in ("dp_sgd", "clipped")
        for method, reason in {
            "scaffold": 'objective "control_variates": its clients send control variates',
            "qffl": 'objective "report_loss": its clients send their loss',
            "feddyn": 'objective "dynamic": its clients and server remember the same changes',
            "fednova": 'aggregator "fednova": it needs the numbers of steps',
            "fedgen": 'objective "feature_generator": its clients send how many examples of each class',
            "fedftg": 'post_aggregation "hard_samples": clients release how many examples of each class',
            "ccvr": 'post_aggregation "ccvr": its moments of features leave without noise',
            "fed_zdac": 'local_data "zero_shot": its images need the statistics that BatchNorm layers store',
            "fed_zdas": 'post_aggregation "zero_shot": its images need the statistics that BatchNorm layers store',
            "static_augmentation": 'local_data "kept": it is for own examples',
            "data_sharing": 'local_data "kept": it is for own examples',
            "fed_zda": 'local_data "zero_shot": its images need the statistics that BatchNorm layers store',
        }.items()
    },
}


class NoDataError(Exception):
    """A client was asked."""


class Untouchable:
    """Clients that must not be asked."""

    def __init__(self) -> None:
        self.schema, self.clients = some_clients(4, 4).schema, ["a", "b"]

    def client(self, client: str) -> Any:
        raise NoDataError


@pytest.mark.parametrize(("updates", "method"), REASONS)
def test_a_method_that_cannot_be_protected_is_refused_before_it_asks_a_client(
    updates: str, method: str, run_method: RunMethod
) -> None:
    with pytest.raises(ConfigError) as refused:
        run_method(method, Untouchable(), model=SMALL["mlp"], settings={"privacy": PrivacyConfig(updates=updates)})
    assert f'privacy.updates = "{updates}" cannot be used with {REASONS[updates, method]}' in str(refused.value)


@pytest.mark.parametrize("updates", ["dp_sgd", "clipped"])
@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedmix"])
def test_batch_norm_is_refused(method: str, updates: str, run_method: RunMethod) -> None:
    data = Untouchable()
    data.schema = type(data.schema)((1, 8, 8), 3)
    settings = {"privacy": PrivacyConfig(updates=updates), "objective": "plain"}
    with pytest.raises(ConfigError, match=r'BatchNorm2d.*Set model.norm = "group"'):
        run_method(method, data, model=SMALL["zda_cnn"], settings=settings)


@pytest.mark.parametrize("model", ["mlp", "zda_cnn"])
@pytest.mark.parametrize("updates", ["dp_sgd", "clipped"])
@pytest.mark.parametrize("method", ["fed_zdac", "fed_zdas", "fed_zda"])
def test_zero_shot_data_and_protected_updates_exclude_each_other_whatever_the_model(
    method: str, updates: str, model: str, run_method: RunMethod
) -> None:
    data = Untouchable()
    data.schema = type(data.schema)((1, 8, 8), 3)
    with pytest.raises(ConfigError, match=r"BatchNorm mixes the examples of a batch.*cannot be protected"):
        run_method(method, data, model=SMALL[model], settings={"privacy": PrivacyConfig(updates=updates)})


@pytest.mark.parametrize("aggregator", ["median", "trimmed_mean", "krum"])
def test_noise_at_the_server_is_for_the_mean(aggregator: str, run_method: RunMethod) -> None:
    settings = {"privacy": PrivacyConfig(updates="clipped", noise_at="server"), "aggregator": aggregator}
    with pytest.raises(ConfigError, match=f'noise_at = "server" cannot be used with aggregator "{aggregator}"'):
        run_method("fedavg", Untouchable(), model=SMALL["mlp"], settings=settings)
    settings = {"privacy": PrivacyConfig(updates="clipped"), "aggregator": {"name": "median"}}
    run_method("fedavg", some_clients(5, 5), model=SMALL["mlp"], settings=settings, rounds=1)


def test_a_second_clip_is_refused(run_method: RunMethod) -> None:
    settings = {"privacy": PrivacyConfig(updates="dp_sgd")}
    with pytest.raises(ConfigError, match="train.max_grad_norm: privacy.clip shortens"):
        run_method("fedavg", Untouchable(), model=SMALL["mlp"], settings=settings, max_grad_norm=1.0)


@pytest.mark.parametrize("updates", ["dp_sgd", "clipped"])
@pytest.mark.parametrize("method", OUTSIDE)
def test_methods_outside_of_the_shared_loop_are_refused_by_their_settings(method: str, updates: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_experiment({"method": {"name": method}, "privacy": {"updates": updates}})
    assert str(refused.value) == (
        f'method "{method}" cannot be used: privacy.updates = "{updates}" protects the shared loop of fedavg and its '
        'relatives, and this method trains outside of it; set privacy.updates = "none" or choose another method.'
    )


def test_the_shared_loop_is_what_protects() -> None:
    built_in = [m for m in all_methods() if m.program.__module__.startswith("fedsynth.")]
    assert sorted(m.name for m in built_in if not m.config.protects) == OUTSIDE
    assert LoopConfig.protects


def test_a_refused_run_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="proximal"):
        fedsynth.run("fedprox", runs=str(tmp_path / "runs"), privacy={"updates": "dp_sgd"}, engine={"workers": 1})
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            "updates=dpsgd",
            "updates = 'dpsgd' cannot be used: input should be 'none', 'dp_sgd', 'clipped', 'laplace' or 'gaussian'",
        ),
        ("noise=0", "noise = 0 cannot be used: it must be more than 0, because nothing is proven without"),
        ("noise=-1", "noise = -1 cannot be used: it must be more than 0"),
        ("noise=inf", "noise = inf cannot be used: input should be a finite number"),
        ("noise=1e12", "noise = 1000000000000.0 cannot be used: it must be 1e+09 at most"),
        ("clip=0", "clip = 0 cannot be used: it must be more than 0"),
        ("target=0", "target = 0 cannot be used: input should be greater than 0"),
        ("noise_at=nobody", "noise_at = 'nobody' cannot be used: input should be 'client' or 'server'"),
    ],
)
def test_values_that_make_no_sense_are_refused(wrong: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_experiment(None, ["privacy.updates=clipped", f"privacy.{wrong}"])
    assert str(refused.value).startswith(f"privacy: {sentence}")


@pytest.mark.parametrize("alone", ["target=8.0", "noise=2.0", "clip=0.5", "noise_at=server"])
def test_settings_of_a_protection_that_is_off_are_refused(alone: str) -> None:
    name, value = alone.split("=")
    with pytest.raises(ConfigError) as refused:
        load_experiment(None, [f"privacy.{alone}"])
    assert str(refused.value) == (
        f'privacy cannot be used: {name} = {value} protects nothing alone; add updates = "dp_sgd" or "clipped".'
    )


def test_noise_at_the_server_belongs_to_clipped_updates() -> None:
    with pytest.raises(ConfigError, match='noise_at = "server" belongs to updates = "clipped", not "dp_sgd"'):
        load_experiment(None, ["privacy.updates=dp_sgd", "privacy.noise_at=server"])


def test_an_experiment_that_was_kept_can_be_read_again() -> None:
    made = load_experiment(None, ["privacy.updates=clipped", "privacy.target=8.0"])
    assert make_experiment(made.resolved()).privacy == made.privacy
