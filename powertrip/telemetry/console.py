"""What a person sees of a run: plain lines here, the live table in `live`.

`python -m powertrip.telemetry.console RUN/events.jsonl` shows a recorded run again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, TextIO

from powertrip.errors import PowerTripError
from powertrip.telemetry import events, words
from powertrip.telemetry.eventlog import read_events
from powertrip.telemetry.events import Event
from powertrip.telemetry.links import LinkWatch
from powertrip.telemetry.report import Summary, Tally, render_summary

_LISTED = 12  # members of a decision that are named; of more only their number

ConsoleKind = Literal["auto", "live", "plain", "none"]

HEADER_EVERY = 20
"""Rounds between two repetitions of the column heads."""


class Console(Protocol):
    """Shows events to a person."""

    def show(self, event: Event) -> None:
        """Show one event."""

    def recall(self, event: Event) -> None:
        """Take in an event from before a restart, of which nobody needs to be told again."""

    def note(self, text: str) -> None:
        """Show a line that is not an event."""

    def finish(self, summary: Summary) -> None:
        """Show the closing summary; nothing follows it."""

    def close(self) -> None:
        """Give the terminal back; a second call does nothing."""


def wants_live(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether `auto` means live: a terminal that can move its cursor, and not in CI."""
    if environment.get("CI", "").lower() not in ("", "0", "false"):
        return False
    return stream.isatty() and environment.get("TERM", "dumb") not in ("", "dumb", "unknown")


def build_console(
    kind: ConsoleKind, stream: TextIO, environment: Mapping[str, str] = os.environ
) -> Console:
    """Make the console that the settings ask for."""
    if kind == "none":
        return QuietConsole(sys.stderr)
    if kind == "plain" or (kind == "auto" and not wants_live(stream, environment)):
        return PlainConsole(stream)
    from powertrip.telemetry.live import LiveConsole, terminal

    return LiveConsole(terminal(stream))


def start_lines(event: events.RunStarted) -> list[str]:
    """The lines that open a run."""
    lines = [
        f"PowerTrip {event.powertrip_version}: {event.name}, run {event.run_id}",
        f"  {words.count(len(event.sites), 'site')}, policy {event.policy}, seed {event.seed}",
        f"  {event.pacing} pacing, {event.clock} clock, {event.backend}, "
        f"torch {event.torch_version}",
        f"  links: {links_text(event)}",
        f"  target: {words.goal(event.target.value, event.target.metric)}",
    ]
    if event.metrics_url:
        lines.append(f"  metrics: {event.metrics_url}")
    return lines


def links_text(event: events.RunStarted) -> str:
    """How the sites are joined, with what is multiplied."""
    if event.bandwidth_scale == 1:
        return event.links
    return f"{event.links}; bandwidths x {event.bandwidth_scale:.4g}"


def decision_line(event: events.Decision, names: Mapping[str, str], sites: int) -> str:
    """A decision and its reason."""
    shown = [names.get(member, member) for member in event.members[:_LISTED]]
    more = len(event.members) - len(shown)
    members = ", ".join(shown) + (f" and {more} more" if more else "")
    return (
        f"decision {event.generation}: {len(event.members)} of {words.count(sites, 'site')} "
        f"({members}) for {words.count(event.rounds, 'round')} of about "
        f"{words.duration(event.predicted_round_s)}: {why(event)}"
    )


def why(event: events.Decision) -> str:
    """A decision's reason, after that for making it early."""
    return event.reason if event.early is None else f"early ({event.early}): {event.reason}"


def trouble_line(event: events.Warned | events.Failure, names: Mapping[str, str]) -> str:
    """A warning or a failure."""
    where = f" at {names.get(event.site, event.site)}" if event.site else ""
    if isinstance(event, events.Failure):
        return (
            f"failure{where} ({event.kind}, generation {event.generation}, "
            f"round {event.round}): {event.text}"
        )
    return f"warning{where}: {event.text}"


def resumed_line(event: events.Resumed) -> str:
    """Where the run goes on, and what that costs."""
    source = "" if event.checkpoint is None else f" from {event.checkpoint}"
    lost = f"; {words.count(event.lost_rounds, 'round')} done again" if event.lost_rounds else ""
    return f"resumed after round {event.round}{source} ({event.reason}){lost}"


