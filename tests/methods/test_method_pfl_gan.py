"""PFL-GAN: similarity by shared GANs, who helps whom, what joins a client's batches, and malicious clients."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from federations import SMALL, Clients, Finished, run, same_bits, some_clients
from pydantic import ValidationError

from fedsynth.components.settings import TrainConfig
from fedsynth.errors import UserError
from fedsynth.evaluation.views import client_tallies
from fedsynth.federation.journal import Journal
from fedsynth.federation.methods import find_method
from fedsynth.learning.similarity import groups, neighbours
from fedsynth.methods.pfl_gan import PflGanConfig, client_gans
from fedsynth.methods.pfl_gan.mixed_batches import MixedBatches
from fedsynth.privacy import PrivacyConfig

QUICK: dict[str, Any] = {
    "gan": "vae",
    "gan_channels": 4,
    "gan_latent": 4,
    "gan_steps": 60,
    "gan_batch_size": 16,
    "gan_lr": 0.01,
    "use": "refined",
    "refined_steps": 8,
    "samples_per_class": 12,
    "encoder_steps": 40,
    "encoder_latent": 16,
    "side_by_side": 2,
}


TINY = {"gan_steps": 3, "use": "refined", "refined_steps": 3, "encoder_steps": 3, "threshold": "none"}
NOTHING = {"synthetic": "none"}
OWN_GAN = "pfl_gan.client_gans.train_own_gan"


def two_kinds(rows: int = 3, columns: int = 3, examples: int = 24) -> Clients:
    """Clients whose class is a bright row, then clients whose class is a bright column; 8x8 images, 3 classes."""
    rng = np.random.default_rng(0)
    train = {}
    for position in range(rows + columns):
        y = rng.integers(3, size=examples)
        x = 0.1 * rng.random((examples, 1, 8, 8), dtype=np.float32)
        across = x if position < rows else x.transpose(0, 1, 3, 2)
        across[np.arange(examples), 0, 2 * y + 1] += 0.9
        train["abcdefgh"[position]] = (x, y.astype(np.int64))
    return Clients(train, 3)


@pytest.fixture(scope="module")
def kinds() -> Clients:
    return two_kinds()


def asked(done: Finished, task: str) -> dict[str, dict[str, Any]]:
    """What each client was sent in a task."""
    return {c: r["fields"] for ask in done.asks if ask.name == task for c, r in ask.requests.items()}


def groups_of(done: Finished) -> list[list[str]]:
    return list(done.fed.participation.records["groups of clients"]["groups"].values())


@pytest.fixture(scope="module")
def direct(kinds, tmp_path_factory) -> Finished:
    """A run that hands out the sets themselves."""
    folder = tmp_path_factory.mktemp("direct")
    return run("pfl_gan", kinds, folder=folder, model=SMALL["mlp"], settings=QUICK | {"use": "direct"}, rounds=1)


@pytest.fixture(scope="module")
def refined(kinds, tmp_path_factory) -> Finished:
    """A run with refined GANs."""
    return run(
        "pfl_gan", kinds, folder=tmp_path_factory.mktemp("refined"), model=SMALL["mlp"], settings=QUICK, rounds=1
    )


@pytest.mark.parametrize("threshold", ["mean", "2-means", "spectral", "gap"])
def test_the_two_data_sets_are_told_apart_by_every_rule(direct, threshold):
    distances = np.array(direct.fed.participation.records["distances of clients"]["values"])
    assert groups(neighbours(distances, threshold)) == [[0, 1, 2], [3, 4, 5]]


def test_groups_and_chosen_neighbours_are_recorded(direct):
    assert groups_of(direct) == [["a", "b", "c"], ["d", "e", "f"]]
    marks = {tuple(mark) for mark in direct.fed.participation.records["distances of clients"]["marks"]}
    assert marks == {(i, j) for i in range(6) for j in range(6) if i != j and (i < 3) == (j < 3)}


def test_an_untrained_encoder_tells_them_apart_too(run_method, kinds):
    settings = QUICK | {"autoencoder": "untrained", "use": "direct"}
    assert groups_of(run_method("pfl_gan", kinds, model=SMALL["mlp"], settings=settings, rounds=1)) == [
        ["a", "b", "c"],
        ["d", "e", "f"],
    ]


def test_a_client_gets_samples_of_its_neighbours_alone(direct):
    drawn = {c: r["images"] for ask in direct.asks if ask.name == "draw_set" for c, r in ask.replies.items()}
    for client, order in asked(direct, "receive_samples").items():
        kin = [c for c in "abcdef" if c != client and (c in "abc") == (client in "abc")]
        sources = {c: set(map(bytes, drawn[f"@{c}"].flatten(1).numpy())) for c in kin}
        taken = list(map(bytes, order["samples"]["images"].flatten(1).numpy()))
        assert all(any(image in source for source in sources.values()) for image in taken)
        assert all(any(image in source for image in taken) for source in sources.values())
        counts = np.bincount(order["samples"]["labels"])
        assert counts.max() - counts.min() <= 2  # a beginning of each balanced set


def test_the_clients_own_set_is_in_it_where_eq_5_is_read_literally(run_method, kinds, direct):
    """S_ii = c · exp(0): the whole set that the client's own GAN drew, beside what neighbours give."""
    settings = QUICK | {"use": "direct", "own_set": True}
    done = run_method("pfl_gan", kinds, model=SMALL["mlp"], settings=settings, rounds=1)
    drawn = {c: r["images"] for ask in done.asks if ask.name == "draw_set" for c, r in ask.replies.items()}
    without = asked(direct, "receive_samples")
    for client, order in asked(done, "receive_samples").items():
        taken = Counter(map(bytes, order["samples"]["images"].flatten(1).numpy()))
        own = Counter(map(bytes, drawn[f"@{client}"].flatten(1).numpy()))
        others = Counter(map(bytes, without[client]["samples"]["images"].flatten(1).numpy()))
        assert taken == own + others


