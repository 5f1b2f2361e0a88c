"""The live view of a run on a terminal: sites, the last rounds, and the way to the target."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console as Terminal
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from powertrip.telemetry import events, words
from powertrip.telemetry.console import (
    links_text,
    resumed_line,
    returned_line,
    start_lines,
    trouble_line,
    why,
)
from powertrip.telemetry.events import Event
from powertrip.telemetry.links import LinkWatch, rate
from powertrip.telemetry.report import Summary, render_summary

MAX_WIDTH = 110
"""Columns beyond which the view does not spread: eyes lose the line."""

IDLE_S = 1.0
"""Seconds between two drawings without an event: time goes on, and windows change size."""

BUSY_S = 0.2
"""Seconds between two drawings at least: drawing takes 10 ms of a core that may be training."""

LINK_WIDTH = 23
"""Columns that the links' round trip and bandwidth take."""

FIXED_ROWS = 7
"""Lines that are neither a site nor a round nor the decision: heads and gaps."""


class _Terminal(Terminal):
    def on_broken_pipe(self) -> None:
        """Let the error reach the caller; rich would end the process."""
        raise  # noqa: PLE0704 - rich calls this while it handles the BrokenPipeError


def terminal(stream: TextIO) -> Terminal:
    """A rich console on a stream."""
    return _Terminal(file=stream, highlight=False)


