"""One release of a sum: exact, with noise of each client, or with its shares in a secure sum; what is claimed of it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import Clients, some_clients
from torch import Tensor

from fedsynth.components.released_sums import ReleaseConfig, Statistic, Sum, release_masked_sum, released_sum
from fedsynth.components.secure_aggregation import SecureSettings
from fedsynth.engines.wire import WireEngine
from fedsynth.errors import FedsynthError
from fedsynth.federation import Client, Federation
from fedsynth.federation.host import TaskHost
from fedsynth.federation.store import StateStore
from fedsynth.privacy import PrivacyConfig
from fedsynth.privacy.secure_sum import ONE

SUMS = SecureSettings(threshold=0.6)


class Counts(Statistic, name="test counts"):
    """A vector of the record's class, beside numbers that come with the request."""

    about = "the number of examples of each class"
    offset: Tensor | None = None

    @property
    def sensitivity(self) -> float:
        return 1.0

    def total(self, client: Client) -> Tensor:
        counts = torch.from_numpy(client.class_counts()).double()
        return counts if self.offset is None else counts * 0 + self.offset


@pytest.fixture(scope="module")
def five() -> Clients:
    return some_clients(12, 20, 9, 30, 15)


def ask(data: Clients, folder: Path, **how: object) -> tuple[Sum, Federation]:
    store = StateStore(folder)
    fed = Federation(WireEngine(lambda: TaskHost(data, store)), data.clients, data.schema)
    found = released_sum(fed, how.pop("statistic", Counts()), **how)  # type: ignore[arg-type]
    assert found is not None
    return found, fed


def counts(data: Clients) -> np.ndarray:
    return sum(data.client(client).train.counts(data.schema.classes) for client in data.clients)


def test_without_noise_the_sum_is_exact_and_the_ledger_says_unprotected(five: Clients, tmp_path: Path) -> None:
    found, fed = ask(five, tmp_path)
    assert found.total.dtype == torch.float64
    assert found.total.tolist() == counts(five).tolist()
    assert (found.clients, found.std) == (list(five.clients), 0.0)
    [row] = [row for row in fed.participation.ledger.rows(1e-5) if row.kind == "release"]
    assert row.epsilon is None


def test_a_statistic_with_tensors_travels(five: Clients, tmp_path: Path) -> None:
    found, _ = ask(five, tmp_path, statistic=Counts(offset=torch.ones(3, dtype=torch.float64) / 3))
    assert found.total.tolist() == pytest.approx([5 / 3] * 3, rel=1e-15)


def test_noise_of_each_client_adds_up_to_what_is_said(five: Clients, tmp_path: Path) -> None:
    found, fed = ask(five, tmp_path, mu=0.5)
    assert found.std == pytest.approx(2 * math.sqrt(5))
    noise = found.total.numpy() - counts(five)
    assert 0.3 < noise.std() / found.std < 1.8
    [row] = [row for row in fed.participation.ledger.rows(1e-5) if row.kind == "release"]
    assert row.epsilon == pytest.approx(1.9931, abs=1e-4)  # privacy.md, vector 1
    assert row.against == "all but holders of the seed"  # this federation has no secret


def test_a_secure_sum_is_the_sum_to_its_steps(five: Clients, tmp_path: Path) -> None:
    found, _ = ask(five, tmp_path, secure=SUMS)
    assert found.total.numpy() == pytest.approx(counts(five), abs=5 * 2**12 / ONE)


def test_in_a_secure_sum_the_noise_is_there_once(five: Clients, tmp_path: Path) -> None:
    """Of five clients three can open the sum: each adds a third of the variance."""
    found, fed = ask(
        five, tmp_path, mu=0.5, secure=SecureSettings(threshold=0.6, scope=("record", "add or remove one"))
    )
    assert found.std == pytest.approx(2 * math.sqrt(5 / 3))
    noise = found.total.numpy() - counts(five)
    assert 0.3 < noise.std() / found.std < 1.8
    rows = fed.participation.ledger.rows(1e-5)
    [row] = [row for row in rows if row.release.endswith(".masked")]
    assert row.epsilon == pytest.approx(1.9931, abs=1e-4)
    assert row.against == "all but a malicious server and holders of the seed"
    [total] = [row for row in rows if row.kind == "total"]
    assert total.epsilon == pytest.approx(1.9931, abs=1e-4)


@pytest.mark.parametrize("mu", [0.0, -1.0, math.inf, math.nan])
def test_a_request_with_a_senseless_mu_is_refused(five: Clients, tmp_path: Path, mu: float) -> None:
    with pytest.raises(FedsynthError, match="mu = .* cannot be used"):
        ask(five, tmp_path, mu=mu)


def test_a_sum_too_large_for_a_secure_sum_is_refused(five: Clients, tmp_path: Path) -> None:
    huge = Counts(offset=torch.full((3,), 1e9, dtype=torch.float64))
    with pytest.raises(FedsynthError, match="too large for a secure sum"):
        ask(five, tmp_path, statistic=huge, secure=SUMS)


def test_settings_calibrate_to_epsilon_and_share() -> None:
    cfg = ReleaseConfig(epsilon=1.0)
    assert cfg.mu() == pytest.approx(1 / 3.7306, rel=1e-4)  # privacy.md, vector 4
    assert math.hypot(cfg.mu(0.1) or 0, cfg.mu(0.9) or 0) == pytest.approx(cfg.mu())
    assert ReleaseConfig().mu() is None
    assert cfg.sums() is None
    secure = ReleaseConfig(privacy=PrivacyConfig(secure_aggregation=True), epsilon=1.0).sums()
    assert secure is not None
    assert secure.scope == ("record", "add or remove one")


def test_what_leaves_is_declared() -> None:
    assert release_masked_sum.leaves()["masked"].endswith("readable as a whole only")
