"""The journal of a run: where it is, so that a killed run goes on from the last finished round or phase.

`checkpoints/NNNNNN.safetensors` is written after every round and phase, atomically, and the last two are kept: a torn
or damaged newest one costs a round, not the run. `phases/` keeps the end of every finished phase, because the program
is run again from its top on resume and needs what each phase gave.
"""

import re
from collections.abc import Callable
from pathlib import Path

from fedsynth.errors import UserError
from fedsynth.federation.payload import Fields, PayloadError, decode, encode
from fedsynth.federation.store import KEPT_STEPS, write_atomically


class Journal:
    """Checkpoints in a run folder. Without a folder the run cannot be resumed."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._in_memory: dict[str, bytes] = {}

    def write(self, step: int, values: Fields) -> None:
        """Make `step` the newest checkpoint and drop all but the last two."""
        if self.folder is None:
            return
        checkpoints = self.folder / "checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        write_atomically(checkpoints / f"{step:06d}.safetensors", encode(values))
        for path in checkpoints.glob("*.safetensors"):
            if int(path.stem) <= step - KEPT_STEPS:
                path.unlink(missing_ok=True)

    def latest(self, usable: Callable[[Fields], bool]) -> Fields | None:
        """The newest checkpoint that can be read and is `usable`; None when the run has none yet."""
        if self.folder is None:
            return None
        paths = sorted((self.folder / "checkpoints").glob("*.safetensors"), reverse=True)
        for path in paths:
            try:
                values = decode(path.read_bytes())
            except (OSError, PayloadError):
                continue
            if usable(values):
                for newer in paths[: paths.index(path)]:  # damaged: never to be found again
                    newer.unlink()
                return values
        if paths:
            raise UserError(f"No checkpoint in {self.folder / 'checkpoints'} can be read: start the run anew.")
        return None

    def keep_phase(self, name: str, values: Fields) -> None:
        """Keep what a finished phase left."""
        if self.folder is None:
            self._in_memory[name] = encode(values)
            return
        (self.folder / "phases").mkdir(parents=True, exist_ok=True)
        write_atomically(self._phase(name), encode(values))

    def phase(self, name: str) -> Fields:
        """What a finished phase left."""
        if self.folder is None:
            return decode(self._in_memory[name])
        try:
            return decode(self._phase(name).read_bytes())
        except (OSError, PayloadError) as error:
            raise UserError(
                f'The record of phase "{name}" in {self.folder} cannot be read: start the run anew.'
            ) from error

    def _phase(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / "phases" / f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)}.safetensors"
