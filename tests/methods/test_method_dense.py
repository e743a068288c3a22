"""DENSE against equations 1 to 6 of its paper by hand; one epoch; one exchange; what it is without distillation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Finished, farthest, same_bits, some_clients
from torch import Tensor, nn

from fedsynth.components.loop import LoopConfig
from fedsynth.components.settings import TrainConfig
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.experiment.config import make_experiment
from fedsynth.federation.records import ADDED_AT_SERVER
from fedsynth.learning.models import ModelSpec, build_model
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import fit
from fedsynth.methods.dense import DenseTuning
from fedsynth.privacy import PrivacyConfig
from fedsynth.synthesis.distillation import SampleGenerator
from fedsynth.synthesis.ensemble_distillation import (
    Distillation,
    EnsembleDistillation,
    boundary_loss,
    watched_statistics,
)

RunMethod = Callable[..., Finished]
NORMED = ModelSpec(name="mlp", hidden=(6,), norm="batch")
MODEL = SMALL["mlp"]
QUICK = {"distil_epochs": 2, "generator_steps": 2, "tune_batch_size": 6, "latent": 4, "channels": 2}


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def nets(count: int = 4) -> list[nn.Module]:
    """Networks of five columns and three classes with BatchNorm, each trained a little on data of its own."""
    made: list[nn.Module] = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        net = build_model(NORMED, (5,), 3, seed=seed)
        x = torch.from_numpy(rng.normal(seed, 1 + seed, size=(30, 5))).float()
        fit(net, x, torch.arange(30) % 3, LocalTraining(epochs=2, batch_size=10), rng)
        made.append(net.eval())
    return made


def stages(how: Distillation) -> EnsembleDistillation:
    torch.manual_seed(0)
    generator = SampleGenerator((5,), 3, 4, 2)
    *teachers, student = nets()
    return EnsembleDistillation(generator, teachers, student, how, LocalTraining(lr=0.1, momentum=0.9))


# -- the losses -----------------------------------------------------------------------------------------------------


def test_the_boundary_loss_is_equation_4() -> None:
    rng = np.random.default_rng(0)
    ensemble, student = rng.normal(size=(9, 3)), rng.normal(size=(9, 3))
    by_hand = 0.0
    for d, s in zip(ensemble, student, strict=True):
        p, q = softmax(d), softmax(s)
        by_hand -= (d.argmax() != s.argmax()) * float((p * np.log(p / q)).sum()) / 9
    assert by_hand < 0
    found = boundary_loss(torch.from_numpy(ensemble), torch.from_numpy(student))
    assert float(found) == pytest.approx(by_hand, rel=1e-12)
    assert float(boundary_loss(torch.from_numpy(ensemble), torch.from_numpy(3 * ensemble))) == 0


def test_the_statistics_are_those_of_equation_3() -> None:
    """Two layers of two models on images: norms of differences of means and of variances, not squared."""
    models = [build_model(SMALL["zda_cnn"], (1, 8, 8), 4, seed=seed).eval() for seed in (0, 1)]
    x = torch.rand((7, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    with watched_statistics(models) as gaps, torch.no_grad():
        for model in models:
            model(x)
    by_hand = []
    for model in models:
        seen = x
        for layer in model.body:
            if isinstance(layer, nn.BatchNorm2d):
                values = seen.detach().double().numpy()
                means, variances = values.mean((0, 2, 3)), values.var((0, 2, 3))
                by_hand.append(np.linalg.norm(means - layer.running_mean.numpy()))
                by_hand[-1] += np.linalg.norm(variances - layer.running_var.numpy())
            seen = layer(seen)
    assert len(gaps) == len(by_hand) == 4
    assert np.allclose([float(gap) for gap in gaps], by_hand, rtol=1e-5)
    with watched_statistics(models[:1]) as gaps, torch.no_grad():
        models[1](x)
    assert not gaps


def test_the_generators_loss_is_equation_5() -> None:
    how = Distillation(statistics=0.3, boundary=0.7)
    played = stages(how)
    played.student.eval()
    labels = torch.arange(12) % 3
    noise = torch.randn((12, 4), generator=torch.Generator().manual_seed(0))
    found = float(played.loss(noise, labels).detach())
    with torch.no_grad():
        x = played.generator(noise, labels)
        each = [net(x) for net in played.ensemble.members]
        gap = 0.0
        for net in played.ensemble.members:
            flat, linear, norm = list(net.body)[:3]
            values = linear(flat(x))
            gap += float((values.mean(0) - norm.running_mean).norm())
            gap += float((values.var(0, unbiased=False) - norm.running_var).norm())
        mean = sum(each) / 3
        p, q = mean.softmax(1), played.student(x).softmax(1)
        omega = (p.argmax(1) != q.argmax(1)).float()
        entropy = -p[torch.arange(12), labels].log().mean()
        by_hand = entropy + 0.3 * gap / 3 - 0.7 * (omega * (p * (p / q).log()).sum(1)).mean()
    assert float(omega.sum()) > 0
    assert found == pytest.approx(float(by_hand), rel=1e-5)
    assert played.parts.statistics == pytest.approx(gap / 3, rel=1e-5)


def test_a_step_of_the_model_goes_down_equation_6() -> None:
    played = stages(Distillation())
    played.student.eval()
    x = torch.rand((8, 5), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        scores = sum(net(x) for net in played.ensemble.members) / 3
        assert torch.allclose(played.ensemble(x), scores, atol=1e-6)
    parameters = list(played.student.parameters())
    q = played.student(x).log_softmax(1)
    p = scores.softmax(1)
    slopes = torch.autograd.grad((p * (p.log() - q)).sum(1).mean(), parameters)
    expected = [w.detach() - 0.1 * slope for w, slope in zip(parameters, slopes, strict=True)]
    played.distil(x, scores)
    assert all(torch.allclose(w, e, atol=1e-6) for w, e in zip(parameters, expected, strict=True))


def test_the_model_learns_what_the_ensemble_says_of_the_samples() -> None:
    how = Distillation(epochs=30, generator_steps=5, batch_size=30, generator_lr=0.01, statistics=0.0, boundary=0.0)
    played = stages(how)
    made = played.run(3, torch.Generator().manual_seed(0))
    assert int(made.sum()) == 900
    labels = torch.arange(300) % 3
    with torch.no_grad():
        x = played.generator(torch.randn((300, 4), generator=torch.Generator().manual_seed(3)), labels)
        said = played.ensemble(x).argmax(1)
        agrees = (played.student.eval()(x).argmax(1) == said).float().mean()
        fits = (said == labels).float().mean()
    assert float(agrees) > 0.8
    assert float(fits) > 0.8


@pytest.mark.parametrize(("pool", "steps"), [(True, 1 + 2 + 3), (False, 3)])
def test_the_model_goes_over_the_pool_or_over_the_last_batch(
    pool: bool, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []
    monkeypatch.setattr(EnsembleDistillation, "distil", lambda self, samples, scores: seen.append(samples))
    stages(Distillation(epochs=3, generator_steps=1, batch_size=4, pool=pool)).run(3, torch.Generator().manual_seed(0))
    assert len(seen) == steps
    assert len({sample.data_ptr() for sample in seen}) == 3


# -- in a federation ------------------------------------------------------------------------------------------------


def test_one_exchange_and_the_models_of_all_who_answered(digits: FederatedData, run_method: RunMethod) -> None:
    finished = run_method("dense", digits, model=MODEL, settings=QUICK, rounds=3, local_epochs=2)
    assert [ask.name for ask in finished.asks] == ["train", "distil_ensemble"]
    train, distil = finished.asks
    assert train.training["epochs"] == 6
    [request] = distil.requests.values()
    sent = [reply["model"]["head.weight"] for reply in train.replies.values()]
    teachers = request["fields"]["teachers"]
    assert all(torch.equal(t["head.weight"], own) for t, own in zip(teachers, sent, strict=True))
    assert same_bits(request["fields"]["model"], finished.fed.initial_weights(MODEL))
    assert sum(finished.fed.participation.records[ADDED_AT_SERVER]["added"][0]) == 12


@pytest.mark.parametrize("model", SMALL)
def test_without_distillation_it_is_one_round_of_fedavg(
    model: str, digits: FederatedData, run_method: RunMethod
) -> None:
    still = {"distil_epochs": 0, "start": "average"}
    dense = run_method("dense", digits, model=SMALL[model], settings=still, rounds=3, local_epochs=2)
    fedavg = run_method("fedavg", digits, model=SMALL[model], rounds=1, local_epochs=6)
    assert same_bits(dense.model, fedavg.model)


@pytest.mark.parametrize("model", SMALL)
def test_the_same_bits_on_the_wire_and_in_any_order(model: str, digits: FederatedData, run_method: RunMethod) -> None:
    one, mixed, wire = (
        run_method("dense", digits, model=SMALL[model], settings=QUICK, **how)
        for how in ({}, {"shuffle": lambda order: order[2:] + order[1::-1]}, {"engine": "wire"})
    )
    assert same_bits(one.model, mixed.model)
    assert same_bits(one.model, wire.model)


@pytest.mark.parametrize(
    "settings", [{"samples": "noise"}, {"boundary": 0.0}, {"statistics": 0.0}, {"pool": False}, {"start": "average"}]
)
def test_each_setting_changes_the_result(
    settings: dict[str, Any], digits: FederatedData, run_method: RunMethod
) -> None:
    one, other = (
        run_method("dense", digits, model=SMALL["zda_cnn"], settings=QUICK | s, local_epochs=4, lr=0.1)
        for s in ({}, settings)
    )
    assert farthest(one.model, other.model) > 0


def test_the_published_form_has_the_papers_settings() -> None:
    settings = DenseTuning(form="published")
    assert (settings.distil_epochs, settings.generator_steps, settings.tune_batch_size) == (200, 30, 128)
    assert (settings.statistics, settings.boundary, settings.pool) == (1.0, 0.5, False)


@pytest.mark.parametrize("method", ["fedprox", "fedopt"])
def test_it_follows_every_round_of_other_methods_and_takes_tables(method: str, run_method: RunMethod) -> None:
    slot = {"post_aggregation": {"name": "dense", **QUICK}}
    tuned = run_method(method, some_clients(9, 12, 8), model=MODEL, settings=slot, rounds=2)
    assert [ask.name for ask in tuned.asks].count("distil_ensemble") == 2
    assert all(torch.isfinite(entry).all() for entry in tuned.model.values())


def test_private_models_can_be_distilled(digits: FederatedData, run_method: RunMethod) -> None:
    settings = {"privacy": PrivacyConfig(updates="dp_sgd", noise=1.0), **QUICK}
    finished = run_method("dense", digits, model=MODEL, settings=settings)
    rows = [row for row in finished.fed.participation.ledger.rows(1e-5) if row.kind == "release"]
    assert rows
    assert all(row.epsilon is not None for row in rows)


@pytest.mark.parametrize("privacy", [{"updates": "clipped"}, {"secure_aggregation": True}])
def test_what_hides_single_models_is_refused(privacy: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the server works with the model of each"):
        make_experiment({"method": {"name": "dense"}, "privacy": privacy})


def test_a_resumed_run_ends_with_the_same_bits(whole_and_resumed: Callable[..., Any]) -> None:
    cfg = LoopConfig(
        train=TrainConfig(rounds=2, local_epochs=1), model=SMALL["mlp"], post_aggregation=DenseTuning(**QUICK)
    )
    whole, resumed = whole_and_resumed(cfg, "distil_ensemble", 2)
    assert same_bits(whole, resumed)
