"""Progress for people at a terminal; silence elsewhere."""

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Quiet:
    """Shows nothing, but tells people in a notebook what they should know."""

    def __enter__(self) -> "Quiet":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to put away."""

    def phase(self, name: str, total: int, done: int) -> None:
        """A loop of rounds begins."""

    def advance(self, text: str) -> None:
        """A round is done."""

    def say(self, text: str) -> None:
        """Something worth knowing."""
        if "ipykernel" in sys.modules:
            print(text)


class Bar(Quiet):
    """A bar per phase, on standard error, so that standard output stays clean."""

    def __init__(self, title: str) -> None:
        self.title = title
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._progress = RichProgress(*columns, console=Console(stderr=True))
        self._task = None

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def phase(self, name: str, total: int, done: int) -> None:
        self._task = self._progress.add_task(f"{self.title} · {name}", total=total, completed=done, note="")  # type: ignore[assignment]

    def advance(self, text: str) -> None:
        if self._task is not None:
            self._progress.update(self._task, advance=1, note=text)

    def say(self, text: str) -> None:
        self._progress.console.print(text)


def make_progress(title: str, wanted: bool | None = None) -> Quiet:
    """A bar where standard error is a terminal (or when wanted), silence otherwise."""
    shown = sys.stderr.isatty() if wanted is None else wanted
    return Bar(title) if shown else Quiet()
