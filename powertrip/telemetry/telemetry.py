"""The one place that events are handed to: log, metrics and console each get every one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TextIO

from powertrip.telemetry import words
from powertrip.telemetry.backlog import Backlog
from powertrip.telemetry.console import Console, QuietConsole, build_console
from powertrip.telemetry.eventlog import EVENT_LOG, EventWriter, line_of
from powertrip.telemetry.events import Event, Outcome, RunEnded, RunStarted, Warned
from powertrip.telemetry.metrics import Metrics, MetricsServer
from powertrip.telemetry.report import SUMMARY_FILE, Summary, Tally
from powertrip.telemetry.resuming import Kept, keep_until
from powertrip.telemetry.settings import TelemetrySettings


class Telemetry:
    """Passes each event to the event log, the metrics and the console.

    Neither a full disk nor a closed terminal ends a run: the failing one is named in a warning, and
    the others go on. Events that the log does not take wait until it does. To be used by one
    thread.

    Parameters
    ----------
    settings
        What to show and where.
    run_dir
        The run's folder; it must exist.
    resume_round
        The round after which a run goes on whose log is there already: the log is cut back to it,
        and summary and metrics begin with what it holds. None for a run that begins.
    stream
        Where the console writes.
    environment
        Environment variables, for the choice of console.

    Attributes
    ----------
    kept
        What has become of the log of a run that goes on; None for a run that begins.

    Raises
    ------
    EventLogError
        The event log cannot be opened, or not be gone on with.
    MetricsAddressError
        The metrics cannot be served where the settings say.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        run_dir: Path,
        resume_round: int | None = None,
        *,
        stream: TextIO | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.run_dir = run_dir
        self.kept: Kept | None = None
        self._counted_lost = 0
        self._tally = Tally()
        self._metrics = Metrics() if settings.metrics.enabled else None
        self._server = (
            MetricsServer(settings.metrics, self._metrics.registry)
            if self._metrics is not None
            else None
        )
        self._console: Console = build_console(
            settings.console, sys.stdout if stream is None else stream, environment
        )
        try:
            if resume_round is not None:
                self.kept = keep_until(run_dir / EVENT_LOG, resume_round, self._recall)
            self._writer = EventWriter(run_dir / EVENT_LOG)
        except BaseException:
            self._close_rest()
            raise
        self._backlog = Backlog(self._writer)
        if self.kept is not None:
            self._tell_dropped(self.kept)
        if self._writer.cut_bytes:
            self._note(
                f"{self._writer.path}: its last line was cut short; "
                f"removed {self._writer.cut_bytes} bytes"
            )
        if self._server is not None and self._server.moved_from:
            self._note(
                f"port {self._server.moved_from} is taken: metrics are at {self._server.url}"
            )

    @property
    def metrics_url(self) -> str | None:
        """Where metrics are served; None when they are not."""
        return self._server.url if self._server is not None else None

    @property
    def dropped_rounds(self) -> int:
        """Rounds in the log of a run that goes on that do not stand, and are done again."""
        return 0 if self.kept is None else self.kept.lost_rounds

    @property
    def lost_events(self) -> int:
        """Events that are missing from the event log, or wait for it to take them."""
        return self._backlog.lost + self._backlog.waiting

    def emit(self, event: Event) -> None:
        """Pass one event on to all.

        What a run that goes on tells again, because its coordinator ended while it was told, is
        not passed on a second time.
        """
        if self.kept is not None and line_of(event) in self.kept.last:
            return
        self._tally.add(event)
        if self._metrics is not None:
            self._metrics.record(event)
        self._log(event)
        try:
            self._console.show(event)
        except OSError as error:
            self._lose_console(error, event.time_s)

    def summary(self) -> Summary:
        """Return the summary of the run so far.

        Raises
        ------
        NoRunError
            No run_started was emitted.
        """
        return self._tally.summary()

    def end(self, outcome: Outcome, exit_code: int, *, time_s: float) -> Summary:
        """Emit `run_ended`, write `summary.json`, show the closing summary, and return it.

        Parameters
        ----------
        outcome
            Why the run ended.
        exit_code
            What the job will exit with.
        time_s
            Training clock, seconds.

        Raises
        ------
        NoRunError
            No run_started was emitted.
        """
        fields = RunEnded.model_fields.keys() - Event.model_fields.keys()
        known = self._tally.summary().model_dump(include=set(fields))
        self.emit(RunEnded(time_s=time_s, **known | {"outcome": outcome, "exit_code": exit_code}))
        summary = self._tally.summary()
        self._write_summary(summary)
        try:
            self._console.finish(summary)
        except OSError as error:
            self._lose_console(error, time_s)
        if self.lost_events:
            self._note(f"WARNING: {self.lost_events} events are missing from {self._writer.path}")
        return summary

    def close(self) -> None:
        """Close the log, the metrics and the console; a second call does nothing."""
        if self._backlog.waiting:
            self._backlog.give_up()
            self._count_lost()
        self._writer.close()
        self._close_rest()

    def _close_rest(self) -> None:
        if self._server is not None:
            self._server.close()
        try:
            self._console.close()
        except OSError as error:
            self._lose_console(error, None)

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _log(self, event: Event) -> None:
        news = self._backlog.add(event)
        self._count_lost()
        if news is not None:
            self._note(news)

    def _count_lost(self) -> None:
        if self._metrics is not None:
            self._metrics.lost_events.inc(self._backlog.lost - self._counted_lost)
            self._metrics.waiting_events.set(self._backlog.waiting)
        self._counted_lost = self._backlog.lost

    def _recall(self, event: Event) -> None:
        """Take in an event that the log of a run that goes on holds."""
        self._tally.add(event)
        if self._metrics is not None:
            self._metrics.record(event)
        if isinstance(event, RunStarted):
            event = event.model_copy(update={"metrics_url": self.metrics_url})
        try:
            self._console.recall(event)
        except OSError as error:
            self._lose_console(error, None)

    def _tell_dropped(self, kept: Kept) -> None:
        if not kept.dropped:
            return
        lines = words.count(kept.dropped, "line")
        where = f"in {kept.aside}" if kept.aside else "lost, as they could not be written elsewhere"
        self._note(f"{self._writer.path}: {lines} of what was done in vain are {where}")

    def _write_summary(self, summary: Summary) -> None:
        path = self.run_dir / SUMMARY_FILE
        partial = path.with_name(f"{SUMMARY_FILE}.partial")
        try:
            partial.write_text(summary.model_dump_json(indent=2) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):  # the error that counts is the first one
                partial.unlink(missing_ok=True)
            self._note(f"WARNING: cannot write {path}: {error.strerror or error}")

    def _note(self, text: str) -> None:
        try:
            self._console.note(text)
        except OSError as error:
            self._lose_console(error, None)

    def _lose_console(self, error: OSError, time_s: float | None) -> None:
        """Stop showing the run on a stream that is gone, and say so where it can still be read."""
        with contextlib.suppress(OSError):  # the same one again: `error` is reported below
            self._console.close()
        self._console = QuietConsole(sys.stderr)
        if time_s is not None:
            warning = Warned(time_s=time_s, text=f"the console is gone: {error.strerror or error}")
            self._tally.add(warning)
            if self._metrics is not None:
                self._metrics.record(warning)
            self._log(warning)
