"""The command line."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedsynth import __version__
from fedsynth.cli.audit import advise_us, audit
from fedsynth.cli.checks import stress, verify_method_file
from fedsynth.cli.network import deploy, site
from fedsynth.cli.results import TrustPlugins, dashboard, export, quality, report
from fedsynth.data.check import check_data
from fedsynth.data.config import parse_data
from fedsynth.errors import ConfigError, FedsynthError, UserError
from fedsynth.experiment.config import load_experiment, load_tables, override
from fedsynth.experiment.plugins import load_plugins
from fedsynth.experiment.runner import RunResult, load_data, resume_run, run_experiment
from fedsynth.federation.methods import all_methods, find_method
from fedsynth.federation.store import write_json
from fedsynth.report.controls import verdict_lines
from fedsynth.report.plots import plot_split
from fedsynth.report.tables import COLUMNS, LEGEND, check_lines, difference_lines, summary_lines
from fedsynth.studies.compare import Comparison, compare_methods, finish_comparison

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Federated learning on skewed data, repaired with synthetic data.",
    pretty_exceptions_enable=False,
)
app.add_typer(deploy, name="deploy")
app.add_typer(site, name="site")
out = Console(width=None if sys.stdout.isatty() else 120)  # a pipe has no width of its own

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE] [KEY=VALUE]…", help="An experiment file (TOML) and settings that change it."),
]
INTERRUPTED = 130  # the exit code that typer makes of Ctrl-C
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, last, on standard output.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs side by side; one per core unless engine.workers is set.")]
Silent = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def _words(words: list[str] | None) -> tuple[Path | None, list[str]]:
    """Tell the experiment file from the settings."""
    words = list(words or [])
    if words and ("=" not in words[0] or Path(words[0]).is_file()):
        return Path(words[0]), words[1:]
    return None, words


def _emit(value: Any) -> None:
    """One JSON object on standard output; numbers that JSON does not have become null."""
    print(json.dumps(_finite(value)))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _show_result(result: RunResult, as_json: bool) -> None:
    if as_json:
        _emit(result.summary.as_dict())
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in summary_lines(result.summary):
        table.add_row(f"[bold]{name}[/bold]", text)
    out.print(table)


def _show_comparison(done: Comparison) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), caption=LEGEND, caption_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in done.rows:
        table.add_row(*row.cells())
    out.print(table)
    for line in (*difference_lines(done.rows), *verdict_lines(done.controls)):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _tables_of(done: Comparison) -> dict[str, Any]:
    rows, controls = ([row.as_dict() for row in part] for part in (done.rows, done.controls))
    return {"rows": rows, "controls": controls, "path": str(done.path)}


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method's settings.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods, or show one method's paper, deviations and settings."""
    if name is not None:
        _show_method(name, as_json)
        return
    if as_json:
        _emit([{"name": m.name, "summary": m.summary, "model": m.model} for m in all_methods()])
        return
    table = Table("method", "what it does", "model of its paper", box=None)
    for m in all_methods():
        table.add_row(f"[bold]{m.name}[/bold]", m.summary, m.model)
    out.print(table)


def _show_method(name: str, as_json: bool) -> None:
    method = find_method(name)
    settings = {
        key: {"default": field.get_default(call_default_factory=True), "help": field.description}
        for key, field in method.config.own_settings().items()
    }
    text = sys.modules[method.program.__module__].__doc__ or method.summary
    if as_json:
        _emit(
            {
                "name": name,
                "summary": method.summary,
                "about": text,
                "model": method.model,
                "settings": settings,
                "controls": dict(method.controls),
            }
        )
        return
    out.print(f"[bold]{name}[/bold]: {method.summary}\n\n{text.strip()}\n", highlight=False)
    table = Table("setting", "default", "meaning", box=None)
    for key, row in settings.items():
        table.add_row(f"method.{key}", "–" if row["default"] is None else str(row["default"]), row["help"] or "")
    out.print(table)
    if method.controls:
        out.print(f"\nIts controls, run by `compare --controls`: {', '.join(method.controls)}", highlight=False)


