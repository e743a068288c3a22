"""AggEnhance: points by consensus, a bounded queue, candidates at the server or at the clients, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Ask, Finished, farthest, same_bits, some_clients
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.federation.methods import find_method
from fedsynth.learning.models import build_model
from fedsynth.methods.agg_enhance import InteriorPoints
from fedsynth.privacy import PrivacyConfig
from fedsynth.seeding import generator
from fedsynth.synthesis.inversion import choose_by_consensus, consensus

RunMethod = Callable[..., Finished]
QUICK = {"steps": 3, "tune_epochs": 1}
TINY = {"model": SMALL["cnn"], "local_epochs": 1, "batch_size": 64}
CLASSES = 10


def asked(done: Finished, task: str) -> list[Ask]:
    return [ask for ask in done.asks if ask.name == task]


def own_work(done: Finished) -> set[str]:
    """The tasks that the server did itself."""
    return {ask.name for ask in done.asks if all(client.startswith("@") for client in ask.requests)}


# -- the choice -----------------------------------------------------------------------------------------------------


def best_by_hand(models: list[torch.nn.Module], candidates: torch.Tensor) -> list[int]:
    """Algorithm 2, lines 9 to 20, as it stands there: for each class, whose candidate is kept."""
    best = []
    for label in range(candidates.shape[1]):
        scores = []
        for maker in range(len(models)):
            score = 0.0
            for judge in models:
                with torch.no_grad():
                    said = judge(candidates[maker, label][None]).softmax(1)[0]
                if int(said.argmax()) == label:
                    score += float(said[label])
            scores.append(score)
        best.append(int(np.argmax(scores)))
    return best


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 4))
def test_consensus_is_that_of_a_nested_loop(seed: int, count: int, classes: int) -> None:
    models = [build_model(SMALL["cnn"], (1, 8, 8), classes, seed=seed + k).double().eval() for k in range(count)]
    drawn = torch.Generator().manual_seed(seed)
    candidates = 5 * torch.randn((count, classes, 1, 8, 8), generator=drawn, dtype=torch.float64)
    with torch.no_grad():
        said = torch.stack([judge(candidates.flatten(0, 1)).softmax(1) for judge in models])
    scores = consensus(said, torch.arange(classes).repeat(count))
    kept = choose_by_consensus(candidates, scores)
    for label, maker in enumerate(best_by_hand(models, candidates)):
        if scores.view(count, classes)[:, label].max() > 0:  # otherwise nobody agrees, and any will do
            assert torch.equal(kept[label], candidates[maker, label])


def test_a_run_keeps_the_candidates_that_the_loop_would_keep(digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("agg_enhance", digits, settings=QUICK | {"steps": 30}, rounds=2, **TINY)
    for made, tuned in zip(asked(done, "invert_model"), asked(done, "tune_model"), strict=True):
        models = []
        for request in made.requests.values():
            net = build_model(SMALL["cnn"], (1, 8, 8), CLASSES, seed=0)
            net.load_state_dict(request["fields"]["model"])
            models.append(net.eval())
        candidates = torch.stack([reply["images"] for reply in made.replies.values()])
        points = tuned.fields["images"][-CLASSES:]
        agreed = 0
        for label, maker in enumerate(best_by_hand(models, candidates)):
            agreed += torch.equal(points[label], candidates[maker, label])
        assert agreed >= CLASSES - 1, "but for a tie that rounding may turn"


# -- the queue ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", [1, 2])
def test_the_queue_is_bounded_and_points_start_between_the_last_and_noise(
    queue: int, digits: FederatedData, run_method: RunMethod
) -> None:
    done = run_method("agg_enhance", digits, settings=QUICK | {"queue": queue}, rounds=4, fraction=0.4, **TINY)
    tuned, made = asked(done, "tune_model"), asked(done, "invert_model")
    assert [len(ask.fields["images"]) for ask in tuned] == [CLASSES * min(queue, k) for k in (1, 2, 3, 4)]
    for ask in tuned:
        assert ask.fields["labels"].tolist() == list(range(CLASSES)) * (len(ask.fields["labels"]) // CLASSES)
        assert 0 <= ask.fields["images"].min() <= ask.fields["images"].max() <= 1
    if queue == 2:
        assert torch.equal(tuned[3].fields["images"][:CLASSES], tuned[2].fields["images"][CLASSES:])
    for index, ask in enumerate(made):
        noise = generator(0, "interior points", "server", index + 1).random((CLASSES, 1, 8, 8))
        start = torch.from_numpy(noise).float()
        if index:
            start = (tuned[index - 1].fields["images"][-CLASSES:] + start) / 2
        for request in ask.requests.values():
            assert torch.equal(request["fields"]["start"], start)


def test_the_control_is_noise_of_the_same_number(digits: FederatedData, run_method: RunMethod) -> None:
    made, noise = (
        run_method("agg_enhance", digits, settings=QUICK | {"points": kind}, rounds=3, fraction=0.4, **TINY)
        for kind in ("synthetic", "noise")
    )
    assert own_work(noise) == {"tune_model"}
    for one, other in zip(asked(made, "tune_model"), asked(noise, "tune_model"), strict=True):
        assert torch.equal(one.fields["labels"], other.fields["labels"])
    assert farthest(made.model, noise.model) > 1e-6


def test_a_choice_at_random_asks_for_no_probabilities(digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("agg_enhance", digits, settings=QUICK | {"choice": "random"}, rounds=1, **TINY)
    assert own_work(done) == {"invert_model", "tune_model"}


# -- candidates at the clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("choice", ["consensus", "random"])
def test_clients_make_the_points_that_the_server_would_make(
    choice: str, model: str, digits: FederatedData, run_method: RunMethod
) -> None:
    common = {"rounds": 3, "fraction": 0.6, **TINY, "model": SMALL[model]}
    settings = QUICK | {"choice": choice}
    open_ = run_method("agg_enhance", digits, settings=settings, **common)
    secure = run_method("agg_enhance", digits, settings=settings | {"secure": True}, **common)
    assert same_bits(open_.model, secure.model)
    assert own_work(secure) == {"tune_model"}
    for ask in asked(secure, "make_candidates"):
        assert not any("model" in request["fields"] for request in ask.requests.values())
    wire = run_method("agg_enhance", digits, settings=settings | {"secure": True}, engine="wire", **common)
    assert same_bits(secure.model, wire.model)


def test_their_candidates_are_unprotected_releases(digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("agg_enhance", digits, settings=QUICK | {"secure": True}, rounds=2, **TINY)
    rows = [row for row in done.fed.participation.ledger.rows(1e-5) if row.kind == "release"]
    found = {row.release: row for row in rows}
    for release in ("agg_enhance.make_candidates.points", "agg_enhance.score_candidates.probabilities"):
        assert (found[release].proven, found[release].mechanism, found[release].times) == ("none", "none", 2)
        assert len(found[release].clients) == len(digits.clients)
    assert any("secure aggregation does not cover" in note for note in done.fed.participation.notes)
    plain = run_method("agg_enhance", digits, settings=QUICK, rounds=2, **TINY)
    assert {row.task for row in plain.fed.participation.ledger.rows(1e-5) if row.kind == "release"} == {
        "local_training.train"
    }
    assert plain.fed.participation.notes == [
        "Interior points are post-processing of the shared weights: they add no leak beyond them and remove none."
    ]


@pytest.mark.parametrize(("name", "nothing"), [("candidates_of_clients", {}), ("probabilities_of_clients", [])])
def test_a_round_in_which_no_client_answers_leaves_the_aggregate(
    name: str, nothing: Any, digits: FederatedData, run_method: RunMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InteriorPoints, name, lambda *args: nothing)
    done = run_method("agg_enhance", digits, settings=QUICK | {"secure": True}, rounds=2, **TINY)
    assert same_bits(done.model, run_method("fedavg", digits, rounds=2, **TINY).model)


# -- settings, other bases, refusals --------------------------------------------------------------------------------


def test_the_published_form_fills_in_what_is_not_given() -> None:
    published = find_method("agg_enhance").config(form="published", tune_rate=0.5)
    assert (published.image_optimizer, published.clamp, published.tune_rate) == ("sgd", False, 0.5)
    ours = InteriorPoints.parse("interior_points")
    assert (ours.image_optimizer, ours.clamp, ours.tune_rate) == ("adam", True, 0.2)
    again = InteriorPoints.parse(
        InteriorPoints.parse({"name": "interior_points", "form": "published"}).model_dump(mode="json")
    )
    assert (again.form, again.image_optimizer) == ("published", "sgd")


def test_the_tuning_rate_follows_the_clients(digits: FederatedData, run_method: RunMethod) -> None:
    rates = {"lr": 0.2, "schedule": "step", "lr_step": 1, "lr_gamma": 0.5}
    done = run_method("agg_enhance", digits, settings=QUICK, rounds=2, **rates, **TINY)
    tuned = [ask.fields["training"]["lr"] for ask in asked(done, "tune_model")]
    assert tuned == pytest.approx([0.2 * ask.training["lr"] for ask in done.rounds()])
    assert tuned[1] == tuned[0] / 2


@pytest.mark.parametrize("method", ["fedprox", "trimmed_mean", "fedopt", "feddpms", "fedvae"])
def test_it_stands_on_other_methods(method: str, digits: FederatedData, run_method: RunMethod) -> None:
    plain = run_method(method, digits, rounds=2, **TINY)
    off = {"post_aggregation": {"name": "interior_points", "tune_epochs": 0}}
    assert same_bits(run_method(method, digits, settings=off, rounds=2, **TINY).model, plain.model)
    done = run_method(
        method, digits, settings={"post_aggregation": {"name": "interior_points", **QUICK}}, rounds=2, **TINY
    )
    assert farthest(done.model, plain.model) > 1e-6
    assert len(asked(done, "tune_model")) == 2


def test_data_without_images_has_points_too(run_method: RunMethod) -> None:
    done = run_method("agg_enhance", some_clients(9, 12), model=SMALL["mlp"], settings=QUICK)
    assert asked(done, "tune_model")[0].fields["images"].shape == (3, 3)


def protected(**privacy: Any) -> dict[str, Any]:
    return {"privacy": PrivacyConfig(updates="clipped", **privacy), **QUICK}


def test_points_of_updates_with_noise_are_post_processing(run_method: RunMethod) -> None:
    data = some_clients(9, 12)
    done = run_method("agg_enhance", data, model=SMALL["mlp"], settings=protected())
    plain = run_method("fedavg", data, model=SMALL["mlp"], settings={"privacy": PrivacyConfig(updates="clipped")})
    assert done.fed.participation.ledger.as_dict() == plain.fed.participation.ledger.as_dict()
    assert not any("No differential privacy" in note for note in done.fed.participation.notes)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (protected(noise_at="server"), r"works with the updates of single clients.*Set noise_at = \"client\""),
        (protected() | {"secure": True}, r"made from models that are not protected. Set secure = false"),
    ],
)
def test_points_of_updates_without_noise_are_refused_where_noise_is_promised(
    settings: dict[str, Any], reason: str, run_method: RunMethod
) -> None:
    with pytest.raises(ConfigError, match=reason):
        run_method("agg_enhance", some_clients(9, 12), model=SMALL["mlp"], settings=settings)


@pytest.mark.parametrize("method", ["feddpms", "fedvae"])
def test_methods_with_tasks_of_their_own_cannot_ask_their_clients(
    method: str, digits: FederatedData, run_method: RunMethod
) -> None:
    with pytest.raises(ConfigError, match="set secure = false"):
        run_method(method, digits, settings={"post_aggregation": {"name": "interior_points", "secure": True}}, **TINY)
    with pytest.raises(ConfigError, match=r"remove method.local_data"):
        run_method(method, digits, settings={"local_data": "own"}, **TINY)
