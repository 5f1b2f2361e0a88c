"""From the members' reports of a round to the one event that tells of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from powertrip.coordination.errors import DigestMismatch
from powertrip.coordination.messages import Report, Tally
from powertrip.telemetry.events import Round, SiteRound
from powertrip.world.world import World


@dataclass(frozen=True)
class RoundTimes:
    """Where the time of a round went; seconds of the training clock but for `evaluation_s`."""

    local_s: float
    exchange_s: float
    evaluation_s: float
    rebuild_s: float


@dataclass(frozen=True)
class RoundAccount:
    """The time of one round on the clock that the run counts.

    Attributes
    ----------
    start_s, end_s
        From the end of the round before to the end of this one, its rebuild included.
    times
        Where it went.
    local_s
        Each member's local training, in the members' order.
    own_exchange_s
        The exchange, as it is when all members have trained at once; None where that is what
        `times` says. In a star it is not: there a member's exchange hides behind others' training.
    idle_s
        Before the rebuild: no member was there, or none stayed.
    """

    start_s: float
    end_s: float
    times: RoundTimes
    local_s: tuple[float, ...]
    own_exchange_s: float | None = None
    idle_s: float = 0.0

    @property
    def trains_s(self) -> float:
        """When the members began to train."""
        return self.start_s + self.idle_s + self.times.rebuild_s

    @property
    def exchange_s(self) -> float:
        """The exchange, as it is when all members have trained at once."""
        return self.times.exchange_s if self.own_exchange_s is None else self.own_exchange_s


def measured_times(reports: Sequence[Report], newcomers: Collection[int] = ()) -> RoundTimes:
    """The critical path of a round, from the members' reports.

    The last member to arrive in an exchange does not wait for others: the shortest exchange is the
    exchange itself, and the rest of the others' is waiting for the slowest member's training.
    Likewise newcomers wait for the model while the others are still in the round before, so that a
    rebuild is what those others have waited.
    """
    stayed = [r.rebuild_s for r in reports if r.site not in newcomers]
    return RoundTimes(
        local_s=max(r.local_s for r in reports),
        exchange_s=min(r.exchange_s for r in reports),
        evaluation_s=max(r.evaluation_s for r in reports),
        rebuild_s=max(stayed) if stayed else min(r.rebuild_s for r in reports),
    )


def agreed_digest(reports: Sequence[Report], names: Sequence[str]) -> str:
    """The digest that all members report.

    Raises
    ------
    DigestMismatch
        They do not agree; the error names those outside the majority.
    """
    expected = Counter(r.digest for r in reports).most_common(1)[0][0]
    deviating = [names[r.site] for r in reports if r.digest != expected]
    if deviating:
        raise DigestMismatch(reports[0].generation, reports[0].round, expected, deviating)
    return expected


def combine(tallies: Sequence[Tally | None]) -> tuple[float, float] | tuple[None, None]:
    """Accuracy and mean loss over all members' shares; two None where nothing was evaluated."""
    known = [t for t in tallies if t is not None]
    count = sum(t.count for t in known)
    if count == 0:
        return None, None
    return sum(t.correct for t in known) / count, sum(t.loss_sum for t in known) / count


def round_event(
    reports: Sequence[Report],
    world: World,
    *,
    account: RoundAccount,
    predicted_round_s: float,
) -> Round:
    """The event of a committed round.

    Parameters
    ----------
    reports
        One per member, in the members' order.
    account
        Its time.
    predicted_round_s
        What the decision expected.

    Raises
    ------
    DigestMismatch
        The members do not hold the same parameters.
    """
    digest = agreed_digest(reports, world.names)
    times = account.times
    sites = []
    for report, seconds in zip(reports, account.local_s, strict=True):
        when = report.site, account.trains_s, seconds
        energy_j = world.energy_j(*when)
        sites.append(
            SiteRound(
                site=world.names[report.site],
                steps=report.steps,
                samples=report.samples,
                local_s=seconds,
                exchange_s=report.exchange_s,
                step_s=seconds / max(report.steps, 1),
                loss=report.loss,
                bytes_sent=report.bytes_sent,
                energy_j=energy_j,
                power_w=energy_j / seconds if seconds > 0 else 0.0,
                carbon_g=world.carbon_g(*when),
                money=world.money(*when),
            )
        )
    validation_accuracy, validation_loss = combine([r.validation for r in reports])
    test_accuracy, test_loss = combine([r.test for r in reports])
    samples = sum(r.samples for r in reports)
    duration_s = account.end_s - account.start_s - times.rebuild_s
    return Round(
        time_s=account.end_s,
        round=reports[0].round,
        generation=reports[0].generation,
        members=tuple(world.names[r.site] for r in reports),
        local_s=times.local_s,
        exchange_s=times.exchange_s,
        eval_s=times.evaluation_s,
        overhead_s=max(0.0, duration_s - times.local_s - times.exchange_s),
        duration_s=duration_s,
        sites=tuple(sites),
        train_loss=sum(r.loss * r.samples for r in reports) / max(samples, 1),
        validation_accuracy=validation_accuracy,
        validation_loss=validation_loss,
        test_accuracy=test_accuracy,
        test_loss=test_loss,
        predicted_round_s=predicted_round_s,
        digest=digest,
        energy_j=sum(s.energy_j for s in sites),
        carbon_g=sum(s.carbon_g for s in sites),
        money=sum(s.money for s in sites),
        bytes_sent=sum(s.bytes_sent for s in sites),
    )
