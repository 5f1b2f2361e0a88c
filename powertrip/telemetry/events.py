"""The events of a run: each class is one kind of line in the event log.

Metrics, console and summary are all derived from these. `docs/events.md` is printed from them by
`python -m powertrip.telemetry.page`.
"""

from __future__ import annotations

import time
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, SkipValidation, TypeAdapter

VERSION: Final = 1

Metric = Literal["test_accuracy", "validation_accuracy", "test_loss", "validation_loss", "rounds"]
Outcome = Literal["reached", "budget", "interrupted", "failed"]


class Record(BaseModel):
    """Immutable, refuses unknown fields, and writes NaN and infinity as strings.

    JSON has no NaN and no infinity, but the loss of a run that diverges does: they are written as
    "NaN", "Infinity" and "-Infinity", and read back as numbers.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, ser_json_inf_nan="strings"
    )


class Event(Record):
    """What every event holds."""

    v: Literal[1] = VERSION
    """Version of the event format."""

    event: str
    """Kind of event."""

    time_s: float
    """Training clock, seconds since the start of training; evaluation is not counted."""

    wall_time: float = Field(default_factory=time.time)
    """Time of the event, Unix seconds."""


class Target(Record):
    """What a run trains for."""

    metric: Metric
    """Number of a round that is compared."""

    value: float
    """The run has reached its target when the metric is at least (a loss: at most) this."""

    @property
    def falls(self) -> bool:
        """Whether smaller is better."""
        return self.metric.endswith("_loss")

    def met(self, value: float | None) -> bool:
        """Whether a measured value of the metric (None: not measured) reaches the target."""
        if value is None:
            return False
        return value <= self.value if self.falls else value >= self.value


class Candidate(Record):
    """One line of a decision's table: what taking the best k sites would give."""

    k: int
    """Number of members."""

    gain: float
    """Projected progress per round."""

    compute_s: float
    """Predicted local training in a round, seconds."""

    communication_s: float
    """Predicted exchange in a round, seconds."""

    round_s: float
    """Predicted length of a round, seconds."""

    switch_s: float
    """Predicted cost of the change to these members, seconds."""

    efficiency: float
    """Projected progress per second over the adjustment interval."""

    chosen: bool = False
    """Whether the decision took this candidate."""


class SiteRound(Record):
    """One member's part in a round."""

    site: str
    """Name of the site."""

    steps: int
    """Local steps done."""

    samples: int
    """Samples trained on."""

    local_s: float
    """Local training, seconds."""

    exchange_s: float
    """Exchange as this site saw it, seconds."""

    step_s: float
    """Mean length of a local step, seconds."""

    loss: float
    """Mean training loss over the local steps."""

    bytes_sent: int
    """Bytes this site sent in the exchange."""

    energy_j: float
    """Energy this site used in the round, joules."""

    power_w: float
    """Mean power this site drew in the round, watts."""

    carbon_g: float = 0.0
    """Grams CO2e for that energy; 0 where no intensity is given."""

    money: float = 0.0
    """Price of that energy, in the scenario's currency; 0 where no price is given."""


class LinkRow(Record):
    """What one site has measured of its link to another."""

    src: str
    """Name of the site that measured."""

    dst: str
    """Name of the other site."""

    rtt_s: float | None
    """Least round trip, seconds; null if none was answered."""

    bandwidth: float | None
    """Bandwidth from `src` to `dst`, bytes per second; null if not measured."""

    model_rtt_s: float
    """Round trip in the network's model, seconds."""

    model_bandwidth: float
    """Bandwidth from `src` to `dst` in the network's model, bytes per second."""


class RunStarted(Event):
    """The first event of a run."""

    event: Literal["run_started"] = "run_started"
    run_id: str
    """Name of this run, unlike any other's."""

    run_dir: str
    """Folder that everything is written to."""

    name: str
    """Name of the scenario."""

    sites: tuple[str, ...]
    """Names of all sites, in the order of their numbers."""

    policy: str
    """Selection policy."""

    seed: int
    """Seed of the run."""

    target: Target
    """What the run trains for."""

    powertrip_version: str
    """Version of PowerTrip."""

    torch_version: str
    """Version of torch."""

    backend: str
    """Transport of the exchange, such as gloo."""

    pacing: str
    """How power is made real, such as deadline."""

    clock: str
    """Times that decisions are made from: measured or modelled."""

    links: str = "not recorded"
    """What the links between the sites are, and why, in one line."""

    bandwidth_scale: float = 1.0
    """What the bandwidths of the scenario's network are multiplied by."""

    metrics_url: str | None = None
    """Where metrics are served; null when they are not."""


