"""Prometheus metrics of a run, derived from its events."""

from __future__ import annotations

import errno
import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, start_http_server

from powertrip.errors import InputError
from powertrip.telemetry import events
from powertrip.telemetry.events import Event
from powertrip.telemetry.settings import MetricsSettings

PHASES = ("local", "exchange", "evaluation", "overhead")

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)


class MetricsAddressError(InputError):
    """The metrics endpoint cannot listen where the settings say."""


class Metrics:
    """The metrics, in a registry of their own: several runs can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, namespace="powertrip", registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace="powertrip", registry=self.registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(
                name,
                text,
                labels,
                namespace="powertrip",
                registry=self.registry,
                buckets=_SECONDS,
            )

        self._run = Info("run", "The run", namespace="powertrip", registry=self.registry)
        self._sites = gauge("sites", "Sites of the run")
        self._target = gauge("target", "Value of the metric at which the run is done", "metric")
        self._clock = gauge(
            "training_clock_seconds", "Training time so far; evaluation is not counted"
        )
        self._phase = histogram(
            "round_phase_seconds",
            "Length of each phase of a round; local: the slowest member's",
            "phase",
        )
        self._predicted = gauge("predicted_round_seconds", "Length of a round as decided")
        self._rounds = counter("rounds", "Rounds committed")
        self._members = gauge("members", "Members of the current generation")
        self._generation = gauge("generation", "Number of the current generation")
        self._accuracy = gauge("accuracy", "Accuracy of the model, 0 to 1", "split")
        self._loss = gauge("loss", "Loss of the model", "split")
        self._member = gauge("site_member", "1 while the site is a member, else 0", "site")
        self._available = gauge(
            "site_available_power_watts",
            "Power available for training at the last decision",
            "site",
        )
        self._power = gauge(
            "site_power_watts", "Mean power drawn in the last round; 0 if not a member", "site"
        )
        self._throughput = gauge(
            "site_throughput_samples_per_second",
            "Speed in the site's last round; before its first, as modelled at the last decision",
            "site",
        )
        self._step = gauge(
            "site_step_seconds", "Mean length of a local step in the site's last round", "site"
        )
        self._bytes = counter("exchange_bytes", "Bytes sent in the exchange of updates", "site")
        self._join_bytes = counter("join_bytes", "Bytes sent to newcomers")
        self._energy = counter("energy_joules", "Energy used")
        self._rebuild = histogram("rebuild_seconds", "Length of rebuilds, joins included")
        self._decide = histogram("decide_seconds", "Time that decisions took")
        self._decisions = counter("decisions", "Decisions made")
        self._correction = gauge(
            "communication_correction_ratio", "Measured over modelled exchange time, as learned"
        )
        self._checkpoint = histogram("checkpoint_seconds", "Time that saving checkpoints took")
        self._checkpoint_bytes = gauge("checkpoint_bytes", "Size of the last checkpoint")
        self._link_rtt = gauge(
            "link_rtt_seconds", "Round trip as last measured; NaN without an answer", "src", "dst"
        )
        self._link_bandwidth = gauge(
            "link_bandwidth_bytes_per_second",
            "Bandwidth as last measured; NaN where it could not be",
            "src",
            "dst",
        )
        self._warnings = counter("warnings", "Warnings given")
        self._failures = counter("failures", "Failures met", "kind")
        self._resumes = counter("resumes", "Times that the run went on from what was saved")
        self.lost_events = counter("lost_events", "Events that the event log could not take")
        self.waiting_events = gauge("waiting_events", "Events that the event log is yet to take")
        self._seated: frozenset[str] = frozenset()
        self._measured: set[str] = set()
        for phase in PHASES:
            self._phase.labels(phase)

    def record(self, event: Event) -> None:
        """Let one event change the metrics."""
        self._clock.set(event.time_s)
        match event:
            case events.RunStarted():
                self._start(event)
            case events.LinksMeasured():
                for link in event.links:
                    self._link_rtt.labels(link.src, link.dst).set(_or_nan(link.rtt_s))
                    self._link_bandwidth.labels(link.src, link.dst).set(_or_nan(link.bandwidth))
            case events.Decision():
                self._decide_on(event)
            case events.Rebuild():
                self._rebuild.observe(event.seconds)
                self._join_bytes.inc(event.join_bytes)
                self._seat(event.generation, event.members)
            case events.Round():
                self._add_round(event)
            case events.Warned():
                self._warnings.inc()
            case events.Failure():
                self._failures.labels(event.kind).inc()
            case events.Resumed():
                self._resumes.inc()
            case events.Checkpoint():
                self._checkpoint.observe(event.seconds)
                self._checkpoint_bytes.set(event.bytes)

    def _start(self, event: events.RunStarted) -> None:
        self._run.info(
            {
                "run_id": event.run_id,
                "name": event.name,
                "policy": event.policy,
                "backend": event.backend,
                "powertrip_version": event.powertrip_version,
                "torch_version": event.torch_version,
            }
        )
        self._sites.set(len(event.sites))
        self._target.labels(event.target.metric).set(event.target.value)
        for site in event.sites:
            self._member.labels(site).set(0)
            self._power.labels(site).set(0)
            self._bytes.labels(site)

    def _decide_on(self, event: events.Decision) -> None:
        self._decisions.inc()
        self._decide.observe(event.decide_s)
        self._predicted.set(event.predicted_round_s)
        self._correction.set(event.communication_correction)
        for site, watts in event.power_w.items():
            self._available.labels(site).set(watts)
        for site, speed in event.throughput.items():
            if site not in self._measured:
                self._throughput.labels(site).set(speed)

    def _add_round(self, event: events.Round) -> None:
        self._rounds.inc()
        lengths = (event.local_s, event.exchange_s, event.eval_s, event.overhead_s)
        for phase, seconds in zip(PHASES, lengths, strict=True):
            self._phase.labels(phase).observe(seconds)
        self._energy.inc(event.energy_j)
        for split, accuracy in (
            ("validation", event.validation_accuracy),
            ("test", event.test_accuracy),
        ):
            if accuracy is not None:
                self._accuracy.labels(split).set(accuracy)
        for split, loss in (
            ("train", event.train_loss),
            ("validation", event.validation_loss),
            ("test", event.test_loss),
        ):
            if loss is not None:
                self._loss.labels(split).set(loss)
        self._seat(event.generation, event.members)
        for part in event.sites:
            self._power.labels(part.site).set(part.power_w)
            self._bytes.labels(part.site).inc(part.bytes_sent)
            if part.steps:
                self._step.labels(part.site).set(part.step_s)
            if part.local_s > 0:
                self._measured.add(part.site)
                self._throughput.labels(part.site).set(part.samples / part.local_s)

    def _seat(self, generation: int, members: tuple[str, ...]) -> None:
        self._generation.set(generation)
        self._members.set(len(members))
        seated = frozenset(members)
        for site in self._seated - seated:
            self._member.labels(site).set(0)
            self._power.labels(site).set(0)
        for site in seated - self._seated:
            self._member.labels(site).set(1)
        self._seated = seated


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


class MetricsServer:
    """Serves a registry over HTTP from a thread.

    Parameters
    ----------
    settings
        Where to listen. A port that is taken is replaced by a free one; `url` says which.

    Raises
    ------
    MetricsAddressError
        The address is not this machine's, or the port needs rights that this process lacks.
    """

    def __init__(self, settings: MetricsSettings, registry: CollectorRegistry) -> None:
        address = settings.address
        self.moved_from: int | None = None
        try:
            self._server, self._thread = start_http_server(settings.port, address, registry)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise MetricsAddressError(
                    f"telemetry.metrics: cannot listen on {address} port {settings.port}: "
                    f"{error.strerror or error}; set telemetry.metrics.address to an address of "
                    "this machine and telemetry.metrics.port to one above 1023, or "
                    "telemetry.metrics.enabled=false"
                ) from error
            self.moved_from = settings.port
            self._server, self._thread = start_http_server(0, address, registry)
        self.port: int = self._server.server_port
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening, free the port and end the thread; a second call does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