def returned_line(event: events.SiteReturned, names: Mapping[str, str]) -> str:
    """A site that was gone is there again."""
    return f"{names.get(event.site, event.site)} is back"


def slowest_step_s(event: events.Round) -> float | None:
    """The slowest member's mean step, seconds; None where nobody did a step."""
    return max((part.step_s for part in event.sites if part.steps), default=None)


class PlainConsole:
    """One line an event, for pipes, files and CI.

    Parameters
    ----------
    stream
        Where to write. Characters that its encoding lacks become question marks.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._names: dict[str, str] = {}
        self._links = LinkWatch()
        self._rounds = 0

    def show(self, event: Event) -> None:
        """Show one event."""
        match event:
            case events.RunStarted():
                self._names = words.short_names(event.sites)
                for line in start_lines(event):
                    self._write(line)
            case events.LinksMeasured():
                for line in self._links.lines(event, self._names):
                    self._write(line)
            case events.Decision():
                self._write(decision_line(event, self._names, len(self._names)))
            case events.Round():
                self._show_round(event)
            case events.Warned() | events.Failure():
                self._write(trouble_line(event, self._names))
            case events.Resumed():
                self._write(resumed_line(event))
            case events.SiteReturned():
                self._write(returned_line(event, self._names))

    def recall(self, event: Event) -> None:
        """Show the lines that open the run, and nothing else of before."""
        match event:
            case events.RunStarted():
                self.show(event)
            case events.LinksMeasured():
                self._links.lines(event, self._names)

    def _show_round(self, event: events.Round) -> None:
        if self._rounds % HEADER_EVERY == 0:
            self._write(
                f"{'round':>5} {'gen':>4}  {'members':<26}{'step':>8} {'exchange':>8} "
                f"{'valid.':>7} {'test':>7} {'clock':>8}"
            )
        self._rounds += 1
        names = [self._names.get(member, member) for member in event.members]
        members = f"{len(names):>2} {words.listed(names, 22)}"
        self._write(
            f"{event.round:>5} {event.generation:>4}  {members:<26}"
            f"{words.duration(slowest_step_s(event)):>8} {words.duration(event.exchange_s):>8} "
            f"{words.score(event.validation_accuracy, 'accuracy'):>7} "
            f"{words.score(event.test_accuracy, 'accuracy'):>7} "
            f"{words.duration(event.time_s):>8}"
        )

    def note(self, text: str) -> None:
        """Show a line that is not an event."""
        self._write(text)

    def finish(self, summary: Summary) -> None:
        """Show the closing summary."""
        self._write("")
        self._write(render_summary(summary))

    def close(self) -> None:
        """Flush; the stream stays open, it is the caller's."""
        if not self._stream.closed:
            self._stream.flush()

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        self._stream.flush()


class QuietConsole(PlainConsole):
    """Shows nothing but warnings, failures, restarts and notes."""

    def show(self, event: Event) -> None:
        """Show one event if it tells of trouble."""
        if isinstance(event, events.Warned | events.Failure | events.Resumed):
            super().show(event)

    def finish(self, summary: Summary) -> None:
        """Show nothing: the summary is in the run's folder."""


def replay(log: Path, console: Console, speed: float) -> None:
    """Show a recorded run, `speed` times as fast as it was; 0 is at once."""
    tally = Tally()
    before: float | None = None
    for event in read_events(log, tolerate_cut=True):
        if before is not None and speed > 0:
            time.sleep(max(0.0, event.wall_time - before) / speed)
        before = event.wall_time
        tally.add(event)
        console.show(event)
    console.finish(tally.summary())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the replay from the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m powertrip.telemetry.console", description="Show a recorded run again."
    )
    parser.add_argument("log", type=Path, help="the run's events.jsonl")
    parser.add_argument("--console", choices=("auto", "live", "plain"), default="auto")
    parser.add_argument(
        "--speed", type=float, default=0.0, help="times as fast as the run was; 0 is at once"
    )
    options = parser.parse_args(arguments)
    console = build_console(options.console, sys.stdout)
    try:
        replay(options.log, console, options.speed)
    except PowerTripError as error:
        console.close()
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough: let the flush at exit succeed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        console.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
