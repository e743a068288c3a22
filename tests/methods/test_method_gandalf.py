"""GANDALF: its phases and variants, what leaves a client, and what happens when clients or classes are missing."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Clients, Finished, same_bits

from fedsynth.components.sequential import SequentialConfig, SequentialLoop
from fedsynth.components.settings import TrainConfig
from fedsynth.components.synthetic_store import KEPT
from fedsynth.engines.faults import FaultConfig
from fedsynth.errors import UserError
from fedsynth.federation import Client, Policy, Reply, leaves, task
from fedsynth.federation.methods import find_method
from fedsynth.learning.grouping import choose_generators
from fedsynth.methods.gandalf.handoff import flat
from fedsynth.methods.gandalf.settings import GandalfConfig
from fedsynth.privacy import PrivacyConfig, ledger_words

QUICK: dict[str, Any] = {"gan_steps": 4, "visit_steps": 2, "gan_channels": 2, "gan_latent": 4, "gan_batch_size": 8}
EXACT = QUICK | {"counts_epsilon": None}
LENIENT = Policy(quorum=0.0)


def pictures(*shares: dict[int, int], classes: int = 4) -> Clients:
    """Clients "a", "b", … with 8x8 images: a bright row for each class, and noise."""
    rng = np.random.default_rng(0)
    train = {}
    for name, share in zip("abcdefgh", shares, strict=False):
        y = rng.permutation(np.repeat(list(share), list(share.values())).astype(np.int64))
        x = 0.3 * rng.random((len(y), 1, 8, 8), dtype=np.float32)
        x[np.arange(len(y)), 0, y] += 0.7
        train[name] = (x, y)
    return Clients(train, classes)


TWO_KINDS = ({0: 12, 1: 8}, {2: 10, 3: 10}, {0: 6, 1: 14}, {2: 9, 3: 12})


def asked(done: Finished, task: str) -> list:
    return [ask for ask in done.asks if ask.name == task]


def orders(done: Finished) -> dict[str, dict[str, Any]]:
    """What each client was sent to top up with."""
    return {client: r["fields"] for ask in asked(done, "top_up") for client, r in ask.requests.items()}


@pytest.mark.parametrize("model", ["cnn", "zda_cnn", "mlp"])
@pytest.mark.parametrize("order", ["least_completed", "fixed"])
def test_with_a_mediator_for_each_and_nothing_synthetic_it_is_fedavg(run_method, digits, model, order):
    common = {"model": SMALL[model], "rounds": 3, "fraction": 0.6, "momentum": 0.5}
    plain = run_method("fedavg", digits, **common)
    settings = {"synthetic": "none", "static": False, "mediators": 5, "order": order}
    assert same_bits(run_method("gandalf", digits, settings=settings, **common).model, plain.model)
    assert same_bits(run_method("gandalf", digits, settings=settings | {"tau": 0.0}, **common).model, plain.model)


def test_one_mediator_is_sequential_training(run_method):
    data = pictures(*TWO_KINDS)
    done = run_method(
        "gandalf", data, model=SMALL["mlp"], rounds=1, settings={"synthetic": "none", "static": False, "mediators": 1}
    )
    trains = asked(done, "train")
    assert [list(ask.requests) for ask in trains] == [[c] for ask in trains for c in ask.requests]
    assert sorted(c for ask in trains for c in ask.requests) == ["a", "b", "c", "d"]
    for before, after in itertools.pairwise(trains):
        [reply], [request] = before.replies.values(), after.requests.values()
        assert same_bits(reply["model"], request["fields"]["model"])


def test_similar_clients_hand_their_gan_around_among_themselves(run_method):
    done = run_method("gandalf", pictures(*TWO_KINDS), model=SMALL["mlp"], settings=EXACT | {"gan_steps": 8}, rounds=1)
    visits = asked(done, "train_gan_visit")
    assert [set(ask.requests) & {"a", "c"} != set() for ask in visits] == [True] * 4
    for ask in visits:  # a client of each kind, side by side
        assert len(ask.requests) == 2
        assert len(set(ask.requests) & {"a", "c"}) == 1
    assert Counter(c for ask in visits for c in ask.requests) == dict.fromkeys("abcd", 2)
    for before, after in itertools.pairwise(visits):
        for client, request in after.requests.items():
            [holder] = [c for c in before.replies if (c in "ac") == (client in "ac")]
            assert same_bits(request["fields"]["gan"], before.replies[holder]["gan"])
            assert same_bits(request["fields"]["moments"], before.replies[holder]["moments"])


def test_the_published_form_is_the_papers(run_method):
    """Section 5.1: T_g 3, T_d 2, batches of 256, 5e-5 and 1e-4; algorithm 1 hands on weights and nothing else."""
    cfg = GandalfConfig(form="published")
    assert (cfg.visit_steps, cfg.critic_steps, cfg.gan_batch_size, cfg.tau) == (3, 2, 256, 0.5)
    assert (cfg.generator_lr, cfg.critic_lr, cfg.labeller, cfg.solver) == (5e-5, 1e-4, "federated", "pseudo_inverse")
    settings = QUICK | {
        "form": "published",
        "visit_steps": 3,
        "gan_steps": 6,
        "labeller_rounds": 1,
        "counts_epsilon": None,
    }
    done = run_method("gandalf", pictures(*TWO_KINDS), model=SMALL["mlp"], settings=settings, rounds=1)
    visits = asked(done, "train_gan_visit")
    assert {r["fields"]["visit"]["steps"] for ask in visits for r in ask.requests.values()} == {3}
    assert len(visits) == 2
    assert all(not reply["moments"] for ask in visits for reply in ask.replies.values())
    assert orders(done)["a"]["how"]["solver"] == "pseudo_inverse"


def test_visits_are_short_unless_nobody_waits_for_the_gan():
    defaults = {name: find_method(name).config().visit_steps for name in ("gandalf", "private_fl_gan", "sda_fl")}
    assert defaults == {"gandalf": 12, "private_fl_gan": 12, "sda_fl": 60}


def test_a_control_groups_by_exact_counts(run_method):
    """Astraea's groups: without it the schedule's noise in the groups would be taken for a gain of the images."""
    control = find_method("gandalf").controls["without synthesis, exact counts"]
    done = run_method("gandalf", pictures(*TWO_KINDS), model=SMALL["mlp"], settings=control, rounds=1)
    assert not asked(done, "train_gan_visit")
    assert not asked(done, "top_up")
    exact = run_method("astraea", pictures(*TWO_KINDS), model=SMALL["mlp"], settings={"augment": False}, rounds=1)
    assert same_bits(done.model, exact.model)
    with_dp_sgd = GandalfConfig(**control, privacy=PrivacyConfig(updates="dp_sgd"))
    assert with_dp_sgd.counts_epsilon is None


def test_moments_stay_behind_where_they_do_not_travel(run_method):
    settings = EXACT | {"moments": False}
    done = run_method("gandalf", pictures(*TWO_KINDS), model=SMALL["mlp"], settings=settings, rounds=1)
    assert all(not reply["moments"] for ask in asked(done, "train_gan_visit") for reply in ask.replies.values())


def test_a_client_tops_up_every_class_it_lacks_from_those_who_know_it(run_method):
    done = run_method("gandalf", pictures(*TWO_KINDS), model=SMALL["mlp"], settings=EXACT, rounds=1)
    for client, order in orders(done).items():
        assert len(order["generators"]["weights"]) == 2, client
        known = np.array(order["generators"]["known"])
        assert known.sum(axis=0).tolist() == [1, 1, 1, 1]
        assert all(name.startswith("generator.") for weights in order["generators"]["weights"] for name in weights)
    assert kept(done)["a"] == {1: 4, 2: 12, 3: 12}
    assert kept(done)["b"] == {0: 10, 1: 10}


def kept(done: Finished) -> dict[str, dict[int, int]]:
    """How many of each class each client keeps beside its own."""
    states = {client: done.state(client).get(KEPT) for client in done.fed._versions}
    return {c: dict(sorted(Counter(s["labels"].tolist()).items())) for c, s in states.items() if s is not None}


def test_a_run_records_its_groups_and_what_its_gans_know(run_method):
    done = run_method("gandalf", pictures(*TWO_KINDS), model=SMALL["mlp"], settings=EXACT, rounds=1)
    records = done.fed.participation.records
    assert sorted(records["groups that train a GAN"]["groups"].values()) == [["a", "c"], ["b", "d"]]
    assert [row[:3] for row in records["GANs"]["rows"]] == [["GAN 1", 2, 2], ["GAN 2", 2, 2]]
    assert all(0 < row[4] <= row[3] for row in records["GANs"]["rows"])


def test_tau_generates_a_share_of_it(run_method):
    done = run_method("gandalf", pictures(*TWO_KINDS), model=SMALL["mlp"], settings=EXACT | {"tau": 0.5}, rounds=1)
    assert kept(done)["a"] == {1: 2, 2: 6, 3: 6}


def test_a_class_that_nobody_has_is_never_generated(run_method):
    data = pictures(*TWO_KINDS, classes=6)
    for labeller in ("conditional", "federated"):
        settings = EXACT | {"labeller": labeller, "labeller_rounds": 1, "static": False}
        done = run_method("gandalf", data, model=SMALL["mlp"], settings=settings, rounds=1)
        if labeller == "conditional":
            assert all({4, 5}.isdisjoint(classes) for classes in kept(done).values())
            assert kept(done)["a"] == {1: 4, 2: 12, 3: 12}


def test_what_no_gan_knows_is_copied_at_most_twice(run_method):
    data = pictures({0: 20, 1: 3}, {0: 20, 1: 3}, {2: 20})
    # With ε = 1 three images are lost in the noise of the counts: no group is sure to have class 1.
    done = run_method("gandalf", data, model=SMALL["mlp"], settings=QUICK | {"counts_epsilon": 1.0}, rounds=1)
    for order in orders(done).values():
        assert not np.array(order["generators"]["known"])[:, 1].any()
    assert kept(done)["a"][1] == 6
    without = run_method("gandalf", data, model=SMALL["mlp"], settings=QUICK | {"static": False}, rounds=1)
    assert 1 not in kept(without)["a"]


def test_a_labeller_labels_and_no_class_gets_more_than_it_lacks(run_method):
    settings = EXACT | {"labeller": "federated", "labeller_rounds": 2, "static": False}
    done = run_method("gandalf", pictures(*TWO_KINDS), model=SMALL["mlp"], settings=settings, rounds=1)
    lacking = {"a": {1: 4, 2: 12, 3: 12}, "b": {0: 10, 1: 10}, "c": {0: 8, 2: 14, 3: 14}, "d": {0: 12, 1: 12, 2: 3}}
    for client, counts in kept(done).items():
        assert all(number <= lacking[client].get(label, 0) for label, number in counts.items())
    visit = asked(done, "train_gan_visit")[0]
    assert not next(iter(visit.requests.values()))["fields"]["visit"]["spec"]["conditional"]
    assert orders(done)["a"]["how"]["labeller"]


@pytest.mark.parametrize(("name", "groups"), [("private_fl_gan", 1), ("sda_fl", 4), ("feddpgan", 1)])
def test_variants_differ_in_their_groups_alone(run_method, name, groups):
    done = run_method(name, pictures(*TWO_KINDS), model=SMALL["mlp"], settings=EXACT, rounds=1)
    assert len(orders(done)["a"]["generators"]["weights"]) == groups
    visits = asked(done, "train_gan_visit")
    width = {"private_fl_gan": 1, "sda_fl": 4, "feddpgan": 4}[name]
    assert all(len(ask.requests) == width for ask in visits)


def test_an_averaged_gan_is_the_mean_of_what_clients_made_of_it(run_method):
    data = pictures({0: 20}, {0: 10, 1: 10})
    done = run_method("feddpgan", data, model=SMALL["mlp"], settings=EXACT, rounds=1)
    first, second = asked(done, "train_gan_visit")
    for name, entry in second.requests["a"]["fields"]["gan"].items():
        torch.testing.assert_close(entry, sum(reply["gan"][name] for reply in first.replies.values()) / 2)


def test_fewer_clients_than_groups_gives_each_its_own_and_says_so(run_method):
    done = run_method("gandalf", pictures({0: 9}, {1: 9}), model=SMALL["mlp"], settings=EXACT | {"groups": 5}, rounds=1)
    assert len(orders(done)["a"]["generators"]["weights"]) == 2
    assert any("5 groups were asked for" in note for note in done.fed.participation.notes)


def test_more_generators_than_there_are_gives_all_and_one_gives_the_farthest(run_method):
    data = pictures(*TWO_KINDS)
    for j, count in ((9, 2), (1, 1)):
        done = run_method("gandalf", data, model=SMALL["mlp"], settings=EXACT | {"generators": j}, rounds=1)
        assert {len(order["generators"]["weights"]) for order in orders(done).values()} == {count}
    assert np.array(orders(done)["a"]["generators"]["known"]).tolist() == [[False, False, True, True]]


def test_controls_put_something_else_in_the_place_of_synthetic_images(run_method):
    data = pictures(*TWO_KINDS)
    runs = {
        kind: run_method(
            "gandalf", data, model=SMALL["mlp"], settings=EXACT | {"synthetic": kind, "static": False}, rounds=1
        )
        for kind in ("generated", "noise", "real")
    }
    assert kept(runs["generated"]) == kept(runs["noise"]) == kept(runs["real"])
    real = runs["real"].state("a")[KEPT]
    images, labels = real["images"].float() / 255, real["labels"]
    bright = images[torch.arange(len(labels)), 0, labels].mean(1)
    assert (bright > 0.6).all()  # they are real images of their classes
    noise = runs["noise"].state("a")[KEPT]["images"].float() / 255
    assert 0.45 < noise.mean() < 0.55


# -- clients that fail ------------------------------------------------------------------------------------------------


def test_a_client_that_dies_with_the_weights_costs_its_own_visit_alone(federate):
    """Every hand-off of client 1 breaks: the others go on from the latest weights, and nobody trains twice on one."""
    settings = {"order": "least_completed", "mediators": 1, "mediator_epochs": 1}
    cfg = SequentialConfig(train=TrainConfig(rounds=1, local_epochs=1), model=SMALL["mlp"], **settings)
    faults = FaultConfig(outages={"1": [(0.0, 1e9)]}, delay=1.0)
    fed = federate(policy=LENIENT, faults=faults)
    loop = SequentialLoop(fed, cfg)
    loop.run([list(fed.clients)])
    assert sum(loop.completed[client] for client in ("0", "2", "3")) == 4  # others made up for it
    assert "1" not in loop.completed
    assert fed.participation.failed == 2  # the cap


class Passed(Reply):
    passed: list[str] = leaves("who had it")


@task
def gd_pass_on(client: Client, passed: list[str], victim: str, flag: str) -> Passed:
    """Hand a list on; the victim's worker dies the first two times, as it holds it."""
    for number in range(2):
        mark = f"{flag}-{number}"
        if client.id == victim and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    return client.release(Passed(passed=[*passed, client.id]))


