"""The page that documents the event log, printed from the event classes.

`python -m powertrip.telemetry.page > docs/events.md`
"""

from __future__ import annotations

import sys
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, JsonValue

from powertrip.telemetry import events
from powertrip.telemetry.eventlog import EVENT_LOG
from powertrip.telemetry.report import SUMMARY_FILE, Summary

_INTRODUCTION = f"""\
# The event log

<!-- Printed from the event classes: python -m powertrip.telemetry.page > docs/events.md -->

A run appends to `{EVENT_LOG}` in its folder: one JSON object a line, UTF-8, in the order in which
things happened. Each line stands by itself: `v` is the version of the format ({events.VERSION}), \
`event` the kind.
A run that was killed can leave a last line that is cut short. Numbers that JSON lacks are the
strings `"NaN"`, `"Infinity"` and `"-Infinity"`. Units are SI and end a field's name: `_s` seconds,
`_w` watts, `_j` joules.

Read it in Python with `powertrip.telemetry.eventlog.read_events(path)`, watch it again with
`python -m powertrip.telemetry.console {EVENT_LOG} --speed 10`, or ask `jq`:

```sh
jq -r 'select(.event == "decision") | "\\(.round): \\(.reason)"' {EVENT_LOG}
```

## Every event

Each event has these fields, and those of its kind below.

"""


def event_page() -> str:
    """Return the page, Markdown."""
    common = set(events.Event.model_fields)
    parts = [_INTRODUCTION, _table(events.Event, set())]
    for kind in events.EVENT_TYPES:
        name = kind.model_fields["event"].default
        parts.append(f"\n## `{name}`\n\n{_first_line(kind)}\n\n{_table(kind, common)}")
    parts.append("\n## Parts\n")
    for part in (events.Target, events.SiteRound, events.Candidate, events.LinkRow):
        parts.append(f"\n### {part.__name__}\n\n{_first_line(part)}\n\n{_table(part, set())}")
    parts.append(
        f"\n## `{SUMMARY_FILE}`\n\nWritten when a run ends, computed from the events. "
        "Times are seconds on the training clock,\nwhich evaluation is not on, unless said "
        f"otherwise.\n\n{_table(Summary, set())}"
    )
    return "".join(parts)


def _first_line(kind: type[BaseModel]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def _table(kind: type[BaseModel], leave_out: set[str]) -> str:
    rows = ["| field | type | meaning |", "|---|---|---|"]
    for name, field in kind.model_fields.items():
        if name not in leave_out:
            meaning = " ".join((field.description or "").split())
            rows.append(f"| `{name}` | {_words(field.annotation)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _words(annotation: Any) -> str:
    """A type as a reader of JSON would say it."""
    simple = {str: "text", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    if annotation in simple:
        return simple[annotation]
    if annotation is JsonValue:
        return "any"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0])
    if origin is Literal:
        return " or ".join(
            f'`"{value}"`' if isinstance(value, str) else f"`{value}`" for value in arguments
        )
    if origin in (Union, types.UnionType):
        return " or ".join(_words(argument) for argument in arguments)
    if origin is tuple:
        return f"list of {_words(arguments[0])}"
    if origin is dict:
        return f"object: {_words(arguments[0])} to {_words(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    raise TypeError(f"no words for the type {annotation!r}: add them here")


if __name__ == "__main__":
    sys.stdout.write(event_page())
