"""Any well-formed requests, in any order, against a site that lets out nothing unprotected and spends ε = 1 at most.

Two sites are asked the same. Their data differ in one record; whatever a mechanism gives at one of them (a sum with its
noise) it gives at the other, too. That is how adaptive composition is proven, and it makes two things visible: by how
much the record moves what goes into a mechanism, against what its guarantee declares, and whether anything that leaves
depends on the record in another way: then the answers of the two sites differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, event, find, given, settings
from hypothesis import strategies as st
from strict_sites import CLASSES, NAME, SHAPE, ask, records, strict, tiny_site
from well_formed import RELEASING, REQUESTS, requests

from fedsynth.components import class_counts, noisy_updates, protected_updates, released_sums
from fedsynth.federation import Client
from fedsynth.federation.payload import encode
from fedsynth.federation.tasks import TASKS, find_task
from fedsynth.network.site import Site
from fedsynth.privacy import Spending, dpsgd, epsilon, secure_sum
from fedsynth.privacy.guarantee import Guarantee
from fedsynth.seeding import generator
from fedsynth.synthesis import gan_private, latent_statistics

COUNT = 12
ROUNDING = 1e-5  # relative: networks in float32 give a record's gradient with this error


@dataclass
class Mechanisms:
    """What goes into the mechanisms of one request and what comes out: recorded at one site, repeated at the other."""

    noisy: list[Any] = field(default_factory=list)
    into: list[np.ndarray] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)  # by the record, in standard deviations of the noise
    updates: list[float] = field(default_factory=list)  # length of each part of a clipped update, in the same unit
    repeating: bool = False
    calls: int = 0

    def through(self, mechanism: Callable[..., Any], values: Any, std: float, *rest: Any) -> Any:
        """Run a mechanism, or repeat what it gave, and note how far what goes in has moved."""
        here = np.asarray(values, dtype=np.float64)
        place, self.calls = self.calls, self.calls + 1
        if not self.repeating:
            self.into.append(here)
            self.noisy.append(mechanism(values, *rest))
        else:
            self.moved.append(float(np.linalg.norm(here - self.into[place])) / std if std else np.inf)
        return self.noisy[place]


@contextmanager
def coupled(monkeypatch: pytest.MonkeyPatch, found: Mechanisms) -> Iterator[None]:
    """Mechanisms that are watched, and the same draws for the records that both sites have."""
    noisy_sum, add_gaussian = dpsgd.noisy_sum, protected_updates.add_gaussian
    histogram = class_counts.discrete_gaussian_histogram

    def watched_sum(total: torch.Tensor, std: float, rng: np.random.Generator) -> torch.Tensor:
        return found.through(lambda t, *_: noisy_sum(t, std, rng), total, std)

    def watched_noise(values: torch.Tensor, std: float, rng: np.random.Generator) -> torch.Tensor:
        return found.through(lambda v, *_: add_gaussian(v, std, rng), values, std)

    def watched_update(values: torch.Tensor, std: float, rng: np.random.Generator) -> torch.Tensor:
        if not found.repeating:
            found.updates.append(float(values.norm()) / std)
        return watched_noise(values, std, rng)

    def watched_counts(counts: np.ndarray, eps: float, delta: float, rng: np.random.Generator) -> Any:
        sigma = histogram(counts, eps, delta, np.random.default_rng(0))[1].sigma
        return found.through(lambda c, *_: histogram(c, eps, delta, rng), counts, sigma)

    def same_batch(examples: int, rate: float, rng: np.random.Generator) -> np.ndarray:
        """By record and not by place in the stream; the record in question, which is the last, is in every batch."""
        chosen = generator(found.calls, "batch").random(10**4)[:examples] < rate
        chosen[COUNT:] = rate > 0
        return np.flatnonzero(chosen)

    def same_draws(self: Any, count: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        z = generator(found.calls, "z").standard_normal((count, self.generator.latent), dtype=np.float32)
        mix = generator(found.calls, "mix").random((count, 1, 1, 1), dtype=np.float32)
        return torch.from_numpy(z), torch.from_numpy(mix)

    def same_keys() -> secure_sum.Secrets:
        """Keys are random and made without the data: those of the one site are as likely at the other."""
        return found.through(lambda *_: new_keys(), np.zeros(1), 1.0)

    def same_noise(self: Client, purpose: str) -> np.random.Generator:
        self._drawn.add(purpose)  # as the real one does: noise counts as secret, or no guarantee would hold
        return generator(0, purpose, *self.place_in_run)

    new_keys = secure_sum.Secrets.new
    with monkeypatch.context() as patch:
        patch.setattr(secure_sum.Secrets, "new", same_keys)
        for module in (dpsgd, gan_private):
            patch.setattr(module, "noisy_sum", watched_sum)
            patch.setattr(module, "poisson_batch", same_batch)
        patch.setattr(protected_updates, "add_gaussian", watched_update)
        for module in (noisy_updates, latent_statistics, released_sums):
            patch.setattr(module, "add_gaussian", watched_noise)
        patch.setattr(class_counts, "discrete_gaussian_histogram", watched_counts)
        patch.setattr(gan_private._Records, "drawn", same_draws)
        patch.setattr(Client, "noise_rng", same_noise)
        yield


def spent(site: Site) -> float:
    file = site.folder / "spent.json"
    kept = Spending.from_list(json.loads(file.read_text())) if file.is_file() else Spending()
    return epsilon(kept.together()[1], site.policy.delta)


def declared(answer: dict[str, Any]) -> float:
    """How far one record may move what goes into a mechanism, in standard deviations, by what a reply claims."""
    most = 0.0
    for values in answer["guarantees"].values():
        for cost in Guarantee.model_validate(values).events:
            match cost.kind:
                case "gaussian":
                    most = max(most, cost.mu)
                case "sampled gaussian":
                    most = max(most, 1 / cost.noise)
                case "discrete gaussian":
                    most = max(most, 1 / cost.sigma)
    return most


def test_every_task_can_be_asked_for() -> None:
    ours = {each.name for each in TASKS.values() if each.function.__module__.startswith("fedsynth.")}
    assert set(REQUESTS) == ours


@pytest.mark.timeout(900)
@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(asked=st.lists(requests(), min_size=1, max_size=4), bright=st.booleans())
def test_whatever_leaves_is_charged_for_and_moves_no_farther_than_declared(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[tuple[str, dict[str, Any]]],
    bright: bool,
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    sites = [pair(folder / str(world), world, bright) for world in (0, 1)]
    state: dict[str, str] = {}
    for step, (name, fields) in enumerate(asked, 1):
        found, answers = Mechanisms(), []
        for site in sites:
            with coupled(monkeypatch, found):
                answers.append(ask(site, name, fields, step=step, states=state, run=f"run-{step % 2}"))
            found.repeating, found.calls = True, 0
        assert encode(answers[0]) == encode(answers[1]), (name, "what leaves depends on the record")
        event(f"{name}: {'left' if answers[0]['ok'] else answers[0]['error']}")
        if answers[0]["ok"]:
            state = {NAME: answers[0]["state"]} if step % 2 == 0 else state
            # a client that is hidden as a whole may be exchanged for one whose update points the other way
            farthest = max([*found.moved, 2 * math.hypot(*found.updates)])
            assert farthest <= declared(answers[0]) * (1 + ROUNDING) + 1e-9, name
    assert max(map(spent, sites)) <= 1 + 1e-6


@pytest.mark.parametrize("name", sorted(set(RELEASING)))
def test_what_can_be_protected_leaves_and_is_seen_to_move(
    name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the search above would find nothing wrong because it looks at nothing."""
    counted = {"epsilon": 0.2, "keep": True}  # a GAN visits after the classes were counted

    def moves(asked: tuple[str, dict[str, Any]]) -> bool:
        folder, found, answers = tmp_path_factory.mktemp("seen"), Mechanisms(), []
        for world in (0, 1):
            with coupled(monkeypatch, found):
                site = pair(folder / str(world), world, bright=True)
                before = ask(site, "class_counts.count_classes", counted)
                states = {NAME: before["state"]} if before["ok"] else {}
                counts = found.calls
                answers.append(ask(site, *asked, step=2, states=states))
            found.repeating, found.calls = True, 0
        return bool(answers[0]["ok"]) and max(found.moved[counts:], default=0.0) > 0

    looking = settings(
        max_examples=200,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate,),
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    assert find(requests((name,)), moves, settings=looking)


