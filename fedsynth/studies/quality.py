"""How good the synthetic images of a run are: useful, recognisable, varied, and not copies."""

import json
import math
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsynth.data.dataset import Schema
from fedsynth.data.federated import FederatedData
from fedsynth.errors import ConfigError
from fedsynth.evaluation import quality
from fedsynth.evaluation.results import Measure, OwnGan, Quality
from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.files import read_experiment
from fedsynth.experiment.folder import check_same_split
from fedsynth.experiment.runner import load_data
from fedsynth.experiment.synthesis import last_shown, read_samples, some_of
from fedsynth.federation.store import write_json
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.training import evaluate

MOST_REAL = 10_000  # real examples that the measures look at
ENOUGH = 50  # images of a class below which the numbers are rough
USEFUL, AS_REAL = "trained on synthetic, evaluated on real", "trained on as many real, evaluated on real"
REVERSE, ORACLE = "trained on as many real, evaluated on synthetic", "recognised by the oracle"


def measure_quality(path: Path, images: Path | None = None, trust_plugins: bool = False) -> Quality:
    """Measure a run's synthetic images against the data it ran on; kept in quality.json, where the report finds it.

    Taken are all images that the method showed in the last round in which it did (`samples/`), or those of a
    safetensors or NPZ file with `images` and `labels`. Plug-ins of the run are executed only where they are trusted.
    """
    experiment = make_experiment(read_experiment(path / "config.json", trust_plugins))
    data = load_data(experiment)
    check_same_split(path, data.split_fingerprint())
    files = [images] if images else _last_shown(path)
    parts = [read_samples(file, data.schema.shape, data.schema.classes) for file in files]
    x, y = (torch.cat(values) for values in zip(*parts, strict=True))
    real, test = some_of(data.pooled("train"), MOST_REAL), some_of(data.test, MOST_REAL)
    found = _measure(experiment.model_spec, x, y, real, test, data.schema)
    found = found.model_copy(update={"images": ", ".join(map(str, files))})
    if images is None:
        own = [_beside_records(data, client, *shown) for client, shown in _own_gans(path, data)]
        words = [*found.words, *(_say_copying(gan) for gan in own if gan.rows)]
        found = found.model_copy(update={"own_gans": own, "words": words})
    write_json(path / "quality.json", found.as_dict())
    return found


def _measure(
    spec: ModelSpec, x: Tensor, y: Tensor, real: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], schema: Schema
) -> Quality:
    classes, names = schema.classes, schema.class_names or range(schema.classes)
    rows = _as_many_of_each(real[1], y)
    twin = real[0][rows], real[1][rows]
    oracle = quality.train_oracle(spec, *real, classes)
    tallies = {
        USEFUL: quality.trained_on_these_only(spec, x, y, test, classes),
        AS_REAL: quality.trained_on_these_only(spec, *twin, test, classes),
        REVERSE: quality.trained_on_these_only(spec, *twin, (x, y), classes),
        ORACLE: evaluate(oracle, x, y, classes),
    }
    made, seen, unseen = (quality.features_of(oracle, part) for part in (x, real[0], test[0]))
    copied, share = quality.most_on_one_record(x, y, real[0])
    each = [k for k in range(classes) if (y == k).sum() > 1 and (real[1] == k).sum() > 1]
    varied = [quality.diversity(seen[real[1] == k], made[y == k]) for k in each]
    known = [value for value in varied if not math.isnan(value)]
    spread = sum(known) / len(known) if known else math.nan
    size = min(len(seen), len(unseen))
    on_test = evaluate(oracle, *test, classes).accuracy
    numbers = [
        _row(USEFUL, tallies[USEFUL].accuracy, "a classifier that saw only the synthetic images, on real test images"),
        _row(AS_REAL, tallies[AS_REAL].accuracy, "the same with as many real images of each class: the goal"),
        _row(REVERSE, tallies[REVERSE].accuracy, "low: the images do not look like their classes"),
        _row(ORACLE, tallies[ORACLE].accuracy, f"by a classifier of all real data ({on_test:.1%} on the test set)"),
        _row(
            "coverage", quality.coverage(seen, made), "share of real images with a synthetic one in their neighbourhood"
        ),
        _row("diversity", spread, "spread within a class, as a share of the real one; near 0: all similar", False),
        _row(
            "feature distance",
            quality.feature_distance(made, seen),
            "1 − mean cosine to real features; 0 is nearest",
            False,
        ),
        _row(
            "closer to training than to held-out records",
            quality.closer_to_training(x, real[0][:size], test[0][:size]),
            "a screen, not a proof: about 50 % without copying, far above is a warning",
        ),
        _row(
            "nearest to one and the same record",
            share,
            f"share of a class, of that with the largest ({names[copied]}); with many images near 100 % is a copy",
        ),
    ]
    per_class = {
        name: [None if math.isnan(value) else float(value) for value in tally.per_class()]
        for name, tally in tallies.items()
    }
    return Quality(measures=numbers, per_class=per_class, words=_words(y, classes))


