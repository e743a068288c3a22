"""AggEnhance: points by consensus, which are kept, candidates at the server or at the clients, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Ask, Finished, farthest, same_bits, some_clients
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsynth
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.federation.methods import find_method
from fedsynth.learning.models import build_model
from fedsynth.methods.agg_enhance import InteriorPoints
from fedsynth.methods.agg_enhance.search import Search
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


# -- the points that are kept ---------------------------------------------------------------------------------------


def starts(done: Finished) -> list[torch.Tensor]:
    """What the points of each round started from; it is the same for every model."""
    found = []
    for ask in asked(done, "invert_model"):
        first, *others = (request["fields"]["start"] for request in ask.requests.values())
        assert all(torch.equal(first, other) for other in others)
        found.append(first)
    return found


def noise_of(round: int, count: int = CLASSES) -> torch.Tensor:
    return torch.from_numpy(generator(0, "interior points", "server", round).random((count, 1, 8, 8))).float()


@pytest.mark.parametrize("queue", [0, 1, 2])
def test_a_queue_holds_the_points_of_so_many_rounds(queue: int, digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("agg_enhance", digits, settings=QUICK | {"queue": queue}, rounds=4, fraction=0.4, **TINY)
    tuned = asked(done, "tune_model")
    assert [len(ask.fields["images"]) for ask in tuned] == [CLASSES * min(queue or 9, k) for k in (1, 2, 3, 4)]
    for ask in tuned:
        assert ask.fields["labels"].tolist() == list(range(CLASSES)) * (len(ask.fields["labels"]) // CLASSES)
    if queue != 1:
        older, newer = (ask.fields["images"] for ask in tuned[2:])
        assert torch.equal(newer[-2 * CLASSES : -CLASSES], older[-CLASSES:])


def test_published_points_start_between_the_last_and_noise_and_all_are_kept(
    digits: FederatedData, run_method: RunMethod
) -> None:
    """Algorithm 2, lines 1 to 4 and 18 to 21; the first start from noise alone."""
    settings = QUICK | {"form": "published"}
    done = run_method("agg_enhance", digits, settings=settings, rounds=4, fraction=0.4, **TINY)
    tuned = [ask.fields["images"] for ask in asked(done, "tune_model")]
    assert [len(images) for images in tuned] == [CLASSES * k for k in (1, 2, 3, 4)]
    for index, start in enumerate(starts(done)):
        expected = (tuned[index - 1][-CLASSES:] + noise_of(index + 1)) / 2 if index else noise_of(1)
        assert torch.equal(start, expected)


def test_published_points_are_those_of_gradient_descent(digits: FederatedData, run_method: RunMethod) -> None:
    """Equation 11 by hand: the candidates of one model after two steps at rate 0.1, without limits."""
    done = run_method("agg_enhance", digits, settings=QUICK | {"form": "published", "steps": 2}, rounds=1, **TINY)
    (made,) = asked(done, "invert_model")
    client, request = next(iter(made.requests.items()))
    net = build_model(SMALL["cnn"], (1, 8, 8), CLASSES, seed=0)
    net.load_state_dict(request["fields"]["model"])
    found = made.replies[client]["images"]
    for label in range(CLASSES):
        x = noise_of(1)[label][None]
        for _ in range(2):
            x = x.detach().requires_grad_()
            torch.nn.functional.cross_entropy(net(x), torch.tensor([label])).backward()
            assert x.grad is not None
            x = x - 0.1 * x.grad
        assert torch.allclose(found[label], x.detach()[0], atol=1e-5)


def test_our_points_start_from_noise(digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("agg_enhance", digits, settings=QUICK, rounds=3, fraction=0.4, **TINY)
    for index, start in enumerate(starts(done)):
        assert torch.equal(start, noise_of(index + 1))


def test_old_points_lose_weight(digits: FederatedData, run_method: RunMethod) -> None:
    """Figure 16: 0.99 to the power of a point's age, as a weight of its loss."""
    settings = QUICK | {"form": "published", "decay": 0.01}
    done = run_method("agg_enhance", digits, settings=settings, rounds=3, fraction=0.4, **TINY)
    targets = asked(done, "tune_model")[2].fields["labels"]
    weights = torch.tensor([0.99**2, 0.99, 1.0]).repeat_interleave(CLASSES)
    assert torch.allclose(targets, torch.eye(CLASSES).repeat(3, 1) * weights[:, None])
    scores = torch.randn(3 * CLASSES, CLASSES)
    each = torch.nn.functional.cross_entropy(scores, torch.arange(3 * CLASSES) % CLASSES, reduction="none")
    assert torch.nn.functional.cross_entropy(scores, targets) == pytest.approx(float((weights * each).mean()), rel=1e-5)


