"""A server that lies: well-formed requests that our server program would not send, against a site's policy."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from strict_sites import CLASSES, SHAPE, TinyData, ask, strict, tiny_site

from fedsynth.federation import Client, Done, Reply, leaves, task
from fedsynth.federation.tasks import TASKS
from fedsynth.learning.models import ModelSpec, initial_model
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.network.policy import SiteBudget, SitePolicy
from fedsynth.network.site import Site
from fedsynth.privacy import GaussianEvent, Guarantee, Spending, epsilon
from fedsynth.synthesis.gan import GanSpec, build_gan
from fedsynth.synthesis.vae_classifier import VaeSpec, start_vae

Make = Callable[..., Site]
MLP = ModelSpec(name="mlp", hidden=(4,))
TRAINING = {"epochs": 1, "batch_size": 8, "lr": 0.1}
DP_SGD = {"name": "dp_sgd", "clip": 1.0, "noise": 20.0, "target": None, "delta": 1e-5, "trainings": 1}
CENTRAL = {"name": "clipped", "clip": 1e9, "noise": 1e9, "noise_at": "server", "delta": 1e-5}
TRAIN = "local_training.train"
RECEIVE = "pfl_gan.mixed_batches.receive_samples"


@pytest.fixture
def site(tmp_path: Path) -> Make:
    return lambda **policy: tiny_site(tmp_path, **policy)


def start_weights(spec: ModelSpec = MLP) -> Weights:
    """The weights that everybody starts from."""
    return weights_of(initial_model(0, spec, TinyData(5).schema))


def train_fields(spec: ModelSpec = MLP, **changes: Any) -> dict[str, Any]:
    """A request to train, by DP-SGD if no change says else."""
    request = {"spec": spec.model_dump(mode="json"), "training": TRAINING, "updates": DP_SGD}
    return {"model": start_weights(spec), "request": request | changes}


def unprotected_fields(**changes: Any) -> dict[str, Any]:
    """A request to train that asks for no protection."""
    return train_fields(updates={"name": "none"}, **changes)


# -- against whom ---------------------------------------------------------------------------------------------------


def test_noise_that_the_server_adds_is_no_protection_from_the_server(site: Make) -> None:
    """The update would leave as it is, for next to nothing."""
    answer = ask(strict(site), TRAIN, train_fields(updates=CENTRAL))
    assert answer["error"] == "RefusalError"
    assert "without a privacy guarantee" in answer["message"]
    assert not (strict(site).folder / "spent.json").exists()


def test_not_even_a_site_that_trusts_sums_sends_an_update_that_is_not_masked(site: Make) -> None:
    assert ask(strict(site, trust_sum=True), TRAIN, train_fields(updates=CENTRAL))["error"] == "RefusalError"


def guaranteed(**changes: Any) -> Guarantee:
    return Guarantee(mechanism="noise", events=(GaussianEvent(mu=0.1),), unit="client", **changes)


@pytest.mark.parametrize(
    ("guarantee", "trusting", "leaves_"),
    [
        (guaranteed(), False, True),
        (guaranteed(against="all but the server"), True, False),
        (guaranteed(against="all but the server", masked=True), False, False),
        (guaranteed(against="all but the server", masked=True), True, True),
        (guaranteed(against="all but a malicious server"), True, False),
        (guaranteed(against="all but a malicious server", masked=True), False, False),
        (guaranteed(against="all but a malicious server", masked=True), True, True),
        (guaranteed(against="all but holders of the seed", masked=True), True, False),
        (Guarantee.none("masks", "the sum").model_copy(update={"masked": True}), True, False),
    ],
)
def test_what_is_masked_leaves_only_where_a_site_trusts_the_sum(
    guarantee: Guarantee, trusting: bool, leaves_: bool
) -> None:
    policy = SitePolicy(unprotected=False, epsilon=1.0, trust_sum=trusting)
    assert bool(policy.objection({"x": 1.0}, {"x": guarantee})) != leaves_


def test_seeded_noise_is_no_protection_from_the_server_which_knows_the_seed(tmp_path: Path) -> None:
    rehearsing = Site("x", TinyData(20), tmp_path, SitePolicy(unprotected=False, epsilon=9.0), secret_noise=False)
    assert ask(rehearsing, TRAIN, train_fields())["error"] == "RefusalError"


def test_dp_sgd_at_the_client_leaves_and_is_charged(site: Make) -> None:
    answer = ask(strict(site), TRAIN, train_fields())
    assert answer["ok"]
    assert answer["guarantees"]["model"]["against"] == "everybody"
    assert 0 < spent(strict(site)) < 1


def spent(site: Site) -> float:
    """The ε that the site has noted."""
    file = site.folder / "spent.json"
    spending = Spending.from_list(json.loads(file.read_text())) if file.is_file() else Spending()
    return epsilon(spending.together()[1], site.policy.delta)


# -- records --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("data_sharing.contribute", {"wanted": np.full(CLASSES, 3)}),
        ("ablations.draw_real_samples", {"per_class": 2}),
        ("ablations.draw_real_samples", {"per_class": 2, "purpose": "seeds"}),
        ("fedmix.average_images", {"mean_of": 2}),
    ],
)
def test_records_stay_by_default_and_leave_only_where_a_site_says_so(
    site: Make, name: str, fields: dict[str, Any]
) -> None:
    refused = ask(site(), name, fields)
    assert (refused["ok"], refused["error"]) == (False, "RefusalError")
    assert "keeps records here" in refused["message"]
    assert ask(site(records=True), name, fields)["ok"]


def test_a_task_that_sends_records_says_so() -> None:
    """By what it sends, not by its name: every task in whose reply a record of the client is found declares it."""
    declared = {each.name for each in TASKS.values() if each.raw_fields()}
    assert {"data_sharing.contribute", "ablations.draw_real_samples", "fedmix.average_images"} <= declared


# -- oracles --------------------------------------------------------------------------------------------------------


def statistics_fields(huge: float) -> dict[str, Any]:
    """An encoder whose weights are huge and finite: a bright image alone makes its latent not a number."""
    spec, vae = ModelSpec(name="cnn", channels=(2,), hidden=(3,)), VaeSpec(4, False, 0.0)
    net = start_vae(0, spec, vae, TinyData(5).schema, start_weights(spec))
    model = {name: torch.full_like(entry, huge) for name, entry in net.entries().items()}
    # inf − inf: what is not a number comes out, not just what is large
    model = {n: torch.where(torch.arange(e.numel()).reshape(e.shape) % 2 == 0, e, -e) for n, e in model.items()}
    calibration = {"epsilon": 0.01, "delta": 1e-5, "clip": 1.0, "moments": True}
    return {"model": model, "spec": spec.model_dump(mode="json"), "vae": vars(vae), "calibration": calibration}


@pytest.mark.parametrize("huge", [1e10, 1e20, 3e38])
def test_whether_a_record_is_there_does_not_show_in_what_is_not_a_number(tmp_path: Path, huge: float) -> None:
    for name, bright in (("without", 0), ("with", 1)):
        here = strict(partial(tiny_site, tmp_path / name, bright=bright))
        answer = ask(here, "feddpms.clients.share_statistics", statistics_fields(huge))
        assert answer["ok"], answer
        assert torch.isfinite(answer["fields"]["statistics"]).all()


@pytest.mark.parametrize(
    "wrong",
    [{"clip": -1e9}, {"clip": 0.0}, {"clip": 1e9}, {"epsilon": -1.0}, {"epsilon": 1e9}, {"delta": 0.0}, {"delta": 1.0}],
)
def test_a_calibration_that_proves_nothing_is_refused(site: Make, wrong: dict[str, float]) -> None:
    fields = statistics_fields(1.0)
    fields["calibration"] |= wrong
    answer = ask(strict(site), "feddpms.clients.share_statistics", fields)
    assert answer["error"] == "RefusalError"
    assert next(iter(wrong)) in answer["message"]


@pytest.mark.parametrize("wrong", [{"clip": 0.0}, {"clip": 1e300}, {"noise": -1.0}, {"noise": 0.0}, {"noise": None}])
def test_update_privacy_that_proves_nothing_is_refused(site: Make, wrong: dict[str, Any]) -> None:
    answer = ask(strict(site), TRAIN, train_fields(updates=DP_SGD | wrong))
    assert (answer["ok"], answer["error"]) == (False, "RefusalError")
    assert "does not fit it" in answer["message"]


UNKNOWN = [
    ({"updates": {"name": "dpsgd"}}, 'There is no updates "dpsgd"'),
    ({"updates": {"clip": 1.0}}, 'There is no updates "None"'),
    ({"updates": ["dp_sgd"]}, 'There is no updates "None"'),
    ({"updates": DP_SGD | {"noise_at": "server"}}, 'has no setting "noise_at"'),
    ({"updates": {"name": "clipped", "clip": 1.0}}, "field required"),
    ({"objective": {"name": ["plain"]}}, "There is no objective"),
    ({"objective": {"name": "median"}}, 'There is no objective "median"'),
    ({"objective": {"name": "proximal", "mu": "much"}}, '"mu"'),
    ({"local_data": {"name": "real"}}, 'There is no local_data "real"'),
    ({"given": {"images": torch.zeros(2)}}, "labels"),
    ({"keeps": "everything"}, "keeps"),
    ({"before": True}, "before"),
]


@pytest.mark.parametrize(("changes", "told"), UNKNOWN)
def test_what_fits_no_slot_is_refused_in_the_same_words_by_every_site(
    site: Make, changes: dict[str, Any], told: str
) -> None:
    """The sentence is about the request; nothing has looked at the records, nothing is charged."""
    open_, closed = (ask(here, TRAIN, train_fields(**changes)) for here in (site(), strict(site)))
    assert open_ == closed
    assert (closed["ok"], closed["error"], closed["traceback"]) == (False, "RefusalError", "")
    assert f'The request for task "{TRAIN}" does not fit it' in closed["message"]
    assert told in closed["message"]
    assert spent(site()) == 0


SECURE_SUM = {"name": "secure_sum", "inner": {"name": "none"}, "sums": {"threshold": 0.5}}
GAN_REQUEST = {"spec": GanSpec(channels=2, latent=3).model_dump(), "training": {"batch_size": 4}, "steps": 1}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (TRAIN, train_fields(updates=SECURE_SUM)),
        (TRAIN, train_fields(updates=SECURE_SUM | {"inner": SECURE_SUM})),
        (
            "secure_updates.train_masked",
            {"secure": {"session": "a", "peers": ["x", "y", "z"]}, **train_fields(updates=SECURE_SUM)},
        ),
        ("pfl_gan.client_gans.train_own_gan", {"request": GAN_REQUEST | {"updates": SECURE_SUM}}),
        (
            "gandalf.clients.train_gan_visit",
            {
                **{"gan": {}, "moments": {}},
                "visit": GAN_REQUEST | {"keep_moments": False, "sigma": 0.1, "updates": SECURE_SUM},
            },
        ),
    ],
)
def test_a_secure_sum_is_nothing_that_one_client_could_be_asked_for(
    site: Make, name: str, fields: dict[str, Any]
) -> None:
    for here in (site(), strict(site), strict(site, trust_sum=True)):
        answer = ask(here, name, fields)
        assert (answer["ok"], answer["error"]) == (False, "RefusalError")
        assert "a secure sum is the server's affair" in answer["message"]


class Broken(Reply):
    number: torch.Tensor = leaves("a number")


@task
def ls_infinite(client: Client) -> Broken:
    noise = Guarantee(mechanism="noise", events=(GaussianEvent(mu=0.2),))
    infinite = torch.tensor([client.noise_rng("n").normal()]) * float("inf")
    return client.release(Broken(number=infinite), number=noise)


def test_a_reply_that_is_not_finite_stays_and_is_charged_all_the_same(site: Make) -> None:
    """That it was not finite tells of what was released."""
    answer = ask(strict(site), "test_lying_server.ls_infinite", {})
    assert (answer["ok"], answer["error"]) == (False, "NotFiniteError")
    assert "number" in answer["message"]
    assert spent(strict(site)) > 0.1


# -- what a proof rests on ------------------------------------------------------------------------------------------


def test_dp_sgd_does_not_train_on_copies_of_records(site: Make) -> None:
    """Minority records would count three times and be charged once."""
    here = site()
    made = ask(here, "static_augmentation.augment_minorities", {"copies": 2, "static": {}})
    assert made["ok"]
    for kind in ("kept", "generated"):
        fields = train_fields(local_data={"name": kind})
        answer = ask(here, TRAIN, fields, step=2, states={"x": made["state"]})
        assert not answer["ok"]
        assert answer["error"] in ("ConfigError", "TaskError")
    assert spent(here) == 0


def test_images_that_follow_from_exact_counts_are_no_post_processing(site: Make) -> None:
    here, fields = site(), train_fields(local_data={"name": "generated"})
    samples = {"images": torch.rand((40, *SHAPE)), "labels": torch.arange(40) % CLASSES}
    for lacking in (True, False):
        kept = ask(here, RECEIVE, {"samples": samples, "lacking": lacking}, step=1 + lacking)
        answer = ask(here, TRAIN, fields, step=5 + lacking, states={"x": kept["state"]})
        assert answer["ok"] == (not lacking)


def test_dp_sgd_does_not_start_from_weights_that_were_trained_without_protection(site: Make) -> None:
    """A head that the client keeps follows from all its records; the rest of the network would learn by it."""
    here = site()
    plain = unprotected_fields(keeps="head")
    kept = ask(here, TRAIN, plain)
    answer = ask(here, TRAIN, train_fields(keeps="head"), step=2, states={"x": kept["state"]})
    assert (answer["ok"], answer["error"]) == (False, "TaskError")
    first = ask(here, TRAIN, train_fields(keeps="head"), step=3)
    assert ask(here, TRAIN, train_fields(keeps="head"), step=4, states={"x": first["state"]})["ok"]


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": {"name": "control_variates"}},
        {"objective": {"name": "proximal", "mu": 1.0}},
        {"local_data": {"name": "zero_shot"}},
        {"spec": ModelSpec(name="mlp", hidden=(4,), norm="batch")},
    ],
)
def test_what_dp_sgd_cannot_protect_is_refused_where_the_data_is(site: Make, changes: dict[str, Any]) -> None:
    answer = ask(site(), TRAIN, train_fields(**changes))
    assert (answer["ok"], answer["error"]) == (False, "ConfigError")


def test_nothing_is_kept_of_what_a_policy_kept_back(site: Make) -> None:
    here = strict(site)
    plain = unprotected_fields(keeps="head")
    assert ask(here, TRAIN, plain)["error"] == "RefusalError"
    assert not list(here.folder.rglob("state/**/*.safetensors"))


# -- the budget -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [{"unprotected": False}, {"trust_sum": True}])
def test_a_policy_that_protects_nothing_is_a_mistake(policy: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="epsilon|unprotected"):
        SitePolicy(**policy)


def test_a_loose_guarantee_does_not_pass_as_protection(site: Make) -> None:
    answer = ask(strict(site), "class_counts.count_classes", {"epsilon": 500.0})
    assert answer["error"] == "BudgetError"


def test_a_budget_is_one_over_units_and_neighbours(tmp_path: Path) -> None:
    budget = SiteBudget(tmp_path / "spent.json", SitePolicy(unprotected=False, epsilon=1.0))
    scopes: list[dict[str, Any]] = [{"unit": u, "adjacency": a} for u in ("record", "client") for a in NEIGHBOURS]
    charged = [budget.charge({"x": Guarantee(mechanism="n", events=(GaussianEvent(mu=0.2679),), **s)}) for s in scopes]
    assert charged[0] == ""
    assert all("past the policy" in reason for reason in charged[1:])


NEIGHBOURS = ("add or remove one", "replace one")


def _charge(file: Path, times: int, start: Any) -> None:
    budget = SiteBudget(file, SitePolicy(unprotected=False, epsilon=3.0))
    start.wait()
    for _ in range(times):
        budget.charge({"x": Guarantee(mechanism="n", events=(GaussianEvent(mu=0.05),))})


def test_two_runs_at_once_lose_nothing_of_a_budget(tmp_path: Path) -> None:
    file, context = tmp_path / "spent.json", multiprocessing.get_context("fork")
    start = context.Barrier(2)
    workers = [context.Process(target=_charge, args=(file, 40, start)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    [[_, events]] = json.loads(file.read_text())
    assert [times for _, times in events] == [80]


def test_a_private_visit_leaves_a_strict_site(site: Make) -> None:
    """What is empty says nothing, at the site as in the ledger."""
    here, spec = strict(site, epsilon=9.0), GanSpec(channels=2, latent=3)
    counted = ask(here, "class_counts.count_classes", {"epsilon": 5.0, "keep": True})
    fields = {
        "gan": build_gan(spec, SHAPE, CLASSES, seed=0).weights(),
        "moments": {},
        "visit": {
            **{"spec": spec.model_dump(), "training": {"batch_size": 4}, "steps": 1},
            **{"keep_moments": False, "sigma": 0.1, "updates": DP_SGD},
        },
    }
    answer = ask(here, "gandalf.clients.train_gan_visit", fields, step=2, states={"x": counted["state"]})
    assert answer["ok"], answer
    assert answer["fields"]["moments"] == {}
    assert answer["fields"]["losses"] == []


# -- side doors -----------------------------------------------------------------------------------------------------


@task
def ls_named_error(client: Client) -> Done:
    raise type(f"first_label_is_{client.data.train.y[0]}", (Exception,), {})("hidden")


@task
def ls_wordy(client: Client) -> Broken:
    told = f"labels {client.data.train.y.tolist()}"
    noise = Guarantee(mechanism=told, events=(GaussianEvent(mu=0.01),), covered=told, not_covered=told, claimed=told)
    return client.release(Broken(number=torch.from_numpy(client.noise_rng("n").normal(size=1))), number=noise)


def test_neither_names_of_errors_nor_texts_of_guarantees_carry_data(site: Make) -> None:
    answer = ask(site(), "test_lying_server.ls_named_error", {})
    assert (answer["error"], answer["traceback"]) == ("Exception", "")
    answer = ask(strict(site), "test_lying_server.ls_wordy", {}, step=2)
    assert answer["ok"]
    assert "labels" not in json.dumps(answer["guarantees"])
    assert "mu = 0.01" in answer["guarantees"]["number"]["mechanism"]


@task
def ls_choosy(client: Client, label: int) -> Done:
    """Fails where a record is of this label."""
    if (client.data.train.y == label).any():
        raise MemoryError
    return client.release(Done())


def test_at_a_strict_site_neither_failing_nor_succeeding_tells_of_records(site: Make) -> None:
    here = strict(site)
    answers = [ask(here, "test_lying_server.ls_choosy", {"label": label}, step=label + 1) for label in (1, 77)]
    assert answers[0] == answers[1]
    assert answers[0]["error"] == "RefusalError"
    assert "MemoryError" in (here.folder / "site.log").read_text()


def test_what_looks_at_no_record_may_say_that_it_is_done(site: Make) -> None:
    samples = {"images": torch.rand((4, *SHAPE)), "labels": torch.arange(4) % CLASSES}
    assert ask(strict(site), RECEIVE, {"samples": samples})["ok"]
    assert not ask(strict(site), RECEIVE, {"samples": samples, "lacking": True}, step=2)["ok"]


@task
def ls_changed(client: Client) -> Broken:
    reply = client.release(Broken(number=torch.zeros(2)))
    reply.number.add_(torch.from_numpy(client.data.train.x[:2].sum((1, 2, 3))))
    return reply


def test_a_reply_leaves_as_it_was_when_it_was_released(site: Make) -> None:
    assert torch.equal(ask(site(), "test_lying_server.ls_changed", {})["fields"]["number"], torch.zeros(2))


def test_a_request_after_a_deadline_gets_the_same_noise(site: Make) -> None:
    """It has another number, so it is carried out again; what comes of it tells nothing new."""
    here = site()
    first, again = (ask(here, TRAIN, train_fields(), id=number)["fields"]["model"] for number in ("0", "1"))
    other = ask(here, TRAIN, train_fields(), id="2", round=2)["fields"]["model"]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_the_same_request_after_a_record_has_come_gets_other_noise(tmp_path: Path) -> None:
    """Else the difference of two replies is that record, without any noise."""
    fields = statistics_fields(1.0)
    sent = []
    for more in (0, 1):
        here = tiny_site(tmp_path, more=more)
        sent.append(ask(here, "feddpms.clients.share_statistics", fields, run=f"run-{more}")["fields"]["statistics"])
    apart = (sent[0] - sent[1]).abs()
    assert int((apart > 1.0).sum()) > apart.numel() / 2, "a record moves one class, by less than this; noise moves all"


def test_batches_and_what_a_network_draws_for_a_record_come_from_the_sites_key(tmp_path: Path) -> None:
    """Of a network that draws latents, next to no noise and every record in the batch: what differs is what it drew."""
    spec = ModelSpec(name="latent_cnn", channels=(2,), latent=3)
    fields = train_fields(spec, updates=DP_SGD | {"noise": 1e-9}, training=TRAINING | {"batch_size": 20})
    sent = [ask(Site("x", TinyData(20), tmp_path / key), TRAIN, fields)["fields"]["model"] for key in ("a", "b")]
    assert max(float((sent[0][name] - sent[1][name]).abs().max()) for name in sent[0]) > 1e-4
