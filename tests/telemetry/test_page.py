from pathlib import Path

from powertrip.telemetry.events import EVENT_TYPES
from powertrip.telemetry.page import event_page

PAGE = Path(__file__).parents[2] / "docs" / "events.md"


def test_the_page_is_in_step_with_the_events():
    assert PAGE.read_text(encoding="utf-8") == event_page(), (
        "docs/events.md is out of date: python -m powertrip.telemetry.page > docs/events.md"
    )


def test_the_page_explains_every_field():
    page = event_page()
    for kind in EVENT_TYPES:
        assert f"## `{kind.model_fields['event'].default}`" in page
        for name in kind.model_fields:
            assert f"| `{name}` | " in page
    assert "|  |" not in page
