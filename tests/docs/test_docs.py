"""The documentation says what the program does: tables, links, commands and the worked example."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import fedsynth
from fedsynth.audit.trials import run_trial
from fedsynth.cli.app import app
from fedsynth.data.dataset import Schema
from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.files import override
from fedsynth.federation.methods import all_methods
from fedsynth.federation.tasks import TASKS
from fedsynth.network.policy import SitePolicy
from fedsynth.privacy import GaussianEvent, Guarantee
from fedsynth.studies.rows import plan_rows

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLE = "examples/my_method.py"
COMMANDS = {
    *("methods", "run", "resume", "compare", "partition", "check", "report", "dashboard", "quality", "export"),
    "invert",
    *("deploy", "site", "stress", "verify-method", "audit", "advise"),
}
CHEAP = ["fedsynth methods", "fedsynth methods fedprox", "fedsynth check digits"]


def built_in() -> list[str]:
    return [m.name for m in all_methods() if m.program.__module__.startswith("fedsynth.")]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_tables"] = module
    spec.loader.exec_module(module)
    return module


def fenced(page: Path, language: str = "") -> list[str]:
    """The fenced blocks of a page that have this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    """The lines of a page's plain fenced blocks that call the program, without comments and prompts."""
    lines = [line.removeprefix("$ ") for block in fenced(page) for line in block.splitlines()]
    return [re.sub(r"\s+#.*", "", line) for line in lines if re.match(r"fedsynth [a-z-]+( |$)", line)]


# -- the worked example ---------------------------------------------------------------------------------------------


def steady(runs: Path, engine: dict[str, Any], **settings: Any) -> fedsynth.RunResult:
    return fedsynth.run(
        {"name": "steady", **settings},
        plugins=[str(ROOT / EXAMPLE)],
        runs=str(runs),
        data={"name": "digits", "limit": 400},
        partition={"name": "dirichlet", "num_clients": 4, "alpha": 0.3},
        train={"rounds": 2, "local_epochs": 1},
        engine=engine,
    )


def same_bits(one: fedsynth.RunResult, other: fedsynth.RunResult) -> bool:
    assert one.weights is not None
    assert other.weights is not None
    return all(torch.equal(entry, other.weights[name]) for name, entry in one.weights.items())


def test_the_example_gives_the_same_bits_on_both_engines(tmp_path: Path) -> None:
    local = steady(tmp_path, {"name": "local", "workers": 2}, beta=0.5, warmup_epochs=1)
    wire = steady(tmp_path, {"name": "wire"}, beta=0.5, warmup_epochs=1)
    assert same_bits(local, wire)
    released = {row.what for row in local.summary.privacy if row.task == "fedavg.train"}
    assert {"weights of the model after local training", "number of training examples"} <= released
    assert {row.task for row in local.summary.privacy if not row.evaluation} == {"fedavg.train"}


def test_the_example_without_memory_is_fedavg(tmp_path: Path) -> None:
    without = steady(tmp_path, {"workers": 1}, beta=0)
    plain = fedsynth.run("fedavg", **without.experiment.model_dump(mode="json", exclude={"method"}, exclude_none=True))
    assert same_bits(without, plain)


def test_the_page_shows_the_example_as_it_is() -> None:
    blocks = fenced(ROOT / "docs" / "add-a-method.md", "python")
    assert (ROOT / EXAMPLE).read_text(encoding="utf-8") in blocks


# -- pages and tables -----------------------------------------------------------------------------------------------


def test_every_method_has_a_page_and_every_page_a_method() -> None:
    assert {page.stem for page in (ROOT / "docs" / "methods").glob("*.md")} == set(built_in())


@pytest.mark.parametrize("name", built_in())
def test_a_methods_page_has_its_settings_and_results(name: str, tables: ModuleType) -> None:
    text = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
    assert f"<!-- table: method {name} -->\n{tables.made(f'method {name}')}<!-- end -->" in text
    for heading in ("What leaves a client", "How it was tested", "Results", "Deviations"):
        assert f"## {heading}" in text
    assert f"| {name} |" in text.split("## Results")[1], "its own row is missing from the results"


