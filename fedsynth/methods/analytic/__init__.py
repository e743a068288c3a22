"""A classifier in closed form from one exchange of sums: ridge regression on fixed features.

After AFL (He et al. 2025, analytic federated learning) and Fed3R (Fanì et al. 2024), whose features are those of a
pretrained network, and Tramèr and Boneh 2021, whose wavelet features make private learning work. Clients send
S = Σ u·uᵀ and M = Σ u·onehot(y)ᵀ of their examples, the server solves (S + λI) W = M. However the examples are spread
over the clients, the sums and with them the model are the same, to the last bit (`learning/ridge.py`).

Deviations. AFL adds up solutions and takes the regularisation off again; sums are the same and simpler. Fed3R goes on
to train; that is left to other methods (`model.name = "wavelets"`). With ε, noise goes onto one release of the sums,
and a twentieth of μ² onto the mean of the features before, from which u is measured. Negative eigenvalues of the noisy
S are set to 0. Settings of `[train]` are not used: nothing is trained.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator
from torch import Tensor

from fedsynth.components.feature_sums import Features, FeatureSum
from fedsynth.federation import Client, Federation, Message, Outcome, State, method
from fedsynth.federation.payload import Fields
from fedsynth.federation.personal import personal
from fedsynth.learning.models import Classifier, ModelSpec
from fedsynth.learning.ridge import RARE, RidgeSums, balanced, linear_head, solve
from fedsynth.learning.weights import Weights
from fedsynth.methods.analytic.settings import AnalyticConfig
from fedsynth.methods.analytic.statistics import RidgeMoments
from fedsynth.methods.analytic.sums import Gathering, SumsState, noisy_mean, weighed

EXPLAINED = (
    "Clients described each example by fixed numbers and released two sums over their examples, once: of the products "
    "of these numbers, and of the numbers for each class. A ridge regression on the sums of all is the classifier; "
    "nothing was trained, and it is the same whoever has which example."
)
OWN_AGAIN = "own examples weigh more"


class Regression(Message):
    """How a head follows from sums. `std`: of the noise on them."""

    moments: Annotated[RidgeMoments, BeforeValidator(RidgeMoments.parse)]
    ridge: float
    weights: Literal["records", "classes", "clients"]
    std: float

    def head(self, total: Tensor, features: int, classes: int) -> Weights:
        """The linear head, solved in float64."""
        sums = RidgeSums.unpacked(total, features, classes)
        if self.weights == "classes":
            sums = balanced(sums, RARE if self.std else 0.0)
        solution = solve(sums, self.ridge, self.std)
        weight, bias = linear_head(solution, self.moments.centre, self.moments.radius)
        return {"head.weight": weight.float(), "head.bias": bias.float()}


@method("analytic", config=AnalyticConfig, model="fixed")
def analytic(fed: Federation, cfg: AnalyticConfig) -> Outcome:
    """A ridge classifier in closed form on fixed features, from one exchange of sums."""
    net, start, of = cfg.begin(fed)
    moments = what_to_ask(fed, cfg, net, of)
    features = net.head.in_features
    found = Gathering(fed, cfg, moments, features).gather()
    regression = Regression(moments=moments, ridge=cfg.strength, weights=cfg.weights, std=found.variance**0.5)
    describe(fed, cfg, found, features)
    state = State(model=start)
    for _ in fed.rounds("train", 1, state):
        if found.total is not None:  # where nobody could be reached, the model stays as it was
            state.model = start | regression.head(found.total, features, fed.schema.classes)
    if not cfg.personal_weight or found.total is None:
        return Outcome(state.model)
    settings = {"regression": regression, "total": found.total, "weight": cfg.personal_weight}
    return Outcome(state.model, personal=OWN_AGAIN, personal_settings=settings)


def describe(fed: Federation, cfg: AnalyticConfig, found: SumsState, features: int) -> None:
    """What the classifier rests on, for people to see."""
    rows: list[list[object]] = [["numbers that describe an example", features], ["clients in the sum", found.clients]]
    if found.total is not None and cfg.weights != "clients":
        sums = RidgeSums.unpacked(found.total, features, fed.schema.classes)
        rows.append(["examples, as counted in it", round(float(sums.examples.sum()), 1)])
    rows += [["standard deviation of the noise on each number", found.variance**0.5], ["ridge", cfg.strength]]
    fed.record("closed form", {"kind": "table", "about": EXPLAINED, "columns": ["what", "value"], "rows": rows})


def what_to_ask(fed: Federation, cfg: AnalyticConfig, net: Classifier, features: Features) -> RidgeMoments:
    """The moments to ask for; with ε they are measured from the mean of the features, which is asked for first."""
    if cfg.epsilon is None:
        return RidgeMoments(of=features, fewest=cfg.fewest)
    length = cfg.longest(net)
    asked = FeatureSum(of=features, length=length)
    centre = fed.once("centre", lambda: noisy_mean(fed, cfg, asked), Tensor | None)
    return RidgeMoments(of=features, centre=centre, radius=cfg.clip * length)


@personal(OWN_AGAIN)
def own_again(client: Client, model: Weights, spec: ModelSpec, settings: Fields) -> Weights:
    """The model from everybody's sums and the client's own once more, times a weight. Neither leaves the client."""
    regression = Regression.model_validate(settings["regression"])
    features, classes = model["head.weight"].shape[1], client.schema.classes
    own = weighed(regression.moments.total(client), regression.weights, features, classes)
    return model | regression.head(settings["total"] + settings["weight"] * own, features, classes)
