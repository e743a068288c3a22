"""Ditto, FedRep, FAug, RFA-RFD, FedAvg in groups and balanced local training: identities, and what each is about."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from by_hand import LINEAR, batches, close, descend, theta
from federations import SMALL, Clients, Finished, same_bits
from test_method_pfl_gan import QUICK as GANS
from test_method_pfl_gan import two_kinds

from fedsynth.components.local_training import OWN_PART
from fedsynth.components.synthetic_store import KEPT
from fedsynth.errors import UserError
from fedsynth.evaluation.views import client_tallies
from fedsynth.learning.models import initial_model
from fedsynth.methods.faug import ClassScores, Distilled, others_mean
from fedsynth.methods.references import balanced_rows
from fedsynth.methods.rfa_rfd import trust_in

SHARED = {name: value for name, value in GANS.items() if name != "refined_steps"}
MODELS = ["cnn", "zda_cnn", "mlp"]


def asked(done: Finished, task: str) -> list[Any]:
    return [ask for ask in done.asks if ask.name == task]


def personal(done: Finished, spec: Any) -> dict[str, Any]:
    return client_tallies(done.fed, done.outcome, spec, ["test"])["personal/test"]


# -- Ditto ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_ditto_without_pull_is_local_training_beside_fedavg(run_method, digits, model):
    common = {"model": SMALL[model], "rounds": 3, "momentum": 0.5}
    done = run_method("ditto", digits, settings={"lam": 0.0}, **common)
    assert same_bits(done.model, run_method("fedavg", digits, **common).model)
    alone = run_method("local", digits, **common)
    for client in digits.clients:
        assert same_bits(done.state(client)["alone"], alone.state(client)["alone"])


def test_ditto_pulls_personal_models_to_the_received_one_and_leaves_the_global_alone(run_method, digits):
    common = {"model": SMALL["mlp"], "rounds": 2}
    runs = [run_method("ditto", digits, settings={"lam": lam}, **common) for lam in (0.0, 1.0, 5.0)]
    received = asked(runs[0], "train")[-1].fields["model"]
    assert all(same_bits(run.model, runs[0].model) for run in runs)
    for client in digits.clients:
        away = [
            sum(float((run.state(client)["alone"][name] - received[name]).square().sum()) for name in received)
            for run in runs
        ]
        assert away[0] > away[1] > away[2]
    assert runs[0].outcome.personal == "alone"


# -- FedRep -----------------------------------------------------------------------------------------------------------


def test_fedrep_trains_a_softmax_regression_on_a_body_that_stands_still(run_method, digits):
    spec, epochs = SMALL["mlp"], 2
    settings = {"head_epochs": epochs}
    done = run_method("fedrep", digits, model=spec, settings=settings, rounds=1, local_epochs=0, lr=0.1)
    start = initial_model(0, spec, digits.schema)
    for client in digits.clients:
        x, y = digits.client(client).train.tensors()
        with torch.no_grad():
            features = start.body(x).numpy()
        steps = batches(client, 1, len(y), 16, epochs)
        by_hand = descend(theta(start.state_dict()), features, y.numpy(), steps, 0.1)
        assert close(theta(done.state(client)[OWN_PART]), by_hand)


@pytest.mark.parametrize("model", MODELS)
def test_fedrep_averages_bodies_and_keeps_heads(run_method, digits, model):
    done = run_method("fedrep", digits, model=SMALL[model], settings={"head_epochs": 1}, rounds=2)
    for ask in asked(done, "train"):
        for reply in ask.replies.values():
            assert not any(name.startswith("head.") for name in reply["model"])
    heads = [done.state(client)[OWN_PART] for client in digits.clients]
    assert all(set(head) == {"head.weight", "head.bias"} for head in heads)
    assert not same_bits(heads[0], heads[1])
    assert done.outcome.no_global


def test_fedrep_holds_the_body_still_while_the_head_learns_and_the_other_way_round(run_method, digits):
    still = run_method("fedrep", digits, model=SMALL["mlp"], settings={"head_epochs": 2}, rounds=1, local_epochs=0)
    [ask] = asked(still, "train")
    for reply in ask.replies.values():
        assert all(torch.equal(entry, ask.fields["model"][name]) for name, entry in reply["model"].items())
    moved = run_method("fedrep", digits, model=SMALL["mlp"], settings={"head_epochs": 2}, rounds=1, local_epochs=1)
    for client in digits.clients:
        assert same_bits(moved.state(client)[OWN_PART], still.state(client)[OWN_PART])
    [ask] = asked(moved, "train")
    reply = next(iter(ask.replies.values()))
    assert not all(torch.equal(entry, ask.fields["model"][name]) for name, entry in reply["model"].items())


# -- FAug -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_faug_without_seeds_and_distillation_is_local_training(run_method, digits, model):
    common = {"model": SMALL[model], "rounds": 2, "momentum": 0.5}
    done = run_method("faug", digits, settings={"seeds": 0, "distillation": 0.0}, **common)
    alone = run_method("local", digits, **common)
    for client in digits.clients:
        assert same_bits(done.state(client)["alone"], alone.state(client)["alone"])


def test_faug_tops_up_every_known_class_to_the_largest(run_method):
    data = two_kinds(3, 0)
    done = run_method(
        "faug", data, model=SMALL["mlp"], settings={"seeds": 2, "gan_steps": 3, "gan_channels": 2}, rounds=1
    )
    for client in data.clients:
        counts = data.client(client).train.counts(3)
        added = np.bincount(done.state(client).get(KEPT, {"labels": []})["labels"], minlength=3)
        assert (counts + added == counts.max()).all()
    [seeds] = asked(done, "draw_real_samples")
    assert all(np.bincount(reply["labels"]).max() <= 2 for reply in seeds.replies.values())
    assert any("Real images left" in note for note in done.fed.participation.notes)


def test_faug_distils_the_mean_of_the_others_that_have_a_class():
    def said(rows: list[list[float]], counts: list[int]) -> ClassScores:
        return ClassScores(scores=torch.tensor(rows), counts=torch.tensor(counts))

    sent = {
        "a": said([[0.9, 0.1], [0.0, 0.0]], [4, 0]),
        "b": said([[0.5, 0.5], [0.2, 0.8]], [2, 9]),
        "c": said([[0.7, 0.3], [0.0, 0.0]], [1, 0]),
    }
    targets, known = others_mean(sent, "b", 2)
    torch.testing.assert_close(targets[0], torch.tensor([0.8, 0.2]))
    assert known.tolist() == [True, False]
    net, x, y = torch.nn.Linear(2, 2), torch.rand(3, 2), torch.tensor([0, 1, 0])
    scores = net(x)
    apart = (scores.softmax(1) - torch.tensor([0.8, 0.2])).square().sum(1)
    by_hand = torch.nn.functional.cross_entropy(scores, y) + 0.5 * (apart[0] + apart[2]) / 3
    assert Distilled(0.5, targets, known).loss(net, x, y).item() == pytest.approx(by_hand.item())


# -- RFA-RFD ----------------------------------------------------------------------------------------------------------


def test_rfa_rfd_without_anomalies_and_distillation_is_fedavg(run_method, digits):
    common = {"model": SMALL["cnn"], "rounds": 2}
    done = run_method("rfa_rfd", digits, settings={"kappa": 0.0, "tune_epochs": 0}, **common)
    assert same_bits(done.model, run_method("fedavg", digits, **common).model)


def test_trust_is_full_up_to_the_middle_and_falls_beyond():
    trust = trust_in(np.array([1.0, 2.0, 3.0, 4.0, np.nan]), 1.0)
    assert trust == pytest.approx([1, 1, np.exp(-0.5), np.exp(-1.5), 0])
    assert trust_in(np.array([1.0, 5.0]), 0.0).tolist() == [1, 1]


def test_rfa_rfd_weighs_and_distils_at_the_server(run_method):
    data = two_kinds(4, 1)
    common = {"model": SMALL["mlp"], "rounds": 1}
    settings = SHARED | {"tune_epochs": 0}
    weighed = run_method("rfa_rfd", data, settings=settings, **common)
    distilled = run_method("rfa_rfd", data, settings=settings | {"tune_epochs": 1}, **common)
    rows = weighed.fed.participation.records["trust in clients"]["rows"]
    assert max(row[2] for row in rows) == 1.0
    assert min(row[2] for row in rows) < 0.9
    assert not same_bits(weighed.model, distilled.model)
    assert not asked(weighed, "distil_model")
    assert len(asked(distilled, "distil_model")) == 1


# -- FedAvg in groups -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("slots", [{}, {"aggregator": "median"}, {"objective": "proximal", "server": "fedopt"}])
def test_one_group_is_fedavg(run_method, digits, model, slots):
    common = {"model": SMALL[model], "rounds": 3, "fraction": 0.6, "momentum": 0.5}
    done = run_method("cluster_fedavg", digits, settings={"threshold": "none"} | slots, **common)
    assert same_bits(done.model, run_method("fedavg", digits, settings=slots, **common).model)
    assert not asked(done, "train_own_gan")


def test_what_needs_one_global_model_is_refused(run_method, digits):
    with pytest.raises(UserError, match="remove method.post_aggregation"):
        run_method(
            "cluster_fedavg", digits, model=SMALL["mlp"], settings={"threshold": "none", "post_aggregation": "nothing"}
        )
    settings = {"threshold": "none"}
    with pytest.raises(UserError, match="norm_buffers"):
        run_method("cluster_fedavg", digits, model=SMALL["mlp"], settings=settings, norm_buffers="local")


def test_each_group_averages_its_own_members(run_method):
    data = two_kinds()
    done = run_method("cluster_fedavg", data, model=LINEAR, settings=SHARED, rounds=2)
    assert set(done.fed.participation.records["groups of clients"]["groups"]) == {"group 1", "group 2"}
    last = asked(done, "train")[-1]
    for group, members in (("1", "abc"), ("2", "def")):
        mean = sum(theta(last.replies[client]["model"]) for client in members) / 3  # equally many examples
        own = {name.split("/")[1]: entry for name, entry in done.model.items() if name.startswith(f"{group}/")}
        assert close(theta(own), mean)
    evaluated = personal(done, LINEAR)
    assert set(evaluated) == set("abcdef")
    assert done.outcome.no_global


def test_synthetic_images_top_up_what_members_lack(run_method):
    data = two_kinds()
    done = run_method("cluster_fedavg", data, model=LINEAR, settings=SHARED | {"top_up": True}, rounds=1)
    for client in data.clients:
        counts = np.bincount(data.train[client].y, minlength=3)
        kept = np.bincount(done.state(client)[KEPT]["labels"], minlength=3)
        assert (kept == counts.max() - counts).all()
    for wrong in ({"threshold": "none"}, {"local_data": "kept"}):
        with pytest.raises(UserError, match="needs groups, and local data of its own"):
            run_method("cluster_fedavg", data, model=LINEAR, settings=SHARED | wrong | {"top_up": True})


def test_clients_of_another_kind_do_not_reach_a_group(run_method):
    """The model of the first group is the same whatever the others have."""
    settings = SHARED | {"threshold": "gap"}
    whole = two_kinds(3, 3)
    other = Clients({name: (part.x, part.y) for name, part in whole.train.items()}, 3)
    for client in "def":
        part = other.train[client]
        other.train[client] = type(part)(part.x, (part.y + 1) % 3)
    models = [
        run_method("cluster_fedavg", data, model=LINEAR, settings=settings, rounds=1).model for data in (whole, other)
    ]
    first = [{name: entry for name, entry in model.items() if name.startswith("1/")} for model in models]
    assert same_bits(*first)
    assert not same_bits(*models)


# -- local training, balanced -----------------------------------------------------------------------------------------


def test_balanced_rows_repeat_rare_classes_alone():
    labels = np.array([0] * 7 + [2] * 3 + [3])
    rows = balanced_rows(labels, np.random.default_rng(0)).numpy()
    assert np.bincount(labels[rows]).tolist() == [7, 0, 7, 7]
    assert set(rows) == set(range(len(labels)))
    times = np.bincount(rows)
    assert times[:7].tolist() == [1] * 7
    assert set(times[7:10]) == {2, 3}
    assert len(balanced_rows(np.zeros(0, np.int64), np.random.default_rng(0))) == 0


def test_balanced_resampling_of_balanced_data_is_plain_local_training(run_method):
    data = Clients({"a": (np.random.default_rng(0).random((9, 4), np.float32), np.repeat([0, 1, 2], 3))}, 3)
    runs = [run_method("local", data, model=SMALL["mlp"], settings={"resample": r}) for r in ("none", "balanced")]
    assert same_bits(runs[0].state("a")["alone"], runs[1].state("a")["alone"])


# -- all of them ------------------------------------------------------------------------------------------------------

QUICK: dict[str, dict[str, Any]] = {
    "ditto": {},
    "fedrep": {"head_epochs": 1},
    "faug": {"seeds": 2, "gan_steps": 2, "gan_channels": 2},
    "rfa_rfd": SHARED | {"gan_steps": 2, "encoder_steps": 2},
    "cluster_fedavg": SHARED | {"gan_steps": 2, "encoder_steps": 2, "threshold": "2-means"},
}


@pytest.mark.parametrize("method", QUICK)
def test_the_same_bits_on_the_wire(run_method, digits, method):
    spec = SMALL["cnn"]
    here, wire = (run_method(method, digits, model=spec, settings=QUICK[method], engine=e) for e in ("local", "wire"))
    if here.outcome.model is not None:
        assert same_bits(here.model, wire.model)
    views = [client_tallies(done.fed, done.outcome, spec, ["test"]) for done in (here, wire)]
    assert set(views[0]) == set(views[1])
    for view, tallies in views[0].items():
        assert [t.loss for t in tallies.values()] == [t.loss for t in views[1][view].values()]
