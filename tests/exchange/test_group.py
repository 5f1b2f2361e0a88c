from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from powertrip.errors import InputError
from powertrip.exchange.errors import BackendUnusable, ExchangeError
from powertrip.exchange.group import Group, choose_algorithm, choose_backend, store_prefix

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


def alone(site: int = 5) -> Group:
    return Group(
        None,  # a group of one needs no store
        generation=3,
        members=(site,),
        site=site,
        name="alone",
        backend="gloo",
        timeout_s=1,
    )


@pytest.mark.parametrize(
    ("wanted", "device", "own_gpu", "nccl", "backend"),
    [
        ("auto", CPU, False, True, "gloo"),
        ("auto", CPU, True, True, "gloo"),
        ("auto", GPU, True, True, "nccl"),
        ("auto", GPU, False, True, "gloo"),
        ("auto", GPU, True, False, "gloo"),
        ("gloo", CPU, True, True, "gloo"),
        ("gloo", GPU, True, True, "gloo"),
        ("nccl", GPU, True, True, "nccl"),
        ("nccl", CPU, True, True, None),
        ("nccl", GPU, False, True, None),
        ("nccl", GPU, True, False, None),
    ],
)
def test_which_backend(monkeypatch, wanted, device, own_gpu, nccl, backend):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    if backend is not None:
        assert choose_backend(wanted, device, own_gpu=own_gpu) == backend
        return
    with pytest.raises(
        BackendUnusable, match=r"exchange\.backend is nccl.*write auto or gloo"
    ) as e:
        choose_backend(wanted, device, own_gpu=own_gpu)
    assert isinstance(e.value, InputError)
    assert str(device) in str(e.value)
    assert ("other processes use" in str(e.value)) == (not own_gpu)


@pytest.mark.parametrize(
    ("wanted", "backend", "algorithm"),
    [
        ("auto", "gloo", "mesh"),
        ("auto", "nccl", "ring"),
        ("ring", "gloo", "ring"),
        ("ring", "nccl", "ring"),
        ("mesh", "gloo", "mesh"),
        ("mesh", "nccl", None),
    ],
)
def test_which_algorithm(wanted, backend, algorithm):
    if algorithm is not None:
        assert choose_algorithm(wanted, backend) == algorithm
        return
    with pytest.raises(
        BackendUnusable, match=r"write exchange\.algorithm: ring or exchange\.backend"
    ):
        choose_algorithm(wanted, backend)


def test_ranks_follow_the_order_of_the_decision(members):
    results = members.each((3, 0, 2), lambda group: (group.rank, group.size, group.members))
    assert results == {3: (0, 3, (3, 0, 2)), 0: (1, 3, (3, 0, 2)), 2: (2, 3, (3, 0, 2))}


def test_a_group_of_one_exchanges_nothing():
    with alone() as group:
        tensor = torch.tensor([1.5, -2.0])
        group.sum(tensor).run()
        assert tensor.tolist() == [1.5, -2.0]
        assert (group.rank, group.size, group.bytes_sent) == (0, 1, 0)


def test_send_and_receive_move_a_tensor_from_site_to_site(members):
    def work(group):
        site = group.members[group.rank]
        if site == 3:
            group.send(torch.arange(5.0), to_site=1)
            group.send(torch.arange(7.0), to_site=2)
        else:
            tensor = torch.zeros(5 if site == 1 else 7)
            group.receive(tensor, from_site=3)
            return tensor.tolist(), group.bytes_sent, group.bytes_received
        return group.bytes_sent, group.bytes_received

    results = members.each((1, 2, 3), work)
    assert results[1] == ([0, 1, 2, 3, 4], 0, 20)
    assert results[2] == ([0, 1, 2, 3, 4, 5, 6], 0, 28)
    assert results[3] == (20 + 28, 0)


def test_the_keys_of_a_generation_share_a_prefix(members):
    generation = members.next_generation()
    members.each((0, 1), lambda group: None, generation=generation)
    keys = [key.lstrip("/") for key in members.server.list_keys()]
    prefix = store_prefix(generation)
    assert prefix == f"group/{generation}"
    assert [key for key in keys if key.startswith(f"{prefix}/members/")]
    assert not [key for key in keys if str(generation) in key and not key.startswith("group/")]


@pytest.mark.parametrize("algorithm", ["ring", "mesh"])
def test_a_member_that_leaves_makes_the_others_fail_at_once(members, algorithm):
    generation = members.next_generation()

    def work(group):
        group.sum(torch.ones(1)).run()  # all are connected
        if group.rank != 1:  # which closes the group
            with pytest.raises(ExchangeError) as caught:
                group.sum(torch.ones(100_000)).run()
            return caught.value
        return None

    started_s = time.monotonic()
    results = members.each(
        (0, 1, 2), work, timeout_s=50, generation=generation, algorithm=algorithm
    )
    for site in (0, 2):
        error = results[site]
        assert (error.action, error.site, error.generation) == (
            "all-reduce",
            f"site-{site}",
            generation,
        )
        assert f"all-reduce failed at site site-{site} in generation {generation}: " in str(error)
    assert time.monotonic() - started_s < 20


@pytest.mark.parametrize("algorithm", ["ring", "mesh"])
def test_a_member_that_is_silent_makes_the_others_fail_in_time(members, algorithm):
    release = threading.Event()

    def work(group):
        if group.rank == 1:
            release.wait(30)
        else:
            try:
                group.sum(torch.ones(4)).run()
            finally:
                release.set()

    results = members.each((0, 1), work, timeout_s=0.5, algorithm=algorithm)
    assert isinstance(results[0], ExchangeError)
    assert results[1] is None