def test_a_worker_that_is_killed_mid_hand_off_loses_nothing(federate, tmp_path):
    order = SequentialConfig(cap=2).route(["0", "1", "2", "3"], 4, {})
    fed = federate(workers=2, policy=LENIENT)
    start = {"passed": [], "victim": "1", "flag": str(tmp_path / "died")}
    [bag] = fed.relay(gd_pass_on, start, [order])
    assert sorted(bag.fields["passed"]) == ["0", "1", "2", "3"]
    assert bag.fields["passed"] == bag.visited


def test_those_who_were_away_are_asked_again(federate):
    method = find_method("gandalf")
    cfg = method.config(train=TrainConfig(rounds=2, local_epochs=1), model=SMALL["mlp"], **EXACT)
    fed = federate(policy=LENIENT, faults=FaultConfig(dropout=0.4, delay=1.0, deadline=30.0, heartbeat=3.0))
    outcome = method.program(fed, cfg)
    assert all(torch.isfinite(entry).all() for entry in outcome.model.values())
    assert fed.engine.clock > 0


def test_a_run_cut_off_between_visits_ends_with_the_same_bits(federate):
    method = find_method("gandalf")
    cfg = method.config(train=TrainConfig(rounds=2, local_epochs=1), model=SMALL["mlp"], **(EXACT | {"gan_steps": 8}))
    whole = method.program(federate("whole"), cfg).model

    class CutOffError(Exception):
        pass

    for stop in (2, 4, 6, 9):
        fed = federate(f"cut-{stop}")
        asks, ask = [0], fed.engine.ask

        def limited(*args, asks=asks, ask=ask, stop=stop):
            asks[0] += 1
            if asks[0] > stop:
                raise CutOffError
            return ask(*args)

        fed.engine.ask = limited
        with pytest.raises(CutOffError):
            method.program(fed, cfg)
        assert same_bits(method.program(federate(f"cut-{stop}"), cfg).model, whole)