class LinksMeasured(Event):
    """The sites have measured the links among them."""

    event: Literal["links_measured"] = "links_measured"
    hub: str
    """Name of the site that the star model is centred on."""

    links: tuple[LinkRow, ...]
    """The links that exist, by source and then destination, in the order of the sites."""

    first: bool
    """Whether this is the measurement at the start, before any training."""


class Decision(Event):
    """The coordinator chose the members of the next rounds."""

    event: Literal["decision"] = "decision"
    generation: int
    """Number of the generation that this decision starts."""

    round: int
    """First round that it governs."""

    members: tuple[str, ...]
    """Names of the members, best first."""

    policy: str
    """Policy that decided."""

    reason: str
    """Why, in words."""

    early: str | None = None
    """Why it was made before its time; null where it was due."""

    predicted_round_s: float
    """Predicted length of a round, seconds."""

    rounds: int
    """Rounds until the next decision."""

    steps: tuple[int, ...] | None = None
    """Local steps of each member in a round, in the order of members; null under deadlines."""

    deadline_s: tuple[float, ...] | None = None
    """Seconds after the start of the round at which each member's training ends, in the order of
    members; null under steps."""

    candidates: tuple[Candidate, ...] = ()
    """What was compared; empty for a policy that compares nothing."""

    decide_s: float
    """Time that the decision took, seconds."""

    power_w: dict[str, float]
    """Power available for training at each site, watts; of more than a thousand, at the members."""

    throughput: dict[str, float]
    """Modelled speed of each site with that power, samples per second."""

    throughput_spread: dict[str, float] = Field(default_factory=dict)
    """By what factor each site's speed may be off, two times in three."""

    communication_correction: float = 1.0
    """Measured over modelled exchange time, as learned so far."""

    communication_spread: float = 1.0
    """By what factor the exchange time may be off, two times in three."""

    observation: SkipValidation[dict[str, JsonValue]] = Field(default_factory=dict)
    """All that the policy saw, so that the decision can be replayed; empty where it is not recorded
    (telemetry.observations)."""


class Rebuild(Event):
    """The members of a generation connected to each other, and newcomers received the model."""

    event: Literal["rebuild"] = "rebuild"
    generation: int
    """Number of the generation."""

    members: tuple[str, ...]
    """Names of the members."""

    newcomers: tuple[str, ...] = ()
    """Names of the members that received the model."""

    seconds: float
    """Length of the rebuild, joins included, seconds of the training clock."""

    join_bytes: int = 0
    """Bytes sent to newcomers."""


class Round(Event):
    """A round was committed; `time_s` is the training clock at its end."""

    event: Literal["round"] = "round"
    round: int
    """Number of the round."""

    generation: int
    """Generation that it belongs to."""

    members: tuple[str, ...]
    """Names of the members."""

    local_s: float
    """Local training of the slowest member, seconds."""

    exchange_s: float
    """Exchange of updates, seconds."""

    eval_s: float
    """Evaluation, seconds; not on the training clock."""

    overhead_s: float
    """What is neither local training nor exchange nor evaluation, seconds."""

    duration_s: float
    """Length of the round on the training clock, seconds: without evaluation."""

    sites: tuple[SiteRound, ...]
    """Each member's part."""

    train_loss: float
    """Mean training loss, weighted as the updates were."""

    validation_accuracy: float | None = None
    """Share of the validation samples that the model gets right; null when not evaluated."""

    validation_loss: float | None = None
    """Mean loss over the validation samples; null when not evaluated."""

    test_accuracy: float | None = None
    """Share of the test samples that the model gets right; null when not evaluated."""

    test_loss: float | None = None
    """Mean loss over the test samples; null when not evaluated."""

    predicted_round_s: float
    """What the decision predicted for `duration_s`."""

    digest: str
    """Digest of the model after the round."""

    energy_j: float
    """Energy used in the round by all sites together, joules."""

    carbon_g: float = 0.0
    """Grams CO2e for that energy; 0 where no intensity is given."""

    money: float = 0.0
    """Price of that energy, in the scenario's currency; 0 where no price is given."""

    bytes_sent: int
    """Bytes sent in the exchange by all sites together."""

    def value(self, metric: Metric) -> float | None:
        """The round's value of a metric; None where it was not evaluated."""
        found: float | None = self.round if metric == "rounds" else getattr(self, metric)
        return found


