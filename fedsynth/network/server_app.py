"""The Flower ServerApp: runs the server program of the run folder that the run config names."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsynth.network.serve import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Flower calls this."""
    serve(grid, Path(str(context.run_config["folder"])), str(context.run_config["attempt"]))
