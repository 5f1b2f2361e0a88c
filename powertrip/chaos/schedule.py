"""Which fault comes when: drawn from a seed, before the run begins."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from powertrip.coordination.membership import HUB
from powertrip.errors import InputError

Kind = Literal[
    "kill_site",
    "freeze_site",
    "cut_link",
    "one_way",
    "slow_link",
    "partition",
    "no_power",
    "bad_update",
    "disk_full",
    "kill_coordinator",
    "kill_supervisor",
    "kill_job",
]
"""Kinds of faults.

- kill_site: SIGKILL of a site's process
- freeze_site: SIGSTOP of a site's process, and SIGCONT later
- cut_link: nothing passes between two sites
- one_way: nothing passes from the first site to the second
- slow_link: a hundredth of the rate between two sites
- partition: nothing passes between the sites named, fewer than half and without the hub, and others
- no_power: a site's budget is zero
- bad_update: a site's update is no number, or explodes, once
- disk_full: no file of the coordinator's or a site's process can grow
- kill_coordinator: SIGKILL of the coordinator's process
- kill_supervisor: SIGKILL of a site's supervisor, which ends the job; it is resumed
- kill_job: SIGKILL of all processes of the job; it is resumed
"""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
OF_LINKS: Final[frozenset[Kind]] = frozenset({"cut_link", "one_way", "slow_link", "partition"})
"""Kinds that need emulated links."""
ENDS_JOB: Final[frozenset[Kind]] = frozenset({"kill_supervisor", "kill_job"})
"""Kinds that end the job, so that it must be resumed."""
_ALONE = ENDS_JOB | {"kill_coordinator", "partition"}  # with no other fault at the same time
_PAIR = {"cut_link", "one_way", "slow_link"}
_NOWHERE = {"disk_full", "kill_coordinator", "kill_job"}
_LASTS_S: dict[Kind, tuple[float, float]] = {
    "freeze_site": (4.0, 12.0),
    "cut_link": (5.0, 15.0),
    "one_way": (5.0, 15.0),
    "slow_link": (5.0, 15.0),
    "partition": (6.0, 12.0),
    "no_power": (5.0, 15.0),
    "bad_update": (15.0, 15.0),
    "disk_full": (5.0, 10.0),
}
_FIRST_S = 2.0
_LEAST_SHARE = 0.5  # of the mean time between two faults


class UnknownFault(InputError):
    """A fault is asked for that there is none of."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no fault {name!r}; the kinds are {', '.join(KINDS)}")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    number
        Its place in the schedule, from 1.
    at_s
        When it begins, in seconds since the training began; the time that a job takes to be resumed
        is not counted.
    kind
        What happens.
    sites
        To whom; the one that sends first where there is a direction.
    lasts_s
        When it is undone, in seconds from its beginning; 0 for what cannot be undone.
    how
        For bad_update: nan or exploding.
    """

    number: int
    at_s: float
    kind: Kind
    sites: tuple[int, ...] = ()
    lasts_s: float = 0.0
    how: str = ""

    @property
    def ends_s(self) -> float:
        """When it is undone."""
        return round(self.at_s + self.lasts_s, 1)

    def text(self, names: Sequence[str]) -> str:
        """What it is in words, without the time."""
        joint = " -> " if self.kind == "one_way" else ", "
        words = [self.kind, self.how, joint.join(names[site] for site in self.sites)]
        if self.lasts_s:
            words.append(f"for {self.lasts_s:.1f} s")
        return " ".join(word for word in words if word)


def parse_kinds(text: str) -> tuple[Kind, ...]:
    """Read kinds with commas between them; all of them from an empty text.

    Raises
    ------
    UnknownFault
        One is none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            raise UnknownFault(name)
    return tuple(kind for kind in KINDS if not names or kind in names)


def draw(
    seed: int,
    sites: int,
    *,
    length_s: float,
    every_s: float,
    kinds: Sequence[Kind] = KINDS,
) -> tuple[Fault, ...]:
    """Draw a schedule.

    Kinds come in an order of chance, each as often as the others. Between the beginnings of two
    faults is half of the mean time at least. Faults may overlap, but never hold more than a third
    of the sites; a partition and what ends processes that are not a site's come alone.

    Parameters
    ----------
    seed
        Equal seeds give equal schedules.
    sites
        How many there are, at least two.
    length_s
        Seconds by which the last fault is undone.
    every_s
        Mean seconds between the beginnings of two faults that nothing postpones.
    kinds
        Which there are.
    """
    chance = random.Random(seed)
    faults: list[Fault] = []
    bag: list[Kind] = []
    at_s = _FIRST_S
    while kinds:
        if not bag:
            bag = chance.sample(list(kinds), len(kinds))
        kind = bag.pop()
        low_s, high_s = _LASTS_S.get(kind, (0.0, 0.0))
        lasts_s = round(chance.uniform(low_s, high_s), 1)
        how = chance.choice(("nan", "exploding")) if kind == "bad_update" else ""
        at_s, free = _place(faults, kind, sites, at_s)
        hit = _victims(chance, kind, sites, free)
        fault = Fault(len(faults) + 1, math.ceil(10 * at_s) / 10, kind, hit, lasts_s, how)
        if fault.ends_s > length_s:
            break
        faults.append(fault)
        pause_s = chance.expovariate(1.0 / ((1 - _LEAST_SHARE) * every_s))
        at_s = fault.at_s + _LEAST_SHARE * every_s + pause_s
    return tuple(faults)


def _place(faults: Sequence[Fault], kind: Kind, sites: int, at_s: float) -> tuple[float, list[int]]:
    """The first moment from `at_s` on at which a fault may begin, and the sites without one."""
    most = max(1, sites // 3)
    while True:
        lasting = [fault for fault in faults if fault.ends_s > at_s]
        taken = {site for fault in lasting for site in fault.sites}
        alone = kind in _ALONE or any(fault.kind in _ALONE for fault in lasting)
        needed = 0 if kind in _NOWHERE else 1
        if not lasting or not (alone or len(taken) + needed > most):
            free = [site for site in range(sites) if site not in taken]
            if len(free) >= 2:
                return at_s, free
        at_s = min(fault.ends_s for fault in lasting)


def _victims(chance: random.Random, kind: Kind, sites: int, free: Sequence[int]) -> tuple[int, ...]:
    if kind in _NOWHERE:
        return ()
    if kind == "partition":
        others = [site for site in range(sites) if site != HUB]
        return tuple(sorted(chance.sample(others, chance.randint(1, max(1, (sites - 1) // 2)))))
    return tuple(chance.sample(list(free), 2 if kind in _PAIR else 1))
