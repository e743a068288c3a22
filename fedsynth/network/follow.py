"""What crosses from the server program to the terminal of whoever started it: progress, as a file of lines, and how it
ended."""

import json
from pathlib import Path

from pydantic import BaseModel

from fedsynth.experiment.progress import Quiet


class End(BaseModel):
    """How an attempt at a run ended; `mistake`: by an error that its user can mend."""

    ok: bool
    mistake: bool = False
    message: str = ""


def end_file(folder: Path, attempt: str) -> Path:
    """Where an attempt at the run of a folder leaves word of its end."""
    return folder / f".ended-{attempt}.json"


class Lines(Quiet):
    """Writes progress as JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("", encoding="utf-8")

    def phase(self, name: str, total: int, done: int) -> None:
        self._write("phase", name, total, done)

    def advance(self, text: str) -> None:
        self._write("advance", text)

    def say(self, text: str) -> None:
        self._write("say", text)

    def _write(self, *line: str | int) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class Follower:
    """Shows what `Lines` writes, as it grows."""

    def __init__(self, path: Path, shown: Quiet) -> None:
        self.path, self.shown, self.place = path, shown, 0

    def look(self) -> None:
        """Show what is new; a line that is not whole yet waits for the next look."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self.place)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.place += len(whole)
        for line in whole.splitlines():
            kind, *values = json.loads(line)
            getattr(self.shown, kind)(*values)
