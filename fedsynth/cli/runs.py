"""Commands that run one experiment: run and resume."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedsynth.cli.common import AsJson, Jobs, Silent, TrustPlugins, Words, out, print_json, print_report, read_words
from fedsynth.cli.studies import fail_without_models, print_comparison
from fedsynth.experiment.files import read_run_config

if TYPE_CHECKING:
    from fedsynth.experiment.runner import RunResult


def run(words: Words = None, as_json: AsJson = False, quiet: Silent = False) -> None:
    """Run one experiment.

    Every key has a default: `fedsynth run` alone trains FedAvg on the embedded digits. Settings come from a file, from
    `key=value` words, or both: `fedsynth run skewed.toml method.name=fedprox method.mu=0.01 train.rounds=50`.

    Sections: data, partition, model, train, method, engine, faults, evaluation, privacy. A wrong key is told the
    nearest. A run that ends with no usable model says so first and exits with 1.
    """
    tables = read_words(words)
    from fedsynth.experiment.config import make_experiment
    from fedsynth.experiment.runner import run_experiment

    _print_run(run_experiment(make_experiment(tables), progress=False if quiet else None), as_json)


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
        from fedsynth.studies.compare import finish_comparison

        done = finish_comparison(folder, progress, jobs=jobs, trust_plugins=trust_plugins)
        print_comparison(done, as_json)
        fail_without_models(done)
        return
    read_run_config(folder, trust_plugins)  # what is wrong with it is said before PyTorch has been imported
    from fedsynth.experiment.runner import resume_run

    _print_run(resume_run(folder, progress, accept_code_change, trust_plugins), as_json)


def _print_run(result: "RunResult", as_json: bool) -> None:
    from fedsynth.report.tables import summary_lines

    if as_json:
        print_json(result.summary)
    else:
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, text in summary_lines(result.summary):
            table.add_row(f"[bold]{name}[/bold]", escape(text))
        out.print(table)
        print_report(result.path)
    if result.summary.problem:
        raise typer.Exit(1)
