"""The closed form: the same model whatever the split, on every engine; who leaves, leaves no trace; what ε says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from federations import Clients, Finished, some_clients
from safetensors.torch import save_file

from fedsynth.components.settings import MethodConfig
from fedsynth.data.config import DataConfig
from fedsynth.data.federated import load_federated
from fedsynth.errors import ConfigError, UserError
from fedsynth.evaluation.views import client_tallies
from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.runner import RunResult, run_experiment
from fedsynth.learning.models import ModelSpec, build_model, instantiate
from fedsynth.learning.ridge import RidgeSums
from fedsynth.learning.weights import weights_of
from fedsynth.methods.analytic.settings import AnalyticConfig
from fedsynth.privacy import PrivacyConfig, gaussian_sigma
from fedsynth.privacy.secure_sum import ONE

RunMethod = Callable[..., Finished]
SECURE = PrivacyConfig(secure_aggregation=True)


@pytest.fixture(scope="module")
def pool() -> tuple[np.ndarray, np.ndarray]:
    """120 digits of 8x8 pixels."""
    data = load_federated(DataConfig(name="digits", limit=200), {"name": "iid", "num_clients": 2}, seed=0)
    parts = [data.client(client).train for client in data.clients]
    return np.concatenate([part.x for part in parts])[:120], np.concatenate([part.y for part in parts])[:120]


def spread(pool: tuple[np.ndarray, np.ndarray], rows: Sequence[np.ndarray]) -> Clients:
    """The same examples, at these clients."""
    x, y = pool
    return Clients({f"{number}": (x[part], y[part]) for number, part in enumerate(rows)}, classes=10)


def five(pool: tuple[np.ndarray, np.ndarray]) -> Clients:
    return spread(pool, np.array_split(np.argsort(pool[1], kind="stable"), 5))


def sums(finished: Finished) -> torch.Tensor:
    """What the server added up, in float64."""
    return finished.fed.journal.phase("sums")["state"]["total"]


# -- the same whatever the split ------------------------------------------------------------------------------------


def test_the_model_is_the_same_bits_for_any_split(pool: tuple[np.ndarray, np.ndarray], run_method: RunMethod) -> None:
    """Ten splits, one client with all of it, and the pooled data of a federation."""
    splits = [[np.arange(120)], np.array_split(np.argsort(pool[1], kind="stable"), 7)]
    for seed in range(10):
        rng = np.random.default_rng(seed)
        splits.append(np.split(rng.permutation(120), np.sort(rng.choice(np.arange(1, 120), 4, replace=False))))
    settings = {"dimension": 40}
    found = [run_method("analytic", spread(pool, rows), settings=settings, seed=s) for s, rows in enumerate(splits)]
    for one in found[1:]:
        assert torch.equal(sums(one), sums(found[0]))
        assert torch.equal(one.model["head.weight"], found[0].model["head.weight"])
        assert torch.equal(one.model["head.bias"], found[0].model["head.bias"])
    assert set(found[0].model) == {"head.weight", "head.bias"}
    tally = client_tallies(found[0].fed, found[0].outcome, ModelSpec(name="fixed", dimension=40), ["test"])
    assert tally["global/test"]["0"].accuracy > 0.9


@pytest.mark.parametrize("settings", [{}, {"epsilon": 8.0}, {"weights": "classes"}, {"personal_weight": 2.0}], ids=str)
def test_the_wire_gives_the_same_bits(
    pool: tuple[np.ndarray, np.ndarray], run_method: RunMethod, settings: dict[str, Any]
) -> None:
    here, wire = (
        run_method("analytic", five(pool), settings={"dimension": 20, **settings}, engine=engine)
        for engine in ("local", "wire")
    )
    assert torch.equal(here.model["head.weight"], wire.model["head.weight"])
    spec = ModelSpec(name="fixed", dimension=20)
    scores = [client_tallies(one.fed, one.outcome, spec, ["validation"]) for one in (here, wire)]
    view = "personal/validation" if "personal_weight" in settings else "global/validation"
    assert [t.loss for t in scores[0][view].values()] == [t.loss for t in scores[1][view].values()]


def test_a_secure_sum_is_the_same_to_its_steps(pool: tuple[np.ndarray, np.ndarray], run_method: RunMethod) -> None:
    plain = run_method("analytic", five(pool), settings={"dimension": 20})
    secure = run_method("analytic", five(pool), settings={"dimension": 20, "privacy": SECURE})
    assert float((sums(plain) - sums(secure)).abs().max()) <= 5 * 2**12 / ONE
    assert float((plain.model["head.weight"] - secure.model["head.weight"]).abs().max()) < 1.0
    assert {ask.name for ask in secure.asks} == {*("offer_keys", "share_secrets", "release_masked_sum", "open_sum")}


# -- joining and leaving --------------------------------------------------------------------------------------------


def carried_out(folder: Path, name: str, **method: Any) -> RunResult:
    tables = {
        "name": name,
        "runs": str(folder),
        "data": {"name": "digits", "limit": 150},
        "partition": {"name": "dirichlet", "num_clients": 4, "alpha": 1.0},
        "method": {"name": "analytic", "dimension": 20, **method},
        "engine": {"workers": 1},
    }
    return run_experiment(make_experiment(tables), progress=False)


def test_who_leaves_leaves_no_trace_and_who_joins_is_as_if_always_there(tmp_path: Path) -> None:
    everybody = carried_out(tmp_path, "everybody", keep=True)
    never = carried_out(tmp_path, "never", leave=["1"], keep=True)
    left = carried_out(tmp_path, "left", start=str(tmp_path / "everybody"), leave=["1"])
    joined = carried_out(tmp_path, "joined", start=str(tmp_path / "never"))
    for one, other in ((left, never), (joined, everybody)):
        assert one.weights is not None
        assert other.weights is not None
        assert all(torch.equal(one.weights[entry], other.weights[entry]) for entry in one.weights)
    assert not torch.equal(never.weights["head.weight"], everybody.weights["head.weight"])  # type: ignore[index]
    asked = {row.release: row.clients for row in joined.summary.privacy if not row.evaluation}
    assert asked == {"released_sums.release_sum.total": ["1"]}
    assert any('Sums of "everybody" are used' in note for note in left.summary.notes)


def test_what_cannot_be_started_from_is_refused(tmp_path: Path) -> None:
    carried_out(tmp_path, "forgetful")
    carried_out(tmp_path, "kept", keep=True)
    with pytest.raises(ConfigError, match="kept no sums. Run it with method.keep = true"):
        carried_out(tmp_path, "a", start=str(tmp_path / "forgetful"))
    with pytest.raises(ConfigError, match="of other features than those asked for here"):
        carried_out(tmp_path, "b", start=str(tmp_path / "kept"), features="pixels")
    with pytest.raises(ConfigError, match='leave names "7", which is no client here'):
        carried_out(tmp_path, "c", leave=["7"])
    with pytest.raises(ConfigError, match="manifest of the run"):
        carried_out(tmp_path, "d", start=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"keep": True, "privacy": SECURE}, "keep needs the sums of single clients, which privacy.secure_agg"),
        ({"start": "x", "privacy": SECURE}, "start needs the sums of single clients"),
        ({"weights": "clients", "privacy": SECURE}, 'weights = "clients" needs the sums'),
        ({"start": "x", "epsilon": 1.0}, "start does not go with epsilon: .* a centre that follows from all"),
        ({"weights": "clients", "epsilon": 1.0}, "would divide by numbers that are noisy"),
        ({"fewest": 3, "epsilon": 1.0}, "fewest is for exact sums that the server sees one by one"),
        ({"length": 2.0}, "length and clip bound a record in a private release: give epsilon"),
        ({"backbone": "x", "features": "pixels"}, "backbone takes the place of features"),
        ({"privacy": PrivacyConfig(updates="dp_sgd")}, "protects the shared loop"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AnalyticConfig(**settings)


# -- privacy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
def test_the_ledger_says_the_epsilon_that_dp_accounting_counts(
    pool: tuple[np.ndarray, np.ndarray], run_method: RunMethod, secure: bool
) -> None:
    privacy = PrivacyConfig(secure_aggregation=secure)
    found = run_method("analytic", five(pool), settings={"epsilon": 2.0, "dimension": 10, "privacy": privacy})
    [total] = [row for row in found.fed.participation.ledger.rows(1e-5) if row.kind == "total"]
    mu = 1 / gaussian_sigma(2.0, 1e-5)
    accountant = PLDAccountant()
    for share in (0.05, 0.95):
        accountant.compose(GaussianDpEvent(1 / (mu * math.sqrt(share))))
    assert total.epsilon == pytest.approx(2.0, abs=1e-6)
    assert accountant.get_epsilon(1e-5) == pytest.approx(total.epsilon, abs=2e-3)
    assert (total.unit, total.adjacency) == ("record", "add or remove one")


def test_noise_is_what_it_is_said_to_be(pool: tuple[np.ndarray, np.ndarray], run_method: RunMethod) -> None:
    """With ε so large that the centre is known, sums differ from exact ones by noise of √2 / μ at each client."""
    settings = {"dimension": 12, "clip": 2.0}
    epsilon = 4.0
    seeds = [
        sums(run_method("analytic", five(pool), settings={**settings, "epsilon": epsilon}, seed=seed))
        for seed in range(3)
    ]
    std = math.sqrt(2 * 5 / 0.95) * gaussian_sigma(epsilon, 1e-5)
    differences = torch.cat([seeds[0] - seeds[1], seeds[1] - seeds[2]]).std() / math.sqrt(2)
    assert float(differences) == pytest.approx(std, rel=0.15)


def test_with_much_noise_the_model_is_worse_and_with_none_as_good_as_exact(
    pool: tuple[np.ndarray, np.ndarray], run_method: RunMethod
) -> None:
    def accuracy(epsilon: float | None) -> float:
        found = run_method("analytic", five(pool), settings={"dimension": 40, "epsilon": epsilon})
        spec = ModelSpec(name="fixed", dimension=40)
        tallies = client_tallies(found.fed, found.outcome, spec, ["validation"])["global/validation"]
        return float(np.mean([tally.correct.sum() / tally.total.sum() for tally in tallies.values()]))

    assert accuracy(1e5) > 0.9
    assert accuracy(0.05) < 0.6 < accuracy(None)


# -- whom it is for -------------------------------------------------------------------------------------------------


def test_clients_weigh_alike_where_asked(run_method: RunMethod) -> None:
    """A client that has everything twice counts as one that has it once."""
    data = some_clients(30, 20, 10)
    x, y = data.train["b"].x, data.train["b"].y
    doubled = Clients({n: (d.x, d.y) for n, d in data.train.items()} | {"b": (np.tile(x, (2, 1)), np.tile(y, 2))}, 3)
    once, twice = (run_method("analytic", d, settings={"weights": "clients"}) for d in (data, doubled))
    records = run_method("analytic", doubled)
    assert torch.allclose(once.model["head.weight"], twice.model["head.weight"], atol=1e-5)
    assert not torch.allclose(once.model["head.weight"], records.model["head.weight"], atol=1e-2)


def test_classes_with_few_examples_can_stay_at_home(run_method: RunMethod) -> None:
    """A class of which a client has one example only would show it."""
    data = some_clients(30, 20, 10)
    counts = [data.train[name].counts(3) for name in "abc"]
    found = run_method("analytic", data, settings={"fewest": 4})
    assert (
        RidgeSums.unpacked(sums(found), 3, 3).examples.tolist() == sum(np.where(c < 4, 0, c) for c in counts).tolist()
    )
    assert any(0 < number < 4 for c in counts for number in c)


def test_classes_weigh_alike_where_asked(pool: tuple[np.ndarray, np.ndarray], run_method: RunMethod) -> None:
    """A rare class is recognised more often."""
    x, y = pool
    rows = np.concatenate([np.flatnonzero(y == 1), np.flatnonzero(y == 8)[:2]])
    rare = [rows[:6], rows[6:]]
    spec, shape = ModelSpec(name="fixed", dimension=30), (1, 8, 8)
    unseen = torch.from_numpy(x[np.flatnonzero(y == 8)[2:]]).float()
    unseen = unseen / 255 if x.dtype == np.uint8 else unseen
    found = {}
    for weights in ("records", "classes"):
        model = run_method(
            "analytic", spread(pool, rare), settings={"weights": weights, "dimension": 30, "ridge": 0.3}
        ).model
        with torch.inference_mode():
            scores = instantiate(spec, shape, 10, model)(unseen)
        found[weights] = float((scores[:, 8] - scores[:, 1]).mean())
    assert found["classes"] > found["records"] + 0.5


def test_a_clients_own_model_counts_its_own_again_and_never_leaves(
    pool: tuple[np.ndarray, np.ndarray], run_method: RunMethod
) -> None:
    """Weight 1 is the model of a federation in which the client is there twice."""
    data = five(pool)
    found = run_method("analytic", data, settings={"personal_weight": 1.0, "dimension": 20})
    again = Clients({n: (d.x, d.y) for n, d in data.train.items()} | {"2b": (data.train["2"].x, data.train["2"].y)}, 10)
    twice = run_method("analytic", again, settings={"dimension": 20})
    spec = ModelSpec(name="fixed", dimension=20)
    tallies = client_tallies(found.fed, found.outcome, spec, ["test"])
    expected = client_tallies(twice.fed, twice.outcome, spec, ["test"])["global/test"]["2"]
    assert tallies["personal/test"]["2"].loss == expected.loss
    assert tallies["personal/test"]["2"].loss != tallies["global/test"]["2"].loss
    assert set(found.asks[-1].replies["2"]) == {"scores", "measures"}


# -- features -------------------------------------------------------------------------------------------------------


def test_a_backbone_is_the_body_of_a_trained_network(
    pool: tuple[np.ndarray, np.ndarray], run_method: RunMethod, tmp_path: Path
) -> None:
    spec = ModelSpec(name="cnn", channels=(4, 6), hidden=(8,))
    trained = weights_of(build_model(spec, (1, 8, 8), 4, seed=9))  # of another number of classes
    save_file(trained, tmp_path / "whole.safetensors")
    body = {name.removeprefix("body."): entry for name, entry in trained.items() if name.startswith("body.")}
    save_file(body, tmp_path / "body.safetensors")
    one, other = (
        run_method("analytic", five(pool), model=spec, settings={"backbone": str(tmp_path / f"{name}.safetensors")})
        for name in ("whole", "body")
    )
    for name, entry in one.model.items():
        assert torch.equal(entry, other.model[name])
        assert torch.equal(entry, trained[name]) == name.startswith("body.")
    private = {"backbone": str(tmp_path / "whole.safetensors"), "epsilon": 8.0}
    with pytest.raises(ConfigError, match="set method.length to the longest"):
        run_method("analytic", five(pool), model=spec, settings=private)
    bounded = run_method("analytic", five(pool), model=spec, settings={**private, "length": 1.0})
    assert bounded.model["head.weight"].shape == (10, 8)


def test_a_file_that_is_no_backbone_is_refused(
    pool: tuple[np.ndarray, np.ndarray], run_method: RunMethod, tmp_path: Path
) -> None:
    (tmp_path / "torn.safetensors").write_bytes(b"nothing")
    save_file({"0.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    for name, sentence in (
        ("none", "There is no file"),
        ("torn", "cannot be read as a safetensors file"),
        ("other", "does not fit the .model. of this experiment: The weights lack"),
    ):
        with pytest.raises(UserError, match=sentence):
            run_method("analytic", five(pool), settings={"backbone": str(tmp_path / f"{name}.safetensors")})


def test_a_model_with_weights_is_no_fixed_feature(pool: tuple[np.ndarray, np.ndarray], run_method: RunMethod) -> None:
    with pytest.raises(ConfigError, match='"cnn" is a model whose weights are trained'):
        run_method("analytic", five(pool), settings={"features": "cnn"})


def test_the_run_keeps_an_ordinary_classifier_and_the_model_section_of_others_does_not_matter(tmp_path: Path) -> None:
    result = carried_out(tmp_path, "run")
    assert result.experiment.model_spec == ModelSpec(name="fixed", dimension=20)
    assert result.experiment.resolved()["model"]["name"] == "fixed"
    assert result.summary.rounds == len(result.metrics) == 1
    assert result.summary.test.accuracy is not None
    assert result.summary.test.accuracy > 0.7
    assert result.model is not None
    assert (tmp_path / "run" / "model.safetensors").stat().st_size < 5000
    cnn = make_experiment({"method": {"name": "analytic", "epsilon": 1.0}, "model": {"name": "cnn"}})
    assert cnn.model_spec == ModelSpec(name="fixed", dimension=300)
    assert MethodConfig(model=ModelSpec(name="mlp")).classifier == ModelSpec(name="mlp")


# -- many clients ---------------------------------------------------------------------------------------------------


def test_clients_are_asked_a_few_at_a_time(run_method: RunMethod) -> None:
    """So replies of 50 are in memory at once, however many there are."""
    rng = np.random.default_rng(0)
    data = Clients({f"{n}": (rng.normal(size=(2, 3)), rng.integers(2, size=2)) for n in range(120)}, 2)
    found = run_method("analytic", data, settings={"epsilon": 1.0})
    assert [len(ask.requests) for ask in found.asks] == [50, 50, 20] * 2
    exact = run_method("analytic", data)
    assert [len(ask.requests) for ask in exact.asks] == [50, 50, 20]
    assert float(RidgeSums.unpacked(sums(exact), 3, 2).examples.sum()) == 240


def test_what_the_classifier_rests_on_is_recorded(pool: tuple[np.ndarray, np.ndarray], run_method: RunMethod) -> None:
    done = run_method("analytic", spread(pool, [np.arange(70), np.arange(70, 120)]), settings={"dimension": 40})
    record = done.fed.participation.records["closed form"]
    assert dict(record["rows"]) == {
        "numbers that describe an example": 40,
        "clients in the sum": 2,
        "examples, as counted in it": 120,
        "standard deviation of the noise on each number": 0,
        "ridge": 0.001,
    }
