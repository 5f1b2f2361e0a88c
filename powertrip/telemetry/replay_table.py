"""The decisions of a recorded run beside those of another policy, as a person reads them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console as Terminal
from rich.text import Text

from powertrip.telemetry import words
from powertrip.telemetry.events import Record
from powertrip.telemetry.live import MAX_WIDTH


class Answer(Record):
    """What one policy decided."""

    policy: str
    """Selection policy."""

    members: tuple[str, ...]
    """Names of the members, best first."""

    steps: tuple[int, ...] | None
    """Local steps of each member; null under deadlines."""

    deadline_s: tuple[float, ...] | None
    """Seconds after the round's start at which each member's training ends; null under steps."""

    predicted_round_s: float
    """Predicted length of a round, seconds."""

    reason: str
    """Why, in words."""


class Replayed(Record):
    """One decision of a recorded run, and what another policy makes of the same observation."""

    time_s: float
    """Training clock of the decision, seconds."""

    round: int
    """First round that it governs."""

    generation: int
    """Number of the decision."""

    sites: tuple[str, ...]
    """Names of all sites, in the order of their numbers."""

    then: Answer
    """As recorded."""

    now: Answer
    """As replayed."""

    agree: bool
    """Whether both have the same members, in whatever order."""


def show_replay(name: str, replayed: Iterable[Replayed], console: Terminal) -> None:
    """Print the decisions, and at the end how many agree.

    Parameters
    ----------
    name
        Name of the run.
    replayed
        At least one decision.
    console
        Where to print; lines are no wider than that and than `MAX_WIDTH`.
    """
    decisions = list(replayed)
    first = decisions[0]
    names = words.short_names(first.sites)
    width = min(console.width, MAX_WIDTH)

    def say(*parts: str | Text | tuple[str, str]) -> None:
        line = Text.assemble(*parts)
        line.truncate(width, overflow="ellipsis")
        console.print(line, no_wrap=True)

    say((f"{name}: {first.then.policy} then, {first.now.policy} now", "bold"))
    say(("+ only now, - only then; each decision from what the run had seen at that time", "dim"))
    say((f"\n{'time':>8}  {'round':>5}        {'k':>3}  {'a round':>7}  members", "dim"))
    for decision in decisions:
        then, now = decision.then, decision.now
        where = f"{words.duration(decision.time_s):>8}  {decision.round:>5}"
        say(where, f"  then  {_figures(then)}  ", " ".join(names[site] for site in then.members))
        say(" " * len(where), f"  now   {_figures(now)}  ", _changes(decision, names))
        if then.reason == now.reason:
            say((f"{'both':>10}: {then.reason}", "dim"))
        else:
            say((f"{'then':>10}: {then.reason}", "dim"))
            say((f"{'now':>10}: {now.reason}", "dim"))
    agree = sum(decision.agree for decision in decisions)
    say((f"\n{agree} of {words.count(len(decisions), 'decision')} have the same members", "bold"))
    then_k, now_k = (
        sum(len(answer.members) for answer in answers) / len(decisions)
        for answers in zip(*((d.then, d.now) for d in decisions), strict=True)
    )
    say(f"members on average: {then_k:.2f} then, {now_k:.2f} now, of {len(first.sites)}")


def _figures(answer: Answer) -> str:
    return f"{len(answer.members):>3}  {words.duration(answer.predicted_round_s):>7}"


def _changes(decision: Replayed, names: dict[str, str]) -> Text:
    """The members as replayed; those that differ come first, where a narrow line does not cut."""
    if decision.agree:
        return Text("the same", style="dim")
    then, now = decision.then.members, decision.now.members
    return Text(" ").join(
        [
            *(Text(f"+{names[site]}", style="green") for site in now if site not in then),
            *(Text(f"-{names[site]}", style="red") for site in then if site not in now),
            *(Text(names[site]) for site in now if site in then),
        ]
    )
