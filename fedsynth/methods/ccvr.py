"""CCVR (Luo et al. 2021, No Fear of Heterogeneity): the head of a trained model is calibrated on virtual features.

Algorithm 1: clients send number, mean and covariance of the penultimate features of the global model, by class; the
server pools them (eq. 3 and 4), draws as many virtual features of each class from a Gaussian, and trains the head on
them. The method is FedAvg and then this; as `post_aggregation = "ccvr"` it ends any method of the shared loop that has
a global model, or comes after every round (`each_round`).

Deviations. Clients send sums instead of means and covariances: pooled they are the same but for dividing by N in place
of N − 1, and they can be summed securely. The head goes on from the aggregated one, by Adam. Without noise and secure
sum a class of which a client has fewer than `fewest` examples is left out there. With ε (not in the paper) a tenth of
μ² goes to the mean of the features, around which they are clipped, and all classes share one covariance unless told.
The clip is measured in the scale of the head's weights, so that it needs no look at the data.
"""

import torch
from pydantic import Field
from torch import nn

from fedsynth.components.feature_moments import FeatureMoments, release_centre, release_features
from fedsynth.components.feature_sums import Features
from fedsynth.components.moment_release import MomentRelease, ReleasedMoments, ReleaseSettings
from fedsynth.components.slots import AggregationContext, PostAggregation, RoundInfo
from fedsynth.components.virtual_features import HeadSettings, head_on_draws
from fedsynth.errors import ConfigError
from fedsynth.federation import method
from fedsynth.learning.models import Classifier
from fedsynth.learning.weights import Weights
from fedsynth.privacy import PrivacyConfig

NOBODY = "Nobody could be reached to release moments of features: the head stays as it was."
WIDER = 4.0  # the longest features that count in full for the centre, times the clip


@method("ccvr", fedavg_when={"head_epochs": 0}, search={"head_lr": (0.0003, 0.03)})
class HeadCalibration(ReleaseSettings, HeadSettings, PostAggregation, name="ccvr"):
    """The server trains the head of the last model on draws from moments of the features of each class."""

    clip: float = Field(
        20.0,
        gt=0,
        le=1e6,
        description="with noise: features farther from their mean are cut, in units in which they move scores by one "
        "at most",
    )
    each_round: bool = Field(False, description="after every round, not the last alone; then epsilon is of each")

    @property
    def single_models(self) -> bool:
        return False

    @property
    def at_end(self) -> bool:
        return not self.each_round

    def exposes(self, hides_records: bool) -> str:
        if self.epsilon is None:
            return "its moments of features leave without noise: set its epsilon"
        return "" if hides_records else "its ε is about single records, and here whole clients are hidden"

    def check(self, net: Classifier, privacy: PrivacyConfig) -> None:
        if not isinstance(net.head, nn.Linear):
            raise ConfigError('"ccvr" trains a linear head anew, and this model has none: choose another model.')

    def due(self, round: RoundInfo) -> bool:
        return self.head_epochs > 0 and (self.each_round or round.last)

    def tune(self, context: AggregationContext) -> Weights:
        found = self.released(context)
        if found is None:
            context.fed.note(NOBODY)
            return context.model
        return head_on_draws(context.fed, [found], context.model, context.spec, self)

    def released(self, context: AggregationContext) -> ReleasedMoments | None:
        """A Gaussian for each class in the features of the new model."""
        fed, release = context.fed, MomentRelease(privacy=context.privacy, epsilon=self.epsilon)
        of, weight = Features(spec=context.spec, model=context.model), context.model["head.weight"]
        length, centre = self.clip * unit_of(weight), None
        if self.epsilon is not None:
            centre = release_centre(fed, of, WIDER * length, release)
            if centre is None:
                return None
        statistic = FeatureMoments(
            of=of,
            covariance=self.kind,
            centre=centre,
            radius=None if self.epsilon is None else length,
            unit=length,
            fewest=self.fewest,
        )
        return release_features(fed, statistic, weight.shape[1], release)


def unit_of(weight: torch.Tensor) -> float:
    """How far features must move to move scores, less their mean, by one at most: 1 / ‖W − mean row‖."""
    largest = float(torch.linalg.matrix_norm(weight.double() - weight.double().mean(0), 2))
    return 1 / max(largest, 1e-6)