def _own_gans(path: Path, data: FederatedData) -> list[tuple[str, tuple[Tensor, Tensor]]]:
    """Images of single clients' own GANs that a run showed (PFL-GAN), with the client's name."""
    try:
        record = json.loads((path / "records.json").read_text(encoding="utf-8"))["groups of clients"]
        first = {name.removeprefix("group "): group[0] for name, group in record["groups"].items()}
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return []
    files = [(re.match(r"group-(\d+)-own-gan-", f.name), f) for f in (path / "samples").glob("*.safetensors")]
    shown = sorted((int(match[1]), file) for match, file in files if match and first.get(match[1]) in data.clients)
    return [(first[str(n)], read_samples(file, data.schema.shape, data.schema.classes)) for n, file in shown]


def _beside_records(data: FederatedData, client: str, x: Tensor, y: Tensor) -> OwnGan:
    """Do images of a client's own GAN lie nearer to its records than to as many others? Rare classes first."""
    own = data.client(client)
    (train_x, train_y), (test_x, test_y) = own.train.tensors(), own.test.tensors()
    counts = torch.bincount(train_y, minlength=data.schema.classes)
    rows = []
    for label in torch.argsort(counts, stable=True).tolist():
        made, seen, unseen = x[y == label], train_x[train_y == label], test_x[test_y == label]
        size = min(len(seen), len(unseen))
        if len(made) and size:
            rows.append((label, int(counts[label]), quality.closer_to_training(made, seen[:size], unseen[:size])))
    return OwnGan(client=client, rows=rows)


def _say_copying(gan: OwnGan) -> str:
    (_, fewest, rare), (_, most, common) = gan.rows[0], gan.rows[-1]
    return (
        f"The GAN of client {gan.client}: of the class with fewest records ({fewest}) {rare:.0%} of its images lie "
        f"nearer to them than to as many held-out ones, of the class with most ({most}) {common:.0%}; about 50 % "
        "without copying."
    )


def _words(labels: Tensor, classes: int) -> list[str]:
    counts = torch.bincount(labels, minlength=classes)
    few = [k for k in range(classes) if counts[k] < ENOUGH]
    words = [f"Evaluated on {len(labels)} synthetic images, {int(counts.min())} to {int(counts.max())} of a class."]
    if few:
        words.append(f"{len(few)} of {classes} classes have fewer than {ENOUGH} images: the numbers are rough.")
    words.append("There is no FID: it needs a named feature network and thousands of images.")
    return words


def _row(measure: str, value: float, meaning: str, share: bool = True) -> Measure:
    shown = "–" if math.isnan(value) else f"{value:.1%}" if share else f"{value:.3f}"
    return Measure(measure=measure, value=shown, meaning=meaning)


def _last_shown(path: Path) -> list[Path]:
    found = last_shown(path)
    if not found:
        raise ConfigError(
            f'"{path}" has no synthetic images in samples/: the method makes none, or name a file with --images.'
        )
    return found


def _as_many_of_each(labels: Tensor, wanted: Tensor) -> Tensor:
    """Rows with as many examples of each class as `wanted` has, where there are so many."""
    rows = [torch.nonzero(labels == k).flatten()[: int((wanted == k).sum())] for k in np.unique(wanted.numpy())]
    return torch.cat(rows)
