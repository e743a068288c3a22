"""The whole study behind docs/results.md: all studies one after the other, their tables, and a verdict on each claim.

    FEDSYNTH_DATA=/path/to/data python benchmarks/study.py --runs /tmp/study --jobs 2
    python benchmarks/study.py --runs /tmp/study --tables

Killed and started again it goes on where it was. `--only NAME` runs one study. `--tables` writes what is complete to
docs/results/ and renews the pages; verdicts need the tables alone, so `--tables` without a folder of runs renews them.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scipy import stats

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results"
STUDIES = {
    "feddpms": "feddpms.py",
    "zero-shot": "zero_shot.py",
    "interior-points": "interior_points.py",
    "gandalf": "gandalf.py",
    "fault-tolerance": "fault_tolerance.py",
    "pfl-gan": "pfl_gan.py",
    "combinations": "combining.py",
}


COMBINATION = "GANDALF's images, fewer, FedAvg"
"""The combination that was best on validation data (combining.py, `tried`)."""
SINGLE = {
    ("combinations", "evaluated"): (
        *("fedavg", "fedprox", "feddyn", "logit adjustment", "interior points", "training in turn", "GANDALF"),
    ),
    ("feddpms", "fashion-0.1"): ("moon", "fedmix", "fedvae", "published", "ours, ε = 8"),
}
"""Every method by itself in the same setting: table, part and rows."""


@dataclass(frozen=True)
class Claim:
    """A published headline effect (claims.csv): how much better one row is than another, and where ours stand.

    `published` is the printed difference, `sign` +1 where more is better; `column` holds a number for each seed.
    """

    paper: str
    what: str
    published: float
    table: str
    part: str
    row: str
    against: str
    column: str
    source: str
    sign: int


def claims() -> list[Claim]:
    """All that are evaluated."""
    with (HERE / "claims.csv").open(newline="", encoding="utf-8") as file:
        return [
            Claim(**row | {"published": float(row["published"]), "sign": int(row["sign"])})
            for row in csv.DictReader(file)
        ]


def values(table: str, part: str, row: str, column: str = "seeds", source: str = "") -> list[float | None]:
    """The numbers of a row, one for each seed (None where it did not get there); nothing where it has not run."""
    path = RESULTS / f"{table}.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        found = [
            line
            for line in csv.DictReader(file)
            if line["part"] == part and line["row"] == row and line.get("source", "") == source
        ]
    numbers = [value for line in found for value in line[column].split()]
    return [None if value == "–" else float(value) for value in numbers]


def paired(ours: list[float | None], theirs: list[float | None]) -> list[float]:
    """The differences, seed by seed, where both have a number."""
    return [a - b for a, b in zip(ours, theirs, strict=False) if a is not None and b is not None]


def told(gains: list[float]) -> str:
    """The mean difference with half of its interval."""
    half = half_width(gains)
    return f"{statistics.mean(gains):+.2f}" + (f" ± {half:.2f}" if half is not None else "")


def margins() -> list[dict[str, str]]:
    """By how much the combination is better than every method by itself."""
    ours, lines = values("combinations", "evaluated", COMBINATION), []
    for (table, part), rows in SINGLE.items():
        for row in rows:
            theirs = values(table, part, row)
            gains = paired(ours, theirs)
            if gains:
                half = half_width(gains)
                surely = half is not None and abs(statistics.mean(gains)) > half
                lines.append(
                    {
                        "method": row,
                        "accuracy": f"{statistics.mean(value for value in theirs if value is not None):.2f}",
                        "the combination is better by": told(gains),
                        "each seed": " ".join(f"{gain:+.2f}" for gain in gains),
                        "more than its interval": "yes" if surely else "no",
                    }
                )
    return lines


def verdict(claim: Claim) -> dict[str, str]:
    """Reproduced: at least half of what was printed, beyond doubt; absent: nothing, or the other way; else weaker."""
    where = (claim.column, claim.source)
    ours, theirs = (values(claim.table, claim.part, row, *where) for row in (claim.row, claim.against))
    line = {
        "paper": claim.paper,
        "effect": claim.what,
        "published": f"{claim.published:+g}" if claim.published else "–",
    }
    gains = paired(ours, theirs)
    if not gains:
        return line | {"ours": "–", "n": "0", "verdict": "has not run"}
    mean, half = statistics.mean(gains), half_width(gains)
    line |= {"ours": told(gains), "n": str(len(gains))}
    sure = half is not None and abs(mean) > half
    if mean * claim.sign <= 0:
        return line | {"verdict": "absent" + (", and the opposite holds" if sure else "")}
    if len(gains) == 1:
        return line | {"verdict": "there, in a single run"}
    strong = abs(mean) >= abs(claim.published) / 2
    return line | {"verdict": "reproduced" if strong and sure else "weaker" if sure else "weaker: within its interval"}


def half_width(gains: list[float]) -> float | None:
    """Half of a 95 % interval of the mean (Student's t); None for a single run."""
    if len(gains) < 2:
        return None
    return float(stats.t.ppf(0.975, len(gains) - 1) * statistics.stdev(gains) / len(gains) ** 0.5)


def write_tables(runs: Path | None) -> None:
    """Tables of what is complete, the verdicts, the summary, and the pages that show them."""
    for name, script in STUDIES.items():
        if runs is not None and (runs / name).is_dir():
            command = [sys.executable, HERE / script, "--runs", runs / name, "--table", RESULTS / f"{name}.csv"]
            subprocess.run(command, check=True)
    for name, lines in {"verdicts": [verdict(claim) for claim in claims()], "margins": margins()}.items():
        if lines:
            with (RESULTS / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(lines[0]))
                writer.writeheader()
                writer.writerows(lines)
    subprocess.run([sys.executable, HERE / "summary.py"], check=True)
    subprocess.run([sys.executable, HERE.parent / "docs" / "tables.py"], check=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of the studies' folders")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one core each")
    parser.add_argument("--only", choices=list(STUDIES), help="one study")
    parser.add_argument("--tables", action="store_true", help="write tables and verdicts, and run nothing")
    args = parser.parse_args()
    if not args.tables:
        if args.runs is None:
            parser.error("--runs is needed to run the studies")
        for name in [args.only] if args.only else STUDIES:
            command = [sys.executable, HERE / STUDIES[name], "--runs", args.runs / name, "--jobs", str(args.jobs)]
            subprocess.run(command, check=True)
    write_tables(args.runs)


if __name__ == "__main__":
    main()