@pytest.mark.parametrize("threshold", ["k-means", "spectral"])
def test_clients_are_grouped_into_k(run_method, kinds, threshold):
    settings = QUICK | {"use": "direct", "threshold": threshold, "clusters": 2}
    done = run_method("pfl_gan", kinds, model=SMALL["mlp"], settings=settings, rounds=1)
    assert groups_of(done) == [["a", "b", "c"], ["d", "e", "f"]]


def test_k_is_asked_for_where_it_is_needed_and_nowhere_else():
    with pytest.raises(ValidationError, match="needs to know how many: set clusters"):
        PflGanConfig(threshold="k-means")
    with pytest.raises(ValidationError, match='clusters has no meaning for threshold = "gap"'):
        PflGanConfig(clusters=2)


def test_each_client_gets_a_refined_generator_of_its_own(run_method, kinds, refined):
    orders = asked(refined, "receive_generator")
    assert set(orders) == set("abcdef")
    assert not any(
        same_bits(orders["a"]["kept"]["gan"]["generator"], orders[c]["kept"]["gan"]["generator"]) for c in "bcdef"
    )
    assert all(name.startswith("generator.") for order in orders.values() for name in order["kept"]["gan"]["generator"])
    shared = run_method("pfl_gan", kinds, model=SMALL["mlp"], settings=QUICK | {"refine": "group"}, rounds=1)
    orders = asked(shared, "receive_generator")
    assert all(same_bits(orders["a"]["kept"]["gan"]["generator"], orders[c]["kept"]["gan"]["generator"]) for c in "bc")
    assert not same_bits(orders["a"]["kept"]["gan"]["generator"], orders["d"]["kept"]["gan"]["generator"])
    assert len(asked(shared, "refine_gan")) == 2


@pytest.mark.parametrize("model", ["cnn", "zda_cnn", "mlp"])
def test_without_synthesis_it_is_local_training(run_method, digits, model):
    common = {"model": SMALL[model], "rounds": 2, "momentum": 0.5}
    plain, done = run_method("local", digits, **common), run_method("pfl_gan", digits, settings=NOTHING, **common)
    for client in digits.clients:
        assert same_bits(done.state(client)["alone"], plain.state(client)["alone"])


def test_synthetic_images_change_what_is_learnt(run_method, kinds, refined, direct):
    runs = [refined, direct]
    for settings in ({"draws": "once"}, {"synthetic": "noise"}, {"synthetic_per_step": 0}):
        runs.append(run_method("pfl_gan", kinds, model=SMALL["mlp"], settings=QUICK | settings, rounds=1))
    for one, other in itertools.combinations(runs, 2):
        if one is not direct and other is not direct:  # that one took other rounds
            for client in kinds.clients:
                assert not same_bits(one.state(client)["alone"], other.state(client)["alone"])