@app.command()
def run(words: Words = None, as_json: AsJson = False, quiet: Silent = False) -> None:
    """Run one experiment.

    Every key has a default: `fedsynth run` alone trains FedAvg on the embedded digits. Settings come from a file, from
    `key=value` words, or both: `fedsynth run skewed.toml method.name=fedprox method.mu=0.01 train.rounds=50`.

    Sections: data, partition, model, train, method, engine, faults, evaluation, privacy. A wrong key is told the
    nearest.
    """
    _show_result(run_experiment(load_experiment(*_words(words)), progress=False if quiet else None), as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or of a comparison.")],
    as_json: AsJson = False,
    quiet: Silent = False,
    accept_code_change: Annotated[
        bool, typer.Option("--accept-code-change", help="Go on although fedsynth's code is not the same.")
    ] = False,
    trust_plugins: TrustPlugins = False,
    jobs: Jobs = None,
) -> None:
    """Go on with a run or a comparison that was interrupted; the result is the one an uninterrupted run gives.

    Plug-ins, the Python files that the folder's config names, are executed only with --trust-plugins.
    """
    progress = False if quiet else None
    if (folder / "comparison.json").is_file():
        done = finish_comparison(folder, progress, jobs=jobs, trust_plugins=trust_plugins)
        if as_json:
            _emit(_tables_of(done))
        else:
            _show_comparison(done)
        return
    _show_result(resume_run(folder, progress, accept_code_change, trust_plugins), as_json)


@app.command()
def compare(
    words: Words = None,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "fedavg",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, counted from the experiment's.")] = 1,
    references: Annotated[
        bool, typer.Option(help="Also run local, finetune and centralised on the same splits.")
    ] = True,
    controls: Annotated[
        bool, typer.Option(help="Also run the methods' controls (without synthesis, noise, …) and logit_adjustment.")
    ] = False,
    tune: Annotated[
        int, typer.Option(min=0, help="Trials for every method to find its settings by validation; 0: as given.")
    ] = 0,
    jobs: Jobs = None,
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Run several methods and seeds on the same splits and print one table.

    All methods get the same model and training settings. `[methods.NAME]` sections hold settings of single methods.

    Controls show whether a gain comes from the synthetic data: a gain that noise also gives is not knowledge transfer.
    """
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise ConfigError("--methods is empty: name at least one method, such as --methods fedavg,fedprox.")
    tables = load_tables(*_words(words))
    load_plugins(tables.get("plugins", ()))
    for name in names:
        find_method(name)
    shown = Console(stderr=True)
    say = shown.print if shown.is_terminal and not quiet else (lambda text: None)
    done = compare_methods(tables, names, seeds, references, False if quiet else None, say, controls, tune, jobs)
    if as_json:
        _emit({**_tables_of(done), "runs": [summary.as_dict() for summary in done.summaries]})
        return
    _show_comparison(done)
    out.print(f"table.md, table.csv, table.tex, curves.png and the runs are in {done.path}")


@app.command()
def partition(
    words: Words = None,
    save: Annotated[Path | None, typer.Option(help="Write manifest.json and split.png into this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how an experiment's data is split over the clients, and how skewed the split really is."""
    data = load_data(load_experiment(*_words(words)))
    manifest = data.manifest()
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        write_json(save / "manifest.json", manifest)
        plot_split(save / "split.png", data.counts(), data.clients, data.schema)
    if as_json:
        _emit(manifest)
        return
    classes = data.schema.class_names or tuple(map(str, range(data.schema.classes)))
    table = Table("client", *classes, "all", title="training examples by client and class", box=None)
    for client, row in list(zip(data.clients, data.counts(), strict=True))[:50]:
        table.add_row(client, *(str(count) if count else "·" for count in row), str(row.sum()))
    out.print(table)
    if len(data.clients) > 50:
        out.print(f"… and {len(data.clients) - 50} more clients")
    for key in ("examples", "train_sizes", "skew", "fingerprint"):
        out.print(f"[bold]{key}[/bold]: " + ", ".join(f"{k} {_short(v)}" for k, v in manifest[key].items()))


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value[:12] if isinstance(value, str) and len(value) == 64 else str(value)


@app.command()
def check(
    data: Annotated[str, typer.Argument(help="A known name, or idx:DIR, npz:FILE, images:DIR, csv:FILE, clients:DIR.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]…", help="Settings of the data section, such as label=y."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read a data set, say what is in it and what is wrong with it. Exit code 1 when there are problems."""
    table = override({}, [word.removeprefix("data.") for word in settings or []])
    found = check_data(parse_data({"name": data, **table}))
    if as_json:
        _emit(found.to_dict())
    else:
        for line in check_lines(found):
            out.print(line, highlight=False)
    if found.problems:
        raise typer.Exit(1)


app.command("verify-method")(verify_method_file)
app.command("advise")(advise_us)
for command in (stress, audit, report, dashboard, quality, export):
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedsynth {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning on skewed data, repaired with synthetic data."""


def main() -> None:
    """Run the command line: mistakes in the input are one sentence and exit code 2, other failures exit code 1."""
    try:
        app()
    except UserError as error:
        print(f"fedsynth: {error}", file=sys.stderr)
        sys.exit(2)
    except FedsynthError as error:
        print(f"fedsynth: {error}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print("fedsynth: interrupted; 'fedsynth resume RUN' goes on from the last finished round.", file=sys.stderr)
        raise
