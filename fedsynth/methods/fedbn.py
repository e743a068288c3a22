"""FedBN (Li et al. 2021): normalisation layers stay at the clients, everything else is averaged.

Each client ends with a model of its own: the shared weights with its own normalisation layers. A whole global model
does not exist, and none is reported. Without normalisation layers this is FedAvg, bit-identical.

Deviations: GroupNorm and LayerNorm layers are kept at the clients too, not BatchNorm alone. Without a `[model]`
section it takes the BatchNorm network of Fed-ZDA, because FedBN on a network without such layers is FedAvg.
"""

from fedsynth.components.loop import LoopConfig, federated_loop
from fedsynth.federation import Federation, Outcome, method


@method("fedbn", config=LoopConfig, model="zda_cnn")
def fedbn(fed: Federation, cfg: LoopConfig) -> Outcome:
    """Normalisation layers stay local: one model per client."""
    outcome = federated_loop(fed, cfg, keeps="norm")
    if not outcome.personal:
        fed.note(f'fedbn is fedavg here: the model "{cfg.model.name}" has no normalisation layers to keep local')
    return outcome