def pair(folder: Path, world: int, bright: bool) -> Site:
    """A site without or with one record more, an ordinary or a very bright one."""
    if bright:
        return strict(lambda **policy: tiny_site(folder, COUNT, bright=world, **policy))
    return strict(lambda **policy: tiny_site(folder, COUNT, more=world, **policy))


# -- records --------------------------------------------------------------------------------------------------------


def holds_records(value: Any) -> bool:
    """Whether any record of the client is in a reply, byte for byte."""
    own = {row.tobytes() for row in records(COUNT).x.reshape(COUNT, -1)}
    if isinstance(value, dict | list):
        return any(map(holds_records, value.values() if isinstance(value, dict) else value))
    if not isinstance(value, torch.Tensor | np.ndarray):
        return False
    array = np.asarray(value)
    size = int(np.prod(SHAPE))
    if array.dtype != np.float32 or array.size % size or not array.size:
        return False
    return any(row.tobytes() in own for row in np.ascontiguousarray(array).reshape(-1, size))


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_a_task_whose_reply_holds_records_declares_it(name: str, tmp_path: Path) -> None:
    """By what it sends. Means of a few records are declared, too, and are looked for by hand: FedMix's alone."""

    @settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(asked=requests((name,)), step=st.integers(1, 10**6))
    def look(asked: tuple[str, dict[str, Any]], step: int) -> None:
        find_task(name).read_request(asked[1])  # what does not fit is refused, and shows nothing
        answer = ask(tiny_site(tmp_path, COUNT, records=True), name, asked[1], step=step)
        if answer["ok"] and holds_records(answer["fields"]):
            assert find_task(name).raw_fields()

    look()


def test_the_search_for_records_finds_them() -> None:
    assert holds_records({"images": torch.from_numpy(records(COUNT).x[3:5])})
    assert not holds_records({"images": torch.rand((2, *SHAPE))})
    assert len(np.unique(records(COUNT).y)) == CLASSES
