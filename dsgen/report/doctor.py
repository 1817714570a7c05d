"""The verdict on a machine, as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dsgen.doctor.check import Check, State, Subject
from dsgen.report.console import printable, say

_STYLE = {
    State.OK: "green",
    State.WARNING: "bold yellow",
    State.ERROR: "bold red",
    State.SKIPPED: "bright_black",
    State.NOT_UNDERSTOOD: "bold magenta",
}


def show_verdict(checks: Sequence[Check], subject: Subject, *, fine: bool, form: str) -> None:
    """Print every check with its remedy, and the verdict last."""
    plan = subject.plan
    if form == "json":
        content = {
            "fine": fine,
            "recipe": None if plan is None else plan.name,
            "kind": subject.kind,
            "captured": not subject.probe.live,
            "checks": [
                {"name": each.name, "state": each.state.value, "found": each.found, "remedy": each.remedy}
                for each in checks
            ],
        }
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return
    wide = max((len(each.name) for each in checks), default=0)
    for each in checks:
        say(f"{each.state.value:<14}  {each.name:<{wide}}  {printable(each.found)}", style=_STYLE[each.state])
        if each.remedy:
            say(f"{'':<14}  {'':<{wide}}  help: {printable(each.remedy)}")
    say(_last_line(checks, subject, fine), style="bold green" if fine else "bold red")


def _last_line(checks: Sequence[Check], subject: Subject, fine: bool) -> str:
    where = "this machine" if subject.probe.live else "the captured machine"
    whom = f"for {subject.plan.name}" if subject.plan is not None else "as it is, for no recipe"
    counts = ", ".join(
        f"{number} {state.value}" for state in State if (number := sum(each.state is state for each in checks))
    )
    return f"{where} {whom}: {'nothing wrong was found' if fine else 'something is wrong'} ({counts})"
