"""How fast is a round? fedsynth, a plain one-thread PyTorch loop and Flower's simulation, in one alternating run.

    FEDSYNTH_DATA=... python benchmarks/speed.py --repeats 3 --rounds 4
    python benchmarks/speed.py --only fedsynth --workloads growth

Contestants take turns (A B C A B C ...), so that a machine that is slow for a while is slow for all; only the ratios
within one run mean something. Every contestant is a process of its own, trains on the same client index lists and takes
the same number of steps; the first round of each run is dropped. Memory is the PSS of the whole process tree.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measure import Measurement, flower_python, run_contestant
from workloads import GROWTH, prepare, workload

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CONTESTANTS = ("fedsynth", "plain", "flower")
Runs = dict[str, list[Measurement]]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workloads", nargs="+", default=["W1", "W2"], choices=["W1", "W2", "growth"])
    parser.add_argument("--only", nargs="+", default=list(CONTESTANTS), choices=CONTESTANTS)
    parser.add_argument("--repeats", type=int, default=3, help="turns of each contestant")
    parser.add_argument("--rounds", type=int, default=4, help="timed rounds of each turn (one more is run and dropped)")
    parser.add_argument("--workers", type=int, default=2, help="processes of fedsynth, clients at once of Flower")
    parser.add_argument("--share", type=float, help="fraction of each client's images (1 for W1, 0.2 for W2)")
    parser.add_argument("--growth", type=int, nargs="+", default=list(GROWTH), help="numbers of clients")
    parser.add_argument("--flower-python", help="Python of an environment with flwr[simulation] and torch")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds one turn may take")
    return parser.parse_args()


def commands(args: argparse.Namespace, name: str, data: Path, only: list[str]) -> dict[str, list[str]]:
    """The command of each contestant."""
    pythons = {"fedsynth": sys.executable, "plain": sys.executable}
    if "flower" in only:
        pythons["flower"] = flower_python(args.flower_python, RESULTS, version("torch").split("+")[0])
    rest = ["--workload", name, "--data", str(data), "--rounds", str(args.rounds + 1), "--workers", str(args.workers)]
    return {who: [pythons[who], str(HERE / f"{who}_loop.py"), *rest] for who in only}


def compete(args: argparse.Namespace, name: str, share: float, only: list[str], folder: Path) -> Runs:
    """Let the contestants take turns on one workload."""
    data = folder / f"{name}.npz"
    split = prepare(name, share)
    split.save(data)
    runs: Runs = {who: [] for who in only}
    for turn in range(1, args.repeats + 1):
        for who, command in commands(args, name, data, only).items():
            measured = run_contestant(command, args.timeout)
            runs[who].append(measured)
            print(
                f"  {name} turn {turn} {who:9s} {measured.median:8.3f} s a round, "
                f"{measured.peak_pss / 2**20:6.0f} MiB, {measured.total_seconds:6.1f} s in all",
                flush=True,
            )
    data.unlink()
    return runs


def ratios(runs: Runs, who: str, to: str) -> list[float]:
    """How many times faster than another contestant, turn by turn."""
    return [other.median / own.median for own, other in zip(runs[who], runs.get(to, []), strict=False)]


def table(name: str, runs: Runs) -> str:
    """A Markdown table of one workload."""
    lines = [
        f"### {name}",
        "",
        "| contestant | s a round (median) | × plain | × Flower | memory, MiB | test accuracy |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for who, measured in runs.items():
        seconds = statistics.median(second for one in measured for second in one.seconds)
        memory = max(one.peak_pss for one in measured) / 2**20
        accuracy = statistics.median(one.extra.get("accuracy", float("nan")) for one in measured)
        against = [_spread(ratios(runs, who, other)) for other in ("plain", "flower")]
        lines.append(f"| {who} | {seconds:.3f} | {against[0]} | {against[1]} | {memory:.0f} | {accuracy:.3f} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    """Median and range of the turns' ratios."""
    if not values:
        return "–"
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def growth_table(results: dict[str, Runs]) -> str:
    """A Markdown table of the growth with the number of clients."""
    lines = [
        "### Growth: 10 clients picked, 100 steps a round, whatever the size of the federation",
        "",
        "| clients | contestant | s a round (median) | memory, MiB | s in all |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, runs in results.items():
        for who, measured in runs.items():
            seconds = statistics.median(second for one in measured for second in one.seconds)
            memory = max(one.peak_pss for one in measured) / 2**20
            total = statistics.median(one.total_seconds for one in measured)
            lines.append(f"| {workload(name).clients:,} | {who} | {seconds:.3f} | {memory:.0f} | {total:.1f} |")
    return "\n".join(lines)


def save(results: dict[str, Runs], args: argparse.Namespace) -> Path:
    """Everything measured, with the command and the versions, as JSON."""
    RESULTS.mkdir(exist_ok=True)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    record: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "arguments": vars(args),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in ("torch", "numpy")},
        "results": {name: {who: [asdict(one) for one in runs[who]] for who in runs} for name, runs in results.items()},
    }
    file = RESULTS / f"speed-{stamp}.json"
    file.write_text(json.dumps(record, indent=1) + "\n")
    return file


def main() -> None:
    """Run what the command line asks for, print the tables, keep the numbers."""
    args = arguments()
    results: dict[str, Runs] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.workloads:
            if name == "growth":
                # Flower is left out: its simulation registers every client as a node before the first round.
                only = [who for who in args.only if who != "flower"]
                names = [f"growth-{clients}" for clients in args.growth]
                results |= {one: compete(args, one, 1.0, only, Path(folder)) for one in names}
            else:
                share = args.share if args.share is not None else {"W1": 1.0, "W2": 0.2}[name]
                results[name] = compete(args, name, share, args.only, Path(folder))
    growing = {name: runs for name, runs in results.items() if name.startswith("growth")}
    print("", *(table(name, runs) for name, runs in results.items() if name not in growing), sep="\n\n")
    if growing:
        print("", growth_table(growing), sep="\n")
    print(f"\nKept in {save(results, args)}")


if __name__ == "__main__":
    main()
