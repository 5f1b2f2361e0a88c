import os
import random
import socket
import threading
import time

import pytest

from powertrip.exchange import probe
from powertrip.exchange.errors import ProbeError
from powertrip.exchange.probe import Prober
from powertrip.exchange.trains import MAGIC, MESSAGE, Kind
from tests.exchange.links import Link


@pytest.fixture
def opened():
    """Makes probers and links, and closes them."""
    made = []

    def keep(one):
        made.append(one)
        return one

    threads = set(threading.enumerate())
    yield keep
    for one in reversed(made):
        one.close()
    assert set(threading.enumerate()) - threads == set()


@pytest.fixture
def here(opened):
    return opened(Prober("127.0.0.1"))


@pytest.fixture
def there(opened):
    return opened(Prober("127.0.0.1"))


def one_link(here, endpoint, expected=25e6, **options):
    (link,) = here.sweep(0, [here.endpoint, endpoint], [0.0, expected], **{"limit_s": 5} | options)
    return link


@pytest.mark.parametrize(("delay_s", "megabits"), [(0.02, 20), (0.005, 2)])
def test_round_trip_and_bandwidth_of_a_link(opened, here, there, delay_s, megabits):
    rate = megabits * 1e6 / 8
    link = opened(Link(there.endpoint, delay_s=delay_s, rate=rate))
    found = one_link(here, link.endpoint, expected=rate)
    assert found.dst == 1
    assert 2 * delay_s <= found.rtt_s < 2 * delay_s + 0.05
    assert found.bandwidth == pytest.approx(rate, rel=0.25)


def test_lost_datagrams_are_made_do_without(opened, here, there):
    # The second and the fourth echo, a tenth of the train, and what ends it.
    echoes, train = {2, 4}, 35
    lost = echoes | set(range(5 + 5, 5 + train, 10)) | {5 + train + 1}
    link = opened(Link(there.endpoint, rate=1e6, drop=lambda number: number in lost))
    found = one_link(here, link.endpoint, expected=1e6)
    assert found.rtt_s > 0
    assert found.bandwidth == pytest.approx(1e6, rel=0.3)
    assert link.carried > 5 + train + 1


def test_several_sites_in_their_order_without_the_own_and_the_absent(opened, here):
    others = [opened(Prober("127.0.0.1")) for _ in range(3)]
    endpoints = [others[0].endpoint, others[1].endpoint, here.endpoint, None, others[2].endpoint]
    found = here.sweep(2, endpoints, [1e6] * 5, limit_s=5)
    assert [link.dst for link in found] == [0, 1, 4]
    assert all(link.rtt_s < 0.1 for link in found)
    assert here.sweep(0, [here.endpoint, None], [1e6] * 2, limit_s=5) == ()


def test_two_sites_measure_each_other_at_once(here, there):
    endpoints = [here.endpoint, there.endpoint]
    found = {}

    def measure(me, prober):
        found[me] = prober.sweep(me, endpoints, [1e6] * 2, limit_s=5)

    threads = [threading.Thread(target=measure, args=pair) for pair in enumerate((here, there))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[me][0].rtt_s is not None for me in (0, 1))


