"""The summary of a run, computed from its events and from nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from powertrip.errors import PowerTripError
from powertrip.telemetry import events, words
from powertrip.telemetry.eventlog import EVENT_LOG
from powertrip.telemetry.events import Event, Metric, Outcome, Record, Target

SUMMARY_FILE = "summary.json"
"""Name of the summary in a run's folder."""


class NoRunError(PowerTripError):
    """There is nothing to summarise: no run_started among the events."""


class Summary(Record):
    """What a run came to; `summary.json` is this object.

    Times are seconds on the training clock, which evaluation is not on, unless said otherwise.
    """

    name: str
    """Name of the scenario."""

    run_id: str
    """Name of the run."""

    run_dir: str
    """Folder that everything was written to."""

    policy: str
    """Selection policy."""

    seed: int
    """Seed of the run."""

    sites: int
    """Number of sites."""

    target: Target
    """What the run trained for."""

    outcome: Outcome | Literal["unfinished"]
    """Why the run ended; unfinished when its log has no end."""

    exit_code: int | None
    """Exit code of the run; null when unfinished."""

    reached: bool
    """Whether a round met the target."""

    time_to_target_s: float | None
    """Clock at the end of the first round that met the target; null if none did."""

    energy_to_target_j: float | None
    """Energy used up to the end of that round, joules; null if none met it."""

    carbon_to_target_g: float | None = None
    """Grams CO2e for that energy; null if none met it."""

    money_to_target: float | None = None
    """Price of that energy; null if none met it."""

    training_s: float
    """Clock at the last event."""

    wall_s: float
    """Time between the first and the last event as a clock on the wall shows it."""

    evaluation_s: float
    """Time spent evaluating, which is not on the training clock."""

    local_s: float
    """Sum over the rounds of the slowest member's local training."""

    exchange_s: float
    """Sum over the rounds of the exchange."""

    rebuild_s: float
    """Sum of the rebuilds, joins included."""

    overhead_s: float
    """Sum over the rounds of what is neither."""

    rounds: int
    """Rounds committed."""

    generations: int
    """Generations started."""

    decisions: int
    """Decisions made."""

    mean_members: float
    """Mean number of members over the rounds; 0 without rounds."""

    energy_j: float
    """Energy used, joules."""

    carbon_g: float = 0.0
    """Grams CO2e for that energy; 0 where no intensity is given."""

    money: float = 0.0
    """Price of that energy, in the scenario's currency; 0 where no price is given."""

    bytes_sent: int
    """Bytes sent by all sites, updates and joins."""

    validation_accuracy: float | None
    """Last validation accuracy; null if never evaluated."""

    test_accuracy: float | None
    """Last test accuracy; null if never evaluated."""

    target_value: float | None
    """Last value of the target's metric; null if never evaluated."""

    resumes: int = 0
    """How often the run went on from what was saved."""

    lost_rounds: int = 0
    """Rounds that had to be done again for it."""

    warnings: int
    """Warnings given."""

    failures: int
    """Failures met."""

    checkpoint: str | None
    """Last checkpoint; null if none was saved."""

    digest: str
    """Digest of the model after the last round; empty without rounds."""


class Tally:
    """Adds up events as they happen; `summary` can be asked for at any time after the first."""

    def __init__(self) -> None:
        self._start: events.RunStarted | None = None
        self._end: events.RunEnded | None = None
        self._last: Event | None = None
        self._reached: events.Round | None = None
        self._to_target = (0.0, 0.0, 0.0)
        self._generations: set[int] = set()
        self._sums = dict.fromkeys(("local_s", "exchange_s", "overhead_s", "rebuild_s"), 0.0)
        self._evaluation_s = self._energy_j = self._carbon_g = self._money = 0.0
        self._rounds = self._seats = self._bytes_sent = 0
        self._decisions = self._warnings = self._failures = 0
        self._resumes = self._lost_rounds = 0
        self._values: dict[str, float] = {}
        self._checkpoint: str | None = None
        self._digest = ""

    def add(self, event: Event) -> None:
        """Count one event in."""
        self._last = event
        match event:
            case events.RunStarted():
                self._start = self._start or event
            case events.Decision():
                self._decisions += 1
                self._generations.add(event.generation)
            case events.Rebuild():
                self._generations.add(event.generation)
                self._sums["rebuild_s"] += event.seconds
                self._bytes_sent += event.join_bytes
            case events.Round():
                self._add_round(event)
            case events.Warned():
                self._warnings += 1
            case events.Failure():
                self._failures += 1
            case events.Checkpoint():
                self._checkpoint = event.path
            case events.Resumed():
                self._resumes += 1
                self._lost_rounds += event.lost_rounds
                self._checkpoint = event.checkpoint or self._checkpoint
            case events.RunEnded():
                self._end = event

    def _add_round(self, event: events.Round) -> None:
        self._rounds += 1
        self._seats += len(event.members)
        self._generations.add(event.generation)
        for phase in ("local_s", "exchange_s", "overhead_s"):
            self._sums[phase] += getattr(event, phase)
        self._evaluation_s += event.eval_s
        self._energy_j += event.energy_j
        self._carbon_g += event.carbon_g
        self._money += event.money
        self._bytes_sent += event.bytes_sent
        self._digest = event.digest
        for metric in get_args(Metric):
            value = event.value(metric)
            if value is not None:
                self._values[metric] = value
        if self._reached is None and self._start is not None:
            target = self._start.target
            if target.met(event.value(target.metric)):
                self._reached = event
                self._to_target = self._energy_j, self._carbon_g, self._money

    def summary(self) -> Summary:
        """Return the summary of what was added so far.

        Raises
        ------
        NoRunError
            No run_started was added.
        """
        start, last, reached = self._start, self._last, self._reached
        if start is None or last is None:
            raise NoRunError("the events hold no run_started: there is no run to summarise")
        energy_j, carbon_g, money = self._to_target
        return Summary(
            name=start.name,
            run_id=start.run_id,
            run_dir=start.run_dir,
            policy=start.policy,
            seed=start.seed,
            sites=len(start.sites),
            target=start.target,
            outcome=self._end.outcome if self._end else "unfinished",
            exit_code=self._end.exit_code if self._end else None,
            reached=reached is not None,
            time_to_target_s=reached.time_s if reached else None,
            energy_to_target_j=energy_j if reached else None,
            carbon_to_target_g=carbon_g if reached else None,
            money_to_target=money if reached else None,
            training_s=last.time_s,
            wall_s=last.wall_time - start.wall_time,
            evaluation_s=self._evaluation_s,
            rounds=self._rounds,
            generations=len(self._generations),
            decisions=self._decisions,
            mean_members=self._seats / self._rounds if self._rounds else 0.0,
            energy_j=self._energy_j,
            carbon_g=self._carbon_g,
            money=self._money,
            bytes_sent=self._bytes_sent,
            validation_accuracy=self._values.get("validation_accuracy"),
            test_accuracy=self._values.get("test_accuracy"),
            target_value=self._values.get(start.target.metric),
            resumes=self._resumes,
            lost_rounds=self._lost_rounds,
            warnings=self._warnings,
            failures=self._failures,
            checkpoint=self._checkpoint,
            digest=self._digest,
            **self._sums,
        )


