"""FedFTG against the losses of its paper by hand; one turn of the game; its identity, its settings, what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Finished, same_bits, some_clients
from torch import Tensor

from fedsynth.components.loop import LoopConfig
from fedsynth.components.settings import TrainConfig
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.federation.records import ADDED_AT_SERVER
from fedsynth.learning.models import ModelSpec, build_model
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.weights import buffer_entries, weights_of
from fedsynth.methods.fedftg import HardSampleTuning
from fedsynth.privacy import PrivacyConfig
from fedsynth.synthesis.distillation import (
    HardSampleDistillation,
    HardSamples,
    SampleGenerator,
    discrepancy,
    infidelity,
)

RunMethod = Callable[..., Finished]
MODEL = ModelSpec(name="mlp", hidden=(6,))
QUICK = {"iterations": 2, "tune_batch_size": 6, "latent": 4, "channels": 2}
COUNTS = np.array([[6.0, 0, 1], [2, 5, 1], [0, 0, 2]])
SHARES = COUNTS / COUNTS.sum(0)


# -- the losses -----------------------------------------------------------------------------------------------------


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def losses_by_hand(teachers: np.ndarray, student: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """L_md and L_cls, sample by sample and client by client."""
    apart, unlike = 0.0, 0.0
    for n, label in enumerate(labels):
        for k in range(len(teachers)):
            p, q = softmax(teachers[k, n]), softmax(student[n])
            apart += SHARES[k, label] * float((p * np.log(p / q)).sum())
            unlike += SHARES[k, label] * -float(np.log(p[label]))
    return apart / len(labels), unlike / len(labels)


def test_discrepancy_and_fidelity_are_those_of_the_paper() -> None:
    rng = np.random.default_rng(0)
    teachers, student, labels = rng.normal(size=(3, 8, 3)), rng.normal(size=(8, 3)), np.arange(8) % 3
    apart, unlike = losses_by_hand(teachers, student, labels)
    t, s, y, shares = (torch.from_numpy(each) for each in (teachers, student, labels, SHARES))
    assert float(discrepancy(t, s, y, shares)) == pytest.approx(apart, rel=1e-12)
    assert float(infidelity(t, y, shares)) == pytest.approx(unlike, rel=1e-12)
    assert float(discrepancy(s.expand(3, -1, -1), s, y, shares)) == pytest.approx(0, abs=1e-12)


def game(how: HardSamples, seed: int = 0) -> HardSampleDistillation:
    torch.manual_seed(seed)
    generator = SampleGenerator((5,), 3, 4, 2)
    nets = [build_model(MODEL, (5,), 3, seed=number) for number in range(4)]
    shares = torch.from_numpy(SHARES).float()
    return HardSampleDistillation(generator, nets[:3], nets[3], shares, how, LocalTraining(lr=0.3))


def total(played: HardSampleDistillation, noise: Tensor, labels: Tensor, how: HardSamples) -> tuple[Tensor, Tensor]:
    """The generator's loss and L_md again, in other words than the package's."""
    x = played.generator(noise, labels)
    weight = torch.from_numpy(SHARES).float()[:, labels]
    student = torch.softmax(played.student(x), 1)
    apart = unlike = torch.zeros(())
    for k, teacher in enumerate(played.teachers):
        p = torch.softmax(teacher(x), 1)
        apart = apart + (weight[k] * (p * (p / student).log()).sum(1)).mean()
        unlike = unlike - (weight[k] * p[torch.arange(len(x)), labels].log()).mean()
    n = len(x)
    pairs = sum((x[i] - x[j]).abs().mean() * (noise[i] - noise[j]).square().mean() for i in range(n) for j in range(n))
    same = torch.exp(-pairs / n**2)
    return how.fidelity * unlike + how.diversity * same - how.hardness * apart, apart


def test_a_turn_of_the_game_by_hand() -> None:
    """The generator goes up L_md and down the others (Adam), then the model goes down L_md (SGD)."""
    how = HardSamples(iterations=1, model_steps=1, batch_size=6, hardness=0.8, fidelity=1.3, diversity=0.6)
    played = game(how)
    expected = game(how)
    frequencies = torch.from_numpy(COUNTS.sum(0) / COUNTS.sum())
    drawn = played.run(frequencies, torch.Generator().manual_seed(1))
    random = torch.Generator().manual_seed(1)
    labels = torch.multinomial(frequencies, 6, replacement=True, generator=random)
    noise = torch.randn((6, 4), generator=random)
    adam = torch.optim.Adam(expected.generator.parameters(), lr=0.01)
    loss, _ = total(expected, noise, labels, how)
    adam.zero_grad()
    loss.backward()
    adam.step()
    for one, other in zip(played.generator.parameters(), expected.generator.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    parameters = list(expected.student.parameters())
    _, apart = total(expected, noise, labels, how)
    for own, p, slope in zip(
        played.student.parameters(), parameters, torch.autograd.grad(apart, parameters), strict=True
    ):
        assert torch.allclose(own, p - 0.3 * slope, atol=1e-6)
    assert drawn.tolist() == torch.bincount(labels, minlength=3).tolist()
    assert played.losses.discrepancy > 0


def test_the_model_comes_nearer_to_what_it_is_distilled_from() -> None:
    """One certain model in the place of all three."""
    played = game(HardSamples(iterations=40, batch_size=30))
    for parameter in played.teachers[0].parameters():
        parameter.mul_(4)
    played.teachers = [played.teachers[0]] * 3
    before = copy.deepcopy(played.student)
    random = torch.Generator().manual_seed(0)
    played.run(torch.full((3,), 1 / 3), random)
    labels = torch.arange(300) % 3
    with torch.no_grad():
        x = played.generator(torch.randn((300, 4), generator=random), labels)
        teachers = played.scores(x)
        now, then = (discrepancy(teachers, net(x), labels, played.shares) for net in (played.student, before))
    assert float(now) < 0.5 * float(then)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 7), (6,)])
def test_generators_make_examples_of_any_shape(shape: tuple[int, ...]) -> None:
    made = SampleGenerator(shape, 4, 5, 2)(torch.randn((3, 5)), torch.arange(3)).detach()
    assert made.shape == (3, *shape)
    assert len(shape) == 1 or (float(made.min()) >= 0 and float(made.max()) <= 1)


# -- in a federation ------------------------------------------------------------------------------------------------


def test_labels_and_weights_follow_the_counts_of_those_who_answered(
    digits: FederatedData, run_method: RunMethod
) -> None:
    finished = run_method("fedftg", digits, model=MODEL, settings=QUICK, fraction=0.6, rounds=3)
    told: dict[str, np.ndarray] = {}
    rounds = iter(finished.rounds())
    for ask in finished.asks:
        if ask.name == "count_classes":
            assert not set(ask.requests) & set(told), "asked once"
            told |= {client: reply["counts"] for client, reply in ask.replies.items()}
        if ask.name == "distil_hard_samples":
            [request] = ask.requests.values()
            replies = next(rounds).replies
            counts = np.stack([told[client] for client in replies]).astype(float)
            fields = request["fields"]
            assert np.allclose(fields["frequencies"], counts.sum(0) / counts.sum())
            has = counts.sum(0) > 0
            assert np.allclose(fields["shares"].numpy()[:, has], counts[:, has] / counts.sum(0)[has], atol=1e-6)
            sent = [reply["model"]["head.weight"] for reply in replies.values()]
            assert all(torch.equal(t["head.weight"], own) for t, own in zip(fields["teachers"], sent, strict=True))
    added = finished.fed.participation.records[ADDED_AT_SERVER]["added"]
    assert sum(added[0]) == 12


@pytest.mark.parametrize("model", SMALL)
def test_the_same_bits_on_the_wire_in_any_order_and_again(
    model: str, digits: FederatedData, run_method: RunMethod
) -> None:
    one, mixed, wire = (
        run_method("fedftg", digits, model=SMALL[model], settings=QUICK, **how)
        for how in ({}, {"shuffle": lambda order: order[2:] + order[1::-1]}, {"engine": "wire"})
    )
    assert same_bits(one.model, mixed.model)
    assert same_bits(one.model, wire.model)


def test_stored_statistics_stay_those_of_the_clients(digits: FederatedData, run_method: RunMethod) -> None:
    tuned, plain = (
        run_method(method, digits, model=SMALL["zda_cnn"], settings=settings, rounds=1)
        for method, settings in (("fedftg", QUICK), ("fedavg", {}))
    )
    buffers = buffer_entries(build_model(SMALL["zda_cnn"], (1, 8, 8), 10))
    assert buffers
    assert all(torch.equal(tuned.model[name], plain.model[name]) for name in buffers)
    assert not torch.equal(tuned.model["head.weight"], plain.model["head.weight"])


@pytest.mark.parametrize(
    "settings",
    [
        *({"samples": "noise"}, {"labels": "uniform"}, {"ensemble": "equal"}, {"hardness": 0.0}),
        *({"fidelity": 0.0}, {"diversity": 0.0}),
    ],
)
def test_each_setting_changes_the_result(
    settings: dict[str, Any], digits: FederatedData, run_method: RunMethod
) -> None:
    one, other = (run_method("fedftg", digits, model=MODEL, settings=QUICK | s, rounds=1) for s in ({}, settings))
    assert not same_bits(one.model, other.model)


@pytest.mark.parametrize("method", ["fedprox", "scaffold", "feddyn", "fedopt"])
def test_it_goes_with_other_methods_and_with_tables(method: str, run_method: RunMethod) -> None:
    slot = {"post_aggregation": {"name": "hard_samples", **QUICK}}
    plain, tuned = (run_method(method, some_clients(9, 12, 8), model=MODEL, settings=s, rounds=2) for s in ({}, slot))
    assert not same_bits(plain.model, tuned.model)
    assert all(torch.isfinite(entry).all() for entry in tuned.model.values())


@pytest.mark.parametrize(
    ("privacy", "sentence"),
    [
        (PrivacyConfig(updates="dp_sgd"), "clients release how many examples of each class"),
        (PrivacyConfig(secure_aggregation=True), "works with the model of each client"),
    ],
)
def test_protected_updates_are_refused(
    privacy: PrivacyConfig, sentence: str, digits: FederatedData, run_method: RunMethod
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run_method("fedftg", digits, model=MODEL, settings={"privacy": privacy})


def test_a_resumed_run_ends_with_the_same_bits(whole_and_resumed: Callable[..., Any]) -> None:
    """The generator and the counts come back with the checkpoint."""
    cfg = LoopConfig(
        train=TrainConfig(rounds=3, local_epochs=1), model=SMALL["mlp"], post_aggregation=HardSampleTuning(**QUICK)
    )
    whole, resumed = whole_and_resumed(cfg, "distil_hard_samples", 3)
    assert same_bits(whole, resumed)


def test_without_steps_nothing_moves() -> None:
    played = game(HardSamples(iterations=2, generator_steps=0, model_steps=0))
    before = weights_of(played.student), weights_of(played.generator)
    played.run(torch.full((3,), 1 / 3), torch.Generator().manual_seed(0))
    assert same_bits(before[0], weights_of(played.student))
    assert same_bits(before[1], weights_of(played.generator))
