"""The release of class moments, and the Gaussian of each class that follows from it.

Without noise one exact sum leaves each client. With noise a centre comes first, for a tenth of μ²: vectors are clipped
around it, which is a much smaller ball than one around mid-grey, and so needs less noise.
"""

import math
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedsynth.components.class_moments import CENTRE_COUNT, FEWEST, Centre, ClassMoments, MomentSums, Size, check_length
from fedsynth.components.released_sums import ReleaseConfig, released_sum, released_sums
from fedsynth.federation import Federation
from fedsynth.synthesis.moments import (
    COUNT_WEIGHT,
    FEWEST_COUNTED,
    IMAGE_SIDE,
    RANK,
    SENSITIVITY,
    Basis,
    ClassModel,
    Covariance,
    chosen_size,
    class_model,
    mean_errors,
    mean_spread,
    read_sums,
)

ATTEMPTS = 5  # times that those who did not answer are asked, where everybody is needed once
CENTRE_SHARE = 0.1  # of μ², for the centre

LEFT_OUT = (
    "Exact class moments left the clients, one by one: a class of which a client has fewer than {fewest} examples was "
    "left out there, because a sum over one example is that example. method.epsilon or privacy.secure_aggregation "
    "cover them."
)


class ReleaseSettings(BaseModel):
    """How sums are released."""

    epsilon: float | None = Field(
        None,
        gt=0,
        description="ε of all that is released of the moments, per record (add or remove one), at privacy.delta; none: "
        "exact sums leave",
    )
    covariance: Literal["auto", "class", "shared"] = Field(
        "auto", description="of its own for each class, or one for all; auto: shared where there is noise"
    )
    fewest: int = Field(
        FEWEST,
        ge=FEWEST,
        description="without noise and secure sums: a class of which a client has fewer examples is left out there",
    )

    @property
    def kind(self) -> Covariance:
        """Whose covariance."""
        if self.covariance == "auto":
            return "class" if self.epsilon is None else "shared"
        return self.covariance


class MomentSettings(ReleaseSettings):
    """How class moments in the basis of images are released."""

    size: Size | Literal["auto"] = Field(
        "auto",
        description="images: so many by so many of the lowest DCT coefficients of each channel; auto: 16, or fewer "
        "where there is noise",
    )
    clip: float = Field(
        0.32,
        gt=0,
        le=1e6,
        description="with noise: radius around the centre to which examples are clipped, times the root of their "
        "number of pixels (or of columns, which should be scaled to about one)",
    )

    @property
    def first_size(self) -> int:
        """The size of the basis before anything is known."""
        return IMAGE_SIDE if self.size == "auto" else self.size


class MomentRelease(ReleaseConfig):
    """How a release beside the shared loop is protected, whatever protects updates there."""

    protects: ClassVar[bool] = True


class ReleasedMoments(BaseModel):
    """A Gaussian for each class, what was counted of it and the noise on that; the size of the basis.

    `spread`: the mean squared distance of an example from its class's mean. `errors`: how far the mean of each class is
    expected to lie from the true one, squared.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    model: ClassModel
    counts: list[float]
    noise: float
    spread: float
    errors: list[float]
    size: int = 0


class ReleasedCentre(BaseModel):
    """The mean example, and the noise on the moments to come as a share of the examples of a class."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    centre: Tensor
    doubt: float


def release_moments(fed: Federation, settings: MomentSettings, release: ReleaseConfig) -> ReleasedMoments | None:
    """A Gaussian for each class out of everybody's sums; None where nobody could be reached."""
    asked = moments_to_ask(fed, settings, release)
    if asked is None:
        return None
    statistic, dimensions = asked
    released: ReleasedMoments | None = fed.once(
        "class moments", lambda: gaussians(fed, statistic, dimensions, release), ReleasedMoments | None
    )
    return released and released.model_copy(update={"size": statistic.size})