class Warned(Event):
    """Something is not as it should be, and the run goes on."""

    event: Literal["warning"] = "warning"
    text: str
    """What, in words."""

    site: str | None = None
    """Site that it is about; null when none in particular."""


class Failure(Event):
    """Something broke: a site died, an exchange was aborted, members disagreed."""

    event: Literal["failure"] = "failure"
    kind: str
    """One word for the kind of failure, from a small set: it is a label of a metric."""

    site: str | None = None
    """Site that failed; null when none in particular."""

    text: str
    """What, in words."""

    generation: int
    """Generation at the time."""

    round: int
    """Round at the time."""


class SiteReturned(Event):
    """A site that was gone is there again, and may be chosen."""

    event: Literal["site_returned"] = "site_returned"
    site: str
    """Which."""

    incarnation: int
    """How many processes it has had before."""


class Checkpoint(Event):
    """The state of the run was saved."""

    event: Literal["checkpoint"] = "checkpoint"
    path: str
    """Its folder."""

    bytes: int
    """Size of all its files together."""

    seconds: float
    """Time that saving took, seconds."""

    round: int
    """Last round that it holds."""


class Resumed(Event):
    """The run goes on from what was saved, in another process of its coordinator."""

    event: Literal["resumed"] = "resumed"
    round: int
    """Last round that stands; the next one follows it."""

    lost_rounds: int
    """Rounds beyond it that had been committed before, and are done again."""

    checkpoint: str | None = None
    """Folder of the checkpoint; null where the job was still running, and nothing was lost."""

    term: int
    """Number of the coordinator's process in this job, from 0."""

    reason: str
    """Why, in words."""


class RunEnded(Event):
    """The last event of a run."""

    event: Literal["run_ended"] = "run_ended"
    outcome: Outcome
    """Why the run ended; budget means that rounds or time ran out before the target."""

    exit_code: int
    """Exit code of the run."""

    reached: bool
    """Whether the target was reached."""

    time_to_target_s: float | None
    """Training clock at the end of the first round that met the target, seconds; null if none."""

    rounds: int
    """Rounds committed."""

    generations: int
    """Generations started."""

    decisions: int
    """Decisions made."""

    energy_j: float
    """Energy used, joules."""

    carbon_g: float = 0.0
    """Grams CO2e for that energy; 0 where no intensity is given."""

    money: float = 0.0
    """Price of that energy, in the scenario's currency; 0 where no price is given."""

    bytes_sent: int
    """Bytes sent by all sites, updates and joins."""

    evaluation_s: float
    """Time spent evaluating, seconds; not on the training clock."""

    validation_accuracy: float | None
    """Last validation accuracy; null if never evaluated."""

    test_accuracy: float | None
    """Last test accuracy; null if never evaluated."""

    digest: str
    """Digest of the model after the last round; empty if there was none."""

    run_dir: str
    """Folder that everything was written to."""


EVENT_TYPES: tuple[type[Event], ...] = (
    RunStarted,
    LinksMeasured,
    Decision,
    Rebuild,
    Round,
    Warned,
    Failure,
    SiteReturned,
    Checkpoint,
    Resumed,
    RunEnded,
)

AnyEvent = Annotated[
    RunStarted
    | LinksMeasured
    | Decision
    | Rebuild
    | Round
    | Warned
    | Failure
    | SiteReturned
    | Checkpoint
    | Resumed
    | RunEnded,
    Field(discriminator="event"),
]

EVENT_ADAPTER: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
