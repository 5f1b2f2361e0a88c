"""What a run of a scenario would decide, as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console as Terminal
from rich.table import Table
from rich.text import Text

from powertrip.telemetry import words
from powertrip.telemetry.events import Candidate, Record
from powertrip.telemetry.links import rate
from powertrip.telemetry.live import MAX_WIDTH

MOST_ROWS = 40
"""Rows of a table that are shown; the JSON has all."""

SCORES = {
    "round-time": "rounds a second that the site would do on its own",
    "power-to-cost": "power over delay, 1 for a median site",
    "power-to-cost-linear": "power over delay with weights that cancel, for the order alone",
}
"""What the scores of a ranking are."""


class PlanSite(Record):
    """A site as the decision sees it."""

    site: str
    """Name of the site."""

    rank: int | None
    """Place in the ranking of the settings, from 1; null where the site is not usable."""

    chosen: bool
    """Whether it is a member."""

    power_w: float
    """Power available for training, watts."""

    throughput: float
    """Speed with that power, samples per second."""

    speed_share: float
    """The same as a share of the site's full speed."""

    rtt_s: float | None
    """Round trip to the hub, seconds; null for the hub itself and where there is no link."""

    to_hub: float | None
    """Bandwidth to the hub, bytes per second; null as above."""

    from_hub: float | None
    """Bandwidth from the hub, bytes per second; null as above."""

    own_round_s: float | None
    """Round of the site on its own, base work and one exchange, seconds; null if never done."""

    score: float | None
    """Score of the ranking, higher is better; null where the site is not usable."""

    why_not: str | None = None
    """Why the site cannot take part; null where it can."""


class PlanMember(Record):
    """A member, and its part in a round."""

    site: str
    """Name of the site."""

    steps: int
    """Local steps; expected ones where the work is a deadline."""

    deadline_s: float | None
    """When its training ends, seconds after the round's start; null where the work is steps."""

    local_s: float
    """Local training with the present power, seconds; until the deadline, where there is one."""

    exchange_s: float
    """Exchange, seconds."""

    waits_s: float
    """What is left of the predicted round: the wait for slower members, seconds."""


class Plan(Record):
    """A decision without a run: what it was made from, and what it is."""

    name: str
    """Name of the scenario."""

    time_s: float
    """Run time of the decision, seconds."""

    time_scale: float
    """Trace seconds in a second of the run."""

    policy: str
    """Selection policy."""

    ranking: str
    """Ranking of the settings, of which `rank` and `score` are."""

    exchange_model: str
    """How the members exchange in the model: star, ring or mesh."""

    hub: str
    """Name of the site beside which the coordinator runs."""

    bandwidth_scale: float
    """What the bandwidths of the scenario's network are multiplied by."""

    update_bytes: int
    """Size of one update."""

    current: tuple[str, ...]
    """Names of the members at present; empty at the start of a run."""

    warnings: tuple[str, ...]
    """What one should know about the scenario's facts."""

    sites: tuple[PlanSite, ...]
    """All sites, the usable ones first, by rank."""

    candidates: tuple[Candidate, ...]
    """What was compared. Gains are relative, as nothing has been measured."""

    members: tuple[PlanMember, ...]
    """The members, best first."""

    rounds: int
    """Rounds until the next decision."""

    predicted_round_s: float
    """Predicted length of a round, seconds."""

    reason: str
    """Why, in words."""


def show_plan(plan: Plan, console: Terminal) -> None:
    """Print a plan on a console, no wider than that and than `MAX_WIDTH`."""
    width = min(console.width, MAX_WIDTH)
    names = words.short_names([site.site for site in plan.sites], limit=16 if width < 90 else 20)

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), width=width)

    when = words.duration(plan.time_s)
    say(f"{plan.name}: what {plan.policy} decides at {when} of a run, without training", "bold")
    say(_given(plan, names), "dim")
    for warning in plan.warnings:
        say(f"warning: {warning}", "yellow")
    say(f"\nsites by selection.ranking {plan.ranking} (* member)", "bold")
    console.print(_site_table(plan.sites, names, names[plan.hub], width))
    say(f"score: {SCORES[plan.ranking]}", "dim")
    out = [f"{names[site.site]} ({site.why_not})" for site in plan.sites if site.why_not]
    if out:
        more = [f"{len(out) - MOST_ROWS} more"] if len(out) > MOST_ROWS else []
        say(f"not usable: {', '.join(out[:MOST_ROWS] + more)}", "yellow")
    first = {site.site for site in plan.sites[: len(plan.members)]}
    if first != {member.site for member in plan.members}:
        say(
            f"the members are not the first {len(plan.members)} of this ranking: {plan.policy} has "
            "an order of its own, or lets members keep their seats",
            "dim",
        )
    say("\nnumbers of members that were compared (* chosen)", "bold")
    console.print(_candidate_table(plan.candidates))
    say("gain: progress of a round, relative, as nothing is measured before training", "dim")
    say("\nmembers and their part in a round", "bold")
    console.print(_member_table(plan.members, names))
    say(
        f"\ndecision: {words.count(len(plan.members), 'site')} for "
        f"{words.count(plan.rounds, 'round')} of about {words.duration(plan.predicted_round_s)}",
        "bold",
    )
    say(f"reason: {plan.reason}")