def release_moments_of_each(
    fed: Federation, settings: MomentSettings, release: ReleaseConfig
) -> dict[str, ReleasedMoments]:
    """Gaussians out of each client's own sums, for those that could be reached."""
    asked = moments_to_ask(fed, settings, release, of_each=True)
    if asked is None:
        return {}
    (statistic, dimensions), mu = asked, release.mu(1 - CENTRE_SHARE)
    std = 0.0 if mu is None else statistic.sensitivity / mu

    def ask() -> dict[str, ReleasedMoments]:
        replies = released_sums(fed, statistic, mu, attempts=ATTEMPTS)
        return {c: gaussians_of(r.total, std, statistic, dimensions, fed.schema.classes) for c, r in replies.items()}

    found = fed.once("class moments of each client", ask, dict[str, ReleasedMoments])
    return {client: released.model_copy(update={"size": statistic.size}) for client, released in found.items()}


def moments_to_ask(
    fed: Federation, settings: MomentSettings, release: ReleaseConfig, of_each: bool = False
) -> tuple[ClassMoments, int] | None:
    """What to ask for and in how many dimensions; with ε around a centre, which is asked for first.

    `of_each`: each client's own sums are used, not those of all. None where nobody could be reached.
    """
    size, centre, shape = settings.first_size, None, fed.schema.shape
    if settings.epsilon is not None:
        found = fed.once("centre of class moments", lambda: _centre(fed, size, release, of_each), ReleasedCentre | None)
        if found is None:
            return None
        centre = found.centre
        if settings.size == "auto":
            size = chosen_size(found.doubt)
            centre = Basis(shape, IMAGE_SIDE).lowest(centre, size)
    elif release.sums() is None:
        fed.note(LEFT_OUT.format(fewest=settings.fewest))
    basis = Basis(shape, size)
    statistic = ClassMoments(
        size=size,
        covariance=settings.kind,
        centre=centre,
        radius=None if settings.epsilon is None else settings.clip * math.sqrt(math.prod(shape)),
        unit=basis.reach,
        fewest=settings.fewest,
    )
    check_length(basis.dimensions, fed.schema.classes, statistic.covariance)
    return statistic, basis.dimensions


def _centre(fed: Federation, size: int, release: ReleaseConfig, of_each: bool) -> ReleasedCentre | None:
    found = released_sum(fed, Centre(size=size), release.mu(CENTRE_SHARE), release.sums(), attempts=ATTEMPTS)
    if found is None:
        return None
    examples = max(FEWEST_COUNTED, float(found.total[0]) / CENTRE_COUNT)
    scale = Basis(fed.schema.shape, size).reach / math.sqrt(1 - CENTRE_COUNT**2) / examples
    std = found.std * SENSITIVITY * math.sqrt(CENTRE_SHARE / (1 - CENTRE_SHARE))
    doubt = std * fed.schema.classes / examples * (math.sqrt(len(found.clients)) if of_each else 1.0)
    return ReleasedCentre(centre=found.total[1:] * scale, doubt=doubt)


def gaussians(
    fed: Federation, statistic: MomentSums, dimensions: int, release: ReleaseConfig, rank: int = RANK
) -> ReleasedMoments | None:
    """What follows from one release of these moments, after that of a centre; None where nobody could be reached."""
    classes = fed.schema.classes
    check_length(dimensions, classes, statistic.covariance)
    found = released_sum(fed, statistic, release.mu(1 - CENTRE_SHARE), release.sums(), attempts=ATTEMPTS)
    if found is None:
        return None
    return gaussians_of(found.total, found.std, statistic, dimensions, classes, rank)


def gaussians_of(
    total: Tensor, std: float, statistic: MomentSums, dimensions: int, classes: int, rank: int = RANK
) -> ReleasedMoments:
    """What follows from sums with noise of this standard deviation."""
    sums = read_sums(total, dimensions, classes)
    return ReleasedMoments(
        model=class_model(sums, std, statistic.scale, statistic.centre, rank),
        counts=sums.counts.tolist(),
        noise=std / COUNT_WEIGHT,
        spread=statistic.scale**2 * mean_spread(sums),
        errors=(statistic.scale**2 * mean_errors(sums, std)).tolist(),
    )
