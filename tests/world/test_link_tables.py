import csv

import pytest

from powertrip.errors import InputError
from powertrip.world.errors import NetworkError
from powertrip.world.files import read_table
from powertrip.world.link_tables import latency_pairs, region_links, region_of, throughput_pairs
from powertrip.world.settings import TableNetwork
from powertrip.world.sources import Context

PAIR = ("src_region", "dst_region")
LATENCY = """src_region,src_tier,dst_region,dst_tier,min_rtt,avg_rtt,max_rtt,mdev_rtt
gcp:x-a,PREMIUM,gcp:y-b,PREMIUM,9,10,11,1
gcp:y-b,PREMIUM,gcp:x-a,PREMIUM,9,20,90,1
gcp:x-a,PREMIUM,gcp:y-b,STANDARD,9,99,99,1
gcp:x-a,STANDARD,gcp:x-a,PREMIUM,1,1,1,1
"""
THROUGHPUT = """src_region,dst_region,throughput_sent,throughput_recieved,cpu_utilization,success
gcp:x-a,gcp:y-b,9e9,8e9,1,True
gcp:y-b,gcp:x-a,5e9,4e9,1,True
gcp:y-b,gcp:x-a,0,0,1,False
"""


def table(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return read_table(path, PAIR)


def links(tmp_path, latency=LATENCY, throughput=THROUGHPUT):
    (tmp_path / "latency.csv").write_text(latency)
    (tmp_path / "throughput.csv").write_text(throughput)
    settings = TableNetwork(latency_csv="latency.csv", throughput_csv="throughput.csv")
    return region_links(settings, Context(seed=0, base_dir=tmp_path, data_dir=None))


def test_directions_stay_apart_and_units_are_si(tmp_path):
    rtt_s, bandwidth = links(tmp_path).matrices(["gcp:x", "gcp:y"])
    assert rtt_s[0, 1] == pytest.approx(0.010)
    assert rtt_s[1, 0] == pytest.approx(0.020)
    assert bandwidth[0, 1] == pytest.approx(1e9)
    assert bandwidth[1, 0] == pytest.approx(0.5e9)


def test_measurements_of_one_pair_are_averaged(tmp_path):
    text = "src_region,dst_region,throughput_received_bits_per_second\na,b,2\na,b,4\n"
    assert throughput_pairs(table(tmp_path, text)) == {("a", "b"): 3.0}


def test_missing_pair_is_named(tmp_path):
    one_way = "\n".join(THROUGHPUT.splitlines()[:2]) + "\n"
    with pytest.raises(
        NetworkError, match=r"throughput\.csv does not hold the throughput from gcp:y to gcp:x; add"
    ):
        links(tmp_path, throughput=one_way).matrices(["gcp:x", "gcp:y"])


def test_zero_throughput_is_no_link(tmp_path):
    dead = THROUGHPUT.replace("9e9,8e9", "0,0")
    rtt_s, bandwidth = links(tmp_path, throughput=dead).matrices(["gcp:x", "gcp:y"])
    assert bandwidth[0, 1] == 0
    assert rtt_s[0, 1] == float("inf")
    assert rtt_s[1, 0] == pytest.approx(0.020)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (latency_pairs, "src_region,dst_region,rtt\na,b,1\n", "a latency table needs"),
        (throughput_pairs, "src_region,dst_region,bits\na,b,1\n", "a throughput table needs"),
        (latency_pairs, "src_region,dst_region,avg_rtt\na,b,-1\n", "line 2: avg_rtt is -1"),
        (latency_pairs, "src_region,dst_region,avg_rtt\na,b,nan\n", "line 2: avg_rtt is 'nan'"),
    ],
)
def test_bad_tables_are_refused(tmp_path, read, text, message):
    with pytest.raises(InputError, match=message):
        read(table(tmp_path, text))


@pytest.mark.parametrize(
    ("zone", "region"),
    [
        ("gcp:us-west1-a", "gcp:us-west1"),
        ("gcp:us-east1-b", "gcp:us-east1"),
        ("aws:us-east-1", "aws:us-east-1"),
        ("azure:eastus2", "azure:eastus2"),
    ],
)
def test_zones_are_in_regions(zone, region):
    assert region_of(zone) == region


def test_packaged_table_is_that_of_skyplane(real_data):
    wan = real_data / "wan"
    settings = TableNetwork(
        latency_csv=wan / "skyplane_latency_2022-04.csv",
        throughput_csv=wan / "skyplane_gcp_intracloud_throughput_2022-04.csv",
    )
    context = Context(seed=0, base_dir=wan, data_dir=None)
    raw, packaged = region_links(settings, context), region_links(TableNetwork(), context)
    regions = sorted(packaged.regions)
    assert len(regions) == 27
    for ours, theirs in zip(packaged.matrices(regions), raw.matrices(regions), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
        assert abs(ours - ours.T).max() > 0.1 * ours.max()
    with (wan / "skyplane_gcp_intracloud_throughput_2022-04.csv").open() as file:
        first = next(csv.DictReader(file))
    pair = region_of(first["src_region"]), region_of(first["dst_region"])
    assert packaged.bandwidth[pair] == pytest.approx(
        float(first["throughput_recieved"]) / 8, rel=1e-3
    )


def test_skyplane_table_of_three_clouds_is_read(real_data):
    path = real_data / "wan/skyplane_throughput_2022-01.csv"
    pairs = throughput_pairs(read_table(path, PAIR))
    assert {name.split(":")[0] for pair in pairs for name in pair} == {"aws", "azure", "gcp"}
    assert min(pairs.values()) > 0
