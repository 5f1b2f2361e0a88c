"""The package's own exceptions: every failure that a user can meet derives from `NetemError`."""

from __future__ import annotations

from collections.abc import Sequence


class NetemError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command line ends with."""

    exit_code = 1


class PlanError(NetemError):
    """A plan, a change or a site that was named cannot be used; the message lists all problems.

    Parameters
    ----------
    problems
        One text per problem: `path.in.the.plan: what is wrong and what to write instead`.
    source
        Where the plan came from, such as a file.
    """

    exit_code = 2

    def __init__(self, problems: Sequence[str], source: str = "the plan") -> None:
        self.problems = tuple(problems)
        self.source = source
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"{count} in {source}:", *(f"  {p}" for p in problems)]))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.problems, self.source)


class Unsupported(NetemError):
    """This machine, kernel or user cannot do what was asked; the text holds the remedy."""


class AddressInUse(NetemError):
    """The plan's range of addresses, or a name that the backend needs, is taken already."""


class EnterError(NetemError):
    """A process could not get its namespace and its interface."""


class EngineError(NetemError):
    """A backend failed at making, shaping or removing a link."""


class ProtocolError(NetemError):
    """The other end of the daemon's socket said something that is not in the protocol."""


class DaemonLost(NetemError):
    """The link daemon does not answer, has ended, or never came up."""


class RelayLost(NetemError):
    """The relay to a port of the machine has ended, or never came up."""
