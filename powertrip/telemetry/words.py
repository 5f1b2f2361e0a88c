"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def duration(seconds: float | None) -> str:
    """Seconds as `12.3 ms`, `4.56 s`, `3m 07s` or `2h 05m`; `-` for None."""
    if seconds is None:
        return "-"
    if not math.isfinite(seconds):
        return "never" if seconds > 0 else "-"
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e3:.2f} ms"
    if seconds < 99.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"


def quantity(value: float | None, unit: str) -> str:
    """A number with an SI prefix and three digits, as in `1.23 MB`; `-` for None or NaN."""
    if value is None or not math.isfinite(value):
        return "-"
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * factor:
            return f"{_three_digits(value / factor)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return f"{value:.0f}"
    return f"{value:.{max(0, 2 - int(math.log10(max(abs(value), 1))))}f}"


def score(value: float | None, metric: str) -> str:
    """An accuracy as a percentage, a loss or rounds as a number; `-` for None."""
    if value is None:
        return "-"
    if metric == "rounds":
        return f"{value:.0f}"
    return f"{value:.4g}" if metric.endswith("_loss") else f"{value * 100:.1f} %"


def goal(value: float, metric: str) -> str:
    """What a run trains for: `test accuracy of 96.0 %`, `200 rounds`."""
    if metric == "rounds":
        return count(int(value), "round")
    return f"{metric.replace('_', ' ')} of {score(value, metric)}"


def count(number: int, noun: str) -> str:
    """`1 site`, `2 sites`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str], width: int) -> str:
    """Names separated by spaces, as many as fit in `width`, then `+` and the number left out.

    Empty where not even the first fits.
    """
    text = " ".join(names)
    if len(text) <= width:
        return text
    for shown in range(len(names) - 1, 0, -1):
        text = f"{' '.join(names[:shown])} +{len(names) - shown}"
        if len(text) <= width:
            return text
    return ""


def short_names(names: Sequence[str], limit: int = 20) -> dict[str, str]:
    """Shorter names for display: without a prefix that all share, and at most `limit` characters.

    A prefix is one up to a `:` or `/`, such as the name of a cloud. Names that would become equal
    by shortening keep their full length.
    """
    shared = len(_common_prefix(names)) if len(names) > 1 else 0
    while shared and names[0][shared - 1] not in ":/":
        shared -= 1
    short = [name[shared:] if len(name) > shared else name for name in names]
    cut = [name if len(name) <= limit else name[: limit - 1] + "~" for name in short]
    return {name: short[i] if cut.count(cut[i]) > 1 else cut[i] for i, name in enumerate(names)}


def _common_prefix(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    for i, letter in enumerate(first):
        if i >= len(last) or last[i] != letter:
            return first[:i]
    return first
