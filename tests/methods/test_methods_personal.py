"""Ditto, FedRep, FedPer, APFL, pFedMe, FAug, RFA-RFD, FedAvg in groups, balanced local training: what each is about."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from by_hand import LINEAR, batches, close, descend, gradient, loss, theta
from federations import SMALL, Clients, Finished, same_bits, some_clients
from pydantic import ValidationError
from test_method_pfl_gan import QUICK as GANS
from test_method_pfl_gan import two_kinds

from fedsynth.components.local_training import OWN_PART
from fedsynth.components.samples import as_bytes
from fedsynth.components.synthetic_store import KEPT
from fedsynth.errors import UserError
from fedsynth.evaluation.views import client_tallies
from fedsynth.federation.methods import find_method
from fedsynth.learning.models import ModelSpec, build_model, initial_model, last_layers
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.methods.apfl import MIXED
from fedsynth.methods.faug import ClassScores, Distilled, others_mean
from fedsynth.methods.pfedme import Envelope
from fedsynth.methods.references import balanced_rows
from fedsynth.methods.rfa_rfd import trust_in

SHARED = {name: value for name, value in GANS.items() if name not in ("use", "refined_steps")}
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


# -- FedPer -----------------------------------------------------------------------------------------------------------


def test_fedper_trains_base_and_own_layers_together_and_averages_the_base(run_method):
    """Two clients, two rounds, a hidden layer: W_B ← Σ n_j/N W_Bj, and W_Pj goes on where client j left it."""
    data, spec = some_clients(12, 20), ModelSpec(name="mlp", hidden=(5,))
    done = run_method("fedper", data, model=spec, rounds=2, lr=0.1)
    start = {n: e.double() for n, e in initial_model(0, spec, data.schema).state_dict().items()}
    base, own = {n: e for n, e in start.items() if n.startswith("body.")}, {client: {} for client in data.clients}
    for round in (1, 2):
        sent = {}
        for client in data.clients:
            x, y = (part.double() if part.is_floating_point() else part for part in data.client(client).train.tensors())
            net = {n: e.clone().requires_grad_() for n, e in (start | base | own[client]).items()}
            for rows in batches(client, round, len(y), 16, 1):
                hidden = torch.relu(x[rows] @ net["body.1.weight"].T + net["body.1.bias"])
                scores = hidden @ net["head.weight"].T + net["head.bias"]
                slopes = torch.autograd.grad(torch.nn.functional.cross_entropy(scores, y[rows]), list(net.values()))
                moved = zip(net.items(), slopes, strict=True)
                net = {n: (e - 0.1 * g).detach().requires_grad_() for (n, e), g in moved}
            own[client] = {n: e.detach() for n, e in net.items() if n.startswith("head.")}
            sent[client] = {n: e.detach() for n, e in net.items() if n in base}
        base = {n: (12 * sent["a"][n] + 20 * sent["b"][n]) / 32 for n in base}
    for name, entry in base.items():
        torch.testing.assert_close(done.model[name].double(), entry, rtol=2e-5, atol=2e-6)
    for client in data.clients:
        for name, entry in own[client].items():
            torch.testing.assert_close(done.state(client)[OWN_PART][name].double(), entry, rtol=2e-5, atol=2e-6)
    assert set(personal(done, spec)) == {"a", "b"}


def test_the_last_layers_are_counted_from_the_head_and_take_their_norms_along():
    net = build_model(ModelSpec(name="cnn", norm="batch", channels=(2, 3), hidden=(4,)), (1, 8, 8), 3)
    assert last_layers(net, 1) == {"head.weight", "head.bias"}
    hidden = last_layers(net, 2) - last_layers(net, 1)
    assert {net.state_dict()[name].shape[0] for name in hidden} == {4}
    second = last_layers(net, 3) - last_layers(net, 2)
    assert len(second) == 2 + 5  # a convolution and all that belongs to its BatchNorm
    with pytest.raises(UserError, match="4 of the model's 4 layers cannot stay at the clients"):
        last_layers(net, 4)


def test_fedper_keeps_so_many_layers_at_the_clients(run_method, digits):
    done = run_method("fedper", digits, model=SMALL["cnn"], settings={"personal_layers": 2})
    sent = {name for ask in asked(done, "train") for reply in ask.replies.values() for name in reply["model"]}
    kept = last_layers(initial_model(0, SMALL["cnn"], digits.schema), 2)
    assert sent
    assert not sent & kept
    assert all(set(done.state(client)[OWN_PART]) == kept for client in digits.clients)
    assert done.outcome.no_global == "the last 2 layers stay at the clients"
    with pytest.raises(UserError, match="at least one must be shared"):
        run_method("fedper", digits, model=LINEAR)


# -- APFL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", ["rounds", "steps", "no"])
def test_apfl_is_the_papers_algorithm(run_method, adaptive):
    """Two clients, two rounds of several steps: w, v and α by the equations, with a rate at which α moves."""
    data, lr, rounds = some_clients(12, 20), 0.5, 3
    settings = {"alpha": 0.3, "aggregator": {"name": "mean", "weights": "equal"}}
    settings |= {"form": "published"} if adaptive == "steps" else {"adaptive": adaptive}
    done = run_method("apfl", data, model=LINEAR, settings=settings, rounds=rounds, lr=lr, batch_size=5)
    w = theta(initial_model(0, LINEAR, data.schema).state_dict())
    own = dict.fromkeys(data.clients, (w, 0.3))
    for round in range(1, rounds + 1):
        local = []
        for client in data.clients:
            x, y = data.train[client].x, data.train[client].y
            (v, alpha), w_i = own[client], w
            for step, rows in enumerate(batches(client, round, len(y), 5, 1)):
                slope = gradient(alpha * v + (1 - alpha) * w_i, x[rows], y[rows])
                if adaptive == "steps" or (adaptive == "rounds" and step == 0):
                    after = min(max(alpha - lr * float(((v - w_i) * slope).sum()), 0.0), 1.0)
                else:
                    after = alpha
                w_i, v = w_i - lr * gradient(w_i, x[rows], y[rows]), v - lr * alpha * slope
                alpha = after
            own[client] = v, alpha
            local.append(w_i)
        w = sum(local) / len(local)
    assert close(theta(done.model), w)
    for client in data.clients:
        kept = done.state(client)[MIXED]
        assert close(theta(kept["own"]), own[client][0])
        assert kept["alpha"] == pytest.approx(own[client][1], rel=1e-4)
    evaluated = personal(done, LINEAR)
    for client, (v, alpha) in own.items():
        test = data.client(client).test
        by_hand = loss(alpha * v + (1 - alpha) * w, test.x, test.y) * len(test.y)
        assert evaluated[client].loss == pytest.approx(by_hand, rel=1e-5)
    assert (done.state("a")[MIXED]["alpha"] == 0.3) == (adaptive == "no")


@pytest.mark.parametrize("model", MODELS)
def test_apfl_leaves_the_global_model_alone(run_method, digits, model):
    common = {"model": SMALL[model], "rounds": 3, "momentum": 0.5}
    done = run_method("apfl", digits, **common)
    assert same_bits(done.model, run_method("fedavg", digits, **common).model)


@pytest.mark.parametrize(("alpha", "other"), [(0.0, "fedavg"), (1.0, "local")])
def test_the_ends_of_the_mixture_are_the_global_model_and_local_training(run_method, digits, alpha, other):
    common = {"model": SMALL["cnn"], "rounds": 2}
    done = run_method("apfl", digits, settings={"alpha": alpha, "adaptive": "no"}, **common)
    reference = run_method(other, digits, **common)
    view = "global/test" if other == "fedavg" else "personal/test"
    expected = client_tallies(reference.fed, reference.outcome, SMALL["cnn"], ["test"])
    for client, tally in personal(done, SMALL["cnn"]).items():
        assert tally.loss == pytest.approx(expected[view][client].loss, rel=1e-6)


# -- pFedMe -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["ours", "published"])
def test_pfedme_is_the_papers_algorithm(run_method, form):
    """Two clients, two rounds of several batches: θ by K steps, w by eq. 8, and the mean of the w."""
    data, lr = some_clients(12, 20), 0.1
    lam, eta, inner = (15.0, 0.005, 5) if form == "published" else (2.0, 0.3, 3)
    settings = {"form": form, "aggregator": {"name": "mean", "weights": "equal"}}
    settings |= {} if form == "published" else {"lam": lam, "eta": eta}
    done = run_method("pfedme", data, model=LINEAR, settings=settings, lr=lr, batch_size=5)
    w, own = theta(initial_model(0, LINEAR, data.schema).state_dict()), {}
    for round in (1, 2):
        local = []
        for client in data.clients:
            x, y = data.train[client].x, data.train[client].y
            w_i, own[client] = w, w
            for rows in batches(client, round, len(y), 5, 1):
                for _ in range(inner):
                    slope = gradient(own[client], x[rows], y[rows]) + lam * (own[client] - w_i)
                    own[client] = own[client] - lr * slope
                w_i = w_i - eta * lam * (w_i - own[client])
            local.append(w_i)
        w = sum(local) / len(local)
    assert close(theta(done.model), w)
    evaluated = personal(done, LINEAR)
    for client, theta_i in own.items():
        assert close(theta(done.state(client)["alone"]), theta_i)
        test = data.client(client).test
        assert evaluated[client].loss == pytest.approx(loss(theta_i, test.x, test.y) * len(test.y), rel=1e-5)


def test_the_envelope_has_the_gradient_of_its_value(digits):
    """F(w) = min f(θ) + λ/2 ‖θ − w‖² has the gradient λ (w − θ), once θ is found (here: after many steps)."""
    net = initial_model(0, LINEAR, digits.schema).double()
    x, y = digits.client(digits.clients[0]).train.tensors()
    x = x.double()
    envelope = Envelope(net, 1.0, 3000, LocalTraining(lr=0.1))
    value = envelope.loss(net, x, y)
    value.backward()
    slope = net.head.bias.grad.clone()
    for row in range(3):
        with torch.no_grad():
            net.head.bias[row] += 1e-4
        assert (envelope.loss(net, x, y) - value).item() / 1e-4 == pytest.approx(slope[row].item(), abs=1e-4)
        with torch.no_grad():
            net.head.bias[row] -= 1e-4


def test_pfedme_with_batch_norm_sends_the_statistics_of_its_own_models(run_method, digits):
    done = run_method("pfedme", digits, model=SMALL["zda_cnn"], settings={"inner_steps": 2}, rounds=1)
    [ask] = asked(done, "train")
    for client, reply in ask.replies.items():
        own = done.state(client)["alone"]
        buffers = [name for name in own if "running_" in name]
        assert buffers
        assert all(torch.equal(reply["model"][name], own[name]) for name in buffers)
        assert not torch.equal(reply["model"]["head.weight"], own["head.weight"])


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


@pytest.mark.parametrize("control", ["noise", "duplicates", "real samples"])
def test_controls_put_something_else_in_place_of_synthetic_images(run_method, control):
    data, controls = two_kinds(), find_method("cluster_fedavg").controls
    kept = {}
    for name in ("generated", control):
        settings = SHARED | ({"top_up": True} if name == "generated" else controls[control])
        done = run_method("cluster_fedavg", data, model=LINEAR, settings=settings, rounds=1)
        kept[name] = {client: done.state(client)[KEPT] for client in data.clients}
    for client in data.clients:
        added, own = kept[control][client], data.train[client]
        generated = np.bincount(kept["generated"][client]["labels"], minlength=3)
        numbers = np.bincount(added["labels"], minlength=3)
        if control == "noise":
            assert (numbers == generated).all()
        else:
            assert (numbers <= generated).all()
            there = own if control == "duplicates" else data.pooled("train")
            real = {
                (row.numpy().tobytes(), label) for row, label in zip(as_bytes(there.tensors()[0]), there.y, strict=True)
            }
            images = added["images"] if added["images"].dtype == torch.uint8 else as_bytes(added["images"])
            pairs = zip(images, added["labels"].tolist(), strict=True)
            assert all((image.numpy().tobytes(), label) in real for image, label in pairs)
    assert controls["without synthesis"]["top_up"] is False
    with pytest.raises(ValidationError, match="a control of top_up = true"):
        run_method("cluster_fedavg", data, model=LINEAR, settings={"synthetic": "noise"})


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
    "fedper": {},
    "apfl": {},
    "pfedme": {"inner_steps": 2},
    "faug": {"seeds": 2, "gan_steps": 2, "gan_channels": 2},
    "rfa_rfd": SHARED | {"gan_steps": 2, "encoder_steps": 2},
    "ifca": {"groups": 2},
    "cfl": {"norms": "absolute", "epsilon1": 1e9, "epsilon2": 0.0},
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
