"""What the author of a method needs, in one import: `from fedsynth.api import Federation, method, task, …`."""

# ruff: noqa: F401  (what is imported here is offered here)

from pydantic import Field

from fedsynth.components.additions import note_additions, record_additions, record_at_server
from fedsynth.components.local_training import TrainRequest, Update
from fedsynth.components.loop import Loop, LoopConfig, federated_loop
from fedsynth.components.samples import Samples
from fedsynth.components.settings import MethodConfig, PublishedForm
from fedsynth.components.slots import (
    AggregationContext,
    Aggregator,
    LocalContext,
    LocalData,
    LocalObjective,
    Memory,
    PostAggregation,
    RoundInfo,
    ServerOptimizer,
)
from fedsynth.components.synthetic_store import keep_samples, kept_samples
from fedsynth.federation import Client, Done, Federation, Message, Outcome, Replies, Reply, State, leaves, method, task
from fedsynth.federation.personal import personal
from fedsynth.learning.aggregators import weighted_mean
from fedsynth.learning.models import Classifier, ModelSpec, model
from fedsynth.learning.optimizers import LocalTraining
from fedsynth.learning.training import CrossEntropy, FitResult, Objective, fit
from fedsynth.learning.weights import Weights, load_weights, weights_of
from fedsynth.methods.fedavg import train
from fedsynth.privacy import Guarantee
