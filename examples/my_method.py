"""Steady averaging: FedAvg whose result is a moving average of the server's models, after one long visit to everybody.

FedAvg on skewed data swings from round to round. The server keeps s ← β s + (1 − β) w of its models w and gives
back s. Before the first round all clients train once from the same start (`warmup_epochs`), so that s begins well.
"""

from __future__ import annotations

from fedsynth.api import Federation, Field, MethodConfig, Outcome, State, method, train, weighted_mean


class SteadyConfig(MethodConfig):
    """The keys that `[method]` may have; `[train]` and `[model]` arrive as `cfg.train` and `cfg.model`."""

    beta: float = Field(0.5, ge=0, lt=1, description="share of the old average that stays; 0 is FedAvg")
    warmup_epochs: int = Field(0, ge=0, description="epochs at every client before the first round")


@method("steady", config=SteadyConfig, fedavg_when={"beta": 0.0})
def steady(fed: Federation, cfg: SteadyConfig) -> Outcome:
    """A moving average of FedAvg's models."""
    start = fed.initial_weights(cfg.model)
    if cfg.warmup_epochs:
        long = cfg.train.local(1).model_copy(update={"epochs": cfg.warmup_epochs})
        first = fed.once("warm up", lambda: average(fed.broadcast(train, model=start, spec=cfg.model, training=long)))
        start = first or start  # where nobody could be reached, as everybody starts
    state = State(model=start, newest=start)  # `model` is what is validated after each round
    for round in fed.rounds("train", cfg.train.rounds, state):
        replies = fed.broadcast(
            train,
            to=fed.sample(cfg.train.fraction),
            model=state.newest,
            spec=cfg.model,
            training=cfg.train.local(round),
        )
        if replies:  # where nobody could be reached, the models wait
            state.newest = average(replies)
            state.model = weighted_mean([(state.model, cfg.beta), (state.newest, 1 - cfg.beta)])
    return Outcome(state.model)


def average(replies):
    """The mean of the models that came back, weighted by examples; nothing where none did."""
    return weighted_mean((reply.model, reply.examples) for reply in replies.values()) if replies else {}
