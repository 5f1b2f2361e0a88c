"""How long a round may take before those who wait give up: derived from the rounds before."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

_WINDOW = 20  # rounds
_FEWEST = 3  # rounds from which anything can be told
_DEVIATIONS = 6.0
_MAD_TO_DEVIATION = 1.4826  # median absolute deviation to standard deviation of a normal one
_SURPRISE = 0.5  # of a round: what none of so few rounds has shown
_UNMEASURED = 3.0  # times the prediction, before anything is measured


class TimeLimits:
    """The limit of a round: what it is expected to take, and a slack.

    The expectation is the prediction times the median of measured over predicted in the last 20
    rounds; the slack is six of their deviations or half of the expectation, whichever is more,
    within bounds. Too short a limit leaves out a site that is merely slow, whose work of the round
    is then lost; too long a one keeps all others waiting for a site that is frozen or cut off.

    Parameters
    ----------
    floor_s, ceiling_s
        Bounds of the slack.
    paced
        Whether the pace follows the model, so that a prediction says something before anything is
        measured.
    """

    def __init__(self, floor_s: float, ceiling_s: float, *, paced: bool = False) -> None:
        self._floor_s, self._ceiling_s = floor_s, max(floor_s, ceiling_s)
        self._first_slack_s = min(5 * floor_s, self._ceiling_s) if paced else self._ceiling_s
        self._logs: deque[float] = deque(maxlen=_WINDOW)

    def learn(self, predicted_s: float, measured_s: float) -> None:
        """Take in a round that nothing has disturbed; what is not positive says nothing."""
        if 0 < predicted_s < math.inf and 0 < measured_s < math.inf:
            self._logs.append(math.log(measured_s / predicted_s))

    def round_s(self, predicted_s: float) -> float:
        """Seconds from a round's start by which its exchange must have ended.

        Parameters
        ----------
        predicted_s
            Its predicted length.
        """
        if len(self._logs) < _FEWEST:
            return _UNMEASURED * predicted_s + self._first_slack_s
        middle = median(self._logs)
        deviation = _MAD_TO_DEVIATION * median(abs(log - middle) for log in self._logs)
        expected_s = predicted_s * math.exp(middle)
        slack_s = expected_s * max(_SURPRISE, math.expm1(min(_DEVIATIONS * deviation, 50.0)))
        return expected_s + min(max(slack_s, self._floor_s), self._ceiling_s)

    def join_s(self, rebuild_s: float, transfer_s: float) -> float:
        """Seconds by which a new group and the model must be there.

        Parameters
        ----------
        rebuild_s, transfer_s
            What both are expected to take.
        """
        expected_s = min(_UNMEASURED * (rebuild_s + transfer_s), self._ceiling_s)
        return expected_s + min(max(expected_s, 2 * self._floor_s), self._ceiling_s)
