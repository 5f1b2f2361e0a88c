"""The one place that events are handed to: log, metrics and console each get every one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TextIO

from powertrip.telemetry.console import Console, QuietConsole, build_console
from powertrip.telemetry.eventlog import EVENT_LOG, EventWriter
from powertrip.telemetry.events import Event, Outcome, RunEnded, Warned
from powertrip.telemetry.metrics import Metrics, MetricsServer
from powertrip.telemetry.report import SUMMARY_FILE, Summary, Tally
from powertrip.telemetry.settings import TelemetrySettings


class Telemetry:
    """Passes each event to the event log, the metrics and the console.

    Neither a full disk nor a closed terminal ends a run: the failing one is named in a warning
    once, and the others go on. To be used by one thread.

    Parameters
    ----------
    settings
        What to show and where.
    run_dir
        The run's folder; it must exist.
    stream
        Where the console writes.
    environment
        Environment variables, for the choice of console.

    Raises
    ------
    EventLogError
        The event log cannot be opened.
    MetricsAddressError
        The metrics cannot be served where the settings say.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        run_dir: Path,
        *,
        stream: TextIO | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.run_dir = run_dir
        self.lost_events = 0
        self._tally = Tally()
        self._metrics = Metrics() if settings.metrics.enabled else None
        self._writer = EventWriter(run_dir / EVENT_LOG)
        try:
            self._server = (
                MetricsServer(settings.metrics, self._metrics.registry)
                if self._metrics is not None
                else None
            )
        except BaseException:
            self._writer.close()
            raise
        self._console: Console = build_console(
            settings.console, sys.stdout if stream is None else stream, environment
        )
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

    def emit(self, event: Event) -> None:
        """Pass one event on to all."""
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
        path = self.run_dir / SUMMARY_FILE
        try:
            path.write_text(summary.model_dump_json(indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            self._note(f"WARNING: cannot write {path}: {error.strerror}")
        try:
            self._console.finish(summary)
        except OSError as error:
            self._lose_console(error, time_s)
        if self.lost_events:
            self._note(f"WARNING: {self.lost_events} events are missing from {self._writer.path}")
        return summary

    def close(self) -> None:
        """Close the log, the metrics and the console; a second call does nothing."""
        self._writer.close()
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
        try:
            self._writer.write(event)
        except OSError as error:
            self.lost_events += 1
            if self._metrics is not None:
                self._metrics.lost_events.inc()
            if self.lost_events == 1:
                self._note(
                    f"WARNING: cannot write the event log {self._writer.path}: {error.strerror}; "
                    "training goes on, and events are lost until there is room"
                )

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
