"""Resuming: a run that stops anywhere and goes on ends with the bits of one that never stopped."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import fedsynth.methods  # noqa: F401 - registers the values of slots
from fedsynth.components.slots import LocalObjective, ObjectiveSlot
from fedsynth.errors import FedsynthError, UserError
from fedsynth.federation import Client, Federation, Message, Policy, Reply, State, leaves, task
from fedsynth.federation.payload import encode
from fedsynth.federation.store import StateStore


class Moved(Reply):
    model: torch.Tensor = leaves("a vector")


class Key(Reply):
    key: torch.Tensor = leaves("a key")


@task
def rs_prepare(client: Client) -> Key:
    client.state["offset"] = torch.rand(4)
    return client.release(Key(key=torch.rand(2)))


@task
def rs_move(client: Client, model: torch.Tensor) -> Moved:
    """Uses the private state, the client's randomness and torch's."""
    momentum = 0.9 * client.state.get("momentum", torch.zeros(4)) + client.state["offset"]
    client.state["momentum"] = momentum
    noise = torch.from_numpy(client.rng("noise").normal(size=4)).float()
    return client.release(Moved(model=model + momentum + noise + torch.rand(4)))


class PowerCutError(Exception):
    """The run stops here."""


def program(fed: Federation, stop: str = "") -> dict[str, Any]:
    """Two phases of rounds with a piece of work before and between."""

    def cut(place: str) -> None:
        if place == stop:
            raise PowerCutError

    def prepare() -> dict[str, Any]:
        replies = fed.broadcast(rs_prepare)
        cut("in prepare")
        return {"keys": {client: reply.key for client, reply in replies.items()}, "drawn": fed.rng("p").random()}

    prepared = fed.once("prepare", prepare)
    state = State(model=torch.zeros(4), history=[])
    for phase, rounds in (("first", 3), ("second", 3)):
        for index in fed.rounds(phase, rounds, state):
            cut(f"before {phase} {index}")
            replies = fed.broadcast(rs_move, to=fed.sample(0.75), model=state.model)
            cut(f"asked {phase} {index}")
            state.model = torch.stack([reply.model for reply in replies.values()]).mean(0)
            state.history = [*state.history, [phase, index, fed.round, list(replies)]]
        middle = fed.once(f"after {phase}", lambda: float(fed.rng("between").random()))
        cut(f"after {phase}")
    return {"model": state.model, "history": state.history, "prepared": prepared, "middle": middle}


PLACES = [
    "in prepare",
    *(f"{when} {phase} {k}" for phase in ("first", "second") for k in (1, 2, 3) for when in ("before", "asked")),
    "after first",
    "after second",
]


def private_states(fed: Federation, folder: Path) -> bytes:
    store = StateStore(folder / "state")
    return encode({client: store.read(client, version) for client, version in sorted(fed._versions.items())})


def record(fed: Federation) -> dict[str, Any]:
    return {
        key: value for key, value in fed.participation.as_dict().items() if key not in ("client_seconds", "timeline")
    }


@pytest.fixture(scope="module")
def reference(digits, tmp_path_factory):
    """The run that nobody stops."""
    from fedsynth.engines.wire import WireEngine
    from fedsynth.federation.host import TaskHost
    from fedsynth.federation.journal import Journal

    folder = tmp_path_factory.mktemp("reference")
    store = StateStore(folder / "state")
    engine = WireEngine(lambda: TaskHost(digits, store))
    fed = Federation(engine, digits.clients, digits.schema, journal=Journal(folder))
    return encode(program(fed)), private_states(fed, folder), record(fed)


def assert_same_as(reference, fed: Federation, result: dict[str, Any], folder: Path) -> None:
    model, states, participation = reference
    assert encode(result) == model
    assert private_states(fed, folder) == states
    assert record(fed) == participation


@pytest.mark.parametrize("place", PLACES)
def test_a_run_stopped_anywhere_ends_with_the_same_bits(federate, tmp_path, reference, place):
    with pytest.raises(PowerCutError):
        program(federate("run"), stop=place)
    fed = federate("run")
    assert_same_as(reference, fed, program(fed), tmp_path / "run")


def test_a_run_stopped_again_and_again_ends_with_the_same_bits(federate, tmp_path, reference):
    for place in PLACES:
        with pytest.raises(PowerCutError):
            program(federate("run"), stop=place)
    fed = federate("run")
    assert_same_as(reference, fed, program(fed), tmp_path / "run")


def test_a_finished_run_gives_its_result_again_without_asking(federate, tmp_path, reference):
    program(federate("run"))
    fed = federate("run")
    assert_same_as(reference, fed, program(fed), tmp_path / "run")


def test_a_resumed_run_does_not_repeat_finished_rounds(federate):
    with pytest.raises(PowerCutError):
        program(federate("run"), stop="before second 2")
    fed = federate("run")
    asked = fed.participation.asked.total()
    with pytest.raises(PowerCutError):
        program(fed, stop="asked second 2")
    assert fed.participation.asked.total() == asked + 3


def test_a_journal_without_a_folder_gives_the_same_result(federate, tmp_path):
    assert encode(program(federate())) == encode(program(federate("run")))


def test_phases_with_the_same_name_are_refused(federate):
    fed = federate()
    program(fed)
    with pytest.raises(FedsynthError, match='Two phases of this program are called "prepare"'):
        program(fed)


def test_a_phase_inside_the_rounds_of_another_is_refused(federate):
    fed = federate()
    next(fed.rounds("outer", 2, State()))
    with pytest.raises(FedsynthError, match='"inner" begins inside the rounds of "outer"'):
        fed.once("inner", lambda: 1)


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("*.safetensors"))


def stopped(federate, place: str = "asked second 2") -> None:
    with pytest.raises(PowerCutError):
        program(federate("run"), stop=place)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scramble(path: Path) -> None:
    blob = bytearray(path.read_bytes())
    for position in range(20, 60):
        blob[position] ^= 0xFF
    path.write_bytes(bytes(blob))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, scramble, empty])
def test_a_damaged_newest_checkpoint_costs_a_round_not_the_run(federate, tmp_path, reference, damage):
    stopped(federate)
    assert len(checkpoints(tmp_path / "run")) == 2
    damage(checkpoints(tmp_path / "run")[-1])
    fed = federate("run")
    assert fed.round == 3
    assert_same_as(reference, fed, program(fed), tmp_path / "run")


def test_a_checkpoint_whose_private_states_are_damaged_is_not_used(federate, tmp_path, reference):
    stopped(federate)
    fed = federate("run")
    client, version = max(fed._versions.items(), key=lambda item: item[1])
    truncate(tmp_path / "run" / "state" / client / f"{version}.safetensors")
    fed = federate("run")
    assert fed.round == 3
    assert_same_as(reference, fed, program(fed), tmp_path / "run")


def test_two_damaged_checkpoints_are_a_clear_error(federate, tmp_path):
    stopped(federate)
    for path in checkpoints(tmp_path / "run"):
        truncate(path)
    with pytest.raises(UserError, match=r"No checkpoint in .*run/checkpoints can be read: start the run anew"):
        federate("run")


def test_a_damaged_record_of_a_finished_phase_is_a_clear_error(federate, tmp_path):
    stopped(federate)
    truncate(tmp_path / "run" / "phases" / "first.safetensors")
    with pytest.raises(UserError, match='phase "first"'):
        program(federate("run"))


def test_a_torn_write_leaves_nothing_that_is_taken_for_a_checkpoint(federate, tmp_path, reference):
    stopped(federate)
    newest = checkpoints(tmp_path / "run")[-1]
    torn = newest.with_name(f".{int(newest.stem) + 1:06d}.safetensors.0badf00d.tmp")
    torn.write_bytes(newest.read_bytes()[:100])
    fed = federate("run")
    assert_same_as(reference, fed, program(fed), tmp_path / "run")


def test_no_more_than_two_checkpoints_are_kept(federate, tmp_path):
    fed = federate("run")
    for _ in fed.rounds("many", 6, State(model=torch.zeros(1))):
        assert len(checkpoints(tmp_path / "run")) <= 2
    assert [path.stem for path in checkpoints(tmp_path / "run")] == ["000005", "000006"]


def test_a_run_folder_can_be_moved(federate, tmp_path, reference):
    stopped(federate)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    fed = federate("moved")
    assert_same_as(reference, fed, program(fed), tmp_path / "moved")


def test_a_round_without_enough_answers_can_be_resumed(federate, tmp_path, reference):
    from fedsynth.federation import QuorumError

    class Flaky:
        clock = 0.0

        def __init__(self, inner):
            self.inner, self.asks = inner, 0

        def ask(self, task, requests, deadline):
            self.asks += 1
            return self.inner.ask(task, {} if self.asks == 4 else requests, deadline)

        def close(self):
            self.inner.close()

    with pytest.raises(QuorumError, match="lost"):
        program(federate("run", engine=Flaky(federate("run").engine), policy=Policy(quorum=1.0)))
    fed = federate("run")
    assert fed.round == 2
    assert_same_as(reference, fed, program(fed), tmp_path / "run")


class Watcher:
    """Stops a phase early, and keeps a number over a resume."""

    def __init__(self) -> None:
        self.seen = 0
        self.restored: dict[str, Any] | None = None

    def phase_started(self, name, rounds, done):
        self.done = done

    def round_done(self, fed, name, state):
        self.seen += 1
        return self.seen == 4

    def snapshot(self):
        return {"seen": self.seen}

    def restore(self, values):
        self.restored, self.seen = values, values.get("seen", 0)


def test_a_watcher_stops_a_phase_early_also_after_a_resume(federate):
    def rounds(fed: Federation, cut: int = 0) -> list[int]:
        ran = []
        for index in fed.rounds("watched", 10, State()):
            if index == cut:
                raise PowerCutError
            ran.append(index)
        return ran

    watcher = Watcher()
    assert rounds(federate(watcher=watcher)) == [1, 2, 3, 4]
    assert watcher.restored == {}, "at the start there is nothing to go back to"
    with pytest.raises(PowerCutError):
        rounds(federate("run", watcher=Watcher()), cut=3)
    watcher = Watcher()
    fed = federate("run", watcher=watcher)
    assert rounds(fed) == [3, 4]
    assert watcher.done == 2
    assert watcher.restored == {"seen": 2}
    assert rounds(federate("run")) == []


def test_no_rounds_at_all_leave_the_state_as_it_is(federate):
    for _ in range(2):
        state = State(model=torch.ones(2))
        assert list(federate("run").rounds("none", 0, state)) == []
        assert torch.equal(state.model, torch.ones(2))


def test_seconds_go_on_counting_after_a_resume(federate):
    stopped(federate)
    fed = federate("run")
    assert fed._seconds > 0
    assert fed.seconds > fed._seconds


def test_a_value_the_state_does_not_have_is_named():
    with pytest.raises(AttributeError, match="modle"):
        _ = State(model=1).modle


# -- types ------------------------------------------------------------------------------------------------------------


class Sample(Message):
    image: torch.Tensor
    label: int


@dataclass(frozen=True)
class Spread:
    mean: np.ndarray
    width: float


class Kept(State):
    """What the program below carries."""

    START: ClassVar[dict[str, Any]] = {"latest": None, "seen": [], "settings": (0, "none")}

    samples: dict[str, Sample]
    seen: list[Spread]
    latest: Sample | None
    settings: tuple[int, str]
    objective: ObjectiveSlot
    weights: dict[str, torch.Tensor]


class KeptMore(Kept):
    """Has what its base has, and more."""

    groups: list[list[Sample]]


def carry(fed: Federation, count: int, stop: int = 0) -> KeptMore:
    """Rounds that leave typed values in the state, and one that no annotation names."""
    objective = LocalObjective.parse({"name": "proximal", "mu": 0.25})
    state = KeptMore(samples={}, objective=objective, weights={}, groups=[], bare=[], **Kept.START)
    for index in fed.rounds("typed", count, state):
        if index == stop:
            raise PowerCutError
        sample = Sample(image=torch.full((2,), float(index)), label=index)
        state.samples = state.samples | {f"{index}": sample}
        state.seen = [*state.seen, Spread(np.array([index, -index]), index / 2)]
        state.latest = sample
        state.settings = (index, "some")
        state.weights = state.weights | {f"w.{index}": torch.rand(2, generator=torch.Generator().manual_seed(index))}
        state.groups = [*state.groups, [sample, sample]]
        state.bare = [*state.bare, {"a": torch.ones(1)}]
    return state


def assert_typed(state: KeptMore, last: int) -> None:
    names = [f"{index}" for index in range(1, last + 1)]
    assert list(state.samples) == names
    assert all(type(sample) is Sample for sample in state.samples.values())
    assert [type(spread) for spread in state.seen] == [Spread] * last
    assert all(isinstance(spread.mean, np.ndarray) and isinstance(spread.width, float) for spread in state.seen)
    assert [spread.mean.tolist() for spread in state.seen] == [[k, -k] for k in range(1, last + 1)]
    assert type(state.latest) is Sample
    assert torch.equal(state.latest.image, torch.full((2,), float(last)))
    assert state.settings == (last, "some")
    assert (type(state.objective).__name__, state.objective.model_dump()["mu"]) == ("ProximalObjective", 0.25)
    assert [[type(sample) for sample in group] for group in state.groups] == [[Sample, Sample]] * last
    assert encode({"w": state.weights}) == encode({"w": carry_weights(last)})
    assert type(state.bare[0]) is dict


def carry_weights(last: int) -> dict[str, torch.Tensor]:
    return {f"w.{k}": torch.rand(2, generator=torch.Generator().manual_seed(k)) for k in range(1, last + 1)}


@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_state_has_its_types_again_after_a_stop(federate, stop):
    with pytest.raises(PowerCutError):
        carry(federate("run"), 4, stop)
    assert_typed(carry(federate("run"), 4), 4)


def test_a_finished_phase_gives_its_state_with_its_types(federate):
    assert_typed(carry(federate("run"), 3), 3)
    assert_typed(carry(federate("run"), 3), 3)


def test_a_phase_of_steps_keeps_types_and_counts_no_round(federate):
    def steps(fed: Federation, stop: int = 0) -> Kept:
        state = Kept(samples={}, objective=LocalObjective.parse("plain"), weights={}, **Kept.START)
        for index in fed.steps("steps", 3, state):
            if index == stop:
                raise PowerCutError
            drawn = torch.from_numpy(fed.rng("step").random(2))
            state.samples = state.samples | {f"{index}": Sample(image=drawn, label=index)}
        return state

    with pytest.raises(PowerCutError):
        steps(federate("run"), stop=2)
    fed = federate("run")
    resumed, whole = steps(fed), steps(federate("whole"))
    assert fed.round == 0
    assert all(type(sample) is Sample for sample in resumed.samples.values())
    assert encode({"s": resumed.samples}) == encode({"s": whole.samples})
    drawn = {tuple(sample.image.tolist()) for sample in resumed.samples.values()}
    assert len(drawn) == 3, "every step draws other numbers"


def test_work_that_is_done_once_comes_back_as_its_kind(federate):
    def work() -> dict[str, Sample]:
        return {"a": Sample(image=torch.ones(2), label=3)}

    for _ in range(2):  # the second time from the journal
        fed = federate("run")
        typed = fed.once("typed", work, dict[str, Sample])
        assert type(typed["a"]) is Sample
        assert torch.equal(typed["a"].image, torch.ones(2))
        assert fed.once("bare", lambda: work()["a"])["label"] == 3
        assert fed.once("spread", lambda: Spread(np.arange(2), 0.5), Spread).width == 0.5
        assert fed.once("nothing", lambda: None, Sample | None) is None