class Board:
    """What the view shows: a picture of the run, changed by events and drawn by rich."""

    def __init__(self) -> None:
        self._start: events.RunStarted | None = None
        self._decision: events.Decision | None = None
        self._members: tuple[str, ...] = ()
        self._generation = 0
        self._clock_s = 0.0
        self._began = time.monotonic()
        self._rounds: deque[events.Round] = deque(maxlen=100)
        self._parts: dict[str, events.SiteRound] = {}
        self._links: dict[str, events.LinkRow] = {}
        self._value: float | None = None
        self._first_value: float | None = None
        self._energy_j = 0.0
        self._bytes_sent = 0
        self.names: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        """Take one event in."""
        with self._lock:
            self._add(event)

    def _add(self, event: Event) -> None:
        self._clock_s = event.time_s
        match event:
            case events.RunStarted():
                self._start = event
                self.names = words.short_names(event.sites)
            case events.LinksMeasured():
                self._links = {link.src: link for link in event.links if link.dst == event.hub}
            case events.Decision():
                self._decision = event
            case events.Rebuild():
                self._members, self._generation = event.members, event.generation
                self._bytes_sent += event.join_bytes
            case events.Round():
                self._members, self._generation = event.members, event.generation
                self._rounds.append(event)
                self._parts.update({part.site: part for part in event.sites})
                self._energy_j += event.energy_j
                self._bytes_sent += event.bytes_sent
                value = event.value(self._start.target.metric) if self._start else None
                if value is not None:
                    self._value = value
                    if self._first_value is None:
                        self._first_value = value

    def __rich_console__(self, console: Terminal, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            segments = list(self._render(console, options))
        yield from segments

    def _render(self, console: Terminal, options: ConsoleOptions) -> Iterable[Segment]:
        if self._start is None:
            return ()
        width = min(options.max_width, MAX_WIDTH)
        height = options.height or console.height
        decision = self._decision_lines(console, width, 2 if height < 30 else 4)
        links = [self._joined(self._start)] if height >= 20 else []
        rows = max(2, height - 1 - FIXED_ROWS - len(links) - len(decision))
        site_rows = min(len(self._start.sites), max(1, rows - min(rows // 2, max(4, rows // 3))))
        parts: list[RenderableType] = [
            self._head(self._start, width),
            *links,
            self._progress(self._start.target, width),
            Text(),
            self._site_table(self._start, site_rows, width),
            Text(),
            self._round_table(max(1, rows - site_rows), width),
            Text(),
            *decision,
        ]
        return console.render(Group(*parts), options.update(width=width, height=None))

    def _head(self, start: events.RunStarted, width: int) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append("PowerTrip ", style="bold")
        text.append(f"{start.name}, {start.policy}")
        elapsed_s = int(time.monotonic() - self._began)
        for word, value in (
            ("generation", str(self._generation)),
            ("clock", words.duration(self._clock_s)),
            ("elapsed", f"{elapsed_s // 60}m {elapsed_s % 60:02d}s"),
            ("energy", words.quantity(self._energy_j, "J")),
            ("moved", words.quantity(self._bytes_sent, "B")),
        ):
            if text.cell_len + len(word) + len(value) + 4 > width:
                break
            text.append(f"   {word} ", style="dim")
            text.append(value)
        return text

    def _joined(self, start: events.RunStarted) -> Text:
        text = f"links: {links_text(start)}"
        return Text(text, style="dim", no_wrap=True, overflow="ellipsis")

    def _progress(self, target: events.Target, width: int) -> Table:
        done = target.met(self._value)
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.width = width
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        last = words.score(self._value, target.metric)
        wanted = words.score(target.value, target.metric)
        grid.add_row(
            Text(target.metric.replace("_", " "), style="dim"),
            ProgressBar(
                total=1.0,
                completed=1.0 if done else self._way(target),
                complete_style="cyan",
                finished_style="green",
                style="bright_black",
            ),
            Text.assemble((last, "green" if done else "bold"), (f" of {wanted}", "dim")),
        )
        return grid

    def _way(self, target: events.Target) -> float:
        """Share of the way to the target: of the value itself, or of a loss's fall so far."""
        if self._value is None or self._first_value is None:
            return 0.0
        begin = self._first_value if target.falls else 0.0
        way = target.value - begin
        return _share(self._value - begin, way)

    def _site_table(self, start: events.RunStarted, rows: int, width: int) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.width = width
        name_width = min(max([14, *(2 + len(name) for name in self.names.values())]), 22)
        room = width - name_width - 50
        links = bool(self._links) and room >= 6 + LINK_WIDTH
        bar = max(6, room - LINK_WIDTH if links else room)
        table.add_column("  site", no_wrap=True, width=name_width)
        table.add_column("power", no_wrap=True, width=bar)
        for name, size in (("", 7), ("samples/s", 9), ("step", 8), ("exchange", 8), ("loss", 6)):
            table.add_column(name, no_wrap=True, justify="right", width=size)
        if links:
            table.add_column("RTT", no_wrap=True, justify="right", width=8)
            table.add_column("to the hub", no_wrap=True, justify="right", width=11)
        available = self._decision.power_w if self._decision else {}
        speeds = self._decision.throughput if self._decision else {}
        drawn = (part.power_w for part in self._parts.values())
        most = max((0.0, *available.values(), *drawn))
        shown = list(start.sites)
        if len(shown) > rows:
            shown.sort(key=lambda site: (site not in self._members, -available.get(site, 0.0)))
            shown = shown[: max(1, rows - 1)]
        for site in shown:
            member = site in self._members
            part = self._parts.get(site) if member else None
            watts = part.power_w if part else available.get(site)
            speed = speeds.get(site)
            if part and part.local_s > 0:
                speed = part.samples / part.local_s
            mark = ("● ", "green") if member else ("○ ", "dim")
            colour = "cyan" if member else "dim"
            table.add_row(
                Text.assemble(mark, self.names[site]),
                Text("━" * round(bar * _share(watts or 0.0, most)), style=colour),
                words.quantity(watts, "W"),
                words.quantity(speed, "").strip(),
                words.duration(part.step_s if part and part.steps else None),
                words.duration(part.exchange_s if part else None),
                f"{part.loss:.3f}" if part else "-",
                *(self._link_cells(site) if links else ()),
                style="" if member else "dim",
            )
        if len(shown) < len(start.sites):
            table.add_row(Text(f"  and {len(start.sites) - len(shown)} more", style="dim"))
        return table

    def _link_cells(self, site: str) -> tuple[str, str]:
        link = self._links.get(site)
        if link is None:
            return "-", "-"
        return words.duration(link.rtt_s), rate(link.bandwidth)

    def _round_table(self, rows: int, width: int) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.width = width
        for name, size in (("round", 5), ("gen", 4)):
            table.add_column(name, no_wrap=True, justify="right", width=size)
        members = width - 61
        table.add_column("members", no_wrap=True, width=members)
        for name, size in (
            ("local", 8),
            ("exchange", 8),
            ("valid.", 7),
            ("test", 7),
            ("clock", 8),
        ):
            table.add_column(name, no_wrap=True, justify="right", width=size)
        for event in list(self._rounds)[-rows:]:
            names = [self.names.get(member, member) for member in event.members]
            table.add_row(
                str(event.round),
                str(event.generation),
                f"{len(names)} {words.listed(names, members - 3)}",
                words.duration(event.local_s),
                words.duration(event.exchange_s),
                words.score(event.validation_accuracy, "accuracy"),
                words.score(event.test_accuracy, "accuracy"),
                words.duration(event.time_s),
            )
        return table

    def _decision_lines(self, console: Terminal, width: int, most: int) -> list[Text]:
        decision = self._decision
        if decision is None:
            return [Text("no decision yet", style="dim")]
        text = Text.assemble(
            (
                f"decision {decision.generation}, {words.count(decision.rounds, 'round')} of about "
                f"{words.duration(decision.predicted_round_s)}: ",
                "dim",
            ),
            why(decision),
        )
        lines = list(text.wrap(console, width))
        if len(lines) > most:
            lines = lines[:most]
            lines[-1].rstrip()
            lines[-1].truncate(width - 2)
            lines[-1].append(" …")
        return lines


def _share(part: float, whole: float) -> float:
    """`part / whole` between 0 and 1; 0 where that says nothing."""
    share = part / whole if whole else 0.0
    return max(0.0, min(1.0, share)) if math.isfinite(share) else 0.0


class LiveConsole:
    """A view that updates in place; its last frame stays, with the summary below it.

    A thread draws, so that an event costs the run next to nothing.

    Parameters
    ----------
    console
        The rich console to draw on.
    """

    def __init__(self, console: Terminal) -> None:
        self._console = console
        self._board = Board()
        self._live = Live(
            self._board,
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            vertical_overflow="crop",
        )
        self._changed = threading.Event()
        self._done = threading.Event()
        self._painter = threading.Thread(target=self._paint, name="live-console", daemon=True)
        self._error: OSError | None = None
        self._watch = LinkWatch()

    def show(self, event: Event) -> None:
        """Show one event.

        Raises
        ------
        OSError
            The terminal is gone.
        """
        if self._error is not None:
            raise self._error
        self._board.add(event)
        match event:
            case events.RunStarted() if not self._live.is_started:
                for line in start_lines(event):
                    self._print(line)
                self._print("")
                self._live.start()
                self._painter.start()
            case events.LinksMeasured():
                for line in self._watch.lines(event, self._board.names):
                    self._print(line)
            case events.Warned():
                self._print(trouble_line(event, self._board.names), "yellow")
            case events.Failure():
                self._print(trouble_line(event, self._board.names), "red")
            case events.Resumed():
                self._print(resumed_line(event), "yellow")
            case events.SiteReturned():
                self._print(returned_line(event, self._board.names), "green")
        self._changed.set()

    def recall(self, event: Event) -> None:
        """Take an event of before into the view, without a line for it above the view."""
        match event:
            case events.RunStarted():
                self.show(event)
            case events.LinksMeasured():
                self._watch.lines(event, self._board.names)
                self._board.add(event)
            case _:
                self._board.add(event)

    def note(self, text: str) -> None:
        """Show a line that is not an event, above the view."""
        self._print(text, "dim")

    def finish(self, summary: Summary) -> None:
        """Leave the last frame as it is and show the closing summary."""
        self.close()
        self._print("")
        self._print(render_summary(summary))

    def close(self) -> None:
        """Draw the last frame and give the terminal back; a second call does nothing."""
        self._done.set()
        self._changed.set()
        if self._painter.is_alive():
            self._painter.join()
        self._live.stop()

    def _paint(self) -> None:
        while not self._done.is_set():
            self._changed.clear()
            try:
                self._live.refresh()
            except OSError as error:
                self._error = error
                return
            if not self._done.wait(BUSY_S):
                self._changed.wait(IDLE_S)

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)
