"""Looks at a site's data before anything is sent: does it fit the federation's schema, and what does it lack?"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedsynth.data.check import find_problems
from fedsynth.data.sources import load_source
from fedsynth.network.site_config import SiteConfig, find_misfits, load_site_data


@dataclass(frozen=True)
class SiteCheck:
    """What was found: examples per part and class, classes that the site lacks, and a sentence per problem."""

    site: str
    shape: list[int]
    classes: list[str]
    counts: dict[str, list[int]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check_site(config: SiteConfig) -> SiteCheck:
    """Read the data as a run would and compare it with the schema. A class that it lacks is listed, not a problem."""
    schema = config.schema_.to_schema()
    problems: list[str] = []
    if config.rehearsal is None:
        source = load_source(config.data, config.seed)
        problems = find_misfits(source, schema)
        if problems:
            return SiteCheck(config.name, list(schema.shape), list(schema.class_names), problems=problems)
        problems = find_problems(source)
    data = load_site_data(config)
    missing = [name for name, n in zip(schema.class_names, data.counts["train"], strict=True) if n == 0]
    if len(data.own.train) == 0:
        problems.append("There are no examples to train on.")
    return SiteCheck(config.name, list(schema.shape), list(schema.class_names), data.counts, missing, problems)


def site_check_lines(found: SiteCheck) -> list[str]:
    """What `fedsynth site check` says, line by line."""
    shape = "×".join(map(str, found.shape))
    lines = [f'site "{found.site}": {shape}, {len(found.classes)} classes in the federation']
    for part, counts in found.counts.items():
        listed = ", ".join(f"{name} {count}" for name, count in zip(found.classes, counts, strict=True) if count)
        lines.append(f"  {part}: {sum(counts)} examples; {listed or 'none'}")
    if found.missing:
        lines.append(f"  lacks {', '.join(found.missing)}: no training examples of these classes")
    lines += [f"problem: {problem}" for problem in found.problems]
    return lines if found.problems else [*lines, "fits the federation; nothing was sent"]
