from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from powertrip.selection.objective import Objective, ObjectiveSettings


def test_price_by_hand(observe):
    seen = observe(throughput=[1.0, 2.0], used_power_w=[100.0, 50.0], carbon_g_per_j=[2.0, 1.0])
    made = Objective.of(ObjectiveSettings(time=1, carbon=3), seen)
    np.testing.assert_allclose(made.per_s, [[200.0, 50.0]])
    # 16^(1/4) * 81^(3/4)
    price = made.price(np.array([16.0]), np.array([[81.0]]))
    np.testing.assert_allclose(price, [54.0])
    np.testing.assert_allclose(made.site_price(np.array([2.0, 0.02]))[1], 1.0)


def test_time_alone_is_the_time(observe):
    made = Objective.of(ObjectiveSettings(time=2), observe())
    assert made.only_time
    np.testing.assert_allclose(made.price(np.array([3.0]), np.empty((0, 1))), [3.0])


def test_what_is_free_everywhere_counts_for_nothing(observe):
    made = Objective.of(ObjectiveSettings(time=0, carbon=1), observe())
    assert made.only_time
    assert made.exponents.tolist() == [1.0]


def test_something_must_count():
    with pytest.raises(ValidationError, match="no exponent is above 0"):
        ObjectiveSettings(time=0)
