"""A plan's links over time: what changes when."""

from __future__ import annotations

from netem.plan import Change, Link, LinkTable, Plan


class Schedule:
    """The links as they are now and the changes to come.

    Times are of one clock, in seconds, given by the caller.

    Parameters
    ----------
    plan
        Whose links and schedule these are.
    now_s
        When the schedule begins.
    """

    def __init__(self, plan: Plan, now_s: float) -> None:
        self._plan = plan
        self._table = LinkTable(plan)
        self._begun_s = now_s
        self._pending = sorted(plan.schedule, key=lambda change: change.at_s)

    @property
    def next_s(self) -> float | None:
        """When the next change is due; None when there is none."""
        return self._begun_s + self._pending[0].at_s if self._pending else None

    def pop_due(self, now_s: float) -> Change | None:
        """Return the next change if it is due, and take it off the schedule."""
        if self.next_s is None or self.next_s > now_s:
            return None
        return self._pending.pop(0)

    def preview(self, change: Change) -> list[tuple[int, int, Link]]:
        """Return the pairs that a change is about with their links after it, scaled.

        Raises
        ------
        netem.errors.PlanError
            If it names a site that the plan has not, or asks for what no link can be.
        """
        links = self._table.changed(change)
        return [(src, dst, self._plan.scaled(link)) for src, dst, link in links]

    def commit(self, change: Change) -> None:
        """Hold the links after a change."""
        self._table.apply(change)

    def links(self) -> list[tuple[int, int, Link]]:
        """Return every ordered pair with its link as it is now, scaled."""
        table = self._table
        return [(*pair, self._plan.scaled(table.link(*pair))) for pair in self._plan.pairs()]


def in_words(change: Change) -> str:
    """Return a change as a log says it."""
    arrow = "<->" if change.both else "->"
    fields = ", ".join(f"{name} {value}" for name, value in change.replaced.items())
    return f"{change.src} {arrow} {change.dst}: {fields}"
