from __future__ import annotations

import numpy as np

from powertrip.selection.round_parts import added_s, local_in, round_of


def test_one_after_the_other_by_hand():
    local_s, delay_s = np.array([2.0, 1.0]), np.array([0.5, 3.0])
    assert round_of(local_s, delay_s, overlap=False).tolist() == [2.5, 4.0]
    assert local_in(2.5, delay_s, overlap=False).tolist() == [2.0, -0.5]
    assert added_s(local_s, delay_s, overlap=False).tolist() == [0.5, 3.0]


def test_at_the_same_time_by_hand():
    local_s, delay_s = np.array([2.0, 1.0]), np.array([0.5, 3.0])
    assert round_of(local_s, delay_s, overlap=True).tolist() == [2.0, 3.0]
    assert local_in(2.5, delay_s, overlap=True).tolist() == [2.5, 0.0]
    assert local_in(3.0, delay_s, overlap=True).tolist() == [3.0, 3.0]
    assert added_s(local_s, delay_s, overlap=True).tolist() == [0.0, 2.0]


def test_without_a_link_there_is_no_round():
    assert round_of(1.0, np.inf, overlap=True) == np.inf
    assert local_in(1e9, np.inf, overlap=True) == 0.0
