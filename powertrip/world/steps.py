"""Piecewise constant functions of time, their integrals and the inverses of these."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
AfterEnd = Literal["loop", "hold", "zero"]

# Sums of many segments carry rounding errors; an amount this close to all there is counts as all.
_RELATIVE_ROUNDING = 1e-12


def segment_at(
    times_s: Floats, end_s: float, after_end: AfterEnd, at_s: npt.ArrayLike
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Find the segments that hold at given times.

    Parameters
    ----------
    times_s
        [k] starts of the segments in seconds, strictly increasing, the first 0.
    end_s
        End of the last segment in seconds.
    after_end
        What follows the end.
    at_s
        [...] times in seconds.

    Returns
    -------
    tuple
        [...] indices of segments, and [...] whether the function is on (false only after the end
        of a function that is then zero).
    """
    at = np.asarray(at_s, dtype=np.float64)
    folded = np.mod(at, end_s) if after_end == "loop" else at
    index = np.clip(np.searchsorted(times_s, folded, side="right") - 1, 0, len(times_s) - 1)
    alive = at < end_s if after_end == "zero" else np.ones(at.shape, dtype=np.bool_)
    return index, alive


@dataclass(frozen=True, eq=False)
class StepFunction:
    """A piecewise constant, non-negative function of time from 0 s on.

    Parameters
    ----------
    times_s
        [k] starts of the segments in seconds, strictly increasing, the first 0.
    values
        [k] values, finite and not negative: watts, or anything else per second.
    end_s
        End of the last segment in seconds, after the last start.
    after_end
        `loop`: the function has the period `end_s`; `hold`: the last value stays; `zero`.
    """

    times_s: Floats
    values: Floats
    end_s: float
    after_end: AfterEnd

    def at(self, t_s: npt.ArrayLike) -> Floats:
        """Return the values at times `t_s` ([...] seconds)."""
        index, alive = segment_at(self.times_s, self.end_s, self.after_end, t_s)
        return np.where(alive, self.values[index], 0.0)

    def with_values(self, values: Floats) -> StepFunction:
        """Return the function that takes other values on the same segments ([k])."""
        return StepFunction(self.times_s, values, self.end_s, self.after_end)

    def integral(self, start_s: float, stop_s: float) -> float:
        """Return the integral from `start_s` to `stop_s` (seconds, in this order).

        Raises
        ------
        ValueError
            If the times are not in order, or negative.
        """
        if not 0 <= start_s <= stop_s:
            raise ValueError(f"cannot integrate from {start_s} s to {stop_s} s")
        base_s = self._periods_before(start_s) * self.end_s
        return self._from_zero(stop_s - base_s) - self._from_zero(start_s - base_s)

    def reach(self, start_s: float, amount: float) -> float:
        """Return the first time at which the integral from `start_s` is `amount`.

        This is the exact inverse of `integral`: infinite if it is never reached.

        Raises
        ------
        ValueError
            If the time or the amount is negative or not a number.
        """
        if not (start_s >= 0 and amount >= 0):
            raise ValueError(f"cannot look for the amount {amount} from {start_s} s")
        if amount == 0:
            return start_s
        base_s = self._periods_before(start_s) * self.end_s
        found = self._first_time(self._from_zero(start_s - base_s) + amount)
        return max(start_s, base_s + found)

    @cached_property
    def _sums(self) -> Floats:
        """[k+1] integrals from 0 to the start of each segment, and to the end."""
        lengths = np.diff(self.times_s, append=self.end_s)
        sums: Floats = np.concatenate(([0.0], np.cumsum(lengths * self.values)))
        return sums

    def _periods_before(self, t_s: float) -> float:
        return math.floor(t_s / self.end_s) if self.after_end == "loop" else 0.0

    def _from_zero(self, t_s: float) -> float:
        periods = self._periods_before(t_s)
        t_s -= periods * self.end_s
        if self.after_end == "zero":
            t_s = min(t_s, self.end_s)
        i = max(int(np.searchsorted(self.times_s, t_s, side="right")) - 1, 0)
        inside = self._sums[i] + (t_s - self.times_s[i]) * self.values[i]
        return float(periods * self._sums[-1] + inside)

    def _first_time(self, target: float) -> float:
        total = float(self._sums[-1])
        if self.after_end == "loop":
            if total == 0 or math.isinf(target):
                return math.inf
            periods = math.floor(target / total)
            rest = target - periods * total
            if rest <= 0:
                periods, rest = periods - 1, total
            return periods * self.end_s + self._first_time_inside(min(rest, total))
        if target <= total * (1 + _RELATIVE_ROUNDING):
            return self._first_time_inside(min(target, total))
        if self.after_end == "hold" and self.values[-1] > 0:
            return self.end_s + (target - total) / float(self.values[-1])
        return math.inf

    def _first_time_inside(self, target: float) -> float:
        i = max(int(np.searchsorted(self._sums, target, side="left")), 1) - 1
        if self.values[i] == 0:
            return float(self.times_s[i])
        return float(self.times_s[i] + (target - self._sums[i]) / self.values[i])


def integral_of_product(
    first: StepFunction,
    first_start_s: float,
    second: StepFunction,
    second_start_s: float,
    length_s: float,
) -> float:
    """Return the integral of the product of two functions, each read from a start of its own on.

    Parameters
    ----------
    first, second
        The functions.
    first_start_s, second_start_s
        The time of each at which the integral begins.
    length_s
        Over how many seconds it goes.
    """
    if second.values.size == 1 and second.after_end == "hold":
        stop_s = first_start_s + length_s
        return first.integral(first_start_s, stop_s) * float(second.values[0])
    cuts = np.unique(
        np.concatenate(
            (
                [0.0, length_s],
                _changes(first, first_start_s, length_s),
                _changes(second, second_start_s, length_s),
            )
        )
    )
    middle = (cuts[1:] + cuts[:-1]) / 2
    product = first.at(first_start_s + middle) * second.at(second_start_s + middle)
    return float(np.sum(np.diff(cuts) * product))


def _changes(function: StepFunction, start_s: float, length_s: float) -> Floats:
    """Return when, in seconds after `start_s`, a function may change within `length_s`."""
    times_s = np.append(function.times_s, function.end_s)
    if function.after_end == "loop":
        first, last = (math.floor(t / function.end_s) for t in (start_s, start_s + length_s))
        times_s = (times_s + function.end_s * np.arange(first, last + 1)[:, np.newaxis]).ravel()
    after_s: Floats = times_s - start_s
    return after_s[(after_s > 0) & (after_s < length_s)]


def constant(value: float) -> StepFunction:
    """Return the function that has one value for ever."""
    return StepFunction(np.zeros(1), np.full(1, value), 1.0, "hold")
