"""Softmax regression in numpy and float64: what the methods must compute, without a line of the package.

The package's counterpart is `ModelSpec(name="mlp", hidden=())`, whose only layer is the linear head. Weights are one
matrix θ (classes × (features + 1)), the last column the bias.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch

from fedsynth.learning.models import ModelSpec

LINEAR = ModelSpec(name="mlp", hidden=())


def theta(weights: dict[str, torch.Tensor]) -> np.ndarray:
    """The package's weights as one matrix."""
    return np.concatenate([weights["head.weight"].double(), weights["head.bias"].double()[:, None]], axis=1)


def scores(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    z = x.astype(np.float64) @ w[:, :-1].T + w[:, -1]
    z = np.exp(z - z.max(1, keepdims=True))
    return z / z.sum(1, keepdims=True)


def loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(scores(w, x)[np.arange(len(y)), y]).mean())


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    error = scores(w, x)
    error[np.arange(len(y)), y] -= 1
    return error.T @ np.concatenate([x.astype(np.float64), np.ones((len(x), 1))], axis=1) / len(y)


def batches(client: str, round: int, n: int, batch: int, epochs: int, seed: int = 0) -> list[np.ndarray]:
    """The rows of every step: an order per epoch from (seed, purpose, client, round) alone."""
    text = "\x1f".join([str(seed), "batches", client, str(round)])
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big"))
    orders = [rng.permutation(n) for _ in range(epochs)]
    return [order[start : start + batch] for order in orders for start in range(0, n, batch)]


def descend(
    w: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    steps: list[np.ndarray],
    lr: float,
    momentum: float = 0.0,
    extra: Callable[[np.ndarray], np.ndarray] = np.zeros_like,
) -> np.ndarray:
    """SGD over the given batches along gradient + extra(w)."""
    w, speed = w.copy(), np.zeros_like(w)
    for rows in steps:
        speed = momentum * speed + gradient(w, x[rows], y[rows]) + extra(w)
        w -= lr * speed
    return w


def close(measured: np.ndarray, expected: np.ndarray) -> bool:
    """Equal but for the package's float32."""
    return bool(np.allclose(measured, expected, rtol=2e-5, atol=2e-6))
