"""Power made real: local steps that end no earlier than the site's power would let them."""

from __future__ import annotations

import threading
import time

from powertrip.coordination.speed import SiteSpeed, steps_by_deadline

_LONGEST_WAIT_S = 3600.0


class Pacer:
    """Says when local training ends, and holds each step back to its modelled end.

    Deadline pacing: step j ends no earlier than the time at which the site's modelled speed,
    integrated over its power trace, has done j steps. Lateness of one step is caught up by the
    next, so the mean speed is exact while the machine keeps up.

    Parameters
    ----------
    world, site
        Whose speed counts.
    start_s
        The training clock at the start of the round.
    batch_size
        Samples per step.
    steps
        Local steps of this round, or None under a deadline.
    deadline_s
        Seconds after the round's start when local training ends, or None with `steps`.
    paced
        Hold steps back. Otherwise the hardware sets the speed.
    modelled_clock
        Turn a deadline into the steps that the model would do by then, so that equal seeds do
        equal work whatever the machine's speed.
    stop
        Set when the run ends: training stops after the step in hand, and a wait ends at once.
    """

    def __init__(
        self,
        world: SiteSpeed,
        site: int,
        start_s: float,
        *,
        batch_size: int,
        steps: int | None,
        deadline_s: float | None,
        paced: bool,
        modelled_clock: bool,
        stop: threading.Event,
    ) -> None:
        if (steps is None) == (deadline_s is None):
            raise ValueError("a member's work is either steps or a deadline")
        if deadline_s is not None and modelled_clock:
            steps = steps_by_deadline(world, site, start_s, deadline_s, batch_size)
            deadline_s = None
        self._world, self._site, self._start_s = world, site, start_s
        self._batch_size = batch_size
        self._steps, self._deadline_s = steps, deadline_s
        self._paced = paced
        self._stop = stop
        self._origin_s = time.monotonic()
        self._samples = 0
        self._last_end_s = 0.0
        self._last_compute_s = 0.0
        self.lag_s = 0.0
        """Seconds by which the last step ended after its modelled end: the machine is too slow."""

    def allows(self, step: int) -> bool:
        """Whether another step may begin; the first always may, so that every member has a say."""
        if step == 0:
            return True
        if self._stop.is_set():
            return False
        if self._steps is not None:
            return step < self._steps
        assert self._deadline_s is not None
        return self._end_of_next_step_s() <= self._deadline_s

    def _end_of_next_step_s(self) -> float:
        end_s = self._last_end_s + self._last_compute_s
        if self._paced:
            end_s = max(end_s, self._modelled_end_s(self._samples + self._batch_size))
        return end_s

    def _modelled_end_s(self, samples: int) -> float:
        return self._world.seconds_for(self._site, self._start_s, samples)

    def step_done(self, samples: int) -> None:
        """Wait until the modelled end of the step that has just been computed."""
        self._samples += samples
        self._last_compute_s = time.monotonic() - self._origin_s - self._last_end_s
        if self._paced:
            modelled_end_s = self._modelled_end_s(self._samples)
            ahead_s = modelled_end_s - (time.monotonic() - self._origin_s)
            while ahead_s > 0 and not self._stop.wait(min(ahead_s, _LONGEST_WAIT_S)):
                ahead_s = modelled_end_s - (time.monotonic() - self._origin_s)
            self.lag_s = max(0.0, -ahead_s)
        self._last_end_s = time.monotonic() - self._origin_s
