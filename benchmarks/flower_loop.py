"""Contestant: Flower's simulation (Ray, one CPU a client), with its own FedAvg and the plain loop's local training.

Runs in a virtual environment of its own with flwr[simulation] and torch; speed.py makes one. A round is timed at the
server, from picking the clients to the averaged model, so starting Ray is not counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import plain_loop
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workloads import load_once, workload


class TimedFedAvg(FedAvg):
    """Flower's FedAvg with a stopwatch."""

    started = 0.0

    def configure_train(self, server_round: int, *args: Any, **kwargs: Any) -> Iterable[Message]:
        """Start the watch, then do as always."""
        self.started = time.perf_counter()
        return super().configure_train(server_round, *args, **kwargs)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Do as always, then tell the time."""
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
        result = super().aggregate_train(server_round, replies)
        seconds = time.perf_counter() - self.started
        steps = sum(int(reply.content["metrics"]["steps"]) for reply in replies)
        plain_loop.tell(round=server_round, seconds=seconds, steps=steps)
        return result


def client_app(name: str, data: str) -> ClientApp:
    """A stock ClientApp around the plain local training."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        work, split = workload(name), load_once(data)
        model = plain_loop.make_model(work, split.x.shape[-1])
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = plain_loop.tensors(split, int(context.node_config["partition-id"]))
        steps = plain_loop.train(model, x, y, work)
        metrics = MetricRecord({"num-examples": len(y), "steps": steps})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def server_app(name: str, data: str, rounds: int) -> ServerApp:
    """A stock ServerApp with FedAvg."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.manual_seed(0)
        work, split = workload(name), load_once(data)
        model = plain_loop.make_model(work, split.x.shape[-1])
        strategy = TimedFedAvg(
            fraction_train=work.picked / work.clients, fraction_evaluate=0.0, min_available_nodes=work.clients
        )
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=rounds)
        model.load_state_dict(result.arrays.to_torch_state_dict())
        plain_loop.tell(accuracy=plain_loop.accuracy(model, split))

    return app


def main() -> None:
    """Run the simulation on this machine alone."""
    args = plain_loop.arguments()
    data = str(args.data.resolve())
    here = {"num_cpus": args.workers, "log_to_driver": False}
    run_simulation(
        server_app(args.workload, data, args.rounds),
        client_app(args.workload, data),
        num_supernodes=workload(args.workload).clients,
        backend_config={"init_args": here, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main()
