from __future__ import annotations

import math

import pytest

from powertrip.coordination.messages import Begin
from powertrip.coordination.round_model import RoundModel, exchange_model


def begin(members, *, steps=None, deadline_s=None) -> Begin:
    return Begin(
        generation=1, members=members, steps=steps, deadline_s=deadline_s, first_round=1,
        transfers=(), clock_s=0.0,
    )  # fmt: skip


def configured(setup, *, model="auto", algorithm="auto", overlap=False):
    config = setup.config
    return config.model_copy(
        update={
            "selection": config.selection.model_copy(update={"exchange_model": model}),
            "exchange": config.exchange.model_copy(
                update={"algorithm": algorithm, "overlap": overlap}
            ),
        }
    )


@pytest.fixture
def make(three_sites):
    def make(model: str, *, overlap: bool = False) -> RoundModel:
        config = configured(three_sites, model=model, overlap=overlap)
        return RoundModel(three_sites.build_world(), config, update_bytes=500_000)

    return make


@pytest.fixture
def model(make):
    return make("star")


@pytest.mark.parametrize(
    ("model", "algorithm", "backend", "expected"),
    [
        ("star", "ring", "gloo", "star"),
        ("ring", "auto", "gloo", "ring"),
        ("auto", "ring", "gloo", "ring"),
        ("auto", "mesh", "gloo", "mesh"),
        ("auto", "auto", "gloo", "mesh"),
        ("auto", "auto", "nccl", "ring"),
    ],
)
def test_the_exchange_is_modelled_as_it_is_run(three_sites, model, algorithm, backend, expected):
    assert exchange_model(configured(three_sites, model=model, algorithm=algorithm), backend) == (
        expected
    )


def test_local_training_takes_its_samples_over_the_speed(model):
    work = begin((2, 0, 1), steps=(2, 4, 1))
    # 10 samples a step at 100, 50 and 25 samples a second.
    assert model.local_s(work, 0, 0.0) == pytest.approx(0.4)
    assert model.local_s(work, 1, 0.0) == pytest.approx(0.2)
    assert model.local_s(work, 2, 0.0) == pytest.approx(0.8)


def test_power_that_changes_within_a_round_counts(model):
    # From second 10 on, oslo has half its power.
    work = begin((2,), steps=(5,))
    assert model.local_s(work, 2, 9.0) == pytest.approx(1.0 + 25 / 12.5)
    assert model.local_s(work, 2, 10.0) == pytest.approx(4.0)


def test_a_deadline_is_its_own_length(model):
    work = begin((1, 2), deadline_s=(0.3, 0.7))
    assert model.local_s(work, 1, 0.0) == 0.3
    assert model.local_s(work, 2, 99.0) == 0.7
    assert model.stalled(work, 50.0) == []


def test_a_round_ends_with_the_last_member_to_train_and_reach_the_hub(model):
    assert model.round_s(begin((0, 1), steps=(40, 1)), 0.0) == pytest.approx(4.0 + 0.05)
    assert model.round_s(begin((0, 1), steps=(4, 4)), 0.0) == pytest.approx(0.8 + 1.1)
    assert model.round_s(begin((0, 2), deadline_s=(1.0, 0.5)), 0.0) == pytest.approx(1.45)


def test_around_a_ring_the_order_of_the_members_counts(make):
    model = make("ring")
    # A third of the update is 166,667 bytes; the slowest hop is that with a round trip of 1 s.
    hop_s = 0.5 + 500_000 / 3 / 1e6
    work = begin((0, 1, 2), steps=(4, 4, 1))
    assert model.round_s(work, 0.0) == pytest.approx(0.8 + 4 * hop_s)
    # Between two, half of it goes over the same hops; the longest is the one at 1 MB/s.
    work = begin((2, 0), deadline_s=(0.3, 0.7))
    assert model.round_s(work, 0.0) == pytest.approx(0.7 + 2 * (0.1 + 0.25))


def test_in_a_mesh_the_slowest_pair_counts_twice(make):
    work = begin((0, 1, 2), steps=(4, 4, 1))
    slowest_s = 0.5 + 500_000 / 3 / 1e6
    assert make("mesh").round_s(work, 0.0) == pytest.approx(0.8 + 2 * slowest_s)


def test_with_overlap_the_longer_of_training_and_exchange_counts(make):
    star, mesh = make("star", overlap=True), make("mesh", overlap=True)
    assert star.round_s(begin((0, 1), steps=(4, 4)), 0.0) == pytest.approx(1.1)
    assert star.round_s(begin((0, 1), steps=(4, 10)), 0.0) == pytest.approx(2.0)
    slowest_s = 0.5 + 500_000 / 3 / 1e6
    assert mesh.round_s(begin((0, 1, 2), steps=(4, 4, 1)), 0.0) == pytest.approx(2 * slowest_s)
    assert mesh.round_s(begin((0, 1, 2), steps=(4, 10, 1)), 0.0) == pytest.approx(2.0)


def test_a_member_alone_is_charged_the_shortest_exchange(make):
    assert make("mesh").round_s(begin((2,), steps=(1,)), 0.0) == pytest.approx(0.4 + 0.05)


def test_a_site_without_power_stalls_the_round(model):
    # From second 20 on, oslo has none for good.
    work = begin((0, 2), steps=(1, 5))
    assert model.stalled(work, 0.0) == []
    assert model.stalled(work, 19.0) == ["oslo"]
    assert model.round_s(work, 20.0) == math.inf
