import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from powertrip.telemetry.events import EVENT_ADAPTER, EVENT_TYPES, Rebuild, SiteReturned, Target


def test_every_kind_of_event_survives_its_line(told, story):
    told.append(story.changed_links(1, rtt_s=None, bandwidth=None))
    told.append(story.resumed(4))
    told.append(SiteReturned(time_s=1.0, site=story.sites[0], incarnation=1))
    assert {type(event) for event in told} == set(EVENT_TYPES) - {EVENT_TYPES[-1]}
    for event in told:
        assert EVENT_ADAPTER.validate_python(json.loads(event.model_dump_json())) == event


def test_a_start_of_before_links_were_recorded_can_be_read(story):
    fields = json.loads(story.start().model_dump_json())
    del fields["links"], fields["bandwidth_scale"]
    start = EVENT_ADAPTER.validate_python(fields)
    assert (start.links, start.bandwidth_scale) == ("not recorded", 1.0)


def test_a_line_opens_with_version_and_kind(story):
    line = story.start().model_dump_json()
    assert line.startswith('{"v":1,"event":"run_started","time_s":0.0,"wall_time":1000.0,')


def test_wall_time_is_filled_in():
    first = Rebuild(time_s=1.0, generation=1, members=("a",), seconds=0.5)
    assert first.wall_time > 1.6e9


@given(st.floats(), st.floats())
def test_any_float_survives(time_s, seconds):
    event = Rebuild(time_s=time_s, wall_time=0.0, generation=1, members=(), seconds=seconds)
    line = event.model_dump_json()
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    back = EVENT_ADAPTER.validate_python(json.loads(line))
    for before, after in ((time_s, back.time_s), (seconds, back.seconds)):
        assert before == after or (math.isnan(before) and math.isnan(after))


def test_events_refuse_unknown_fields_and_change(story):
    with pytest.raises(ValidationError, match="extra"):
        story.start(colour="blue")
    with pytest.raises(ValidationError, match="frozen"):
        story.start().seed = 2


@pytest.mark.parametrize(
    ("metric", "value", "met"),
    [
        ("test_accuracy", 0.9, True),
        ("test_accuracy", 0.89, False),
        ("test_accuracy", math.nan, False),
        ("test_accuracy", None, False),
        ("validation_loss", 0.9, True),
        ("validation_loss", 0.91, False),
        ("validation_loss", math.nan, False),
    ],
)
def test_a_target_is_met_from_the_right_side(metric, value, met):
    assert Target(metric=metric, value=0.9).met(value) is met


def test_a_round_gives_the_value_of_a_metric(story):
    event = story.round(2, 1, 3, test_loss=None)
    assert event.value("test_accuracy") == 0.75
    assert event.value("validation_loss") == 0.25
    assert event.value("test_loss") is None


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("settings events eventlog report console page", "torch numpy rich prometheus_client"),
        ("telemetry", "torch numpy rich"),
    ],
)
def test_imports_stay_light(modules, absent):
    imports = ", ".join(f"powertrip.telemetry.{module}" for module in modules.split())
    code = (
        f"import sys, {imports}\nprint(*(name for name in {absent.split()} if name in sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert answer.stdout.split() == []
