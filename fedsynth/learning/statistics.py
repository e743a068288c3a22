"""Measuring BatchNorm's running statistics anew."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedsynth.learning.weights import BATCH_NORMS


def measure_batch_norm(model: nn.Module, x: Tensor, batch_size: int = 512) -> None:
    """Set the running statistics of every BatchNorm layer to their mean over batches of `x`, equal in size.

    Fewer than two examples have no spread to measure: they leave the statistics as they are.
    """
    if len(x) < 2:
        return
    layers = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain average over the batches
    device = next(model.parameters()).device
    model.train()
    with torch.no_grad():
        for batch in x.tensor_split(math.ceil(len(x) / batch_size)):
            model(batch.to(device))
    for layer, momentum in zip(layers, before, strict=True):
        layer.momentum = momentum
    model.eval()
