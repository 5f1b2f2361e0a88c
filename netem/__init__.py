"""Real links between several processes on one machine: a network namespace for each site.

One link daemon per job and machine, which `start_daemon` starts, holds the links of a `Plan`. Every
process calls `enter` once and lives in its site's namespace from then on; `Control` changes links
and counts what they carry.
"""

from netem.client import Control, Membership, enter
from netem.errors import NetemError
from netem.launch import RunningDaemon, start_daemon
from netem.plan import Change, Link, Plan

__all__ = [
    "Change",
    "Control",
    "Link",
    "Membership",
    "NetemError",
    "Plan",
    "RunningDaemon",
    "enter",
    "start_daemon",
]