def _given(plan: Plan, names: dict[str, str]) -> str:
    trace = ""
    if plan.time_scale != 1:
        trace = f"; trace time {words.duration(plan.time_s * plan.time_scale)}"
    scaled = "" if plan.bandwidth_scale == 1 else f" (bandwidths x {plan.bandwidth_scale:.4g})"
    current = ", ".join(names[site] for site in plan.current) or "none, as before the first round"
    return (
        f"{words.count(len(plan.sites), 'site')}, hub {names[plan.hub]}; updates of "
        f"{words.quantity(plan.update_bytes, 'B')}, exchange by {plan.exchange_model}{trace}\n"
        f"links: the scenario's network model{scaled}, none was measured\n"
        f"members at present: {current}"
    )


def _table(*columns: tuple[str, int]) -> Table:
    """A table of numbers behind a mark and a name."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for place, (name, size) in enumerate(columns):
        justify = "left" if place == 0 else "right"
        table.add_column(name, no_wrap=True, justify=justify, min_width=size)  # type: ignore[arg-type]
    return table


def _site_table(sites: Sequence[PlanSite], names: dict[str, str], hub: str, width: int) -> Table:
    both_ways = width >= 90
    table = _table(
        ("    # site", 14),
        ("power", 7),
        ("speed", 5),
        ("RTT", 7),
        ("to the hub", 10),
        *([("from the hub", 10)] if both_ways else []),
        ("own round", 9),
        ("score", 5),
    )
    for site in sites[:MOST_ROWS]:
        name = names[site.site]
        mark = "*" if site.chosen else " "
        back = [rate(site.from_hub)] if both_ways else []
        table.add_row(
            Text(f"{mark} {site.rank or '-':>3} {name}"),
            words.quantity(site.power_w, "W"),
            f"{site.speed_share * 100:.0f} %",
            "hub" if name == hub else words.duration(site.rtt_s),
            rate(site.to_hub),
            *back,
            words.duration(site.own_round_s),
            "-" if site.score is None else f"{site.score:.3g}",
            style="green" if site.chosen else "dim" if site.rank is None else "",
        )
    if len(sites) > MOST_ROWS:
        table.add_row(Text(f"      and {len(sites) - MOST_ROWS} more", style="dim"))
    return table


def _candidate_table(candidates: Sequence[Candidate]) -> Table:
    table = _table(
        ("    k", 5),
        ("gain", 8),
        ("compute", 8),
        ("exchange", 8),
        ("round", 8),
        ("switch", 8),
        ("efficiency", 10),
        ("of chosen", 9),
    )
    at = next((i for i, line in enumerate(candidates) if line.chosen), 0)
    best = candidates[at].efficiency if candidates else 0.0
    first = max(0, min(at - MOST_ROWS // 2, len(candidates) - MOST_ROWS))
    shown = candidates[first : first + MOST_ROWS]
    for line in shown:
        table.add_row(
            Text(f"{'*' if line.chosen else ' '} {line.k:>3}"),
            f"{line.gain:.4g}",
            words.duration(line.compute_s),
            words.duration(line.communication_s),
            words.duration(line.round_s),
            words.duration(line.switch_s),
            f"{line.efficiency:.4g}",
            f"{line.efficiency / best * 100:.1f} %" if best else "-",
            style="green" if line.chosen else "",
        )
    if len(shown) < len(candidates):
        table.add_row(Text(f"    and {len(candidates) - len(shown)} more", style="dim"))
    return table


def _member_table(members: Sequence[PlanMember], names: dict[str, str]) -> Table:
    deadlines = members[0].deadline_s is not None
    table = _table(
        ("    site", 14),
        ("about steps" if deadlines else "steps", 7),
        ("trains until" if deadlines else "trains", 8),
        ("exchange", 8),
        ("waits", 8),
    )
    for member in members[:MOST_ROWS]:
        table.add_row(
            Text(f"    {names[member.site]}"),
            str(member.steps),
            words.duration(member.local_s),
            words.duration(member.exchange_s),
            words.duration(member.waits_s),
        )
    if len(members) > MOST_ROWS:
        table.add_row(Text(f"    and {len(members) - MOST_ROWS} more", style="dim"))
    return table
