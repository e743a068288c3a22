"""Commands that show and measure results: report, dashboard, quality, export."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from fedsynth.cli.common import AsJson, TrustPlugins, out, print_json, print_line
from fedsynth.experiment.export import Tool


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, or the folder of a comparison.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The HTML file (report.html, beside a single run).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML file about a run, or about several side by side. It opens from disk and needs no network."""
    from fedsynth.report.page import write_report

    file, page = write_report(folders, output)
    if as_json:
        print_json({"path": str(file), "problems": page.problems})
        return
    for problem in page.problems:
        print_line(f"not there: {problem}")
    out.print(f"The report is in {file}", highlight=False, soft_wrap=True)


def dashboard(
    runs: Annotated[Path, typer.Argument(help="The folder of the run folders.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="The address to listen at; others than your own machine see it too.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8050,
) -> None:
    """Show the reports of all runs in a folder in the browser, live while runs go. It reads and never writes."""
    from fedsynth.report.dashboard import make_server

    server = make_server(runs, host, port)
    out.print(f"The dashboard of {runs} is at {server.address} (Ctrl-C ends it).", highlight=False, soft_wrap=True)
    if not server.loopback:
        out.print(f"It listens at {host}: whoever reaches this machine can read the runs.", soft_wrap=True)
    server.serve()


def quality(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    images: Annotated[
        Path | None,
        typer.Option(help="A safetensors or NPZ file with images and labels; otherwise the last in samples/."),
    ] = None,
    trust_plugins: TrustPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Measure how good a run's synthetic images are: useful, recognisable, varied, and not copies.

    The result is kept in the run folder as quality.json, and the report shows it.
    """
    from fedsynth.studies.quality import measure_quality

    found = measure_quality(folder, images, trust_plugins)
    if as_json:
        print_json(found.as_dict())
        return
    table = Table("measure", "value", "meaning", box=None)
    for row in found.measures:
        table.add_row(row.measure, row.value, row.meaning)
    out.print(table)
    for text in found.words:
        print_line(text)


def invert(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run whose model has BatchNorm.")],
    per_class: Annotated[int, typer.Option(min=1, help="Images of each class.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Optimisation steps.")] = 60,
    form: Annotated[
        Literal["ours", "published"],
        typer.Option(help="ours: a grey start, pixels between 0 and 1; published: noise, pixels are free."),
    ] = "ours",
    model: Annotated[
        Literal["final", "best"], typer.Option(help="The final model, or the best by validation.")
    ] = "final",
    seed: Annotated[int, typer.Option(help="Seed of the starting points.")] = 0,
    trust_plugins: TrustPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run's model knows of each class: images from its weights and BatchNorm statistics alone (Fed-ZDA).

    They are kept in the run folder, as a picture and as an NPZ file that `quality --images` reads.
    """
    from fedsynth.studies.inversion import invert_run

    found = invert_run(folder, per_class, steps, form, model, seed, trust_plugins)
    if as_json:
        print_json(found.as_dict())
        return
    print_line(f"{len(found.labels)} images; the model takes {found.recognised:.1%} of them for the class wanted.")
    for file in (found.picture, found.numbers):
        if file:
            out.print(str(file), highlight=False, soft_wrap=True)


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    to: Annotated[Tool, typer.Option(help="mlflow or wandb; each is an extra to install.")],
    project: Annotated[str, typer.Option(help="The experiment (MLflow) or project (Weights & Biases).")] = "fedsynth",
) -> None:
    """Hand a run's settings, metrics and result to MLflow or Weights & Biases (TensorBoard needs no export)."""
    from fedsynth.experiment.export import export_run

    print_line(export_run(folder, to, project))