# -- privacy ----------------------------------------------------------------------------------------------------------


def test_published_noise_proves_nothing_and_the_ledger_says_what_it_would_be_worth(run_method):
    privacy = PrivacyConfig(updates="gaussian", noise=1e-5)
    done = run_method(
        "gandalf", pictures(*TWO_KINDS), model=SMALL["mlp"], settings=EXACT | {"privacy": privacy}, rounds=1
    )
    text = str(done.fed.participation.ledger.as_dict())
    assert "5.0e+09" in text


def test_with_dp_sgd_every_hand_off_is_accounted_and_nothing_exact_is_used(run_method):
    privacy = PrivacyConfig(updates="dp_sgd", noise=1.0, clip=1.0)
    settings = QUICK | {"counts_epsilon": 1.0, "privacy": privacy}
    data = pictures({0: 40, 1: 30}, {2: 35, 3: 35})
    done = run_method("gandalf", data, model=SMALL["mlp"], settings=settings, rounds=1)
    for ask in asked(done, "train_gan_visit"):
        assert all(reply["losses"] == [] and reply["moments"] == {} for reply in ask.replies.values())
    assert all(order["how"]["noisy"] and order["how"]["static"] is None for order in orders(done).values())


@pytest.mark.parametrize(
    ("name", "order"), [("gandalf", "least_completed"), ("gandalf", "fixed"), ("feddpgan", "fixed")]
)
def test_the_gans_are_calibrated_to_an_epsilon_of_their_own(run_method, name, order):
    """Two clients share a GAN for five visits, the third has one to itself: nobody spends more than was asked for."""
    privacy = PrivacyConfig(updates="dp_sgd", target=4.0, clip=1.0)
    settings = QUICK | {"counts_epsilon": 1.0, "gan_epsilon": 2.0, "gan_steps": 10, "order": order, "privacy": privacy}
    data = pictures({0: 60, 1: 60}, {0: 55, 1: 65}, {2: 60, 3: 60})
    done = run_method(name, data, model=SMALL["mlp"], settings=settings, rounds=1)
    spent = defaultdict(list)
    for row in done.fed.participation.ledger.rows(privacy.delta):
        spent[row.release].append(row.epsilon)
    assert 1.5 < max(spent["gandalf.clients.train_gan_visit.gan"]) <= 2.0
    assert max(spent["local_training.train.model"]) <= 4.0
    assert max(spent["all"]) < 6.0, "less than the sum: releases are composed"
    *_, last, seed = ledger_words(done.fed.participation.ledger.rows(privacy.delta))
    assert "do not know the seed" in seed
    assert last.count("who takes part") == 1, "what several releases leave out is said once"


