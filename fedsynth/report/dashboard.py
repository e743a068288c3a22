"""The reports of a folder of runs, served live to a browser on this machine.

Read only. What can be asked for is a list: the run folders found below the given one, links left aside. A request
that is not in the list is answered 404 without a look at the disk, so no path outside can be read.
"""

import contextlib
import ipaddress
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from fedsynth.errors import ConfigError, FedsynthError
from fedsynth.report.blocks import Block, Section, Table, Words, percent
from fedsynth.report.page import Page, comparison_of, run_page
from fedsynth.report.reading import glance, read_run

DEPTH = 3  # runs, runs of a comparison, trials of its tuning
REFRESH = 5  # seconds
SLOW = 10  # seconds after which a silent caller is left
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def found_in(root: Path) -> dict[str, Path]:
    """The folders of runs and comparisons below `root`, by their path from it; links are not followed."""
    return {path.relative_to(root).as_posix(): path for path in _walk(root, DEPTH)}


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            if path.is_symlink() or not path.is_dir():
                continue
            is_run = (path / "config.json").is_file()
            if is_run or (path / "comparison.json").is_file():
                yield path
            if depth > 1 and not is_run:
                yield from _walk(path, depth - 1)


def overview(root: Path) -> Page:
    """All runs and comparisons of a folder."""
    found = found_in(root)
    comparisons = {name: path for name, path in found.items() if (path / "comparison.json").is_file()}
    rows = [_row(name, path) for name, path in found.items() if name not in comparisons]
    links, states = [_address(row[0]) for row in rows], [row[1] for row in rows]
    columns = ["run", "state", "method", "seed", "round", "validation", "global test", "last sign of life"]
    blocks: list[Block] = [Words([f"{len(rows)} runs in {root}; this page renews itself every {REFRESH} seconds."])]
    if rows:
        blocks.append(Table("Runs", columns, rows, numbers=False, links=links, stacked=True, foldable=False))
    sections = [Section("runs", "Runs", blocks)]
    if comparisons:
        names = [[name] for name in comparisons]
        table = Table("Comparisons", ["comparison"], names, links=[*map(_address, comparisons)])
        sections.append(Section("comparisons", "Comparisons", [table]))
    stamps = [
        {"text": f"{states.count(state)} {state}", "style": style}
        for state, style in (("running", "warn"), ("finished", "good"), ("failed", "bad"), ("interrupted", "warn"))
        if state in states
    ]
    return Page(root.name, "dashboard", "What is there, and what is going on.", sections, [], stamps, "/", REFRESH)


def _row(name: str, path: Path) -> list[str]:
    run = glance(path)
    return [
        name,
        run.state,
        run.method,
        str(run.seed),
        f"{run.metrics[-1].round if run.metrics else 0}{run.planned_rounds}",
        percent(run.validated[-1] if run.validated else None),
        percent(run.summary.test.accuracy if run.summary else None),
        _age(path / "metrics.jsonl"),
    ]


def _age(file: Path) -> str:
    try:
        seconds = max(0.0, time.time() - file.stat().st_mtime)
    except OSError:
        return "–"
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} seconds ago"


def _address(name: str) -> str:
    return f"/run/{quote(name)}"


def page_at(root: Path, path: str) -> Page | None:
    """The page of an address; None where there is none."""
    if path == "/":
        return overview(root)
    found = found_in(root)
    name = unquote(path.removeprefix("/run/")) if path.startswith("/run/") else ""
    if name not in found:
        return None
    folder = found[name]
    if (folder / "comparison.json").is_file():
        inner = {p.name: _address(n) for n, p in found.items() if p.parent == folder}
        page = comparison_of(folder, inner)
        going = any(glance(p).state == "running" for p in found.values() if p.parent == folder)
    else:
        run = read_run(folder)
        page, going = run_page(run), run.state == "running"
    page.title, page.home, page.refresh = name, "/", REFRESH if going else 0
    return page


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD with pages, everything else with a refusal."""

    server: "Dashboard"
    timeout = SLOW
    server_version, sys_version = "fedsynth", ""

    def do_GET(self) -> None:
        """A page, or why there is none."""
        if self.server.loopback and not _is_loopback(urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""):
            # A page elsewhere could make the browser ask here under its own name.
            self._answer(403, _plain("This dashboard answers at its own address only."))
            return
        try:
            page = page_at(self.server.root, urlsplit(self.path).path)
        except FedsynthError as error:
            self._answer(200, _plain(str(error)))
            return
        except Exception as error:
            self._answer(500, _plain(f"The page could not be made ({type(error).__name__})."))
            return
        self._answer(404, _plain("There is no such run here.")) if page is None else self._answer(200, page.html())

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, code: int, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: a terminal full of requests helps nobody."""


def _plain(text: str) -> str:
    return Page("Dashboard", "dashboard", text, [], home="/", refresh=REFRESH).html()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Dashboard(ThreadingHTTPServer):
    """The server; `serve` goes on until Ctrl-C."""

    daemon_threads = True

    def __init__(self, root: Path, host: str, port: int) -> None:
        super().__init__((host, port), _Handler)
        self.root, self.loopback = root, _is_loopback(host)

    @property
    def address(self) -> str:
        """Where it is, for the browser."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/"

    def serve(self) -> None:
        """Answer until interrupted."""
        with contextlib.suppress(KeyboardInterrupt):
            self.serve_forever()
        self.server_close()


def make_server(runs: Path, host: str = "127.0.0.1", port: int = 8050) -> Dashboard:
    """A dashboard of a folder of runs, listening but not yet answering."""
    if not runs.is_dir():
        raise ConfigError(f'There is no folder "{runs}": name the folder that holds the run folders.')
    try:
        return Dashboard(runs.resolve(), host, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"The dashboard cannot listen at {host}, port {port}: {error}. Try --port 0.") from None
