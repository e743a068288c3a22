"""RFA-RFD as PFL-GAN describes it (its reference 10): anomaly detection weighs the average, distillation refines it.

The text of that paper was not at hand. What is known of it, from PFL-GAN's related work: it is based on GANs and uses
knowledge distillation and anomaly detection for the aggregation of a global model. The rest is our reading, and results
must not be taken for its authors':

Once, every client trains a conditional GAN and sends its generator; the server draws a set with each and trains an
auto-encoder on all of them. A client's anomaly a_i is the mean reconstruction error of its set; its weight in every
average is its number of examples times exp(−κ · max(0, a_i − median) / median absolute deviation): who is no worse than
the middle counts in full. After each average the server distils: it trains the global model on synthetic images towards
the mean answers of the clients' models, weighed the same way.

With `kappa = 0` and `tune_epochs = 0` it is FedAvg, bit-identical, and no GANs are trained.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from fedsynth.components.additions import count_labels, record_at_server
from fedsynth.components.loop import Loop, LoopConfig, federated_loop
from fedsynth.components.samples import Samples
from fedsynth.components.server_work import Tuned, TuningSettings, classify_images
from fedsynth.components.slots import AggregationContext, Aggregator, Memory, PostAggregation, RoundInfo
from fedsynth.federation import Client, Federation, Outcome, method, task
from fedsynth.federation.records import SYNTHETIC
from fedsynth.learning.aggregators import weighted_mean
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import fit
from fedsynth.learning.weights import Weights, weights_of
from fedsynth.methods.pfl_gan.client_gans import GanConfig, Similarity, find_similar

MOST = 2000  # synthetic images that the server distils on


class RfaRfdConfig(TuningSettings, GanConfig, LoopConfig):
    """Settings of RFA-RFD."""

    protects: ClassVar[bool] = False  # the generators are not
    requires_individual_updates: ClassVar[str] = "its server weighs each client by itself, and looks at its generator"

    kappa: float = Field(1.0, ge=0, description="how strongly an anomalous client loses weight; 0: not at all")


class AnomalyMean(Aggregator):
    """The mean, weighted by examples and by how ordinary a client's drawn set is."""

    trust: dict[str, float]

    def combine(self, model: Weights, replies: Mapping[str, Any], memory: Memory, info: RoundInfo) -> Weights:
        if all(self.trust.get(client, 1.0) == 0 for client in replies):
            return model
        return weighted_mean((r.model, r.examples * self.trust.get(client, 1.0)) for client, r in replies.items())


class Distilling(TuningSettings, PostAggregation):
    """Train the new model on synthetic images towards the mean answers of the clients' models."""

    trust: dict[str, float]

    _images: Tensor = PrivateAttr(default_factory=lambda: torch.zeros(0))

    def active(self, index: int) -> bool:
        return self.tune_epochs > 0 and len(self._images) > 0

    def tune(self, context: AggregationContext) -> Weights:
        fed, images = context.fed, self._images.to(torch.float32) / 255
        jobs = {c: {"model": m, "spec": context.spec, "images": images} for c, m in context.received.items()}
        answers = fed.compute(classify_images, jobs)
        weights = np.array([self.trust.get(client, 1.0) for client in answers])
        if weights.sum() == 0:
            return context.model
        each = torch.stack([answer.probabilities for answer in answers.values()])
        targets = torch.tensordot(torch.from_numpy(weights / weights.sum()).to(each), each, 1)
        usable = torch.isfinite(targets).all(1)
        job = {
            "model": context.model,
            "spec": context.spec,
            "images": images[usable],
            "targets": targets[usable],
            "training": self.tuning(context.training),
        }
        return dict(fed.compute(distil_model, {"distil": job})["distil"].model)


@task
def distil_model(
    client: Client, model: Weights, spec: ModelSpec, images: Tensor, targets: Tensor, training: LocalTraining
) -> Tuned:
    """Train a model towards given probabilities."""
    net = client.build(spec, model)
    fit(net, images, targets, training, client.rng("distil"))
    return client.release(Tuned(model=weights_of(net)))


def trust_in(errors: np.ndarray, kappa: float) -> np.ndarray:
    """A weight in [0, 1] for each reconstruction error; what is not a number has none."""
    known = np.isfinite(errors)
    if not known.any() or kappa == 0:
        return np.ones(len(errors))
    middle = np.median(errors[known])
    spread = max(float(np.median(np.abs(errors[known] - middle))), 1e-12)
    excess = np.where(known, np.clip(errors - middle, 0, None), np.inf)
    return np.asarray(np.exp(-kappa * excess / spread))


@method("rfa_rfd", config=RfaRfdConfig, model="pfl_cnn", search={"kappa": (0.1, 4.0)})
def rfa_rfd(fed: Federation, cfg: RfaRfdConfig) -> Outcome:
    """Anomalous clients lose weight in the average, by their GANs; the average is distilled on synthetic images."""
    Loop(fed, cfg)  # mistakes are found before anything leaves a client
    if cfg.kappa == 0 and cfg.tune_epochs == 0:
        return federated_loop(fed, cfg)
    similar = find_similar(fed, cfg)
    values = trust_in(similar.errors, cfg.kappa)
    trust = {client: float(value) for client, value in zip(similar.clients, values, strict=True)}
    rows = [[c, float(e) if np.isfinite(e) else None, trust[c]] for c, e in zip(trust, similar.errors, strict=True)]
    columns = ["client", "reconstruction error", "trust"]
    fed.record("trust in clients", {"kind": "table", "columns": columns, "rows": rows})
    tuning = {name: getattr(cfg, name) for name in TuningSettings.model_fields}
    distilling = Distilling(trust=trust, **tuning)
    distilling._images = fed.once("distilled on", lambda: some_images(fed, similar))
    return federated_loop(fed, cfg, aggregator=AnomalyMean(trust=trust), post_aggregation=distilling)


def some_images(fed: Federation, similar: Similarity) -> Tensor:
    """Some images of all drawn sets."""
    drawn = Samples.joined(list(similar.sets.values()))
    chosen = drawn.rows(torch.from_numpy(fed.rng("distilled on").permutation(len(drawn))[:MOST]))
    record_at_server(fed, SYNTHETIC, count_labels(chosen.labels, fed.schema.classes))
    return chosen.images
