"""Guarantees: what can be said, what is refused, and that nothing is lost on the way."""

from __future__ import annotations

import json

import pytest
from guarantees import guarantees
from hypothesis import given
from pydantic import ValidationError

from fedsynth.privacy import DiscreteGaussianEvent, GaussianEvent, Guarantee, PureEvent, SampledGaussianEvent


@given(guarantees())
def test_a_guarantee_survives_json(guarantee):
    again = Guarantee.model_validate(json.loads(json.dumps(guarantee.as_dict())))
    assert again == guarantee
    assert hash(again) == hash(guarantee)


def test_a_mechanism_without_proof_can_be_told():
    nothing = Guarantee.none("noise of std 4", "the filter", claimed="reading A: ε = 0.47")
    assert not nothing.proven
    assert nothing.events == ()
    assert nothing.claimed == "reading A: ε = 0.47"


@pytest.mark.parametrize(
    "values",
    [
        {"events": ()},
        {"events": (PureEvent(epsilon=1),), "proven": False},
        {"events": (SampledGaussianEvent(rate=0.1, noise=1, steps=5),), "adjacency": "replace one"},
        {"events": (DiscreteGaussianEvent(sigma=1),), "adjacency": "replace one"},
        {"events": (GaussianEvent(mu=1),), "unit": "household"},
        {"events": (GaussianEvent(mu=1),), "mechanism": ""},
        {"events": (GaussianEvent(mu=1),), "epsilon": 0.1},
        {"events": ({"kind": "gaussian", "mu": -1},)},
        {"events": ({"kind": "gaussian", "mu": float("inf")},)},
        {"events": ({"kind": "magic", "epsilon": 0.1},)},
    ],
)
def test_what_would_not_be_a_proof_is_refused(values):
    with pytest.raises(ValidationError):
        Guarantee.model_validate({"mechanism": "noise", **values})
