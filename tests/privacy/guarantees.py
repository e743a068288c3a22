"""Random events and guarantees for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from fedsynth.privacy import (
    DiscreteGaussianEvent,
    GaussianEvent,
    Guarantee,
    LaplaceEvent,
    PureEvent,
    SampledGaussianEvent,
)

gaussians = st.builds(GaussianEvent, mu=st.floats(0, 5))
other_events = st.one_of(
    st.builds(DiscreteGaussianEvent, sigma=st.floats(0.5, 50)),
    st.builds(LaplaceEvent, scale=st.floats(0.5, 50)),
    st.builds(
        SampledGaussianEvent,
        rate=st.floats(0, 1),
        noise=st.floats(0.5, 10),
        steps=st.integers(min_value=0, max_value=50),
    ),
    st.builds(PureEvent, epsilon=st.floats(0, 2)),
)
texts = st.sampled_from(["", "a", "b", "the ε of a paper"])


@st.composite
def guarantees(draw: st.DrawFn, events: st.SearchStrategy = gaussians | other_events) -> Guarantee:
    """Any guarantee, now and then one that proves nothing."""
    mechanism = draw(st.sampled_from(["noise", "more noise"]))
    if draw(st.integers(0, 4)) == 0:
        return Guarantee.none(mechanism, draw(texts), draw(texts))
    chosen = tuple(draw(st.lists(events, min_size=1, max_size=3)))
    symmetric = not any(isinstance(event, SampledGaussianEvent | DiscreteGaussianEvent) for event in chosen)
    counted = any(isinstance(event, DiscreteGaussianEvent) for event in chosen)
    return Guarantee(
        mechanism=mechanism,
        events=chosen,
        unit="record" if counted else draw(st.sampled_from(["record", "client"])),
        adjacency=draw(st.sampled_from(["add or remove one", "replace one"])) if symmetric else "add or remove one",
        covered=draw(texts),
        not_covered=draw(texts),
        claimed=draw(texts),
        against=draw(st.sampled_from(["everybody", "all but a malicious server", "all but the server"])),
        masked=draw(st.booleans()),
    )
