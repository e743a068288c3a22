"""Sections of a run's report about data: who has what, what was synthesised, what the method recorded."""

import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedsynth.federation.records import Additions, Groups, Matrix, Pictures
from fedsynth.report import strip_svg, svg
from fedsynth.report.blocks import Block, Figure, Gallery, Table, Words
from fedsynth.report.plots import arrange_by_class
from fedsynth.report.reading import RunRecord, read_inside

NO_COUNTS = "The manifest has no counts per client (it keeps them for up to 2,000 clients)."
NOT_TOLD = (
    "The sites did not tell what they hold. With evaluation.class_counts = true a run asks them for their class "
    "counts, and enters that in the ledger."
)
MOST_CLIENTS = 200  # columns of the split's picture
MOST_PICTURES = 6  # rounds of one name
PICTURE_BYTES = 1_500_000  # of all pictures of a page together
GROUND = 0.88  # between small pictures


def split(run: RunRecord) -> list[Block]:
    """The split as a picture: clients across, classes down."""
    counts = client_counts(run)
    names = run.manifest.classes
    if not counts:
        return [Words([NOT_TOLD if over_network(run) else NO_COUNTS])]
    shown = list(counts)[:MOST_CLIENTS]
    largest = max((value for row in counts.values() for value in row), default=0)
    grid = [[float(counts[client][k]) or None for client in shown] for k in range(len(names))]
    skew, sizes = run.manifest.skew, [sum(row) for row in counts.values()]
    missing = sum(value == 0 for row in counts.values() for value in row) / max(1, len(counts))
    words = (
        f"Training examples of {len(counts)} clients and {len(names)} classes; stronger is more, empty is none. The "
        f"largest cell has {largest}. A client has {min(sizes)} to {max(sizes)} examples and lacks {missing:.1f} "
        "classes on average."
    )
    if len(shown) < len(counts):
        words += f" The first {len(shown)} clients are drawn."
    if silent_sites(run):
        words += f" {silent_sites(run)} of {len(counts) + silent_sites(run)} sites did not tell what they hold."
    drawn = svg.grid("Who has what", words, names, shown, svg.levels(grid, 0, largest), "client")
    numbers = Table(
        "Training examples by client and class",
        ["client", *names, "all"],
        [[client, *map(str, counts[client]), str(sum(counts[client]))] for client in counts],
    )
    said = {
        "kl_mean": "mean Kullback–Leibler divergence between two clients",
        "hellinger_mean": "mean Hellinger distance between two clients",
    }
    realised = [f"Realised skew: {text} {skew[key]:.3f}." for key, text in said.items() if skew.get(key) is not None]
    figure = Figure("Who has what", drawn, words, steps=("1", str(largest)), numbers=numbers)
    return [figure, Words(realised)] if realised else [figure]


def over_network(run: RunRecord) -> bool:
    """Whether the data of a run was at the sites of a network."""
    return bool(run.manifest.sites)


def silent_sites(run: RunRecord) -> int:
    """How many sites of a network did not tell what they hold."""
    return len(run.manifest.sites.keys() - client_counts(run).keys())


def client_counts(run: RunRecord) -> dict[str, list[int]]:
    """Training examples per client and class; empty where the manifest does not say."""
    return {client: parts["train"] for client, parts in run.manifest.counts.per_client.items()}


def _shown(run: RunRecord) -> dict[str, dict[int, str]]:
    """The samples that a run has shown: the stems of their files, by name and round."""
    by_name: dict[str, dict[int, str]] = {}
    folder = run.path / "samples"
    for file in sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []:
        match = re.fullmatch(r"(.+)-round-(\d+)\.(png|safetensors)", file.name)
        if match:
            by_name.setdefault(match[1], {})[int(match[2])] = file.stem
    return by_name


def newest_samples(run: RunRecord) -> tuple[np.ndarray, np.ndarray] | None:
    """Images and labels of all that was shown in the last round in which something was; None without any."""
    by_name = _shown(run)
    last = max((round for rounds in by_name.values() for round in rounds), default=0)
    found = []
    for rounds in by_name.values():
        try:
            found += [read_arrays(run.path, f"samples/{rounds[last]}.safetensors")] if last in rounds else []
        except (OSError, ValueError, KeyError):
            continue  # the section of samples says so
    shapes = {images.shape[1:] for images, _ in found}
    if len(shapes) != 1:
        return None
    return np.concatenate([images for images, _ in found]), np.concatenate([labels for _, labels in found])


def samples(run: RunRecord) -> list[Block]:
    """Synthetic images, round by round."""
    by_name = _shown(run)
    if not by_name:
        return [Words(["The method showed no synthetic images (it makes none, or the data are not images)."])]
    figures: list[Figure] = []
    left = PICTURE_BYTES
    for name, rounds in by_name.items():
        for round in _spread(sorted(rounds)):
            drawn, size = _sample_figure(run, name, round, rounds[round])
            if drawn is not None and size <= left:
                figures.append(drawn)
                left -= size
    there = sum(map(len, by_name.values()))
    words = f"{len(figures)} of {there} pictures that the method showed; all are in samples/."
    return [Words([words]), Gallery(figures)] if figures else [Words([words])]


def _spread(rounds: list[int]) -> list[int]:
    """The first, the last, and some evenly between them."""
    places = np.linspace(0, len(rounds) - 1, min(len(rounds), MOST_PICTURES)).round().astype(int)
    return [rounds[place] for place in dict.fromkeys(places.tolist())]


