"""What the links between the sites are like: who there is, each ordered pair, and when it changes.

A plan is a small YAML file, read by `Plan.load`, or built by code:

    sites: [iowa, tokyo, sydney]
    rate_scale: 0.04                  # every rate is multiplied by this
    default: {delay_s: 0.02, rate_bps: 5e9}
    links:                            # each replaces the fields it names, in both directions
      - {src: iowa, dst: tokyo, delay_s: 0.063}
      - {src: tokyo, dst: iowa, rate_bps: 2e9, both: false}
    schedule:
      - {at_s: 60, src: iowa, dst: tokyo, rate_bps: 5e8}
      - {at_s: 90, src: tokyo, dst: all, up: false}
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from netem.errors import PlanError

ALL = "all"
# The first addresses of a subnet are commonly those of routers; none of the sites has one.
FIRST_SITE = 10
DEFAULT_SUBNET = "10.77.0.0/16"
# What Linux takes as the largest socket buffer, and the least that a site gets.
MAX_BUFFER_BYTES = 1 << 30
MIN_BUFFER_BYTES = 1 << 22

_M = TypeVar("_M", bound=BaseModel)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Link(_Model):
    """One direction between two sites."""

    delay_s: float = Field(0.0, ge=0, le=60)
    """One-way delay in seconds."""
    jitter_s: float = Field(0.0, ge=0, le=60)
    """Deviation of the delay in seconds, at most the delay itself."""
    loss: float = Field(0.0, ge=0, le=1)
    """Share of the packets that are lost, from 0 to 1."""
    rate_bps: float | None = Field(None, ge=1000, le=1e12)
    """Bits per second; null is unlimited."""
    up: bool = True
    """False is a cut: nothing passes."""

    @property
    def bandwidth_delay_bytes(self) -> float | None:
        """Bytes under way in one direction at the full rate; None for an unlimited rate."""
        if self.rate_bps is None:
            return None
        return self.rate_bps / 8 * (self.delay_s + self.jitter_s)


class LinkFields(_Model):
    """The fields of a link that an entry replaces; those that it leaves out stay as they are."""

    src: int | str
    """Name or number of the sending site, or `all`."""
    dst: int | str
    """Name or number of the receiving site, or `all`."""
    both: bool = True
    """Whether the opposite direction gets the same."""
    delay_s: float = Field(0.0, ge=0, le=60)
    jitter_s: float = Field(0.0, ge=0, le=60)
    loss: float = Field(0.0, ge=0, le=1)
    rate_bps: float | None = Field(None, ge=1000, le=1e12)
    up: bool = True

    @model_validator(mode="after")
    def _replaces_something(self) -> LinkFields:
        if not self.replaced:
            fields = ", ".join(Link.model_fields)
            raise ValueError(f"replaces nothing: name at least one of {fields}")
        return self

    @property
    def replaced(self) -> dict[str, Any]:
        """The fields of `Link` that are named here, by name."""
        return {f: getattr(self, f) for f in Link.model_fields if f in self.model_fields_set}

    def to_json(self) -> dict[str, Any]:
        """Return what the entry was made from: a field left out differs from a null one."""
        return self.model_dump(mode="json", exclude_unset=True)


class Change(LinkFields):
    """A change of links, in a plan's schedule or by hand; a rate is before the plan's scale."""

    at_s: float = Field(0.0, ge=0)
    """Seconds after the schedule began; a change by hand applies at once, whatever this is."""


class Plan(_Model):
    """The sites of a job and the links between them.

    Raises
    ------
    pydantic.ValidationError
        From the constructor. `Plan.load` and `Plan.parse` raise `netem.errors.PlanError`.
    """

    sites: tuple[str, ...] = Field(min_length=1)
    """Names; the number of a site is its place here."""
    default: Link = Link()
    """The link of every pair, before `links`."""
    links: tuple[LinkFields, ...] = ()
    """Entries for pairs; a later one replaces fields of an earlier one."""
    schedule: tuple[Change, ...] = ()
    """Changes at their times."""
    rate_scale: float = Field(1.0, gt=0, le=1000)
    """What every rate is multiplied by, so that fast links can be emulated by slower ones."""
    subnet: str = DEFAULT_SUBNET
    """IPv4 range of the sites' addresses."""

    @field_validator("subnet")
    @classmethod
    def _subnet(cls, value: str) -> str:
        network = ipaddress.IPv4Network(value)
        if not network.is_private:
            raise ValueError(f"is not a private range; write one such as {DEFAULT_SUBNET}")
        return str(network)

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        problems = list(self._problems())
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @classmethod
    def load(cls, path: Path | str) -> Plan:
        """Read a plan from a YAML file.

        Raises
        ------
        netem.errors.PlanError
            With all that is wrong in it.
        """
        try:
            obj = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise PlanError([f"cannot be read: {error.strerror}"], str(path)) from error
        except UnicodeDecodeError as error:
            raise PlanError(["is not a text file in UTF-8"], str(path)) from error
        except yaml.YAMLError as error:
            raise PlanError([f"is not YAML: {' '.join(str(error).split())}"], str(path)) from error
        return cls.parse(obj, str(path))

    @classmethod
    def parse(cls, obj: object, source: str = "the plan") -> Plan:
        """Make a plan of what a YAML or JSON file held.

        Raises
        ------
        netem.errors.PlanError
            With all that is wrong in it.
        """
        if not isinstance(obj, Mapping):
            raise PlanError(["is not a mapping; write `sites: [a, b]` and more"], source)
        return _validated(cls, obj, source)

    def to_json(self) -> dict[str, Any]:
        """Return what `parse` makes an equal plan of."""
        return self.model_dump(mode="json", exclude_unset=True)

    def index(self, site: int | str) -> int:
        """Return the number of a site.

        Raises
        ------
        netem.errors.PlanError
            If the plan has no such site.
        """
        if isinstance(site, int) and 0 <= site < len(self.sites):
            return site
        if isinstance(site, str) and site in self._numbers:
            return self._numbers[site]
        raise PlanError([self._unknown(site)])

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield every ordered pair of different sites."""
        n = len(self.sites)
        return ((src, dst) for src in range(n) for dst in range(n) if src != dst)

    def link(self, src: int, dst: int) -> Link:
        """Return the link from one site to another at the start, its rate scaled."""
        return self.scaled(self._start.link(src, dst))

    def scaled(self, link: Link) -> Link:
        """Return a link of the plan as it is emulated: its rate times `rate_scale`."""
        if link.rate_bps is None or self.rate_scale == 1:
            return link
        return link.model_copy(update={"rate_bps": link.rate_bps * self.rate_scale})

    def address(self, site: int) -> str:
        """Return the IPv4 address of a site."""
        return str(self._network[FIRST_SITE + self.index(site)])

    @property
    def prefix_length(self) -> int:
        """Length of the subnet's prefix, in bits."""
        return self._network.prefixlen

    @property
    def netmask(self) -> str:
        """The subnet's mask, dotted."""
        return str(self._network.netmask)

    def buffer_bytes(self, site: int) -> int:
        """Return the largest TCP window a site needs: twice its largest rate times round trip."""
        needed = MIN_BUFFER_BYTES
        for other in range(len(self.sites)):
            if other == site:
                continue
            out, back = self.link(site, other), self.link(other, site)
            rates_bps = [link.rate_bps or 10e9 for link in (out, back)]
            round_trip_s = out.delay_s + out.jitter_s + back.delay_s + back.jitter_s
            # Linux keeps half of a buffer for its own bookkeeping; another half for slack.
            needed = max(needed, int(4 * max(rates_bps) / 8 * round_trip_s))
        return min(needed, MAX_BUFFER_BYTES)

    @cached_property
    def _network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(self.subnet)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.sites)}

    @cached_property
    def _start(self) -> LinkTable:
        return LinkTable(self)

    def _unknown(self, site: object) -> str:
        shown = ", ".join(self.sites[:12]) + (", ..." if len(self.sites) > 12 else "")
        return f"there is no site {site!r}; the sites are 0 to {len(self.sites) - 1}: {shown}"

    def _problems(self) -> Iterator[str]:
        known = True
        for number, name in enumerate(self.sites):
            if not name.strip() or name == ALL:
                yield f"sites.{number}: {name!r} cannot be a name"
        if len(self._numbers) < len(self.sites):
            twice = sorted({name for name in self.sites if self.sites.count(name) > 1})
            yield f"sites: {', '.join(twice)} named more than once"
        room = self._network.num_addresses - FIRST_SITE - 1
        if room < len(self.sites):
            yield (
                f"subnet: {self.subnet} has room for {max(room, 0)} sites, not for "
                f"{len(self.sites)}; write a larger one, such as {DEFAULT_SUBNET}"
            )
        entries = [(f"links.{i}", entry) for i, entry in enumerate(self.links)]
        entries += [(f"schedule.{i}", change) for i, change in enumerate(self.schedule)]
        for where, entry in entries:
            for end in ("src", "dst"):
                site = getattr(entry, end)
                numbered = isinstance(site, int) and 0 <= site < len(self.sites)
                if not (numbered or site == ALL or site in self._numbers):
                    known = False
                    yield f"{where}.{end}: {self._unknown(site)}"
            if entry.src == entry.dst and entry.src != ALL:
                known = False
                yield f"{where}: a link from {entry.src!r} to itself; name two sites"
        if known and len(self._numbers) == len(self.sites):
            yield from self._crossed()

    def _crossed(self) -> Iterator[str]:
        if self.default.jitter_s > self.default.delay_s:
            yield "default.jitter_s: is more than the delay"
        table = LinkTable(self)
        for src, dst in self.pairs() if self.links else ():
            link = table.link(src, dst)
            if link.jitter_s > link.delay_s:
                yield (
                    f"links: {self.sites[src]} to {self.sites[dst]} has a jitter_s of "
                    f"{link.jitter_s:g}, more than its delay_s of {link.delay_s:g}"
                )
        for number, change in sorted(enumerate(self.schedule), key=lambda item: item[1].at_s):
            try:
                table.changed(change)
            except PlanError as error:
                yield from (f"schedule.{number}: {problem}" for problem in error.problems)
            table.apply(change)