def test_every_model_makes_a_candidate_from_every_start(digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("agg_enhance", digits, settings=QUICK | {"restarts": 3}, rounds=1, **TINY)
    assert torch.equal(starts(done)[0], noise_of(1, 3 * CLASSES))
    (made,), (said,), (tuned,) = (asked(done, task) for task in ("invert_model", "classify_images", "tune_model"))
    everything = torch.cat([reply["images"] for reply in made.replies.values()])
    assert torch.equal(said.fields["images"], everything)
    labels = torch.arange(len(everything)) % CLASSES
    scores = consensus(torch.stack([reply["probabilities"] for reply in said.replies.values()]), labels)
    for label, image in enumerate(tuned.fields["images"]):
        best = scores[labels == label].argmax()
        assert torch.equal(image, everything[labels == label][best])


def test_soft_labels_are_the_models_mean_opinion(digits: FederatedData, run_method: RunMethod) -> None:
    done = run_method("agg_enhance", digits, settings=QUICK | {"labels": "soft"}, rounds=1, **TINY)
    (said,), (tuned,) = asked(done, "classify_images"), asked(done, "tune_model")
    mean = torch.stack([reply["probabilities"] for reply in said.replies.values()]).mean(0)
    for image, target in zip(tuned.fields["images"], tuned.fields["labels"], strict=True):
        place = (said.fields["images"] == image).flatten(1).all(1).nonzero()[0, 0]
        assert torch.allclose(target, mean[place])
    clients = run_method("agg_enhance", digits, settings=QUICK | {"labels": "soft", "secure": True}, rounds=1, **TINY)
    assert same_bits(done.model, clients.model)


def test_soft_labels_are_refused_where_opinions_are_summed() -> None:
    net = build_model(SMALL["cnn"], (1, 8, 8), CLASSES, seed=0)
    points = InteriorPoints(labels="soft", secure=True)
    points.check(net, PrivacyConfig())
    with pytest.raises(ConfigError, match='set labels = "hard"'):
        points.check(net, PrivacyConfig(secure_aggregation=True))


def test_classes_with_little_consensus_are_left_out(digits: FederatedData, run_method: RunMethod) -> None:
    common = {"rounds": 1, **TINY}
    plain = run_method("agg_enhance", digits, settings=QUICK | {"steps": 30}, **common)
    (said,) = asked(plain, "classify_images")
    labels = torch.arange(len(said.fields["images"])) % CLASSES
    said_of_each = torch.stack([reply["probabilities"] for reply in said.replies.values()])
    best = (consensus(said_of_each, labels) / len(said_of_each)).view(-1, CLASSES).max(0).values
    limit = float(best.max()) / 2
    settings = QUICK | {"steps": 30, "min_consensus": limit}
    (tuned,) = asked(run_method("agg_enhance", digits, settings=settings, **common), "tune_model")
    assert tuned.fields["labels"].tolist() == torch.nonzero(best >= limit)[:, 0].tolist()
    assert 0 < len(tuned.fields["labels"]) < CLASSES
    nobody = run_method("agg_enhance", digits, settings=QUICK | {"steps": 0, "min_consensus": 1.0}, **TINY)
    assert same_bits(nobody.model, run_method("fedavg", digits, **TINY).model), "FedAvg where no point convinces"


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
    for release in ("agg_enhance.clients.make_candidates.points", "agg_enhance.clients.score_candidates.probabilities"):
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
    monkeypatch.setattr(Search, name, lambda *args: nothing)
    done = run_method("agg_enhance", digits, settings=QUICK | {"secure": True}, rounds=2, **TINY)
    assert same_bits(done.model, run_method("fedavg", digits, rounds=2, **TINY).model)


# -- controls and numbers -------------------------------------------------------------------------------------------


def rows_of(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_real_points_are_new_in_every_round_and_prior_ones_stay(digits: FederatedData, run_method: RunMethod) -> None:
    x, y = digits.pooled("train").tensors()
    of_class = [rows_of(x[y == label]) for label in range(CLASSES)]
    there = [label for label in range(CLASSES) if of_class[label]]
    points = {}
    for kind in ("real", "prior"):
        done = run_method("agg_enhance", digits, settings=QUICK | {"points": kind}, rounds=3, fraction=0.4, **TINY)
        assert own_work(done) == {"tune_model"}
        points[kind] = [ask.fields["images"] for ask in asked(done, "tune_model")]
        for images in points[kind]:
            assert all(images[label].numpy().tobytes() in of_class[label] for label in there)
        assert any("Real images crossed" in note for note in done.fed.participation.notes)
    assert rows_of(points["real"][0]) != rows_of(points["real"][1])
    first, *later = points["prior"]
    assert all(torch.equal(first, images) for images in later), "one of each class, for good (fig. 9)"


@pytest.mark.parametrize("form", ["ours", "published"])
def test_alignment_and_consensus_are_in_the_metrics_of_every_round(form: str, tmp_path: Path) -> None:
    result = fedsynth.run(
        {"name": "agg_enhance", "form": form, **QUICK},
        runs=str(tmp_path),
        data={"name": "digits", "limit": 200},
        partition={"name": "dirichlet", "num_clients": 3, "alpha": 1.0},
        model={"name": "mlp", "hidden": [6]},
        train={"rounds": 2, "local_epochs": 1},
        engine={"workers": 1},
    )
    for row in result.metrics:
        assert -1 <= row.measured["alignment"] <= 1
        assert 0 <= row.measured["consensus"] <= 1
    shown = sorted(file.name for file in (result.path / "samples").glob("interior-points-*.safetensors"))
    assert shown[-1] == "interior-points-round-0002.safetensors", "all that are kept at the end, for `quality` (fig. 8)"


# -- settings, other bases, refusals --------------------------------------------------------------------------------


def test_the_published_form_fills_in_what_is_not_given() -> None:
    published = find_method("agg_enhance").config(form="published", tune_rate=0.5)
    assert (published.start, published.queue, published.tune_rate) == ("last", 0, 0.5)
    ours = InteriorPoints.parse("interior_points")
    assert (ours.start, ours.queue, ours.tune_rate, ours.max_tune_lr) == ("noise", 1, 1.0, 0.05)
    again = InteriorPoints.parse(
        InteriorPoints.parse({"name": "interior_points", "form": "published"}).model_dump(mode="json")
    )
    assert (again.form, again.queue, again.max_tune_lr) == ("published", 0, 0.0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, [0.05, 0.02]), ({"form": "published"}, [0.08, 0.02]), ({"tune_rate": 0.5}, [0.04, 0.01])],
)
def test_the_tuning_rate_follows_the_clients_up_to_its_limit(
    settings: dict[str, Any], expected: list[float], digits: FederatedData, run_method: RunMethod
) -> None:
    rates = {"lr": 0.08, "schedule": "step", "lr_step": 1, "lr_gamma": 0.25}
    done = run_method("agg_enhance", digits, settings=QUICK | settings, rounds=2, **rates, **TINY)
    assert [ask.fields["training"]["lr"] for ask in asked(done, "tune_model")] == pytest.approx(expected)


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