def test_tables_are_up_to_date(tables: ModuleType) -> None:
    stale = [str(page) for page in PAGES if tables.filled(page.read_text(encoding="utf-8")) != page.read_text("utf-8")]
    assert not stale, f"run 'python docs/tables.py': {stale}"


def test_every_section_and_partitioner_is_described(tables: ModuleType) -> None:
    text = (ROOT / "docs" / "experiment.md").read_text(encoding="utf-8")
    for section in (*tables.SECTIONS, "partition", "method"):
        assert f"## `[{section}]`" in text
    for name, kind in tables.PARTITIONERS.items():
        if kind.config.__module__.startswith("fedsynth."):
            assert f"`{name}`" in text


# -- links ----------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_that_the_sources_name_exist() -> None:
    sources = [*(ROOT / "fedsynth").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    named = {page for path in sources for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8"))}
    assert named
    assert not [page for page in named if not (ROOT / page).is_file()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


# -- commands and files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_parse(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    group = get_command(app)
    for line in commands(page):
        name, *words = shlex.split(line)[1:]
        assert name in COMMANDS
        context = group.commands[name].make_context(name, list(words))  # type: ignore[attr-defined]
        settings = [word for word in context.params.get("words") or [] if "=" in word]
        if "did you mean" not in page.read_text(encoding="utf-8").lower() or "train.round=3" not in settings:
            make_experiment(override({}, settings))


def test_readme_shows_every_command() -> None:
    shown = {shlex.split(line)[1] for line in commands(ROOT / "README.md")}
    assert shown == COMMANDS


def test_cheap_commands_of_the_readme_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown = commands(ROOT / "README.md")
    for line in [*CHEAP, *(line for line in shown if line.startswith("fedsynth partition"))]:
        assert line in shown
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == 0, f"{line}: {result.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_experiment_files_shown_are_valid(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for block in fenced(page, "toml"):
        assert len(block.strip().splitlines()) <= 20
        make_experiment(tomllib.loads(block))
        plan_rows(None, tomllib.loads(block).get("rows"), references=False, controls=False)


def test_the_demo_file_is_valid_and_short() -> None:
    text = (ROOT / "examples" / "demo.toml").read_text(encoding="utf-8")
    make_experiment(tomllib.loads(text))
    assert len([line for line in text.splitlines() if line.strip() and not line.startswith("#")]) <= 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_shown_compiles(page: Path) -> None:
    for block in fenced(page, "python"):
        compile(block, str(page), "exec")


def test_what_leaves_in_every_task_is_told() -> None:
    """The table of docs/privacy.md has every task of the package."""
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`([\w.]+)`", page[page.index("## What leaves in each method") :]))
    ours = {each.name for each in TASKS.values() if each.function.__module__.startswith("fedsynth.")}
    assert ours <= told


def test_every_key_of_a_sites_policy_is_told() -> None:
    page = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
    assert set(SitePolicy.model_fields) <= set(re.findall(r"`(\w+)`", page[page.index("## Security") :]))


def test_the_trial_that_is_shown_tests_its_mechanism() -> None:
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    code = next(block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "add_up_trial" in block)
    names: dict[str, Any] = {"__name__": "tests_shown_trial"}
    exec(compile(code, "docs/audit.md", "exec"), names)
    guarantee = Guarantee(mechanism="noise", events=(GaussianEvent(mu=1 / 2),))
    [trial] = names["add_up"].make_trials(guarantee, None, Schema((1,), 3))
    assert not run_trial(trial, 200, 1e-5, 0.95, np.random.default_rng(0)).refuted
    broken = replace(trial, events=(GaussianEvent(mu=1 / 20),))
    assert run_trial(broken, 600, 1e-5, 0.95, np.random.default_rng(0)).refuted