def test_the_loss_is_that_of_private_and_synthetic_images_together():
    net = torch.nn.Linear(2, 3)
    x, y = torch.rand(4, 2), torch.tensor([0, 1, 2, 0])
    drawn, labels = torch.rand(2, 2), torch.tensor([2, 2])
    loss = MixedBatches(lambda count: (drawn[:count], labels[:count]), 2).loss(net, x, y)
    each = torch.nn.functional.cross_entropy(
        net(torch.cat([x, drawn])), torch.tensor([0, 1, 2, 0, 2, 2]), reduction="none"
    )
    assert loss.item() == pytest.approx(each.sum().item() / 6)


def test_the_control_with_real_images_takes_those_of_neighbours(run_method, kinds):
    done = run_method("pfl_gan", kinds, model=SMALL["mlp"], settings=QUICK | {"synthetic": "real"}, rounds=1)
    for client, order in asked(done, "receive_samples").items():
        kin = [c for c in kinds.clients if c != client and (c in "abc") == (client in "abc")]
        own = np.concatenate([kinds.client(c).train.x for c in kin])
        known = set(map(bytes, np.rint(own * 255).astype(np.uint8).reshape(len(own), -1)))
        assert set(map(bytes, order["samples"]["images"].flatten(1).numpy())) <= known
    assert any("control, not a method" in note for note in done.fed.participation.notes)


def test_what_leaves_is_the_generator_and_it_is_declared_unprotected(refined):
    rows = [row for row in refined.fed.participation.ledger.rows(1e-5) if row.kind == "release"]
    left = {row.release: row for row in rows}
    assert set(left) == {f"{OWN_GAN}.generator", f"{OWN_GAN}.classes"}
    assert "can draw images like them" in left[f"{OWN_GAN}.generator"].what


@pytest.mark.parametrize(
    ("settings", "updates", "sentence"),
    [
        ({}, "dp_sgd", 'needs gan = "wgan_gp", not "r1"'),
        ({"gan": "wgan_gp"}, "clipped", "is for averaged models"),
        ({"gan": "wgan_gp", "synthetic": "real"}, "dp_sgd", "releases real images"),
    ],
)
def test_protection_that_would_not_hold_is_refused(settings, updates, sentence):
    with pytest.raises(ValueError, match=sentence):
        PflGanConfig(**settings, privacy=PrivacyConfig(updates=updates))


@pytest.mark.parametrize("target", [None, 4.0])
def test_with_dp_sgd_all_that_leaves_is_covered(run_method, kinds, target):
    privacy = PrivacyConfig(updates="dp_sgd", **({"noise": 2.0} if target is None else {"target": target}))
    settings = QUICK | TINY | {"gan": "wgan_gp", "privacy": privacy}
    done = run_method("pfl_gan", kinds, model=SMALL["mlp"], settings=settings, rounds=1)
    rows = [row for row in done.fed.participation.ledger.rows(1e-5) if row.kind == "release"]
    assert {row.release for row in rows} == {f"{OWN_GAN}.generator", f"{OWN_GAN}.classes"}
    spent = [row.epsilon for row in rows if row.release == f"{OWN_GAN}.generator"]
    assert spent
    assert all(0 < float(epsilon) <= (target or 100) for epsilon in spent)
    answers = next(ask for ask in done.asks if ask.name == "train_own_gan").replies
    assert all(reply["classes"] == [0, 1, 2] for reply in answers.values())


@pytest.fixture
def earlier(refined, tmp_path) -> dict[str, Any]:
    """The setting that takes the GANs of the run with refined ones."""
    Journal(tmp_path / "earlier").keep_phase(client_gans.KEPT, refined.fed.journal.phase(client_gans.KEPT))
    return QUICK | {"gans_from": str(tmp_path / "earlier")}


def test_the_gans_of_an_earlier_run_serve_again(run_method, kinds, refined, earlier):
    again = run_method("pfl_gan", kinds, model=SMALL["mlp"], settings=earlier, rounds=1)
    assert not asked(again, "train_own_gan")
    assert any("in the ledger there" in note for note in again.fed.participation.notes)
    got = {c: r["generator"] for ask in refined.asks if ask.name == "train_own_gan" for c, r in ask.replies.items()}
    used = asked(again, "draw_set")
    assert set(used) == {f"@{client}" for client in got}
    assert all(same_bits(got[client], used[f"@{client}"]["gan"]["generator"]) for client in got)
    assert groups_of(again) == groups_of(refined)


