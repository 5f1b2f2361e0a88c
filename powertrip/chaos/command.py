"""``powertrip chaos``: a real job under a schedule of faults, and what must hold all the same."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from powertrip.chaos import invariants
from powertrip.chaos.injector import Injector, NoLinks
from powertrip.chaos.invariants import Injected
from powertrip.chaos.job import Job, JobStuck
from powertrip.chaos.processes import NobodyThere
from powertrip.chaos.remains import Remains
from powertrip.chaos.schedule import ENDS_JOB, OF_LINKS, Fault, Kind, draw
from powertrip.chaos.table import recovery_table
from powertrip.chaos.watch import EventWatch
from powertrip.config import load_config
from powertrip.errors import PowerTripError
from powertrip.telemetry import events

_TURN_S = 0.05
_SAMPLE_S = 1.0
_START_LIMIT_S = 180.0
_FIRST_ROUNDS = 6  # from which the time limits of the run are derived
_LAST_ROUNDS = 3  # that are waited for after the last fault
_BACK_S = 60.0  # within which a site that was killed or thawed must be back

Say = Callable[[str], None]


class JobEnded(PowerTripError):
    """The job has ended though nothing was done to it that ends it."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"the job ended by itself with exit code {code}; its last words:\n{words}")


class NothingHappens(PowerTripError):
    """The job does nothing for too long."""

    def __init__(self, awaited: str, limit_s: float, words: str) -> None:
        super().__init__(f"{awaited} has not come within {limit_s:g} s; last words:\n{words}")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What `powertrip chaos` is to do.

    Attributes
    ----------
    scenario, overrides
        As `powertrip.config.load_config` takes them.
    seed
        Of the schedule.
    length_s
        Seconds of it.
    every_s
        Mean seconds between two faults.
    kinds
        Of faults.
    torchrun
        Start the job by torchrun.
    """

    scenario: Path | None
    overrides: tuple[str, ...]
    seed: int
    length_s: float
    every_s: float
    kinds: tuple[Kind, ...]
    torchrun: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The sites of the scenario."""
        config = load_config(self.scenario, self.overrides)
        return tuple(site.name for site in config.sites.selected)

    def schedule(self) -> tuple[Fault, ...]:
        """The faults."""
        return draw(
            self.seed,
            len(self.names),
            length_s=self.length_s,
            every_s=self.every_s,
            kinds=self.kinds,
        )


def new_folder(plan: Plan) -> Path:
    """A folder of its own for what comes of a plan, where its scenario keeps its runs."""
    config = load_config(plan.scenario, plan.overrides)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path(config.runtime.run_dir) / f"chaos-{plan.seed}-{stamp}"


def conduct(plan: Plan, out: Path, say: Say) -> int:
    """Run a job under its schedule of faults, and tell what has come of it.

    Parameters
    ----------
    plan
        What is to be done.
    out
        A folder that does not exist yet, for the run, the job's output and a list of the faults.
    say
        Is given each line of what happens.

    Returns
    -------
    int
        0 where all that must hold has held, else 1.
    """
    names, schedule = plan.names, plan.schedule()
    out.mkdir(parents=True)
    out = out.resolve()
    say(f"{len(schedule)} faults in {plan.length_s:g} s, seed {plan.seed}; all of it is in {out}")
    with _temporary_folder() as temporary:
        injector_file = temporary / "faults.json"
        job = Job(
            out,
            temporary / "tmp",
            torchrun=len(names) if plan.torchrun else None,
        )
        injector = Injector(job.processes, injector_file)
        job.environment.update(injector.environment)
        remains = Remains(job.processes, temporary / "tmp")
        ordeal = _Ordeal(plan, names, job, injector, remains, say)
        try:
            problems = ordeal.run(schedule)
        except KeyboardInterrupt:
            injector.close()
            with suppress(JobStuck):
                job.stop()
            raise
        finally:
            injector.close()
            job.kill()
            _record(out / "faults.jsonl", ordeal.injected)
            remains.record(out / "descriptors.jsonl")
    say("")
    for line in recovery_table(ordeal.recoveries, names):
        say(line)
    for problem in problems:
        say(f"BROKEN: {problem}")
    say(f"{len(problems)} of what must hold is broken" if problems else "all that must hold held")
    return 1 if problems else 0


