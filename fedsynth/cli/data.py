"""Commands about data: partition and check."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedsynth.cli.common import AsJson, Words, out, print_json, read_words
from fedsynth.experiment.files import override

if TYPE_CHECKING:
    from fedsynth.data.federated import FederatedData

MOST_CLIENTS = 50  # in the table on the screen


def partition(
    words: Words = None,
    save: Annotated[Path | None, typer.Option(help="Write manifest.json and split.png into this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how an experiment's data is split over the clients, and how skewed the split really is."""
    tables = read_words(words)
    from fedsynth.experiment.config import make_experiment
    from fedsynth.experiment.runner import load_data

    data = load_data(make_experiment(tables))
    if save is not None:
        _save_split(data, save)
    if as_json:
        print_json(data.manifest())
    else:
        _print_split(data)


def _save_split(data: "FederatedData", folder: Path) -> None:
    from fedsynth.federation.store import write_json
    from fedsynth.report.plots import plot_split

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "manifest.json", data.manifest())
    plot_split(folder / "split.png", data.counts(), data.clients, data.schema)


def _print_split(data: "FederatedData") -> None:
    classes = data.schema.class_names or tuple(map(str, range(data.schema.classes)))
    table = Table("client", *classes, "all", title="training examples by client and class", box=None)
    for client, row in list(zip(data.clients, data.counts(), strict=True))[:MOST_CLIENTS]:
        table.add_row(client, *(str(count) if count else "·" for count in row), str(row.sum()))
    out.print(table)
    if len(data.clients) > MOST_CLIENTS:
        out.print(f"… and {len(data.clients) - MOST_CLIENTS} more clients")
    manifest = data.manifest()
    for key in ("examples", "train_sizes", "skew", "fingerprint"):
        out.print(f"[bold]{key}[/bold]: " + ", ".join(f"{k} {_short(v)}" for k, v in manifest[key].items()))


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value[:12] if isinstance(value, str) and len(value) == 64 else str(value)


def check(
    data: Annotated[str, typer.Argument(help="A known name, or idx:DIR, npz:FILE, images:DIR, csv:FILE, clients:DIR.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Settings of the data section, such as label=y.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read a data set, say what is in it and what is wrong with it. Exit code 1 when there are problems."""
    table = override({}, [word.removeprefix("data.") for word in settings or []])
    from fedsynth.data.check import check_data
    from fedsynth.data.config import parse_data
    from fedsynth.report.tables import check_lines

    found = check_data(parse_data({"name": data, **table}))
    if as_json:
        print_json(asdict(found))
    else:
        for line in check_lines(found):
            out.print(line, highlight=False)
    if found.problems:
        raise typer.Exit(1)
