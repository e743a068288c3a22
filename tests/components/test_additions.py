"""What is recorded of added data: by whom, of which class, and nothing of it leaves a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from federations import SMALL, Clients, Finished

from fedsynth.components.additions import NOTE, record_additions
from fedsynth.components.synthetic_store import KEPT
from fedsynth.experiment.synthesis import record_exactly
from fedsynth.federation.records import ADDED, ADDED_AT_SERVER, SYNTHETIC

RunMethod = Callable[..., Finished]
COUNTS = {"a": [14, 3, 0, 1], "b": [0, 12, 5, 0], "c": [2, 0, 9, 8]}
GAN: dict[str, Any] = {"gan_steps": 4, "visit_steps": 2, "gan_channels": 2, "gan_latent": 4, "gan_batch_size": 8}
GANS: dict[str, Any] = {
    "gan": "vae",
    "gan_steps": 3,
    "use": "refined",
    "refined_steps": 3,
    "encoder_steps": 3,
    "gan_channels": 4,
}
WITHOUT_REFINED = {key: value for key, value in GANS.items() if key not in ("use", "refined_steps")}
SIMILAR = GANS | {"gan_latent": 4, "samples_per_class": 6, "threshold": "none"}
DPMS: dict[str, Any] = {"quota": 6, "filter": "none", "redraw": False}

KEEPING: list[tuple[str, dict[str, Any]]] = [
    ("gandalf", GAN | {"counts_epsilon": None}),
    ("gandalf", GAN | {"counts_epsilon": None, "static": False}),
    ("sda_fl", GAN),
    ("static_augmentation", {}),
    ("data_sharing", {"share": 0.4, "part": 0.5}),
    ("astraea", {"threshold": 3.0}),
    ("faug", {"gan_steps": 2, "seeds": 2, "gan_channels": 2}),
    ("pfl_gan", SIMILAR | {"use": "direct"}),
    (
        "cluster_fedavg",
        WITHOUT_REFINED | {"gan_latent": 4, "samples_per_class": 6, "threshold": "mean", "top_up": True},
    ),
]


def skewed() -> Clients:
    """8x8 images of four classes, a bright row for each."""
    rng = np.random.default_rng(0)
    train = {}
    for name, counts in COUNTS.items():
        y = rng.permutation(np.repeat(np.arange(4), counts))
        x = 0.3 * rng.random((len(y), 1, 8, 8), dtype=np.float32)
        x[np.arange(len(y)), 0, y] += 0.7
        train[name] = (x, y.astype(np.int64))
    return Clients(train, 4)


def run(run_method: RunMethod, method: str, settings: dict[str, Any], **other: Any) -> Finished:
    done: Finished = run_method(method, skewed(), model=other.pop("model", SMALL["cnn"]), settings=settings, **other)
    return done


def recorded(done: Finished, name: str = ADDED) -> dict[str, Any]:
    found: dict[str, Any] = done.fed.participation.records[name]
    return found


def by_client(record: dict[str, Any]) -> dict[str, list[int]]:
    return dict(zip(record["clients"], record["added"], strict=True))


def state(done: Finished, client: str) -> dict[str, Any]:
    return done.state(client) if client in done.fed.versions else {}


def kept(done: Finished) -> dict[str, list[int]]:
    """What clients really keep, counted from the samples themselves."""
    labels = {client: state(done, client).get(KEPT, {}).get("labels", []) for client in COUNTS}
    return {client: count(own) for client, own in labels.items()}


def count(labels: Any) -> list[int]:
    return [int((np.asarray(list(labels)) == label).sum()) for label in range(4)]


@pytest.mark.parametrize(("method", "settings"), KEEPING, ids=[f"{m}-{n}" for n, (m, _) in enumerate(KEEPING)])
def test_a_simulation_records_exactly_what_clients_keep(run_method: RunMethod, method, settings):
    done = run(run_method, method, settings)
    plan = recorded(done)
    assert plan["basis"] in ("planned", "unknown")
    record_exactly(done.fed, done.store)
    exact = recorded(done)
    assert (exact["basis"], exact["what"]) == ("exact", plan["what"])
    assert by_client(exact) == kept(done)
    assert sum(map(sum, exact["added"])) > 0
    assert "held" not in exact


@pytest.mark.parametrize(
    ("method", "settings"),
    [KEEPING[1], KEEPING[4], KEEPING[7], ("feddpms", DPMS | {"form": "published", "quota": 3, "classes": 2})],
    ids=["gandalf", "data_sharing", "pfl_gan", "feddpms"],
)
def test_the_servers_plan_is_right_where_it_knows_all(run_method: RunMethod, method, settings):
    done = run(run_method, method, settings, rounds=5 if method == "feddpms" else 2)
    plan = recorded(done)
    assert plan["basis"] == "planned"
    record_exactly(done.fed, done.store)
    exact = by_client(recorded(done))
    planned = by_client(plan)
    assert {client: planned.get(client, [0] * 4) for client in exact} == exact


def test_a_plan_from_noisy_counts_says_so_and_is_near_the_truth(run_method: RunMethod):
    done = run(run_method, "gandalf", GAN | {"counts_epsilon": 2.0, "static": False})
    plan = recorded(done)
    assert (plan["basis"], plan["noise"] > 0) == ("planned", True)
    assert plan["held"] != [COUNTS[client] for client in plan["clients"]]
    assert np.abs(np.array(plan["held"]) - np.array([COUNTS[c] for c in plan["clients"]])).max() < 8 * plan["noise"]
    assert min(min(row) for row in plan["held"] + plan["added"]) >= 0


def test_feddpms_records_what_receivers_draw(run_method: RunMethod):
    settings = DPMS | {"epsilon": 1000.0, "quota": 4}
    done = run(run_method, "feddpms", settings, rounds=5)
    plan = by_client(recorded(done))
    record_exactly(done.fed, done.store)
    exact = by_client(recorded(done))
    drawn = {client: state(done, client).get("synthetic", {}).get("labels", []) for client in COUNTS}
    assert exact == {client: count(own) for client, own in drawn.items()}
    assert sum(map(sum, exact.values())) > 0
    assert plan == exact, "with next to no noise"


@pytest.mark.parametrize("method", ["fed_zdac", "fed_zda"])
def test_images_that_are_made_anew_every_round_are_counted_once(run_method: RunMethod, method):
    settings = {"per_class": 2, "steps": 1}
    done = run(run_method, method, settings, model=SMALL["zda_cnn"])
    assert set(map(tuple, recorded(done)["added"])) == {(2, 2, 2, 2)}
    record_exactly(done.fed, done.store)
    assert by_client(recorded(done)) == {client: [2, 2, 2, 2] for client in COUNTS}


def test_draws_of_a_kept_generator_are_those_of_a_pass_over_the_own_examples(run_method: RunMethod):
    done = run(run_method, "pfl_gan", SIMILAR | {"synthetic_per_step": 6}, batch_size=4)
    record_exactly(done.fed, done.store)
    for client, added in by_client(recorded(done)).items():
        steps = -(-sum(COUNTS[client]) // 4)
        assert 6 * steps - 4 < sum(added) <= 6 * steps
        assert max(added) == min(count for count in added if count)


@pytest.mark.parametrize(
    ("method", "settings", "each"),
    [
        ("agg_enhance", {"steps": 2, "tune_epochs": 1, "queue": 2}, 2),
        ("fed_zdas", {"per_class": 2, "steps": 1}, 6),
        ("fed_zda", {"per_class": 2, "steps": 1}, 6),
    ],
)
def test_what_the_server_trains_on_is_the_servers(run_method: RunMethod, method, settings, each):
    done = run(run_method, method, settings, model=SMALL["zda_cnn"], rounds=2)
    found = recorded(done, ADDED_AT_SERVER)
    assert (found["clients"], found["added"], found["basis"]) == (["server"], [[each] * 4], "exact")


def test_controls_say_what_stands_in_place_of_synthetic_samples(run_method: RunMethod):
    said = {
        kind: recorded(run(run_method, "gandalf", GAN | {"static": False, "synthetic": kind}))["what"]
        for kind in ("generated", "noise", "real")
    }
    assert said == {"generated": SYNTHETIC, "noise": "samples of noise", "real": "real samples of other clients"}


@pytest.mark.parametrize(("method", "settings"), [("fedavg", {}), ("gandalf", GAN | {"tau": 0.0})])
def test_who_adds_nothing_records_nothing(run_method: RunMethod, method, settings):
    done = run(run_method, method, settings)
    record_exactly(done.fed, done.store)
    assert ADDED not in done.fed.participation.records


def test_no_count_of_additions_leaves_a_client(run_method: RunMethod):
    """The note stays in the private state; what is sent is what was sent before there were notes."""
    done = run(run_method, "static_augmentation", {})
    assert all(NOTE in state(done, client) for client in ("a", "b"))
    sent = {ask.task.rsplit(".", 1)[-1]: set(reply) for ask in done.asks for reply in ask.replies.values()}
    assert sent == {"augment_minorities": set(), "train": {"model", "examples", "loss", "steps", "extra"}}
    ledger = str(done.fed.participation.ledger.as_dict())
    assert "number of training examples" in ledger
    assert "added" not in ledger


def test_a_large_federation_keeps_no_record_by_client(federate):
    fed = federate()
    fed.clients = tuple(map(str, range(20_000)))
    record_additions(fed, planned=dict.fromkeys(fed.clients, np.ones(fed.schema.classes)))
    assert "clients" not in fed.participation.records[ADDED]