def summarise(log: Iterable[Event]) -> Summary:
    """Summarise a run from its events, finished or not.

    Raises
    ------
    NoRunError
        There is no run_started among the events.
    """
    tally = Tally()
    for event in log:
        tally.add(event)
    return tally.summary()


_OUTCOMES = {
    "reached": "target reached",
    "budget": "target not reached within the budget",
    "interrupted": "interrupted",
    "failed": "failed",
    "unfinished": "unfinished: the log has no end",
}


def render_summary(summary: Summary) -> str:
    """The summary as lines of text, at most 80 columns where names and paths are short."""
    metric = summary.target.metric
    target = words.goal(summary.target.value, metric)
    last = words.score(summary.target_value, metric)
    lines = [
        f"{summary.name}, policy {summary.policy}, seed {summary.seed}: "
        f"{_OUTCOMES[summary.outcome]}",
        "",
        _line("target", f"{target}; last {last}"),
    ]
    if summary.reached:
        lines.append(
            _line(
                "time to target",
                f"{words.duration(summary.time_to_target_s)} of training, with "
                f"{words.quantity(summary.energy_to_target_j, 'J')}",
            )
        )
    else:
        lines.append(_line("time to target", "not reached"))
    lines += [
        _line(
            "training",
            f"{words.duration(summary.training_s)}: {_shares(summary)}",
        ),
        _line("evaluation", f"{words.duration(summary.evaluation_s)}, not counted as training"),
        _line(
            "rounds",
            f"{summary.rounds} in {words.count(summary.generations, 'generation')}, "
            f"{summary.mean_members:.1f} of {words.count(summary.sites, 'site')} on average",
        ),
        _line("energy", _energy(summary)),
        _line("bytes moved", words.quantity(summary.bytes_sent, "B")),
        _line(
            "accuracy",
            f"validation {words.score(summary.validation_accuracy, 'accuracy')}, "
            f"test {words.score(summary.test_accuracy, 'accuracy')}",
        ),
    ]
    if summary.warnings or summary.failures:
        lines.append(
            _line(
                "trouble",
                f"{words.count(summary.failures, 'failure')}, "
                f"{words.count(summary.warnings, 'warning')}",
            )
        )
    if summary.resumes:
        times = words.count(summary.resumes, "time")
        lost = words.count(summary.lost_rounds, "round")
        lines.append(_line("resumed", f"{times}, {lost} done again"))
    lines.append(_line("model digest", summary.digest or "-"))
    lines.append(_line("written to", summary.run_dir))
    if summary.outcome != "unfinished":
        lines.append(_line("", f"{EVENT_LOG}, {SUMMARY_FILE}"))
    if summary.checkpoint is not None:
        lines.append(_line("checkpoint", summary.checkpoint))
    return "\n".join(lines)


def _line(label: str, text: str) -> str:
    return f"  {label:<15} {text}"


def _energy(summary: Summary) -> str:
    text = words.quantity(summary.energy_j, "J")
    if summary.carbon_g:
        text += f", {words.quantity(summary.carbon_g, 'g')} CO2e"
    return text + (f", price {summary.money:.3g}" if summary.money else "")


def _shares(summary: Summary) -> str:
    phases = {
        "local": summary.local_s,
        "exchange": summary.exchange_s,
        "rebuilds": summary.rebuild_s,
        "overhead": summary.overhead_s,
    }
    total = sum(phases.values())
    if total <= 0:
        return "no rounds"
    return ", ".join(f"{name} {value / total:.0%}" for name, value in phases.items())
