"""Slot values for what clients train on: their own examples and the samples that they keep beside them."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fedsynth.components.slots import LocalData
from fedsynth.components.synthetic_samples import Samples, train_examples
from fedsynth.federation import Client
from fedsynth.learning.models import Classifier


class KeptSamples(LocalData, name="kept"):
    """The client's own examples and those it keeps; without any, its own alone."""

    def active(self, index: int) -> bool:
        return True

    def examples(
        self, client: Client, net: Classifier, x: Tensor, y: Tensor, given: Samples | None
    ) -> tuple[Tensor, Tensor]:
        return train_examples(client, x, y)


class GeneratedSamples(KeptSamples, name="generated"):
    """The same, where they were made with generators that are protected."""

    post_processing: ClassVar[bool] = True
