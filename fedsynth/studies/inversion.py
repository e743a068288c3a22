"""What a run's model takes for each class: images synthesised from its weights and BatchNorm statistics alone."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedsynth.components.server_work import images_of_classes
from fedsynth.data.dataset import Schema
from fedsynth.errors import ConfigError
from fedsynth.experiment.config import make_experiment
from fedsynth.experiment.files import read_run_config
from fedsynth.federation.store import write_atomically
from fedsynth.learning.models import Classifier, instantiate
from fedsynth.learning.training import evaluate
from fedsynth.report.plots import plot_samples
from fedsynth.report.reading import read_inside, read_run
from fedsynth.seeding import generator

Form = Literal["ours", "published"]
Saved = Literal["final", "best"]
SAVED: dict[Saved, str] = {"final": "model.safetensors", "best": "model-best.safetensors"}


@dataclass(frozen=True)
class InvertedModel:
    """Images of every class, where they are kept, and the share that the model itself takes for the wanted class."""

    images: Tensor
    labels: Tensor
    picture: Path | None
    numbers: Path
    recognised: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the images."""
        picture = str(self.picture) if self.picture else None
        return {
            "images": len(self.labels),
            "picture": picture,
            "numbers": str(self.numbers),
            "recognised_by_the_model": self.recognised,
        }


def invert_run(
    path: Path,
    per_class: int = 64,
    steps: int = 60,
    form: Form = "ours",
    saved: Saved = "final",
    seed: int = 0,
    trust_plugins: bool = False,
) -> InvertedModel:
    """Invert a run's model into images of every class; kept in its folder as a picture and as an NPZ file.

    `form`: Fed-ZDA's equation 3 as published, or from a grey start within the range of the data. What is no image gets
    no picture. Plug-ins of the run are executed only where they are trusted.
    """
    net, schema = _model_of(path, SAVED[saved], trust_plugins)
    rng = generator(seed, "inversion")
    images, labels = images_of_classes(net, schema, per_class, steps, grey=form == "ours", rng=rng)
    stem = path / f"inversion-{saved}-{form}"
    numbers, picture = stem.with_suffix(".npz"), None
    content = BytesIO()
    np.savez_compressed(content, images=images.numpy(), labels=labels.numpy())
    write_atomically(numbers, content.getvalue())
    if len(schema.shape) == 3:
        picture = stem.with_suffix(".png")
        plot_samples(picture, images.numpy(), labels.numpy(), schema, f"{path.name}, {saved} model inverted")
    recognised = evaluate(net, images, labels, schema.classes).accuracy
    return InvertedModel(images, labels, picture, numbers, recognised)


def _model_of(path: Path, file: str, trust_plugins: bool) -> tuple[Classifier, Schema]:
    """The network that a run left, and what its examples look like."""
    spec = make_experiment(read_run_config(path, trust_plugins)).model_spec
    manifest = read_run(path).manifest
    if not manifest.shape or not manifest.classes:
        raise ConfigError(f'"{path}" has no manifest that can be read: it must tell the shape and the classes.')
    try:
        weights = load(read_inside(path, file))
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f'"{path}" has no {file} that can be read ({error}): the run has not ended, or its method has one model '
            "for each client."
        ) from None
    schema = Schema(tuple(manifest.shape), len(manifest.classes), tuple(manifest.classes))
    return instantiate(spec, schema.shape, schema.classes, weights), schema