def _sample_figure(run: RunRecord, name: str, round: int, stem: str) -> tuple[Figure | None, int]:
    """A picture of one round, and its size in bytes; None and a problem where it cannot be read."""
    title = f"{name}, round {round}"
    names = run.manifest.classes
    try:
        images, labels = read_arrays(run.path, f"samples/{stem}.safetensors")
        classes = names or [str(k) for k in range(int(labels.max(initial=0)) + 1)]
        png, size, counts = _mosaic(images, labels, len(classes))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        run.problems.append(f"samples/{stem}.safetensors cannot be shown: {error}.")
        return None, 0
    empty = [classes[k] for k, count in enumerate(counts) if not count]
    kinds = len(classes) - len(empty)
    words = f"{sum(counts)} synthetic images of {kinds} class{'' if kinds == 1 else 'es'}, a row per class."
    words += f" None of: {', '.join(empty)}." if empty else ""
    text = base64.b64encode(png).decode()
    return Figure(title, svg.picture(title, words, text, size, classes), words), len(text)


def read_arrays(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a file in a run folder; ValueError, OSError or KeyError where it has none."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(read_inside(folder, name))
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    images, labels = tensors["images"], tensors["labels"]
    if images.ndim != 4 or labels.ndim != 1 or len(images) != len(labels) or not len(images):
        raise ValueError(f"images {images.shape} and labels {labels.shape} do not belong together")
    return images.astype(np.float64), labels.astype(np.int64)


def _mosaic(images: np.ndarray, labels: np.ndarray, classes: int) -> tuple[bytes, tuple[int, int], list[int]]:
    """A PNG with a row of images per class, its size, and how many of each class it holds."""
    colours = images.shape[1] == 3
    shown = images if colours else images.mean(axis=1, keepdims=True)
    pixels = np.nan_to_num(np.clip(shown, 0, 1) * 255).astype(np.uint8).transpose(0, 2, 3, 1)
    canvas, counts = arrange_by_class(pixels, labels, classes, 128)
    file = io.BytesIO()
    Image.fromarray(canvas if colours else canvas[:, :, 0]).save(file, "PNG", optimize=True)
    return file.getvalue(), (canvas.shape[1], canvas.shape[0]), counts


def recorded(run: RunRecord) -> list[Block]:
    """Matrices, groups and tables that the method recorded; what it added opens the report (see `strip.py`)."""
    kept = {name: record for name, record in run.records.items() if not isinstance(record, Additions)}
    if not kept:
        return [Words(["The method recorded nothing of this kind (similarities, groups, tables)."])]
    blocks: list[Block] = []
    for name, record in kept.items():
        about = f"{name}. {record.about}" if record.about else f"{name}."
        about += f" Recorded in round {record.round}." if record.round else " Recorded before the first round."
        if isinstance(record, Matrix):
            blocks.append(_matrix(name, about, record))
        elif isinstance(record, Pictures):
            blocks.append(_pictures(name, about, record))
        elif isinstance(record, Groups):
            rows = [[group, str(len(members)), ", ".join(members)] for group, members in record.groups.items()]
            blocks.append(Table(about, ["group", "clients", "who"], rows, numbers=False))
        else:
            cells = [[_cell(cell) for cell in row] for row in record.rows]
            blocks.append(Table(about, record.columns, cells))
    return blocks


def _pictures(name: str, about: str, record: Pictures) -> Figure:
    png, size = picture_of([list(row) for row in record.images()], record.shape)
    drawn = strip_svg.mosaic(name, about, base64.b64encode(png).decode(), size, record.rows, record.columns)
    return Figure(name, drawn, about)


def _matrix(name: str, about: str, record: Matrix) -> Figure:
    columns = record.columns or record.rows
    known = [value for row in record.values for value in row if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    words = f"{about} {len(record.rows)} × {len(columns)} values from {low:.3g} to {high:.3g}; stronger is more."
    if record.marks:
        pairs = [f"{record.rows[r]} and {columns[c]}" for r, c in record.marks[:10]]
        words += f" {len(record.marks)} cells are marked: {', '.join(pairs)}{' …' if len(record.marks) > 10 else ''}."
    cells = svg.levels(record.values, low, high)
    drawn = svg.grid(name, words, record.rows, columns, cells, "", record.marks)
    rows = [
        [row, *("–" if v is None else f"{v:.3g}" for v in values)]
        for row, values in zip(record.rows, record.values, strict=True)
    ]
    small = len(known) <= 2500
    numbers = Table(name, ["", *columns], rows) if small else None
    return Figure(name, drawn, words, steps=(f"{low:.3g}", f"{high:.3g}"), numbers=numbers)


def _cell(value: str | float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def picture_of(rows: Sequence[Sequence[np.ndarray | None]], shape: tuple[int, ...]) -> tuple[bytes, tuple[int, int]]:
    """Rows of images with thin gaps as a PNG, and its size."""
    channels, high, wide = shape
    canvas = np.full((len(rows) * (high + 1), len(rows[0]) * (wide + 1), 3), GROUND)
    for r, row in enumerate(rows):
        for c, image in enumerate(row):
            if image is not None:
                colours = image if channels == 3 else np.repeat(image.mean(axis=0, keepdims=True), 3, axis=0)
                top, left = r * (high + 1), c * (wide + 1)
                canvas[top : top + high, left : left + wide] = np.nan_to_num(np.clip(colours, 0, 1)).transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray((255 * canvas).astype(np.uint8)).save(file, "PNG", optimize=True)
    return file.getvalue(), (canvas.shape[1], canvas.shape[0])
