"""The command that tries to refute claims: audit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from fedsynth.cli.common import AsJson, Silent, TrustPlugins, choose_say, out, print_json, print_line

if TYPE_CHECKING:
    from fedsynth.audit.members import Attack, ClosestRecord
    from fedsynth.audit.run import Audit, AuditRow


def audit(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    runs: Annotated[int, typer.Option(min=80, help="Runs on each of two data sets, for every mechanism.")] = 1000,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of every bound that is shown.")] = 0.95,
    trust_plugins: TrustPlugins = False,
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Put the privacy claims of a run to the test. Exit code 1 when one is refuted.

    The task that made each claim runs again, as it declares, on two data sets that differ in one record or client, the
    worst for it; a claim without such a trial is "not tested". And attacks try to tell from the model and from
    synthetic images who was trained on.
    """
    from fedsynth.audit.run import audit_run

    done = audit_run(folder, runs, confidence, choose_say(quiet), trust_plugins)
    if as_json:
        print_json(done.as_dict())
    else:
        _print_audit(done)
    if done.refuted:
        raise typer.Exit(1)


def _print_audit(done: "Audit") -> None:
    from fedsynth.audit.run import NEVER_PROVES
    from fedsynth.privacy.budget import say_number

    columns = ("released", "unit, neighbours, against", "proven", "covered", "not covered", "audit")
    table = Table(*columns, box=box.HORIZONTALS, show_lines=True)
    for tested in done.rows:
        row = tested.row
        scope = f"{row.unit}, {row.adjacency}, {row.against}" if row.unit else "–"
        proven = f"ε = {say_number(row.epsilon)}, δ = {row.delta:g}" if row.epsilon is not None else "none"
        table.add_row(row.what, scope, proven, row.covered or "–", row.not_covered or "–", _tested(tested))
    out.print(table)
    attacked = [_attacked(attack) for attack in done.attacks]
    screened = [_screened(done.screen)] if done.screen else []
    refuted = [_refuted(row) for row in done.rows if row.refuted]
    for line in (*attacked, *screened, *done.skipped, *refuted, NEVER_PROVES):
        print_line(line)


def _tested(row: "AuditRow") -> str:
    if row.lower_bound is None:
        return row.audit
    claimed = f"; {row.claimed:.3g} claimed for {_releases(row)}" if row.claimed is not None else ""
    verdict = "REFUTED" if row.refuted else "not refuted"
    how = f"{row.confidence:.0%} confidence, {row.runs} runs on each data set: {row.audit}"
    return f"{verdict}: ε ≥ {row.lower_bound:.2f}{claimed} ({how})"


def _refuted(row: "AuditRow") -> str:
    assert row.lower_bound is not None
    assert row.claimed is not None
    if row.lower_bound > row.claimed:
        found = f"it is at least {row.lower_bound:.3g}"
    else:
        found = "then the two data sets could not be told apart so well"
    return f"REFUTED: ε = {row.claimed:.3g} is claimed for {_releases(row)} of {row.row.release}; {found}."


def _releases(row: "AuditRow") -> str:
    return "one release" if row.releases == 1 else f"{row.releases} releases"


def _attacked(attack: "Attack") -> str:
    found = attack.result
    verdict = "FINDS members" if found.found else "finds no members"
    alarms = f"at {found.fpr:.1%} false alarms"
    if not found.enough:
        alarms = (
            f"above all {found.others} others (too few to see {found.fpr:.1%} false alarms: it may be up to "
            f"{found.fpr_high:.1%})"
        )
    return (
        f"Membership inference on {attack.on}, by {attack.how}, {verdict}: AUC {found.auc:.3f} "
        f"({found.auc_low:.3f} to {found.auc_high:.3f}); {found.tpr:.1%} ({found.tpr_low:.1%} to {found.tpr_high:.1%}) "
        f"of {found.members} members {alarms}."
    )


def _screened(screen: "ClosestRecord") -> str:
    verdict = "a WARNING" if screen["low"] > 0.5 else "nothing seen"
    return (
        f"Distance to the closest record (a screen, not a proof), {verdict}: {screen['share']:.1%} "
        f"({screen['low']:.1%} to {screen['high']:.1%}) of {screen['images']} images are closer to a member than to "
        f"any of as many others; images that copy nothing give 50%."
    )
