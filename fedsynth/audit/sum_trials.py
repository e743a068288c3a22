"""The trials of releases of sums: each statistic says how it is tested; masked sums are tested before their masks."""

from fedsynth.components.class_moments import Centre, ClassMoments
from fedsynth.components.feature_moments import FeatureMoments
from fedsynth.components.feature_sums import COLUMNS, FeatureSum
from fedsynth.components.released_sums import Statistic, release_masked_sum, release_sum
from fedsynth.components.settings import MethodConfig
from fedsynth.data.dataset import Schema
from fedsynth.federation.trials import Trial
from fedsynth.methods.analytic.statistics import RidgeMoments
from fedsynth.privacy import GaussianEvent, Guarantee

SUMMED: tuple[Statistic, ...] = (
    FeatureSum(of=COLUMNS, length=1.0),
    RidgeMoments(of=COLUMNS, radius=1.0),
    Centre(size=1),
    ClassMoments(size=1, covariance="shared"),
    FeatureMoments(of=COLUMNS, covariance="shared"),
)
"""Those that methods release, with settings of any kind."""


@release_masked_sum.trial
@release_sum.trial
def sum_trials(guarantee: Guarantee, cfg: MethodConfig, schema: Schema) -> list[Trial]:
    """By the statistic that the guarantee is about, with all of the noise that its μ asks for.

    In a secure sum a client adds a share of that noise, and what is claimed is claimed of the sum: which has it all.
    """
    [event] = guarantee.events
    assert isinstance(event, GaussianEvent)
    found = [statistic for statistic in SUMMED if guarantee.covered.startswith(statistic.about)]
    return [trial for statistic in found if (trial := statistic.trial(schema, event.mu)) is not None]
