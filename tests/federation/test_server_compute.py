"""Work of the server's own: over the cores of its engine, and no part of what crosses to the clients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedsynth
from fedsynth.engines.faults import FaultConfig
from fedsynth.errors import FedsynthError, UserError
from fedsynth.federation import Client, Federation, Policy, Reply, leaves, task
from fedsynth.federation.port import Answers
from fedsynth.privacy import Budget


class Drawn(Reply):
    numbers: torch.Tensor = leaves("numbers")
    examples: int = leaves("how many examples were at hand")


@task
def sw_draw(client: Client, times: float) -> Drawn:
    """Uses the work's own randomness and torch's."""
    drawn = torch.from_numpy(client.rng("draw").normal(size=5)) + torch.rand(5)
    return client.release(Drawn(numbers=times * drawn, examples=len(client.data.train)))


@task
def sw_break(client: Client, text: str) -> Drawn:
    raise ArithmeticError(text)


JOBS = {name: {"times": float(number)} for number, name in enumerate("abcde")}
ENGINES = [{"workers": 0}, {"workers": 2}, {"wire": True}]


def numbers(fed: Federation) -> dict[str, torch.Tensor]:
    return {name: reply.numbers for name, reply in fed.compute(sw_draw, JOBS).items()}


def test_the_same_bits_on_every_engine_and_with_any_number_of_workers(federate):
    here, *others = (numbers(federate(**where)) for where in ENGINES)
    assert list(here) == list("abcde")
    for other in others:
        assert list(other) == list(here)
        assert all(torch.equal(here[name], other[name]) for name in here)
    assert not torch.equal(here["b"] * 2, here["c"]), "every piece has randomness of its own"


def test_there_is_no_data_near(federate):
    assert {reply.examples for reply in federate().compute(sw_draw, JOBS).values()} == {0}


@pytest.mark.parametrize("where", ENGINES)
def test_it_is_counted_neither_in_bytes_nor_in_the_ledger(federate, where):
    fed = federate(**where, policy=Policy(budget=Budget(1.0, 1e-5)))
    fed.compute(sw_draw, JOBS)
    took_part = fed.participation
    assert took_part.bytes() == {"up": 0, "down": 0, "evaluation": {"up": 0, "down": 0}, "by_task": {}}
    assert took_part.ledger.rows(1e-5) == []
    assert not took_part.asked
    assert not took_part.answered
    assert (took_part.client_seconds, took_part.client_epochs) == (0, 0)
    assert took_part.server_seconds > 0


def test_faults_spare_it(federate):
    fed = federate(faults=FaultConfig(dropout=1.0, failure=1.0, delay=3.0, seconds_per_example=1.0))
    assert list(numbers(fed)) == list(JOBS)
    assert fed.engine.clock == 0
    assert fed.participation.failed == 0


@pytest.mark.parametrize("where", ENGINES)
def test_a_piece_that_fails_ends_the_run_with_its_message(federate, where):
    with pytest.raises(
        FedsynthError,
        match='own work failed in task "test_server_compute.sw_break": ArithmeticError: seven is too many',
    ):
        federate(**where).compute(sw_break, {"a": {"text": "seven is too many"}})


def test_no_work_gives_nothing(federate):
    for where in ENGINES:
        assert federate(**where).compute(sw_draw, {}) == {}


def test_what_an_engine_notes_is_kept(federate):
    class Noting:
        clock = 0.0

        def __init__(self, inner):
            self.inner = inner

        def ask(self, task, requests, deadline) -> Answers:
            answers = self.inner.ask(task, requests, deadline)
            answers.notes.append("a worker died")
            return answers

        def close(self):
            self.inner.close()

    fed = federate(engine=Noting(federate().engine))
    fed.compute(sw_draw, JOBS)
    assert fed.participation.notes == ["a worker died"]


@pytest.mark.parametrize("name", ["*", "@home"])
def test_a_client_cannot_have_the_servers_name(digits, name):
    with pytest.raises(UserError, match=f'A client cannot be called "\\{name}"'):
        Federation(None, ["a", name], digits.schema)  # type: ignore[arg-type]


def test_pictures_are_of_images_only(digits):
    class Watcher:
        shown = 0

        def restore(self, values):
            pass

        def show(self, fed, name, images, labels):
            self.shown += 1

    for shape, expected in (((1, 8, 8), 1), ((7,), 0)):
        fed = Federation(None, ["a"], type(digits.schema)(shape, 3), watcher=Watcher())  # type: ignore[arg-type]
        fed.show("points", torch.zeros(3, *shape), torch.arange(3))
        assert fed.watcher.shown == expected


def test_the_summary_tells_its_seconds(tmp_path: Path):
    setting = {
        "runs": str(tmp_path),
        "data": {"name": "digits", "limit": 150},
        "partition": {"name": "dirichlet", "num_clients": 3, "alpha": 1.0},
        "model": {"name": "mlp", "hidden": [6]},
        "train": {"rounds": 1, "local_epochs": 1},
    }
    few = {"name": "agg_enhance", "steps": 2, "tune_epochs": 1}
    here, forked = (fedsynth.run(few, engine={"workers": workers}, **setting) for workers in (1, 2))
    assert here.summary.server_seconds > 0
    assert here.summary.seconds >= here.summary.server_seconds
    assert all(torch.equal(w, forked.weights[n]) for n, w in here.weights.items())
    plain = fedsynth.run("fedavg", engine={"workers": 1}, **setting)
    assert plain.summary.server_seconds == 0
    assert set(here.summary.bytes.by_task) == {"local_training.train", "views.score"}
    assert set(plain.summary.bytes.by_task) == {"fedavg.train", "views.score"}
