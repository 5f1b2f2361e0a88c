"""The project's own exceptions: every failure that a user can meet derives from these."""

from __future__ import annotations

from collections.abc import Sequence


class PowerTripError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command line ends with."""

    exit_code = 1


class InputError(PowerTripError):
    """Something that the user wrote (a setting, a file, an argument) cannot be used as it is."""

    exit_code = 2


class ConfigError(InputError):
    """One or more settings are wrong; the message lists all of them, one a line.

    Parameters
    ----------
    problems
        One text per problem: `path.in.the.file: what is wrong and what to write instead`.
    """

    def __init__(self, problems: Sequence[str], source: str = "the configuration") -> None:
        self.problems = tuple(problems)
        self.source = source
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"{count} in {source}:", *(f"  {p}" for p in problems)]))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.problems, self.source)
