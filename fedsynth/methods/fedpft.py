"""FedPFT (Beitollahi et al. 2024, Parametric Feature Transfer): one exchange of Gaussians of features, a head on draws.

Clients send, once, a mixture of Gaussians for each class in the features of a fixed body; the server draws virtual
features from all of them and trains the head. The body is a pretrained network (`backbone`), or one of the fixed
features of `analytic`, which need no download.

Deviations. The paper fits mixtures by EM; here k-means splits a class into components, and each is sent as number, sum
and second moment. The paper draws as many as there are examples; here classes count alike, and the Gaussians of a class
by their examples. It has diagonal covariances, too, which are smaller. With ε or a secure sum the sums of all clients
are one Gaussian for each class (the paper's theorem on privacy is for one component, too, and adds noise to the means
and covariances of each client), a tenth of μ² goes to the mean of the features, around which they are clipped, and all
classes share one covariance unless told. Settings of `[train]` are not used.
"""

from typing import ClassVar, Self

from pydantic import Field, model_validator
from torch import Tensor

from fedsynth.components.class_moments import check_length
from fedsynth.components.feature_moments import FeatureMoments, own_gaussians, release_centre, release_features
from fedsynth.components.fixed_features import FeatureConfig
from fedsynth.components.moment_release import ReleasedMoments, ReleaseSettings
from fedsynth.components.virtual_features import HeadSettings, head_on_draws
from fedsynth.federation import Federation, Outcome, State, method
from fedsynth.learning.models import Classifier

NOBODY = "Nobody could be reached to release moments of features: the model stays as it was."


class FedPftConfig(ReleaseSettings, HeadSettings, FeatureConfig):
    """What is measured, how it is released, and how the head is trained."""

    dimensions: ClassVar[tuple[int, int]] = (300, 300)

    dimension: int | None = Field(
        None, ge=1, description="most fixed features: more are projected at random; none given: 300"
    )
    head_lr: float = Field(0.03, gt=0, description="learning rate of the head")
    clip: float = Field(
        0.6, gt=0, description="with ε: what is farther from the centre than this share of length is cut"
    )
    components: int = Field(
        1, ge=1, le=64, description="Gaussians of a class at each client; more than one without noise and secure sum"
    )

    @model_validator(mode="after")
    def _one_where_summed(self) -> Self:
        if self.components > 1 and (self.epsilon is not None or self.privacy.secure_aggregation):
            raise ValueError(
                "components split a class by all of its records, differently at each client: with epsilon or a secure "
                "sum remove it"
            )
        return self


@method("fedpft", config=FedPftConfig, model="fixed")
def fedpft(fed: Federation, cfg: FedPftConfig) -> Outcome:
    """A head trained on draws from clients' Gaussians of fixed features, from one exchange."""
    net, start, of = cfg.begin(fed)
    length = cfg.longest(net) if cfg.epsilon is not None else 1.0
    centre = None
    if cfg.epsilon is not None:
        centre = fed.once("centre", lambda: release_centre(fed, of, length, cfg), Tensor | None)
    statistic = FeatureMoments(
        of=of,
        covariance=cfg.kind,
        centre=centre,
        radius=None if cfg.epsilon is None else cfg.clip * length,
        fewest=cfg.fewest,
        components=cfg.components,
    )
    mixture: list[ReleasedMoments] = fed.once(
        "class moments", lambda: gather(fed, cfg, net, statistic), list[ReleasedMoments]
    )
    state = State(model=start)
    for _ in fed.rounds("train", 1, state):
        if mixture:
            state.model = head_on_draws(fed, mixture, state.model, cfg.classifier, cfg)
        else:
            fed.note(NOBODY)
    return Outcome(state.model)


def gather(fed: Federation, cfg: FedPftConfig, net: Classifier, statistic: FeatureMoments) -> list[ReleasedMoments]:
    """Each client's own Gaussians; with noise or a secure sum those of all together. Empty where nobody answered."""
    dimensions = net.head.in_features
    check_length(dimensions, fed.schema.classes * cfg.components, cfg.kind)
    if cfg.epsilon is None and cfg.sums() is None:
        return own_gaussians(fed, statistic, dimensions)
    if cfg.epsilon is not None and statistic.centre is None:
        return []
    found = release_features(fed, statistic, dimensions, cfg)
    return [] if found is None else [found]