@pytest.mark.parametrize(
    ("clients", "settings", "sentence"),
    [
        (two_kinds(), {"gan_steps": 61}, "differ in steps"),
        (two_kinds(), {"gan": "wgan_gp", "privacy": PrivacyConfig(updates="dp_sgd")}, "differ in spec, updates"),
        (two_kinds(2, 1), {}, "it had other clients"),
    ],
)
def test_gans_of_an_earlier_run_that_do_not_fit_are_refused(run_method, earlier, clients, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        run_method("pfl_gan", clients, model=SMALL["mlp"], settings=earlier | settings, rounds=1)


def test_a_folder_without_gans_is_no_earlier_run(run_method, kinds, tmp_path):
    with pytest.raises(UserError, match="no run in which clients trained GANs"):
        run_method("pfl_gan", kinds, model=SMALL["mlp"], settings=QUICK | {"gans_from": str(tmp_path)}, rounds=1)


def test_the_same_bits_on_the_wire(run_method, kinds, refined):
    wire = run_method("pfl_gan", kinds, model=SMALL["mlp"], settings=QUICK, rounds=1, engine="wire")
    for client in kinds.clients:
        assert same_bits(refined.state(client)["alone"], wire.state(client)["alone"])
    view = client_tallies(refined.fed, refined.outcome, SMALL["mlp"], ["test"])
    assert set(view) == {"personal/test"}


def test_a_run_cut_off_anywhere_goes_on_client_by_client(federate):
    method = find_method("pfl_gan")
    cfg = method.config(train=TrainConfig(rounds=1, local_epochs=1), model=SMALL["mlp"], **(QUICK | TINY))

    def alone(fed: Any, outcome: Any) -> list[tuple[Any, ...]]:
        tallies = client_tallies(fed, outcome, SMALL["mlp"], ["test"])["personal/test"]
        return [(client, tally.correct.tolist(), tally.loss) for client, tally in tallies.items()]

    fed = federate("whole")
    whole = alone(fed, method.program(fed, cfg))

    class CutOffError(Exception):
        pass

    for stop in (1, 2, 7, 8):
        fed = federate(f"cut-{stop}")
        done, ask = [], fed.engine.ask

        def limited(task, requests, deadline, done=done, ask=ask, stop=stop):
            if len(done) >= stop:
                raise CutOffError
            done.append((task, set(requests)))
            return ask(task, requests, deadline)

        fed.engine.ask = limited
        with pytest.raises(CutOffError):
            method.program(fed, cfg)
        again = federate(f"cut-{stop}")
        repeated, ask_again = [], again.engine.ask

        def noting(task, requests, deadline, repeated=repeated, ask_again=ask_again):
            repeated.append((task, set(requests)))
            return ask_again(task, requests, deadline)

        again.engine.ask = noting
        assert alone(again, method.program(again, cfg)) == whole
        for costly in (OWN_GAN, "pfl_gan.refining.refine_gan"):
            assert not [entry for entry in done if entry[0] == costly and entry in repeated]


# -- malicious clients -------------------------------------------------------------------------------------------------


def forge(monkeypatch: pytest.MonkeyPatch, twist: Any) -> None:
    """Have a malicious client send something else in the place of its generator."""
    honest = client_gans.generator_weights
    train = client_gans.train_gan
    current = []

    def training(gan, images, *args, **kwargs):
        current.append(len(images.y))
        return train(gan, images, *args, **kwargs)

    def sent(weights):
        return twist(honest(weights)) if current[-1] == MALICIOUS_SIZE else honest(weights)

    monkeypatch.setattr(client_gans, "train_gan", training)
    monkeypatch.setattr(client_gans, "generator_weights", sent)


MALICIOUS_SIZE = 23  # tells it from the others


def with_malicious() -> Clients:
    """Three honest clients of one kind, and one with another number of examples that is malicious."""
    honest, malicious = two_kinds(3, 0), two_kinds(1, 0, MALICIOUS_SIZE)
    train = {name: (part.x, part.y) for name, part in honest.train.items()}
    return Clients(train | {"malicious": (malicious.train["a"].x, malicious.train["a"].y)}, 3)


def noise_of(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    dice = torch.Generator().manual_seed(0)
    return {name: torch.randn(entry.shape, generator=dice) for name, entry in weights.items()}


@pytest.mark.parametrize("threshold", ["mean", "gap"])
@pytest.mark.parametrize(
    "twist",
    [
        noise_of,
        lambda weights: {name: 1e30 * torch.ones_like(entry) for name, entry in weights.items()},
        lambda weights: {name: entry[:1] for name, entry in weights.items()},
        lambda weights: {},
    ],
    ids=["noise", "too large", "wrong shapes", "nothing"],
)
def test_weights_that_are_no_generator_help_and_hurt_nobody(run_method, monkeypatch, twist, threshold):
    forge(monkeypatch, twist)
    data = with_malicious()
    settings = QUICK | {"threshold": threshold, "use": "direct"}
    done = run_method("pfl_gan", data, model=SMALL["mlp"], settings=settings, rounds=1)
    drawn = {c: r["images"] for ask in done.asks if ask.name == "draw_set" for c, r in ask.replies.items()}
    forged = set(map(bytes, drawn["@malicious"].flatten(1).numpy()))
    orders = asked(done, "receive_samples")
    assert set(orders) >= {"a", "b", "c"} or threshold != "gap"
    for client in set(orders) & {"a", "b", "c"}:
        assert not forged & set(map(bytes, orders[client]["samples"]["images"].flatten(1).numpy()))


def test_a_gan_of_another_data_set_does_not_hurt_the_others(run_method):
    """The honest clients do as well as if the outsider were not there."""
    together, honest = two_kinds(4, 1), two_kinds(4, 0)
    common = {"model": SMALL["mlp"], "settings": QUICK | {"use": "direct"}, "rounds": 6, "lr": 0.2}
    accuracy = []
    for data in (together, honest):
        done = run_method("pfl_gan", data, **common)
        tallies = client_tallies(done.fed, done.outcome, SMALL["mlp"], ["test"])["personal/test"]
        accuracy.append(np.mean([tallies[client].accuracy for client in "abcd"]))
        assert ["a", "b", "c", "d"] in groups_of(done)
    assert accuracy[0] >= accuracy[1] - 0.02
    assert accuracy[1] > 0.7


# -- edges ------------------------------------------------------------------------------------------------------------


def test_a_client_alone_trains_alone_and_says_so(run_method):
    data = two_kinds(1, 0)
    done = run_method("pfl_gan", data, model=SMALL["mlp"], settings=QUICK, rounds=1)
    assert not asked(done, "receive_generator")
    assert any("No neighbours" in note for note in done.fed.participation.notes)


def test_classes_that_nobody_around_has_are_not_drawn(run_method):
    data = two_kinds(3, 3)
    data.schema = type(data.schema)(data.schema.shape, 5)  # classes 3 and 4 exist nowhere
    done = run_method("pfl_gan", data, model=SMALL["mlp"], settings=QUICK, rounds=1)
    assert all(order["kept"]["gan"]["classes"] == [0, 1, 2] for order in asked(done, "receive_generator").values())


def test_a_public_set_may_teach_the_encoder(run_method, kinds, tmp_path):
    np.savez(tmp_path / "public.npz", x=np.random.default_rng(0).random((30, 8, 8), dtype=np.float32))
    settings = QUICK | {"autoencoder": str(tmp_path / "public.npz"), "use": "direct"}
    done = run_method("pfl_gan", kinds, model=SMALL["mlp"], settings=settings, rounds=1)
    assert len(asked(done, "learn_encoder")["@autoencoder"]["images"]) == 30
    assert groups_of(done) == [["a", "b", "c"], ["d", "e", "f"]]
    with pytest.raises(UserError, match="cannot be read"):
        run_method("pfl_gan", kinds, model=SMALL["mlp"], settings=QUICK | {"autoencoder": "no such set"}, rounds=1)


def test_vectors_are_refused_in_words(run_method):
    with pytest.raises(UserError, match="image"):
        run_method("pfl_gan", some_clients(9, 9), model=SMALL["mlp"], settings=QUICK, rounds=1)


def test_published_form_has_the_papers_numbers():
    cfg = PflGanConfig(form="published", samples_per_class=5)
    assert (cfg.threshold, cfg.synthetic_per_step, cfg.samples_per_class) == ("mean", 50, 5)
    assert (cfg.use, cfg.refine, cfg.own_set) == ("refined", "client", True)
    assert (PflGanConfig().use, PflGanConfig().own_set) == ("direct", False)