def test_where_no_class_is_surely_there_a_private_gan_is_handed_on_as_it_came(run_method):
    privacy = PrivacyConfig(updates="dp_sgd", noise=1.0)
    settings = QUICK | {"groups": 1, "counts_epsilon": 1.0, "privacy": privacy}
    data = pictures({0: 60, 1: 50}, {0: 1, 1: 1, 2: 1, 3: 1})
    done = run_method("gandalf", data, model=SMALL["mlp"], settings=settings, rounds=1)
    visits = [(c, r, ask.replies[c]) for ask in asked(done, "train_gan_visit") for c, r in ask.requests.items()]
    unchanged = {c: same_bits(request["fields"]["gan"], reply["gan"]) for c, request, reply in visits}
    assert unchanged == {"a": False, "b": True}
    [order] = {str(order["generators"]["known"]) for order in orders(done).values()}
    assert order == "[[True, True, False, False]]"


@pytest.mark.parametrize(
    ("settings", "privacy", "sentence"),
    [
        ({"counts_epsilon": None}, {"updates": "dp_sgd"}, "needs counts_epsilon"),
        ({"gan": "r1"}, {"updates": "dp_sgd"}, 'needs gan = "wgan_gp"'),
        ({}, {"updates": "dp_sgd", "target": 3.0}, "give gan_epsilon"),
        ({"gan_epsilon": 2.0}, {}, "gan_epsilon protects nothing alone"),
        ({"groups": 0}, {}, "must be 1 or more"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, privacy, sentence):
    with pytest.raises(ValueError, match=sentence):
        GandalfConfig(**settings, privacy=PrivacyConfig(**privacy))


def test_what_has_no_meaning_in_a_chain_is_refused(run_method, digits):
    with pytest.raises(UserError, match="nothing is summed up"):
        run_method(
            "gandalf", digits, model=SMALL["mlp"], settings=EXACT | {"privacy": PrivacyConfig(updates="clipped")}
        )
    with pytest.raises(UserError, match="remove method.local_data"):
        run_method("gandalf", digits, model=SMALL["mlp"], settings=EXACT | {"local_data": "kept"})


def test_generators_of_what_the_client_lacks_are_chosen():
    client = np.array([8, 1, 1, 0])
    mixes = [np.array([8, 1, 1, 0]), np.array([0, 0, 1, 9]), np.array([1, 5, 4, 0])]
    assert choose_generators(client, mixes, 1) == [1]
    assert choose_generators(client, mixes, 2) == [1, 2]
    assert choose_generators(client, mixes, 9) == [1, 2, 0]
    assert choose_generators(client, [client, client, client], 2) == [0, 1]  # ties in their order


def test_what_a_group_lacks_does_not_make_it_useful():
    """Group 0 has nothing but what the client has; the other way round its divergence would be the larger."""
    client = np.array([5, 5, 0])
    assert choose_generators(client, [np.array([1, 0, 0]), np.array([4, 4, 2])], 1) == [1]


def test_losses_are_flat_when_none_changes_any_more():
    assert not flat([[1.0, 2.0]], 0.1)
    assert not flat([[1.0, 2.0], [1.0, 2.5]], 0.1)
    assert flat([[9.0, 9.0], [1.0, 2.0], [1.05, 1.95]], 0.1)
    assert not flat([[1.0], [1.0]], 0.0)