class LinkTable:
    """The links of a plan as they are at a moment, before its `rate_scale`.

    Parameters
    ----------
    plan
        The table begins with its links at the start.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._replaced: dict[tuple[int, int], Link] = {}
        for entry in plan.links:
            self.apply(entry)

    def link(self, src: int, dst: int) -> Link:
        """Return the link from one site to another."""
        return self._replaced.get((src, dst), self._plan.default)

    def changed(self, entry: LinkFields) -> list[tuple[int, int, Link]]:
        """Return the pairs that an entry is about with their links after it, changing nothing.

        Raises
        ------
        netem.errors.PlanError
            If the plan has no such site, or a link would have more jitter than delay.
        """
        links = self._changed(entry)
        problems = [
            f"{self._plan.sites[src]} to {self._plan.sites[dst]} would have a jitter_s of "
            f"{link.jitter_s:g}, more than its delay_s of {link.delay_s:g}"
            for (src, dst), link in links.items()
            if link.jitter_s > link.delay_s
        ]
        if problems:
            raise PlanError(problems, "the change")
        return [(*pair, link) for pair, link in links.items()]

    def apply(self, entry: LinkFields) -> None:
        """Replace fields of links, without a look at what comes of them.

        Raises
        ------
        netem.errors.PlanError
            If the plan has no such site; nothing is replaced then.
        """
        self._replaced |= self._changed(entry)

    def _changed(self, entry: LinkFields) -> dict[tuple[int, int], Link]:
        n = len(self._plan.sites)
        sources, targets = (
            range(n) if end == ALL else (self._plan.index(end),) for end in (entry.src, entry.dst)
        )
        pairs = {(src, dst): None for src in sources for dst in targets if src != dst}
        if entry.both:
            pairs |= {(dst, src): None for src, dst in pairs}
        return {pair: self.link(*pair).model_copy(update=entry.replaced) for pair in pairs}


def parse_change(obj: object, source: str = "the change") -> Change:
    """Make a change of a mapping.

    Raises
    ------
    netem.errors.PlanError
        With all that is wrong in it; whether its sites exist, the plan knows.
    """
    return _validated(Change, obj, source)


def _validated(model: type[_M], obj: object, source: str) -> _M:
    try:
        return model.model_validate(obj)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"] if part not in ("int", "str"))
            text = problem["msg"].removeprefix("Value error, ")
            problems += [f"{where}: {line}" if where else line for line in text.split("\n")]
        raise PlanError(problems, source) from error
