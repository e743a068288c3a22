"""The registry of methods: a server program, its settings and what a reader should know about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedsynth.errors import ConfigError, nearest
from fedsynth.federation.federation import Federation
from fedsynth.federation.payload import Fields
from fedsynth.learning.weights import Weights


@dataclass(frozen=True)
class Outcome:
    """What a method ends with: a global model, personal models, or both.

    `personal` names the rule by which a client forms its own model (`@personal`); empty when all use the global one.
    A method whose global model is not whole (FedBN keeps norm layers at the clients) says why in `no_global`.
    """

    model: Weights | None
    personal: str = ""
    personal_settings: Fields = field(default_factory=dict)
    no_global: str = ""


WITHOUT_SYNTHESIS = "without synthesis"
NOISE = "noise"
"""Names of the two controls by which a method's gain is evaluated; a method may have others."""


@dataclass(frozen=True)
class Method:
    """A registered method. `controls` maps the name of a control to the settings of the method that it changes;
    `fedavg_when` are the settings with which it is FedAvg, bit-identical, where there are any."""

    name: str
    program: Callable[[Federation, Any], Outcome]
    config: type[Any]
    model: str
    summary: str
    controls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fedavg_when: Mapping[str, Any] | None = None
    search: Mapping[str, tuple[float, float]] = field(default_factory=dict)


_METHODS: dict[str, Method] = {}


Registered = TypeVar("Registered", bound=Callable[..., Any])


def method(
    name: str,
    config: type[Any] | None = None,
    model: str = "cnn",
    controls: Mapping[str, Mapping[str, Any]] | None = None,
    fedavg_when: Mapping[str, Any] | None = None,
    search: Mapping[str, tuple[float, float]] | None = None,
    **beside: Any,
) -> Callable[[Registered], Registered]:
    """Register a server program, or a slot value that is a method by itself.

    `model` is the one its paper used, taken when an experiment names none. `controls` are variants that show where a
    gain comes from, as settings that differ from the method's own: `{"noise": {"synthetic": "noise"}}`; `compare
    --controls` runs them. `fedavg_when` are settings with which the method is FedAvg, bit-identical; `verify-method`
    checks it. `search` names the numbers that `compare --tune` tries, with the ends of their ranges (logarithmic).
    `beside` are values of other slots that belong to a slot value (`aggregator=ScaffoldServer`): the method's settings
    are those of all of them.
    """

    def register(target: Registered) -> Registered:
        summary = (target.__doc__ or "").strip().split("\n")[0]
        program, settings = (target, config) if config is not None else target.as_method(beside)  # type: ignore[attr-defined]
        _METHODS[name] = Method(name, program, settings, model, summary, controls or {}, fedavg_when, search or {})
        return target

    return register


def find_method(name: str) -> Method:
    """The method of that name; an error that names the nearest one otherwise."""
    if name not in _METHODS:
        raise ConfigError(f'There is no method "{name}".{nearest(name, _METHODS)}')
    return _METHODS[name]


def all_methods() -> list[Method]:
    """Every registered method, by name."""
    return [_METHODS[name] for name in sorted(_METHODS)]