def test_a_member_that_never_comes_is_given_up(members):
    started_s = time.monotonic()
    results = members.each((0, 2), lambda group: None, members=(0, 1, 2), timeout_s=0.5)
    assert time.monotonic() - started_s < 20
    for site in (0, 2):
        assert isinstance(results[site], ExchangeError)
        assert results[site].action == "building the process group"
        assert results[site].site == f"site-{site}"


def test_a_group_can_be_built_after_one_that_failed(members):
    members.each((0, 2), lambda group: None, members=(0, 1, 2), timeout_s=0.2)

    def work(group):
        tensor = torch.ones(1)
        group.sum(tensor).run()
        return tensor.item()

    assert members.each((0, 1, 2), work) == {0: 3.0, 1: 3.0, 2: 3.0}


def test_two_groups_of_one_generation_do_not_meet(members):
    def build(site, purpose):
        return Group(
            members.stores[site],
            generation=generation,
            members=(0, 1),
            site=site,
            name="x",
            backend="gloo",
            timeout_s=20,
            purpose=purpose,
        )

    generation = members.next_generation()
    sums = {}

    def work(site):
        for purpose, add in (("handover", 1.0), ("members", 10.0)):
            tensor = torch.full((1,), add)
            with build(site, purpose) as group:
                group.sum(tensor).run()
            sums[site, purpose] = tensor.item()

    threads = [threading.Thread(target=work, args=(site,)) for site in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sums == {(s, p): v for s in (0, 1) for p, v in (("handover", 2.0), ("members", 20.0))}


def test_30_generations_leave_no_descriptors_and_no_threads(members):
    def build():
        def work(group):
            group.sum(torch.ones(10)).run()

        assert set(members.each((0, 1, 2), work).values()) == {None}

    def count():
        return [len(list(Path("/proc/self", of).iterdir())) for of in ("fd", "task")]

    for _ in range(3):
        build()
    before = count()
    for _ in range(30):
        build()
    after = count()
    # A group of three members has 27 descriptors and 9 threads: not one may stay.
    assert after[0] <= before[0] + 5
    assert after[1] <= before[1] + 5


def total_of(group: Group, add: float = 1.0) -> list[float]:
    """The sum of the members' `rank + add`, in one element more than there are members."""
    tensor = torch.full((group.size + 1,), group.rank + add)
    group.sum(tensor).run()
    return tensor.unique().tolist()


@pytest.mark.parametrize("left", [(0, 1, 2), (2, 0, 3), (3, 1), (1, 2)])
def test_those_that_are_left_go_on_over_the_connections_of_a_group(members, left):
    """Two of four go, one after the other: whoever is left, in whatever order."""
    all_there, gone = threading.Barrier(4), threading.Barrier(4)

    def work(group):
        site = group.members[group.rank]
        assert total_of(group) == [10.0]
        all_there.wait(20)
        if site not in left:
            group.close()
            gone.wait(20)
            return None
        gone.wait(20)
        with group.among(left, generation=77, site=site) as fewer:
            group.close()  # which has nothing left to close
            found = [total_of(fewer, 1.0), total_of(fewer, 5.0)]
            return fewer.members, fewer.rank, fewer.generation, found

    results = members.each((0, 1, 2, 3), work)
    k = len(left)
    for place, site in enumerate(left):
        ranks = sum(range(k))
        assert results[site] == (left, place, 77, [[ranks + k], [ranks + 5.0 * k]])


def test_a_group_can_shrink_again_and_again_to_one(members):
    def work(group):
        site, sums = group.members[group.rank], [total_of(group)]
        for left in ((3, 0, 1), (1, 3), (3,)):
            if site not in left:
                break
            group = group.among(left, generation=90, site=site)
            sums.append(total_of(group))
        group.close()
        return sums

    results = members.each((0, 1, 2, 3), work)
    assert results == {
        0: [[10.0], [6.0]], 2: [[10.0]],
        1: [[10.0], [6.0], [3.0]], 3: [[10.0], [6.0], [3.0], [1.0]],
    }  # fmt: skip


def test_those_that_are_left_send_and_receive_too(members):
    def work(group):
        site = group.members[group.rank]
        if site == 0:
            return None
        with group.among((3, 1), generation=91, site=site) if site != 2 else group as fewer:
            tensor = torch.full((2,), 7.0 if site == 3 else 0.0)
            if site == 3:
                fewer.send(tensor, 1)
            elif site == 1:
                fewer.receive(tensor, 3)
            return tensor.tolist()

    assert members.each((0, 1, 2, 3), work)[1] == [7.0, 7.0]


def test_only_an_open_mesh_can_go_on_with_a_part(members):
    with alone() as group:
        assert not group.divisible
        with pytest.raises(ValueError, match="only an open group"):
            group.among((5,), generation=4, site=5)

    def work(group):
        assert group.divisible == (group._algorithm == "mesh")
        group.close()
        with pytest.raises(ValueError, match="only an open group"):
            group.among((0,), generation=4, site=0)

    for algorithm in ("mesh", "ring"):
        assert set(members.each((0, 1), work, algorithm=algorithm).values()) == {None}


def test_a_site_that_does_not_send_is_named_by_who_waits_to_receive(members):
    done = threading.Barrier(2)

    def work(group):
        site = group.members[group.rank]
        try:
            if site == 3:
                group.receive(torch.zeros(4), 1, timeout_s=0.3)
        finally:
            done.wait(20)

    error = members.each((3, 1), work)[3]
    assert (error.action, error.awaited, error.adds) == ("receive", 1, True)


def test_closing_twice_is_harmless():
    group = alone()
    group.close()
    group.close()
