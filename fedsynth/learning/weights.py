"""A model's weights as a dictionary of tensors: taking them out, putting them back, naming their parts."""

from collections.abc import Mapping

import torch
from torch import nn

from fedsynth.errors import UserError

Weights = dict[str, torch.Tensor]
"""Every parameter and buffer of a model by its name, as in `state_dict`."""

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
NORMS = (*BATCH_NORMS, nn.GroupNorm, nn.LayerNorm)


def weights_of(model: nn.Module) -> Weights:
    """Copies of all parameters and buffers, detached, in the default memory format.

    One format for everybody, because the same weights must give the same bytes whatever layout the
    training preferred.
    """
    entries = model.state_dict()
    return {name: entry.detach().clone(memory_format=torch.contiguous_format) for name, entry in entries.items()}


class WeightsError(UserError):
    """Weights that do not fit the model; the sentence tells names and shapes, never numbers."""


def check_match(expected: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> None:
    """Refuse weights whose names or shapes are not the expected ones, naming the first that differs."""
    for name, tensor in expected.items():
        if name not in weights:
            raise WeightsError(f'The weights lack "{name}" of this model; build the model they were made with.')
        if weights[name].shape != tensor.shape:
            raise WeightsError(
                f'The weights hold "{name}" with shape {tuple(weights[name].shape)} but this model has '
                f"{tuple(tensor.shape)}; build the model they were made with."
            )
    if more := [name for name in weights if name not in expected]:
        wrong = f'The weights hold "{more[0]}", which this model lacks'
        raise WeightsError(f"{wrong}; build the model they were made with.")


def load_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy the weights into the model, which keeps its own device, type and layout. All or nothing."""
    entries = model.state_dict()
    check_match(entries, weights)
    with torch.no_grad():
        for name, tensor in entries.items():
            tensor.copy_(weights[name])


def norm_entries(model: nn.Module) -> set[str]:
    """Names of all parameters and buffers that belong to normalisation layers."""
    return {
        f"{path}.{entry}" if path else entry
        for path, module in model.named_modules()
        if isinstance(module, NORMS)
        for entry in module.state_dict()
    }


def buffer_entries(model: nn.Module) -> set[str]:
    """Names of the entries that are not trained, such as BatchNorm's running statistics."""
    return set(model.state_dict()) - {name for name, _ in model.named_parameters(remove_duplicate=False)}
