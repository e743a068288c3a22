"""What a model answers on a data set: the one place where a model is asked for its scores, in evaluation mode.

Whoever counts right answers, ranks examples or writes probabilities starts from here, so that all of them speak of the
same answers.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

BATCH = 512  # examples that are asked about at a time


def class_scores(model: nn.Module, x: Tensor, classes: int, batch_size: int = BATCH) -> Tensor:
    """The model's scores (n, classes) in evaluation mode, where its parameters are; it is left as it was found."""
    like = next(model.parameters())
    scores = []
    with evaluating(model), torch.inference_mode():
        for part in x.split(batch_size) if len(x) else ():
            batch = part.to(like.device, like.dtype)
            if batch.dim() == 4:
                batch = batch.contiguous(memory_format=torch.channels_last)
            scores.append(model(batch))
    return torch.cat(scores).detach() if scores else torch.zeros(0, classes, device=like.device)


def class_probabilities(scores: Tensor) -> Tensor:
    """Scores as probabilities, in double precision on the CPU: they are ranked, and rounding would tie them."""
    return scores.double().softmax(1).cpu()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; every layer is put back in the mode it was found in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
