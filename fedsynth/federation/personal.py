"""Rules by which a client forms a model of its own from the global one and what it keeps."""

from collections.abc import Callable

from fedsynth.errors import FedsynthError, nearest
from fedsynth.federation.client import Client
from fedsynth.federation.payload import Fields
from fedsynth.learning.models import ModelSpec
from fedsynth.learning.weights import Weights

Rule = Callable[[Client, Weights, ModelSpec, Fields], Weights]

_RULES: dict[str, Rule] = {}


def personal(name: str) -> Callable[[Rule], Rule]:
    """Register a rule `(client, global weights, model spec, settings) -> weights` under a name."""

    def register(rule: Rule) -> Rule:
        _RULES[name] = rule
        return rule

    return register


def personal_model(name: str, client: Client, model: Weights, spec: ModelSpec, settings: Fields) -> Weights:
    """A client's own weights by the named rule."""
    if name not in _RULES:
        raise FedsynthError(f'There is no rule for personal models called "{name}".{nearest(name, _RULES)}')
    return _RULES[name](client, model, spec, settings)
