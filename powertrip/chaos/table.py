"""How a run has recovered from its faults, as lines of text."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from powertrip.chaos.invariants import Recovery


def recovery_table(recoveries: Sequence[Recovery], names: Sequence[str]) -> list[str]:
    """A line a fault, and then one a kind.

    Parameters
    ----------
    recoveries
        In the order of the faults.
    names
        Of the sites.
    """
    lines = ["next round  longest stall  fault"]
    kinds = defaultdict[str, list[Recovery]](list)
    for recovery in recoveries:
        fault = recovery.injected.fault
        kinds[fault.kind].append(recovery)
        what = f"{fault.number}: {fault.text(names)}"
        lines.append(f"{_seconds(recovery.next_s)}  {_seconds(recovery.stall_s, 13)}  {what}")
    lines += ["", "median next  longest stall  kind, how often"]
    for kind, found in kinds.items():
        nexts = [r.next_s for r in found if r.next_s is not None]
        stalls = [r.stall_s for r in found if r.stall_s is not None]
        lines.append(
            f"{_seconds(statistics.median(nexts) if nexts else None, 11)}  "
            f"{_seconds(max(stalls, default=None), 13)}  {kind}, {len(found)}"
        )
    return lines


def _seconds(value: float | None, width: int = 10) -> str:
    return f"{'never':>{width}}" if value is None else f"{value:>{width - 2}.2f} s"
