"""A slot value that is a method by itself: `@method("fedprox")` on its class, without settings or a body of its own."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import create_model

from fedsynth.components.loop import LoopConfig, federated_loop
from fedsynth.components.settings import PublishedForm
from fedsynth.components.slots import Kept, SlotValue
from fedsynth.federation import Federation, Outcome


def slot_method(
    value: type[SlotValue], beside: Mapping[str, type[SlotValue]]
) -> tuple[Callable[[Federation, Any], Outcome], type[LoopConfig]]:
    """The program and the settings of a method that is the loop with these values in their slots."""
    values = {value.slot: value, **beside}
    fields: dict[str, Any] = {
        name: (field.annotation, field) for kind in values.values() for name, field in kind.model_fields.items()
    }
    bases = (PublishedForm, LoopConfig) if issubclass(value, PublishedForm) else (LoopConfig,)
    make: Any = create_model  # its types do not allow for several bases
    config = make(f"{value.__name__}Config", __base__=bases, __module__=value.__module__, **fields)
    config.__doc__ = f"Settings of {value.__name__}."
    if issubclass(value, PublishedForm):
        config.published = value.published
    keeps: Kept = getattr(values.get("objective"), "keeps", "nothing")

    def program(fed: Federation, cfg: LoopConfig) -> Outcome:
        own: Any = {slot: kind(**settings_of(cfg, kind)) for slot, kind in values.items()}
        return federated_loop(fed, cfg, keeps, **own)

    program.__module__ = value.__module__
    return program, config


def settings_of(cfg: LoopConfig, kind: type[SlotValue]) -> dict[str, Any]:
    """The settings of a slot value, out of those of a method that has them."""
    return {name: getattr(cfg, name) for name in kind.model_fields}


SlotValue.as_method = classmethod(slot_method)  # type: ignore[assignment,method-assign]
