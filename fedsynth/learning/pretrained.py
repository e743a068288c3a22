"""A pretrained network from a safetensors file: numbers alone. What computes with them is a registered model, so no
code of the file is executed (a TorchScript file would be code)."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fedsynth.errors import UserError
from fedsynth.learning.weights import Weights, WeightsError, check_match, weights_of

BODY, HEAD = "body.", "head."


def with_body_of(path: Path, net: nn.Module) -> Weights:
    """The weights of a classifier, those of its body from the file: of such a classifier, or of such a body alone."""
    try:
        found = load_file(path)
    except FileNotFoundError:
        raise UserError(f'There is no file "{path}" with the weights of a backbone.') from None
    except (SafetensorError, OSError) as error:
        raise UserError(f'"{path}" cannot be read as a safetensors file: {error}.') from None
    own = weights_of(net)
    body = {name: entry for name, entry in found.items() if name.startswith(BODY)}
    body = body or {BODY + name: entry for name, entry in found.items() if not name.startswith(HEAD)}
    expected = {name: entry for name, entry in own.items() if name.startswith(BODY)}
    try:
        check_match(expected, body)
    except WeightsError as error:
        raise UserError(f'"{path}" does not fit the [model] of this experiment: {error}') from None
    return own | {name: body[name].to(entry.dtype) for name, entry in expected.items()}
