"""Mechanisms and their honest accounting. ε is never shown without its unit, adjacency and δ."""

from fedsynth.privacy.accounting import epsilon, epsilon_bound, sampled_gaussian_noise
from fedsynth.privacy.budget import Budget, BudgetError, Spending, say_epsilon
from fedsynth.privacy.config import PrivacyConfig
from fedsynth.privacy.gaussian import compose, gaussian_epsilon, gaussian_sigma
from fedsynth.privacy.guarantee import (
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    Guarantee,
    LaplaceEvent,
    PureEvent,
    SampledGaussianEvent,
)
from fedsynth.privacy.ledger import Ledger
from fedsynth.privacy.rows import LedgerRow
from fedsynth.privacy.words import ledger_words

__all__ = [
    "Budget",
    "BudgetError",
    "DiscreteGaussianEvent",
    "Event",
    "GaussianEvent",
    "Guarantee",
    "LaplaceEvent",
    "Ledger",
    "LedgerRow",
    "PrivacyConfig",
    "PureEvent",
    "SampledGaussianEvent",
    "Spending",
    "compose",
    "epsilon",
    "epsilon_bound",
    "gaussian_epsilon",
    "gaussian_sigma",
    "ledger_words",
    "sampled_gaussian_noise",
    "say_epsilon",
]
