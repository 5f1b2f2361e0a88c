"""Documents that are damaged, and values where others are meant."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("POWERTRIP_FUZZ", "0"))
"""How many examples each test tries; 0 for a few that are the same every time."""


def fuzzed(few: int = 40):
    """The settings of a test that is one of `make fuzz`, and of all tests with few examples."""
    return settings(
        max_examples=EXAMPLES or few,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None if EXAMPLES else 20_000,
        suppress_health_check=list(HealthCheck),
    )


def says(error: Exception, name: object) -> None:
    """Check that an error names what it is about, and is short enough to be read."""
    assert str(name) in str(error)
    assert len(str(error)) < 50_000


NASTY = (
    "", " ", "\0", "~nobody/x", "x" * 5000, "../..", "/dev/full", "/", ".", "1e999", "-1e999",
    "nan", "Infinity", "1" * 5000, "٣", "é", "\u2028", "2022-13-45", "null", "[", "{", '"', "'",
)  # fmt: skip

numbers = (
    st.integers(-3, 20)
    | st.integers()
    | st.sampled_from([2**31, 2**53, 2**63, 2**64, 10**30, -(10**30)])
    | st.floats()
)
texts = st.sampled_from(NASTY) | st.text(max_size=8)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(inner):
        yield node, key
        if isinstance(value, dict | list):
            yield from _places(value)


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A document of dicts and lists in which a few places are other than they should be."""
    tree = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(tree))
        if not places:
            break
        node, key = places[draw(st.integers(0, len(places) - 1))]
        how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "repeat", "wrap"]))
        if how == "replace":
            node[key] = draw(values)
        elif how == "remove":
            del node[key]
        elif how == "wrap":
            node[key] = [node[key]]
        elif isinstance(node, list):
            node.insert(key, copy.deepcopy(node[key]))
        else:
            node[draw(st.text(max_size=4))] = copy.deepcopy(node[key])
    return tree


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes of which a few are others, or are not there, or are there twice."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 12)))
        how = draw(st.sampled_from(["put", "put", "cut", "twice", "end"]))
        if how == "put":
            odd = draw(st.binary(max_size=8) | st.sampled_from(NASTY).map(str.encode))
            data = data[:start] + odd + data[end:]
        elif how == "cut":
            data = data[:start] + data[end:]
        elif how == "twice":
            data = data[:end] + data[start:]
        else:
            data = data[:start]
    return data


@st.composite
def spoilt_table(draw: st.DrawFn, text: str) -> bytes:
    """A CSV file in which a few fields or rows are other than they should be."""
    if draw(st.booleans()):
        return draw(damaged(text.encode()))
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(draw(st.integers(1, 3))):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        if row:
            row[draw(st.integers(0, len(row) - 1))] = draw(texts | numbers.map(str))
    return "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")
