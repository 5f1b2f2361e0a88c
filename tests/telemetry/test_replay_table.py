from __future__ import annotations

import io

import pytest
from rich.console import Console

from powertrip.telemetry.replay_table import Answer, Replayed, show_replay


def answer(policy: str, *members: str, reason: str = "because") -> Answer:
    return Answer(
        policy=policy,
        members=members,
        steps=(4,) * len(members),
        deadline_s=None,
        predicted_round_s=0.25 * len(members),
        reason=reason,
    )


def replayed(round_: int, then: Answer, now: Answer) -> Replayed:
    return Replayed(
        time_s=2.0 * round_,
        round=round_,
        generation=round_,
        sites=("rome", "oslo", "paris", "lima"),
        then=then,
        now=now,
        agree=set(then.members) == set(now.members),
    )


TOLD = (
    replayed(1, answer("all", "rome", "oslo", "lima"), answer("together", "oslo", "paris")),
    replayed(3, answer("all", "rome"), answer("together", "rome", reason="better")),
)


def shown(told=TOLD, width=80, **options) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    show_replay("a-run", iter(told), console)
    return console.file.getvalue()


def test_both_answers_and_what_differs():
    lines = [line.rstrip() for line in shown().splitlines()]
    assert lines[0] == "a-run: all then, together now"
    assert lines[4:] == [
        "  2.00 s      1  then    3   750 ms  rome oslo lima",
        "                 now     2   500 ms  +paris -rome -lima oslo",
        "      both: because",
        "  6.00 s      3  then    1   250 ms  rome",
        "                 now     1   250 ms  the same",
        "      then: because",
        "       now: better",
        "",
        "1 of 2 decisions have the same members",
        "members on average: 2.00 then, 1.50 now, of 4",
    ]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_lines_are_cut_to_the_width(width):
    names = [f"site-{i}" for i in range(100)]
    then, now = answer("all", *names, reason="why " * 90), answer("together", *names[:50])
    told = [replayed(1, then, now).model_copy(update={"sites": tuple(names)})]
    lines = shown(told, width).splitlines()
    assert len(lines) == 11
    assert max(map(len, lines)) <= min(width, 110)
    assert sum(line.endswith("…") for line in lines) >= 3


def test_colours_are_for_terminals():
    assert "\x1b" not in shown()
    assert "\x1b[32m+paris" in shown(force_terminal=True, color_system="standard")
