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
    "gandalf": "gandalf.py",
    "fault-tolerance": "fault_tolerance.py",
    "pfl-gan": "pfl_gan.py",
    "combinations": "combining.py",
}


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
    """All that are judged."""
    with (HERE / "claims.csv").open(newline="", encoding="utf-8") as file:
        return [
            Claim(**row | {"published": float(row["published"]), "sign": int(row["sign"])})
            for row in csv.DictReader(file)
        ]


def values(claim: Claim, row: str) -> list[float | None]:
    """The numbers of a row, one for each seed (None where it did not get there); nothing where it has not run."""
    path = RESULTS / f"{claim.table}.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        found = [
            line
            for line in csv.DictReader(file)
            if line["part"] == claim.part and line["row"] == row and line.get("source", "") == claim.source
        ]
    told = [value for line in found for value in line[claim.column].split()]
    return [None if value == "–" else float(value) for value in told]


def verdict(claim: Claim) -> dict[str, str]:
    """Reproduced: at least half of what was printed, beyond doubt; absent: nothing, or the other way; else weaker."""
    ours, theirs = values(claim, claim.row), values(claim, claim.against)
    line = {
        "paper": claim.paper,
        "effect": claim.what,
        "published": f"{claim.published:+g}" if claim.published else "–",
    }
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a is not None and b is not None]
    if not pairs:
        return line | {"ours": "–", "n": "0", "verdict": "has not run"}
    gains = [a - b for a, b in pairs]
    mean, half = statistics.mean(gains), half_width(gains)
    told = line | {"ours": f"{mean:+.2f}" + (f" ± {half:.2f}" if half is not None else ""), "n": str(len(gains))}
    sure = half is not None and abs(mean) > half
    if mean * claim.sign <= 0:
        return told | {"verdict": "absent" + (", and the opposite holds" if sure else "")}
    if len(gains) == 1:
        return told | {"verdict": "there, in a single run"}
    strong = abs(mean) >= abs(claim.published) / 2
    return told | {"verdict": "reproduced" if strong and sure else "weaker" if sure else "weaker: within its interval"}


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
    lines = [verdict(claim) for claim in claims()]
    with (RESULTS / "verdicts.csv").open("w", newline="", encoding="utf-8") as file:
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
