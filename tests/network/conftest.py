"""Fixtures of the network tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from sites import site_file


@pytest.fixture
def site_files(tmp_path: Path) -> Callable[..., dict[str, Path]]:
    """Files of sites named like the clients they play."""

    def make(names: Sequence[str] = ("0", "1", "2"), extra: str = "") -> dict[str, Path]:
        return {name: site_file(tmp_path / "sites" / name, name, name, extra) for name in names}

    return make
