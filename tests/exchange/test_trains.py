import pytest

from powertrip.exchange.errors import ProbeError
from powertrip.exchange.trains import (
    HEADER_BYTES,
    MESSAGE,
    PAYLOAD_BYTES,
    Peer,
    Report,
    Train,
    parse_peer,
    train_shape,
)

SIZE = PAYLOAD_BYTES + HEADER_BYTES
GAP_NS = 100_000
RATE = SIZE / GAP_NS * 1e9


def rate(times_ns):
    train = Train()
    for time_ns in times_ns:
        train.add(SIZE, time_ns)
    report = train.report()
    return report.bytes / report.spread_ns * 1e9


def test_the_rate_follows_from_the_gaps():
    assert rate(i * GAP_NS for i in range(200)) == pytest.approx(RATE)
    assert rate(i * GAP_NS for i in range(4)) == pytest.approx(RATE)
    assert Train().report() == Report(0, 0, 0, 0)


@pytest.mark.parametrize("where", [0, 20, 100, 170])
def test_a_pause_of_the_sender_does_not_count(where):
    paused = [i * GAP_NS + (8_000_000 if i > where else 0) for i in range(200)]
    assert rate(paused) == pytest.approx(RATE, rel=0.01)


@pytest.mark.parametrize("where", [0, 20, 100, 170])
def test_a_cluster_does_not_count(where):
    late = [max(i, where + 30) if i >= where and i < where + 30 else i for i in range(200)]
    assert rate(i * GAP_NS for i in late) == pytest.approx(RATE, rel=0.01)


def test_lost_packets_do_not_count_but_jitter_may_swap_them():
    thinned = [i * GAP_NS for i in range(200) if i % 10]
    assert rate(thinned) == pytest.approx(0.9 * RATE, rel=0.05)
    swapped = [(i ^ 1) * GAP_NS for i in range(200)]
    assert rate(swapped) == pytest.approx(RATE, rel=0.05)


@pytest.mark.parametrize("megabits", [0.1, 0.3, 1, 3, 10, 30, 100, 1e3, 1e5])
def test_a_train_takes_a_bounded_part_of_the_link(megabits):
    bandwidth = megabits * 1e6 / 8
    count, payload = train_shape(bandwidth)
    assert 12 <= count <= 200
    assert MESSAGE.size <= payload <= PAYLOAD_BYTES
    assert count * (payload + HEADER_BYTES) / bandwidth <= 0.31
    if 10 <= megabits <= 45:
        assert count * (payload + HEADER_BYTES) / bandwidth == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan")])
def test_an_unknown_bandwidth_gets_the_least_train(bandwidth):
    assert train_shape(bandwidth) == (12, MESSAGE.size)
    assert train_shape(float("inf")) == (200, PAYLOAD_BYTES)


def peer(**changes):
    fields = {"dst": 1, "address": ("127.0.0.1", 9), "token": bytes(8), "expected": 1e6}
    return Peer(**fields | changes)


@pytest.mark.parametrize(
    ("report", "cpu_s", "bandwidth"),
    [
        (Report(200, 280_000, 10_000_000, 10_000_000), 0.001, 28e6),
        (Report(3, 2800, 1_000_000, 1_000_000), 0.0, None),
        (Report(200, 280_000, 90_000, 90_000), 0.0, None),
        (Report(200, 280_000, 1_000_000, 1_000_000), 0.00095, None),
        (None, 0.0, None),
    ],
)
def test_what_tells_nothing_of_the_link_is_no_bandwidth(report, cpu_s, bandwidth):
    one = peer(cpu_s=cpu_s)
    if report is not None:
        one.take_report(0, report)
    assert one.bandwidth() == bandwidth
    assert one.settled is (bandwidth is None)


def test_the_least_round_trip_counts_without_what_was_held():
    one = peer(sent_ns={0: 1000, 1: 2000, 2: 3000})
    one.take_echo(0, 1500, 100)
    one.take_echo(1, 2300, 50)
    one.take_echo(1, 2001, 0)
    one.take_echo(2, 3001, 500)
    assert one.rtt_ns == 250
    assert not one.sent_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:1",
        "127.0.0.1/00",
        "127.0.0.1:x/" + "0" * 16,
        "127.0.0.1:1/" + "0" * 14,
        "127.0.0.1:99999/" + "0" * 16,
        "127.1:1/" + "0" * 16,
        "::1:2/",
    ],
)
def test_an_endpoint_that_is_none_is_named(text):
    with pytest.raises(ProbeError, match="site 3 is said to answer at"):
        parse_peer(3, text, 1.0)


def train(ms, whole_ms):
    return Report(200, 1_000_000, round(ms * 1e6), round(whole_ms * 1e6))


def told(*reports, expected):
    one = peer(expected=expected)
    settled = []
    for one.train, report in enumerate(reports):
        one.report = None
        one.take_report(one.train, report)
        settled.append(one.settled)
    return one.bandwidth(), settled


def test_one_calm_train_of_the_expected_length_is_enough():
    assert told(train(10, 10.1), expected=90e6) == (100e6, [True])


def test_a_surprise_takes_several_trains():
    several = train(2, 2), train(10, 10), train(8, 8.1)
    assert told(*several, expected=100e6) == (125e6, [False, True, True])
    assert told(*several, expected=0.0) == (125e6, [False, False, False])


def test_disturbed_trains_count_only_where_there_is_no_other():
    disturbed = train(5, 9), train(4, 9), train(3, 9)
    assert told(*disturbed, expected=250e6) == (250e6, [False, False, False])
    assert told(*disturbed, train(10, 10), expected=100e6)[0] == 100e6
    assert train(0, 1).unrest == float("inf")


def test_a_report_of_an_earlier_train_is_too_late():
    one = peer()
    one.train = 1
    one.take_report(0, train(10, 10))
    assert one.bandwidth() is None