class _Ordeal:
    """One job from its start to its end, with faults on the way."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        job: Job,
        injector: Injector,
        remains: Remains,
        say: Say,
    ) -> None:
        self._plan, self._names = plan, names
        self._job, self._injector, self._remains, self._say = job, injector, remains, say
        self._watch = EventWatch(job.runs)
        self.injected: list[Injected] = []
        self._lasting: dict[Fault, float] = {}
        self._untold: list[Injected] = []
        self._reactions: list[str] = []
        self._started_s = time.monotonic()
        self._began_s = 0.0
        self._sample_s = 0.0

    @property
    def recoveries(self) -> list[invariants.Recovery]:
        """What has become of the faults so far."""
        ordered = sorted(self.injected, key=lambda one: one.began)
        return invariants.recoveries(self._watch.events, ordered)

    def run(self, schedule: Sequence[Fault]) -> list[str]:
        """Go through all of it; what is broken, in words."""
        problems = []
        try:
            self._job.start(self._plan.scenario, self._plan.overrides)
            self._await(lambda: self._rounds >= _FIRST_ROUNDS, "a first round", _START_LIMIT_S)
            self._began_s = time.monotonic()
            if not self._job.processes.of("link daemon"):
                kept = [fault for fault in schedule if fault.kind not in OF_LINKS]
                self._say(f"no emulated links: {len(schedule) - len(kept)} faults are left out")
                schedule = kept
            for fault in schedule:
                self._pass_until(fault.at_s)
                self._do(fault)
            self._pass_until(max((f.ends_s for f in self._lasting), default=0.0))
            self._undo(self._now_s)
            enough = self._rounds + _LAST_ROUNDS
            self._await(lambda: self._rounds >= enough, "a last round", invariants.SITE_LIMIT_S)
            code = self._job.stop()
            self._look()
            if code not in (0, 3, 130):
                problems.append(f"the job ended with exit code {code}:\n{self._job.last_words()}")
        except (JobEnded, JobStuck, NothingHappens) as error:
            problems.append(str(error))
        self._injector.close()
        if problems:
            self._job.kill()
        return [*problems, *self._broken()]

    def _broken(self) -> list[str]:
        log = self._watch.events
        faults = sorted(self.injected, key=lambda one: one.began)
        return [
            *invariants.broken(log),
            *invariants.not_recovered(self.recoveries, self._names),
            *invariants.not_back(log, faults, self._names, within_s=_BACK_S),
            *self._remains.left(),
            *self._remains.growing(),
        ]

    @property
    def _now_s(self) -> float:
        """Seconds of the schedule."""
        return time.monotonic() - self._began_s

    @property
    def _passed_s(self) -> float:
        """Seconds since the job was started."""
        return time.monotonic() - self._started_s

    @property
    def _rounds(self) -> int:
        return sum(isinstance(event, events.Round) for event in self._watch.events)

    @property
    def _saved(self) -> bool:
        return any(isinstance(event, events.Checkpoint) for event in self._watch.events)

    def _pass_until(self, until_s: float) -> None:
        """Let the run go on until a time of the schedule, and undo what is due meanwhile."""
        while self._now_s < until_s:
            self._turn()
            if self._job.code is not None:
                raise JobEnded(self._job.code, self._job.last_words())
            self._undo(self._now_s)

    def _await(self, done: Callable[[], bool], awaited: str, limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while not done():
            self._turn()
            if self._job.code is not None:
                raise JobEnded(self._job.code, self._job.last_words())
            if time.monotonic() > deadline_s:
                raise NothingHappens(awaited, limit_s, self._job.last_words())

    def _turn(self) -> None:
        self._look()
        if time.monotonic() >= self._sample_s:
            self._sample_s = time.monotonic() + _SAMPLE_S
            self._remains.sample()
        time.sleep(_TURN_S)

    def _look(self) -> None:
        """Read what the run has told, and pass on how it has taken the last faults."""
        for event in self._watch.read():
            if isinstance(event, events.Failure):
                self._reactions.append(
                    event.kind if event.site is None else f"{event.kind} {event.site}"
                )
            elif isinstance(event, events.SiteReturned):
                self._reactions.append(f"{event.site} back")
        self._tell_recovered()

    def _tell_recovered(self) -> None:
        for injected in list(self._untold):
            (recovery,) = invariants.recoveries(self._watch.events, [injected])
            if recovery.next_s is not None:
                self._untold.remove(injected)
                reactions, self._reactions = self._reactions, []
                self._say(
                    f"{self._passed_s:7.1f} s    {injected.fault.number}: the next round was "
                    f"committed {recovery.next_s:.2f} s after it"
                    + (f" ({', '.join(reactions)})" if reactions else "")
                )

    def _do(self, fault: Fault) -> None:
        what = f"{fault.number}: {fault.text(self._names)}"
        paused_s = time.monotonic()
        if fault.kind in ENDS_JOB:
            self._await(lambda: self._saved, "a checkpoint", invariants.JOB_LIMIT_S)
        self._look()
        try:
            self._injector.begin(fault)
        except (NobodyThere, NoLinks) as error:
            self._say(f"{self._passed_s:7.1f} s  {what}: left out: {error}")
            return
        began = time.time()
        self._say(f"{self._passed_s:7.1f} s  {what}")
        self._untold.append(Injected(fault, began, began))
        if fault.lasts_s:
            self._lasting[fault] = began
        else:
            self.injected.append(Injected(fault, began, began))
        if fault.kind in ENDS_JOB:
            self._bring_back(fault, began)
            self._began_s += time.monotonic() - paused_s

    def _undo(self, now_s: float) -> None:
        for fault in [fault for fault in self._lasting if fault.ends_s <= now_s]:
            self._injector.end(fault)
            self.injected.append(Injected(fault, self._lasting.pop(fault), time.time()))

    def _bring_back(self, fault: Fault, began: float) -> None:
        """Start the job again, unless its launcher does that, and wait until it goes on."""
        if fault.kind == "kill_job" or not self._plan.torchrun:
            code = self._job.await_end()
            after_s = time.time() - began
            self._say(
                f"{self._passed_s:7.1f} s    {fault.number}: the job had ended with exit code "
                f"{code} {after_s:.2f} s after it, and is resumed"
            )
            self._look()
            self._remains.clean()
            run_dir = self._watch.run_dir
            assert run_dir is not None
            self._job.resume(run_dir)

        def goes_on() -> bool:
            (last,) = invariants.recoveries(self._watch.events, [Injected(fault, began, began)])
            return last.next_s is not None

        self._await(goes_on, "a round of the resumed run", invariants.JOB_LIMIT_S)


def _record(path: Path, faults: Sequence[Injected]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for one in faults:
            file.write(json.dumps(dataclasses.asdict(one)) + "\n")


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="powertrip-chaos-"))
    try:
        (folder / "tmp").mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
