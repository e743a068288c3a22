"""The points that last from round to round: the set S of the paper while it is wanted, and what an old point weighs."""

import torch
from torch import Tensor

from fedsynth.components.slots import Memory
from fedsynth.methods.agg_enhance.search import Points


class KeptPoints:
    """A view of what a slot value remembers: points with the turns in which they were made."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    @property
    def turns(self) -> int:
        """How often points were kept."""
        return int(self.memory.get("turns", 0))

    def add(self, points: Points, queue: int) -> None:
        """Keep these, and of the others those of the last `queue` turns (0: all)."""
        turn = self.turns + 1
        made = torch.full((len(points.labels),), turn)
        new = {"images": points.images, "labels": points.labels, "targets": points.targets, "made": made}
        if self.memory.get("kept"):
            new = {name: torch.cat([self.memory["kept"][name], entry]) for name, entry in new.items()}
        recent = new["made"] > (turn - queue if queue else 0)
        self.memory["kept"] = {name: entry[recent] for name, entry in new.items()}
        self.memory["turns"] = turn

    def points(self) -> Points:
        """All that are kept."""
        kept = self.memory["kept"]
        return Points(kept["images"], kept["labels"], kept["targets"])

    def weights(self, decay: float) -> Tensor:
        """What each point weighs: it loses this share in every turn (fig. 16)."""
        age = self.turns - self.memory["kept"]["made"]
        return (1 - decay) ** age.float()

    def half_way(self, noise: Tensor) -> Tensor:
        """Algorithm 2, lines 1 to 4: the middle between the last point of a class and noise, which is of all classes
        in turn; noise alone for a class that has none yet.
        """
        if not self.memory.get("kept"):
            return noise
        start, kept = noise.clone(), self.points()
        last = {int(label): image for label, image in zip(kept.labels, kept.images, strict=True)}
        classes = kept.targets.shape[1]
        for row in range(len(noise)):
            if row % classes in last:
                start[row] = (last[row % classes] + noise[row]) / 2
        return start
