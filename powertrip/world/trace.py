"""Power traces from samples: sorted, checked, with short gaps filled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from powertrip.world.errors import TraceError
from powertrip.world.steps import AfterEnd, Floats, StepFunction

# Steps that differ by less than this are one step (times written with few decimals).
_STEP_DECIMALS = 6


def trace_from_samples(
    times_s: npt.ArrayLike,
    watts: npt.ArrayLike,
    *,
    after_end: AfterEnd,
    max_gap_s: float,
    step_s: float | None = None,
    origin_s: float | None = None,
    source: str = "the trace",
    lines: Sequence[int] | None = None,
) -> StepFunction:
    """Make a trace from samples in any order.

    If the step is known, or more than half of the steps between neighbouring times are equal, the
    samples are taken to be regular: samples missing from a longer step are filled in by linear
    interpolation, and the trace ends one step after its last sample. Otherwise each value holds
    until the next time, and the last for the median step. A single sample holds for ever.

    Parameters
    ----------
    times_s, watts
        [k] times in seconds and powers in watts.
    after_end
        What follows the end of the trace.
    max_gap_s
        The longest step in seconds that is accepted.
    step_s
        The time between two samples in seconds, if it is known.
    origin_s
        The time that becomes second 0 of the trace; the first sample's time if None. The first
        value holds from there on.
    source
        What the samples are, for messages.
    lines
        [k] lines of the file that the samples stand on, for messages.

    Returns
    -------
    StepFunction
        Watts on trace seconds, from 0.

    Raises
    ------
    TraceError
        If there is no sample, a number is not finite, a power is negative, a time is repeated or
        a gap is too long.
    """
    times = np.array(times_s, dtype=np.float64)
    values = np.array(watts, dtype=np.float64)
    where = [f"line {n}" for n in lines] if lines is not None else None

    def place(i: int) -> str:
        return where[i] if where is not None else f"sample {i}"

    if times.shape != values.shape or times.ndim != 1:
        raise TraceError(
            f"{source}: {times.size} times do not go with {values.size} powers; give one power "
            "for each time"
        )
    if times.size == 0:
        raise TraceError(f"{source} has no samples; give at least one")
    for name, numbers in (("time", times), ("power", values)):
        bad = np.flatnonzero(~np.isfinite(numbers))
        if bad.size:
            raise TraceError(
                f"{source}, {place(bad[0])}: the {name} is {numbers[bad[0]]}; write a number, or "
                "leave the line out"
            )
    bad = np.flatnonzero(values < 0)
    if bad.size:
        raise TraceError(
            f"{source}, {place(bad[0])}: the power is {values[bad[0]]:g} W; write 0 or more"
        )
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    steps = np.diff(times)
    twice = np.flatnonzero(steps == 0)
    if twice.size:
        i = int(twice[0])
        raise TraceError(
            f"{source}: the time {times[i]:.15g} s appears twice ({place(int(order[i]))} and "
            f"{place(int(order[i + 1]))}); keep one of them"
        )
    wide = np.flatnonzero(steps > max_gap_s * (1 + 1e-9))
    if wide.size:
        i = int(wide[0])
        raise TraceError(
            f"{source} has a gap of {steps[i]:g} s from {times[i]:.15g} s to "
            f"{times[i + 1]:.15g} s; raise max_gap_s (now {max_gap_s:g}) to accept it"
        )
    lead_s = 0.0 if origin_s is None else float(times[0] - origin_s)
    if lead_s > max_gap_s * (1 + 1e-9):
        raise TraceError(
            f"{source} begins with a gap of {lead_s:g} s; raise max_gap_s (now {max_gap_s:g}) to "
            "accept it"
        )
    times -= times[0] - lead_s
    if times.size == 1:
        return StepFunction(np.zeros(1), values, 1.0, "hold")

    if step_s is None:
        step_s = _regular_step(steps)
    if step_s is not None:
        times, values = _fill(times, values, step_s)
    end_s = float(times[-1]) + (step_s if step_s is not None else float(np.median(steps)))
    times[0] = 0.0
    return StepFunction(times, values, end_s, after_end)


def _regular_step(steps: Floats) -> float | None:
    """Return the step that more than half of the [k] steps have, or None."""
    lengths, counts = np.unique(np.round(steps, _STEP_DECIMALS), return_counts=True)
    most = int(np.argmax(counts))
    return float(lengths[most]) if counts[most] * 2 > steps.size and lengths[most] > 0 else None


def _fill(times: Floats, values: Floats, step_s: float) -> tuple[Floats, Floats]:
    """Put samples into all steps longer than one and a half regular ones."""
    missing = np.maximum(np.ceil(np.diff(times) / step_s - 0.5), 1).astype(np.intp) - 1
    if not missing.any():
        return times, values
    before = np.repeat(np.arange(missing.size), missing)
    rank = np.arange(before.size) - np.repeat(np.cumsum(missing) - missing, missing) + 1
    filled = np.sort(np.concatenate((times, times[before] + rank * step_s)))
    return filled, np.interp(filled, times, values)
