"""Mechanisms and their honest accounting. ε is never shown without its unit, adjacency and δ."""

# ruff: noqa: F401  (what is imported here is offered here)

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
from fedsynth.privacy.rows import LedgerRow, ledger_words
