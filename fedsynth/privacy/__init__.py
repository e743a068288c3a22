"""Mechanisms and their honest accounting. ε is never shown without its unit, adjacency and δ."""

from fedsynth.privacy.gaussian import compose, gaussian_delta, gaussian_epsilon, gaussian_sigma

__all__ = ["compose", "gaussian_delta", "gaussian_epsilon", "gaussian_sigma"]
