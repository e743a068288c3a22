"""FedDPMS: its phases, what leaves a client and when, its controls, and its cost in bytes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federations import SMALL, Clients, Finished, same_bits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsynth.components.ablations import stand_ins
from fedsynth.components.additions import NOTE
from fedsynth.components.samples import Samples
from fedsynth.errors import UserError
from fedsynth.federation import Federation, State
from fedsynth.federation.participation import EVALUATION
from fedsynth.federation.tasks import find_task
from fedsynth.methods.feddpms import FedDpmsConfig
from fedsynth.privacy import PrivacyConfig
from fedsynth.synthesis.vae_classifier import DECODER, LATENT

PAPER = {"form": "published", "classes": 2, "sigma": 0.3, "quota": 6}
OURS = {"quota": 6, "filter": "none"}


def pictures(*shares: dict[int, int], seed: int = 0) -> Clients:
    """Clients "a", "b", … with 8x8 images: a bright row for each class, and noise."""
    rng = np.random.default_rng(seed)
    train = {}
    for name, share in zip("abcdefgh", shares, strict=False):
        y = np.repeat(list(share), list(share.values())).astype(np.int64)
        x = 0.3 * rng.random((len(y), 1, 8, 8), dtype=np.float32)
        x[np.arange(len(y)), 0, y] += 0.7
        order = rng.permutation(len(y))
        train[name] = (x[order], y[order])
    return Clients(train, classes=4)


SKEWED = ({0: 30, 1: 20}, {2: 25, 3: 25}, {1: 20, 2: 40, 3: 4})


def asked(done: Finished, task: str) -> list:
    return [ask for ask in done.asks if ask.name == task]


@pytest.mark.parametrize("model", ["cnn", "zda_cnn", "mlp"])
@pytest.mark.parametrize("decoder", ["plain", "conditional"])
def test_without_synthesis_and_weight_of_the_auto_encoder_it_is_fedavg(run_method, digits, model, decoder):
    common = {"model": SMALL[model], "rounds": 4, "optimizer": "adam", "lr": 0.01, "fraction": 0.6}
    plain = run_method("fedavg", digits, **common)
    given = {"vae_weight": 0.0, "synthetic": "none", "decoder": decoder, "autoencoder": "joint"}
    assert same_bits(run_method("feddpms", digits, settings=given, **common).model, plain.model)
    assert same_bits(run_method("fedvae", digits, settings={"vae_weight": 0.0}, **common).model, plain.model)


def test_an_auto_encoder_beside_the_classifier_leaves_it_alone(run_method, digits):
    common = {"model": SMALL["cnn"], "rounds": 5, "optimizer": "adam", "lr": 0.01}
    plain = run_method("fedavg", digits, **common)
    beside = run_method("feddpms", digits, settings={"synthetic": "none"}, **common)
    assert same_bits(beside.model, plain.model)
    first, last = (ask.fields["model"] for ask in asked(beside, "train_vae"))
    assert any(not torch.equal(first[name], last[name]) for name in first if name.startswith(DECODER))


def test_the_published_form_fills_in_what_is_not_given():
    config = FedDpmsConfig(form="published", senders=2)
    assert (config.mechanism, config.decoder, config.autoencoder) == ("paper", "plain", "joint")
    assert (config.senders, config.quota, config.classes, config.redraw) == (2, 50, 3, False)
    assert FedDpmsConfig().mechanism == "calibrated"


def test_the_auto_encoder_changes_what_is_learned(run_method, digits):
    one, other = (run_method("fedvae", digits, model=SMALL["cnn"], settings={"vae_weight": w}) for w in (0.0, 0.05))
    assert not same_bits(one.model, other.model)


def test_fedvae_is_feddpms_without_a_second_phase(run_method, digits):
    alone = run_method("fedvae", digits, model=SMALL["cnn"], rounds=2)
    only_first = {"form": "published", "preliminary": 1.0}
    assert same_bits(
        alone.model, run_method("feddpms", digits, model=SMALL["cnn"], settings=only_first, rounds=2).model
    )


def test_a_plain_decoder_is_private_until_the_last_preliminary_round(run_method):
    done = run_method("feddpms", pictures(*SKEWED), model=SMALL["cnn"], settings=PAPER, rounds=5)
    sent = [
        [any(name.startswith(DECODER) for name in reply["model"]) for reply in ask.replies.values()]
        for ask in asked(done, "train_vae")
    ]
    assert sent == [[False] * 3, [True] * 3]
    assert all(
        any(n.startswith(LATENT) for n in r["model"]) for a in asked(done, "train_vae") for r in a.replies.values()
    )
    for ask in asked(done, "train_augmented"):
        assert not any(n.startswith((DECODER, LATENT)) for reply in ask.replies.values() for n in reply["model"])


def test_a_conditional_decoder_is_averaged_every_round(run_method):
    done = run_method("feddpms", pictures(*SKEWED), model=SMALL["cnn"], settings=OURS, rounds=5)
    for ask in asked(done, "train_vae"):
        assert all(any(name.startswith(DECODER) for name in reply["model"]) for reply in ask.replies.values())


def test_fedvae_never_sends_its_decoder(run_method):
    done = run_method("fedvae", pictures(*SKEWED), model=SMALL["cnn"], rounds=3)
    assert not any(n.startswith(DECODER) for a in done.asks for r in a.replies.values() for n in r["model"])


def test_the_published_matching_serves_what_is_scarce(run_method):
    done = run_method("feddpms", pictures(*SKEWED), model=SMALL["cnn"], settings=PAPER | {"filter": "none"}, rounds=6)
    first, second, third = asked(done, "train_augmented")[:3]
    assert all(request["fields"]["order"] is None for request in first.requests.values())
    assert {c: sorted(set(r["labels"].tolist())) for c, r in first.replies.items()} == {
        "a": [0, 1],
        "b": [2, 3],
        "c": [1, 2],
    }
    orders = {c: sorted(set(r["fields"]["order"]["labels"].tolist())) for c, r in second.requests.items()}
    assert orders == {"a": [2, 3], "b": [0, 1], "c": [0, 1]}
    assert all(request["fields"]["order"] is None for request in third.requests.values())
    assert all(len(reply["means"]) == 12 for reply in first.replies.values())
    # |D̄_i| is what a client weighs; |D_i| examples are trained on.
    sizes = {c: len(done.fed.engine.inner.host.data.client(c).train) for c in "abc"}
    assert {c: reply["examples"] for c, reply in third.replies.items()} == {c: n + 12 for c, n in sizes.items()}
    assert {c: reply["steps"] for c, reply in third.replies.items()} == {c: math.ceil(n / 16) for c, n in sizes.items()}


def test_the_calibrated_release_comes_before_the_first_secondary_training(run_method):
    done = run_method("feddpms", pictures(*SKEWED), model=SMALL["cnn"], settings=OURS, rounds=5)
    assert [ask.name for ask in done.asks] == ["train_vae"] * 2 + ["share_statistics"] + ["train_augmented"] * 3
    first = asked(done, "train_augmented")[0]
    assert all(request["fields"]["order"]["latents"] is not None for request in first.requests.values())
    assert all(reply["examples"] > 50 for reply in first.replies.values())
    (shared,) = asked(done, "share_statistics")
    assert all(reply["statistics"].shape == (4, 32 + 1 + 32) for reply in shared.replies.values())


def test_statistics_are_encoded_by_the_encoder_that_was_broadcast(run_method):
    done = run_method("feddpms", pictures(*SKEWED), model=SMALL["cnn"], settings=OURS, rounds=5, fraction=0.4)
    encoders = [ask.fields["model"] for ask in asked(done, "share_statistics")]
    assert len(encoders) > 1
    assert all(same_bits(encoders[0], other) for other in encoders)


federations = st.lists(
    st.dictionaries(st.integers(0, 3), st.integers(1, 30), min_size=1, max_size=4), min_size=2, max_size=5
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shares=federations,
    fraction=st.sampled_from([0.3, 0.6, 1.0]),
    paper=st.booleans(),
    seed=st.integers(0, 100),
    senders=st.integers(1, 3),
)
def test_in_any_federation_sharing_and_benefiting_happen_once_and_only_the_declared_leaves(
    run_method, shares, fraction, paper, seed, senders
):
    chosen = (PAPER if paper else OURS) | {"senders": senders, "preliminary": 0.2}
    small = {"local_epochs": 1, "batch_size": 64, "rounds": 5, "fraction": fraction, "seed": seed}
    done = run_method("feddpms", pictures(*shares), model=SMALL["cnn"], settings=chosen, **small)
    shared, benefited, supplied = [], [], []
    for ask in done.asks:
        for client, fields in ask.replies.items():
            assert set(fields) == set(find_task(ask.task).leaves())
            if fields.get("means") is not None or ask.name == "share_statistics":
                shared.append(client)
        if ask.name == "train_augmented":
            benefited += [c for c, r in ask.requests.items() if r["fields"]["order"] is not None]
            supplied += [c for c, r in ask.requests.items() if r["fields"]["decoder"]]
    for clients in (shared, benefited, supplied):
        assert len(clients) == len(set(clients))
    assert paper or not asked(done, "name_scarce_classes")
    tasks = ("train_vae", "train_augmented", "share_statistics", "name_scarce_classes")
    assert set(done.fed.participation.bytes_up) <= {f"feddpms.clients.{task}" for task in tasks}


def test_bytes_agree_with_the_papers_overheads(run_method):
    """r1 = αnl/Θ for each upload and each download of means; the decoder once per client that is served (eq. 8)."""
    data = pictures({0: 30, 1: 30}, {2: 30, 3: 30}, {0: 30, 3: 30}, {1: 30, 2: 30})
    alpha, n, latent, rounds = 400, 2, 32, 6
    chosen = PAPER | {"quota": alpha, "filter": "none"}
    full = run_method("feddpms", data, model=SMALL["cnn"], settings=chosen, rounds=rounds)
    bare = run_method("feddpms", data, model=SMALL["cnn"], settings=chosen | {"synthetic": "none"}, rounds=rounds)
    moved, base = full.fed.participation, bare.fed.participation
    theta = sum(t.numel() for t in full.model.values())
    decoder = sum(t.numel() for n, t in asked(full, "train_vae")[-1].replies["a"]["model"].items() if DECODER in n)
    r1 = alpha * n * latent / theta
    secondary = "feddpms.clients.train_augmented"
    up = moved.bytes_up[secondary] - base.bytes_up[secondary]
    assert up == pytest.approx(4 * r1 * theta * 4, rel=0.12)  # four clients, four bytes; labels and names are extra
    # eq. 7 and 8 with ν = 1: every client is served once, so E = k.
    heads = sum(t.numel() for n, t in asked(full, "train_vae")[0].replies["a"]["model"].items() if LATENT in n)
    down = moved.bytes_down[secondary] - base.bytes_down[secondary]
    assert down == pytest.approx(4 * 4 * (r1 * theta + decoder + heads), rel=0.12)


@pytest.mark.parametrize(("nu", "later"), [(0.2, 4), (0.5, 3), (1.0, 6)])
def test_expected_downloads_of_the_decoder_are_those_of_equation_8(run_method, nu, later):
    """E = (1 − (1−ν)^(T−T_p)) / ν · k, counted over many draws of clients as the server makes them."""
    clients = [f"{k:02d}" for k in range(20)]
    served = []
    for seed in range(200):
        fed = Federation(SimpleNamespace(clock=0.0), clients, None, seed)  # type: ignore[arg-type]
        seen: set[str] = set()
        for _ in fed.rounds("secondary", later, State()):
            seen |= set(fed.sample(nu))
        served.append(len(seen))
    expected = (1 - (1 - nu) ** later) / nu * nu * len(clients)
    assert np.mean(served) == pytest.approx(expected, abs=4 * np.std(served) / math.sqrt(200) + 1e-9)


def test_controls_have_the_same_labels_and_number(run_method):
    sizes = {}
    for kind in ("decoded", "noise", "real"):
        done = run_method(
            "feddpms", pictures(*SKEWED), model=SMALL["cnn"], settings=OURS | {"synthetic": kind}, rounds=4
        )
        sizes[kind] = {c: reply["examples"] for c, reply in asked(done, "train_augmented")[-1].replies.items()}
    assert sizes["decoded"] == sizes["noise"] == sizes["real"]
    rng = np.random.default_rng(0)
    labels = torch.tensor([1, 3, 3])
    real = Samples(images=torch.arange(4.0).reshape(4, 1, 1, 1), labels=torch.tensor([3, 1, 0, 3]))
    noise = torch.rand(3, 1, 1, 1)
    assert stand_ins("decoded", labels, noise, None, rng) is None
    found = stand_ins("real", labels, noise, real, rng)
    assert found is not None
    assert found[0].item() == 1
    assert set(found[1:].flatten().tolist()) <= {0.0, 3.0}


def test_a_release_beyond_the_budget_is_refused_before_anything_runs():
    tight = PrivacyConfig(budget=4.0)
    with pytest.raises(ValueError, match=r"more than privacy\.budget = 4"):
        FedDpmsConfig(epsilon=8.0, privacy=tight)
    assert FedDpmsConfig(epsilon=8.0, synthetic="none", privacy=tight).epsilon == 8


def test_a_filter_keeps_what_the_received_model_recognises(run_method):
    counts = {}
    for kept in ("none", "recognised"):
        done = run_method(
            "feddpms", pictures(*SKEWED), model=SMALL["cnn"], settings=OURS | {"filter": kept}, rounds=4, lr=1e-5
        )
        counts[kept] = sum(r["examples"] for r in asked(done, "train_augmented")[-1].replies.values())
    assert counts["recognised"] < counts["none"]


def test_a_filter_may_ask_for_certainty(run_method):
    counts = {}
    for certainty in ("recognised", 0.0, 0.99):
        settings = OURS | {"filter": certainty}
        done = run_method("feddpms", pictures(*SKEWED), model=SMALL["cnn"], settings=settings, rounds=4, lr=0.01)
        counts[certainty] = sum(r["examples"] for r in asked(done, "train_augmented")[-1].replies.values())
    assert counts[0.99] < counts[0.0] == counts["recognised"]
    with pytest.raises(ValueError, match="must be a probability"):
        FedDpmsConfig(filter=1.5)


def test_redrawing_makes_new_examples_each_round(run_method):
    models = [
        run_method("feddpms", pictures(*SKEWED), model=SMALL["cnn"], settings=OURS | {"redraw": redraw}, rounds=5)
        for redraw in (True, False)
    ]
    assert not same_bits(models[0].model, models[1].model)
    assert set(models[0].state("a")) == {"global decoder", "order", NOTE}
    assert set(models[1].state("a")) == {"global decoder", "synthetic", NOTE}


def test_a_latent_classifier_uses_its_own_latent(run_method):
    from fedsynth.learning.models import ModelSpec

    spec = ModelSpec(name="latent_cnn", channels=(4, 6), hidden=(8,), latent=7)
    done = run_method("feddpms", pictures(*SKEWED), model=spec, settings=OURS, rounds=4)
    assert not any(n[: len(LATENT)] == LATENT for a in asked(done, "train_vae") for n in a.fields["model"])
    assert asked(done, "share_statistics")[0].replies["a"]["statistics"].shape == (4, 7 + 1 + 7)


def test_n_may_come_from_the_clients(run_method):
    done = run_method("feddpms", pictures(*SKEWED), model=SMALL["cnn"], settings=PAPER | {"classes": "auto"}, rounds=5)
    reported = asked(done, "name_scarce_classes")[0].replies
    smallest = min(reply["decidedly"] for reply in reported.values())
    first = asked(done, "train_augmented")[0]
    assert all(request["fields"]["share"]["classes"] == smallest for request in first.requests.values())


def test_nothing_usable_is_a_note_and_not_an_error(run_method):
    hopeless = PAPER | {"sigma": 1e6, "tries": 1, "quota": 300}
    done = run_method("feddpms", pictures(*SKEWED), model=SMALL["cnn"], settings=hopeless, rounds=5)
    assert any("fewer usable noisy means" in note for note in done.fed.participation.notes)


def test_vectors_and_pixels_out_of_range_are_refused(run_method):
    flat = Clients({"a": (np.zeros((6, 5), dtype=np.float32), np.zeros(6, dtype=np.int64))}, 2)
    with pytest.raises(UserError, match="images"):
        run_method("feddpms", flat)
    wild = pictures(*SKEWED)
    wild.train["a"].x[0] = 7.0
    with pytest.raises(Exception, match="between 0 and 1"):
        run_method("feddpms", wild, model=SMALL["cnn"])


@pytest.mark.parametrize(
    "wrong", [{"quota": 0}, {"classes": 0}, {"mechanism": "paper", "quota": "even"}, {"epsilon": 0.0}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(reversed(wrong)))):
        FedDpmsConfig(**wrong)


def test_evaluation_is_not_a_part_of_the_method(run_method):
    done = run_method("feddpms", pictures(*SKEWED), model=SMALL["cnn"], settings=OURS, rounds=3)
    assert EVALUATION not in done.fed.participation.bytes_up