def test_a_silent_site_is_not_waited_for_longer_than_allowed(here, there, monkeypatch):
    monkeypatch.setattr(probe, "FIRST_ANSWER_S", 0.2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        endpoints = [here.endpoint, f"127.0.0.1:{port}/{'0' * 16}", there.endpoint]
        begin_s = time.monotonic()
        first, second = here.sweep(0, endpoints, [1e6] * 3, limit_s=30)
        assert time.monotonic() - begin_s < 15
    assert (first.rtt_s, first.bandwidth) == (None, None)
    assert second.rtt_s > 0


def test_the_limit_ends_a_sweep(opened, here, there):
    link = opened(Link(there.endpoint, delay_s=3.0))
    begin_s = time.monotonic()
    found = one_link(here, link.endpoint, limit_s=0.3)
    assert time.monotonic() - begin_s < 2
    assert (found.rtt_s, found.bandwidth) == (None, None)


def test_a_wrong_token_is_not_answered(here, there):
    place = there.endpoint.split("/")[0]
    assert one_link(here, f"{place}/{'0' * 16}", limit_s=0.3).rtt_s is None


def test_nobody_there_and_no_way_there_are_no_answers(here):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        port = gone.getsockname()[1]
    for place in (f"127.0.0.1:{port}", "240.0.0.1:9", "255.255.255.255:9"):
        assert one_link(here, f"{place}/{'0' * 16}", limit_s=0.3).rtt_s is None


def test_a_link_that_takes_echoes_but_no_train(here, there, monkeypatch):
    def refuse(*arguments):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(probe, "send_train", refuse)
    found = one_link(here, there.endpoint)
    assert found.rtt_s > 0
    assert found.bandwidth is None


def test_setting_stop_ends_a_sweep(opened, here, there):
    link = opened(Link(there.endpoint, delay_s=20.0))
    stop = threading.Event()
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    begin_s = time.monotonic()
    assert one_link(here, link.endpoint, limit_s=60, stop=stop).rtt_s is None
    assert time.monotonic() - begin_s < 10
    timer.join()


def test_closing_ends_a_sweep_and_the_thread(there):
    here = Prober("127.0.0.1")
    link = Link(there.endpoint, delay_s=20.0)
    timer = threading.Timer(0.1, here.close)
    timer.start()
    begin_s = time.monotonic()
    assert one_link(here, link.endpoint, limit_s=60).rtt_s is None
    assert time.monotonic() - begin_s < 10
    timer.join()
    here.close()
    link.close()
    assert one_link(here, there.endpoint, limit_s=1).rtt_s is None


def test_a_broken_thread_is_told(here, there, monkeypatch):
    def broken(arrival):
        raise ValueError("broken on purpose")

    monkeypatch.setattr(here, "_take", broken)
    with pytest.raises(ProbeError, match="ValueError: broken on purpose"):
        one_link(here, there.endpoint)


def test_an_address_of_another_machine_is_named():
    with pytest.raises(ProbeError, match=r"cannot listen on 203\.0\.113\.1: .*exchange\.probe"):
        Prober("203.0.113.1")


def test_garbage_is_ignored_and_no_datagram_is_answered_by_more_than_its_length(there):
    host, port = there.endpoint.split("/")[0].split(":")
    token = bytes.fromhex(there.endpoint.split("/")[1])
    chance = random.Random(7)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        to = (host, int(port))
        for _ in range(300):
            kind = chance.choice(list(Kind))
            whole = MESSAGE.pack(MAGIC, kind, os.urandom(8), os.urandom(8), 0, 1, 2, 3, 4)
            stranger.sendto(whole[: chance.randrange(80)], to)
            stranger.sendto(chance.randbytes(chance.randrange(100)), to)
            own = bytearray(MESSAGE.pack(MAGIC, kind, token, os.urandom(8), 0, 1, 2, 3, 4))
            own[chance.choice((0, 1, 2, 3, 4, 8, 11, 15))] ^= 255
            stranger.sendto(own, to)
        answered = [Kind.ECHO, Kind.TRAIN, Kind.ASK, Kind.ECHOED, Kind.REPORT]
        for number, kind in enumerate(answered):
            question = MESSAGE.pack(MAGIC, kind, token, b"question", number, 0, 0, 0, 0)
            stranger.sendto(question, to)
        stranger.settimeout(5)
        replies = [stranger.recv(2048) for _ in range(2)]
        stranger.settimeout(0.1)
        with pytest.raises(TimeoutError):
            stranger.recv(2048)
    assert [MESSAGE.unpack(reply)[1] for reply in replies] == [Kind.ECHOED, Kind.REPORT]


def test_the_memory_of_trains_is_bounded(there, monkeypatch):
    monkeypatch.setattr(probe, "TRAINS_KEPT", 4)
    host, port = there.endpoint.split("/")[0].split(":")
    token = bytes.fromhex(there.endpoint.split("/")[1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.settimeout(5)
        for number in range(20):
            nonce = number.to_bytes(8, "big")
            question = MESSAGE.pack(MAGIC, Kind.ASK, token, nonce, 0, 0, 0, 0, 0)
            stranger.sendto(question, (host, int(port)))
            stranger.recv(2048)
    assert len(there._trains) == 4


def test_a_link_that_is_too_slow_for_its_train_gets_a_smaller_one(opened, here, there):
    link = opened(Link(there.endpoint, rate=20e3))
    found = one_link(here, link.endpoint, expected=1e6, limit_s=0.5)
    assert found.rtt_s > 0
    assert found.bandwidth is None
    assert here._known[1] == 1e6 / 8
