from __future__ import annotations

import pytest

from powertrip.exchange.codec import packed_bytes, packing_s


def test_int8_takes_a_byte_a_number_and_four_a_block():
    assert packed_bytes("none", 4_100) == 4_100
    assert packed_bytes("int8", 4_096) == 1_024 + 4
    assert packed_bytes("int8", 4_100) == 1_025 + 8
    # a million bytes of float32 are 250,000 numbers in 245 blocks
    assert packed_bytes("int8", 1_000_000) == 250_000 + 980
    assert packed_bytes("int8", 1) == 5


def test_packing_takes_time_on_both_ways():
    assert packing_s("none", 10**9) == 0
    assert packing_s("int8", 10**9) == pytest.approx(2 * (1 / 6.7 + 1 / 13.4))
