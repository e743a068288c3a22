"""What the checks of a synthesis say, in words: each with a mark that is a sign and, but for good news, a word."""

from collections.abc import Sequence

from fedsynth.evaluation.results import RunSummary, SynthesisCheck

MARKS = {"good": "✓", "look": "! look:", "failed": "✗ FAILED", "unknown": "? unknown:"}


def synthesis_words(check: SynthesisCheck) -> str:
    """A check of the synthesis with its mark, which is a sign and a word."""
    return f"{MARKS[check.mark]} {check.check}: {check.words}"


def failed_synthesis_lines(summaries: Sequence[RunSummary]) -> list[str]:
    """For each row with a run whose synthesis failed: which, and in what; nothing where all went well."""
    lines: dict[str, str] = {}
    for summary in summaries:
        failed = [f"{check.check} ({check.words})" for check in summary.synthesis if check.mark == "failed"]
        if failed:
            text = f"{MARKS['failed']} synthesis of {summary.row}, seed {summary.seed}: {'; '.join(failed)}"
            lines.setdefault(summary.row, text)
    return list(lines.values())
