"""Tries all that can happen in the model of the commit protocol."""

from __future__ import annotations

from dataclasses import dataclass

from tests.runtime.protocol_model import World
from tests.runtime.protocol_parts import Violation


@dataclass(frozen=True)
class Explored:
    """What an exploration has seen."""

    states: int
    moves: int
    committed: int
    lost: int
    stuck: list[list[tuple]]


def explore(start: World, *, most_states: int = 10**7) -> Explored:
    """Try all that can happen, in every order, depth first.

    Raises
    ------
    Violation
        A promise is broken; its text says by which moves.
    """
    numbers = {start.key(): 0}
    parents: list[tuple[int, tuple] | None] = [None]
    onward: list[list[int]] = [[]]
    good: set[int] = set()
    held: list[bool] = [True]
    stack = [(0, start)]
    moves = committed = lost = 0
    while stack:
        number, world = stack.pop()
        if world.ended == "done":
            committed += 1
            good.add(number)
        lost += world.ended == "model lost"
        ordered = world.moves()
        if world.calm(ordered):
            del ordered[1:]
        for move, fault in [
            *((move, False) for move in ordered), *((move, True) for move in world.faults())
        ]:  # fmt: skip
            moves += 1
            after = world.copy()
            try:
                after.happen(move)
                after.check()
            except Exception as error:
                path = "\n".join(str(each) for each in [*path_to(parents, number), move])
                raise Violation(f"{type(error).__name__}: {error}\nafter\n{path}") from error
            key = after.key()
            found = numbers.get(key)
            if found is None:
                found = numbers[key] = len(parents)
                if found > most_states:
                    raise MemoryError(f"more than {most_states} states")
                parents.append((number, move))
                onward.append([])
                held.append(after.ended is None and bool(after.holders()))
                stack.append((found, after))
            if not fault:
                onward[number].append(found)
    stuck = [n for n in _not_leading_to(onward, good) if held[n]]
    return Explored(len(parents), moves, committed, lost, [path_to(parents, n) for n in stuck[:3]])


def path_to(parents, number: int) -> list[tuple]:
    path = []
    while parents[number] is not None:
        number, move = parents[number]
        path.append(move)
    return path[::-1]


def _not_leading_to(onward: list[list[int]], good: set[int]) -> list[int]:
    backward: list[list[int]] = [[] for _ in onward]
    for number, following in enumerate(onward):
        for after in following:
            backward[after].append(number)
    reached, stack = set(good), list(good)
    while stack:
        for before in backward[stack.pop()]:
            if before not in reached:
                reached.add(before)
                stack.append(before)
    return [number for number in range(len(onward)) if number not in reached]
