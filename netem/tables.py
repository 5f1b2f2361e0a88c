"""The command line's tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from netem.capabilities import Capabilities
from netem.check import PairReport

# Without a terminal a table must not be folded to 80 columns.
_WIDE = 160


def console() -> Console:
    """Return a console for standard output that does not fold tables written to a file."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=_WIDE)


def show_reports(reports: Sequence[PairReport], backend: str, rate_scale: float) -> None:
    """Print what was asked of each pair beside what was measured.

    Parameters
    ----------
    reports
        Of the ordered pairs.
    backend, rate_scale
        What the links were made by, and what the plan's rates were multiplied by.
    """
    title = f"backend {backend}, asked | measured"
    if rate_scale != 1:
        title += f", rates scaled by {rate_scale:g}"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("from", "to"):
        table.add_column(name, no_wrap=True)
    for name in ("RTT ms", "Mbit/s", "loss %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for report in reports:
        table.add_row(
            escape(report.src),
            escape(report.dst),
            _beside(report.asked_rtt_s if report.up else None, report.rtt_s, 1e3, "cut", 1),
            _beside(report.asked_rate_bps, report.rate_bps, 1e-6, "no limit", 1),
            _beside(report.asked_loss, report.loss, 100, "", 2),
            _verdict(report),
        )
    out = console()
    out.print(table)
    off = sum(bool(report.problems) for report in reports)
    out.print(f"{len(reports)} pairs measured, {off} off by more than the tolerance")


def show_capabilities(found: Capabilities, verdict: str) -> None:
    """Print what was found, what to do about what is missing, and which backend that makes."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("", "what", "found", "what to do"):
        table.add_column(name)
    for each in found.all:
        mark = "[green]yes[/]" if each.ok else "[yellow]no[/]"
        table.add_row(mark, each.name, escape(each.detail), escape(each.remedy))
    out = console()
    out.print(table)
    out.print(escape(verdict), soft_wrap=True)


def _verdict(report: PairReport) -> str:
    if report.problems:
        return "[red]" + escape("; ".join(report.problems)) + "[/]"
    return escape("; ".join(["ok", *report.remarks]))


def _beside(
    asked: float | None, measured: float | None, factor: float, unasked: str, digits: int
) -> str:
    left = unasked if asked is None else f"{asked * factor:.{digits}f}"
    right = "-" if measured is None else f"{measured * factor:.{digits}f}"
    return f"{left} | {right}"
