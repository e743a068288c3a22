"""Pictures that no test looks at: drawn onto real axes and saved as a file, but not rendered.

Rendering is half of the time of a run that trains for a second. tests/report and tests with the mark `pictures` render.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg==")


def _save(figure: Any, path: Path, **_: Any) -> None:
    Path(path).write_bytes(PIXEL)


@contextmanager
def unrendered() -> Iterator[None]:
    """Every figure that is saved becomes one white pixel."""
    from matplotlib.figure import Figure

    with patch.object(Figure, "savefig", _save):
        yield
