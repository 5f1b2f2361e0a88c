from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.engines.segments import DESTINATION, HEADER_BYTES, extract, measure

SOURCE, TARGET = bytes((10, 77, 0, 10)), bytes((10, 77, 0, 11))
OPTIONS = bytes((1, 1, 8, 10)) + bytes(8)
IP_BYTES, TCP_BYTES = 20, 20 + len(OPTIONS)
FIN, PSH, ACK, CWR = 0x01, 0x08, 0x10, 0x80


def folded(data: bytes) -> int:
    if len(data) % 2:
        data += b"\0"
    total = sum(word for (word,) in struct.iter_unpack("!H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def large_frame(payload: bytes, segment_bytes: int, sequence: int = 7, flags: int = ACK) -> bytes:
    """A frame as the kernel hands it over: the sum over the pseudo header stands in the TCP sum."""
    vnet = struct.pack("=BBHHHH", 1, 1, IP_BYTES + TCP_BYTES, segment_bytes, IP_BYTES, 16)
    length = IP_BYTES + TCP_BYTES + len(payload)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, length, 40_000, 0x4000, 64, 6, 0) + SOURCE + TARGET
    ip = ip[:10] + struct.pack("!H", 0xFFFF ^ folded(ip)) + ip[12:]
    pseudo = SOURCE + TARGET + struct.pack("!HH", 6, TCP_BYTES + len(payload))
    tcp = struct.pack("!HHIIBBHHH", 1, 2, sequence, 3, TCP_BYTES << 2, flags, 4, folded(pseudo), 0)
    return vnet + ip + tcp + OPTIONS + payload


def received(frame: bytes) -> tuple[int, int, bytes]:
    """Check a frame as a receiver does; return sequence number, flags and payload."""
    packet = frame[HEADER_BYTES:]
    assert folded(packet[:IP_BYTES]) == 0xFFFF
    assert struct.unpack_from("!H", packet, 2)[0] == len(packet)
    segment = packet[IP_BYTES:]
    pseudo = SOURCE + TARGET + struct.pack("!HH", 6, len(segment))
    assert struct.unpack_from("!H", segment, 16)[0] == folded(pseudo)
    sequence, _, _, flags = struct.unpack_from("!IIBB", segment, 4)
    return sequence, flags, segment[TCP_BYTES:]


def test_a_packet_of_its_own_counts_once() -> None:
    frame = bytes(HEADER_BYTES) + bytes(100)
    assert measure(frame) == (100, 1)


@pytest.mark.parametrize(("size", "packets"), [(2000, 2), (2896, 2), (2897, 3), (60_000, 42)])
def test_a_large_frame_counts_the_headers_of_every_segment(size: int, packets: int) -> None:
    frame = large_frame(bytes(size), 1448)
    assert measure(frame) == (size + packets * (IP_BYTES + TCP_BYTES), packets)


def test_the_destination_stands_where_it_is_looked_for() -> None:
    assert large_frame(b"x" * 10, 5)[DESTINATION] == TARGET


@given(data=st.data())
def test_segments_are_those_that_the_kernel_would_have_cut(data: st.DataObject) -> None:
    payload = data.draw(st.binary(min_size=2, max_size=400))
    segment_bytes = data.draw(st.integers(1, len(payload) - 1))
    sequence = data.draw(st.integers(0, 2**32 - 1))
    frame = large_frame(payload, segment_bytes, sequence)
    count = measure(frame)[1]
    first = data.draw(st.integers(0, count - 1))
    run = data.draw(st.integers(1, count - first))

    part = extract(frame, first, run)

    start = first * segment_bytes
    expected = payload[start : start + run * segment_bytes]
    assert received(part) == ((sequence + start) % 2**32, ACK, expected)
    assert measure(part)[1] == run
    assert struct.unpack_from("!H", part, HEADER_BYTES + 4)[0] == 40_000 + first


def test_only_the_first_segment_has_cwr_and_only_the_last_has_fin_and_psh() -> None:
    frame = large_frame(bytes(30), 10, flags=FIN | PSH | ACK | CWR)
    flags = [received(extract(frame, number, 1))[1] for number in range(3)]
    assert flags == [CWR | ACK, ACK, FIN | PSH | ACK]
    assert received(extract(frame, 1, 2))[1] == FIN | PSH | ACK


def test_one_segment_alone_is_no_large_frame() -> None:
    frame = large_frame(bytes(30), 10)
    assert extract(frame, 1, 1)[:HEADER_BYTES] == struct.pack("=BBHHHH", 1, 0, 52, 0, 20, 16)
    assert extract(frame, 1, 2)[:HEADER_BYTES] == frame[:HEADER_BYTES]
    assert extract(frame, 0, 3) == frame
