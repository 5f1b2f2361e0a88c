import csv
import gzip
import random

import numpy as np
import pytest

from powertrip.errors import InputError
from powertrip.world.site_settings import GooglePower, SiteSettings
from powertrip.world.sources import Context
from powertrip.world.sources.google import load_google

HEADER = (
    "time,cell,pdu,measured_power_util,production_power_util,bad_measurement_data,"
    "bad_production_power_data"
)
START, STEP = 600_000_000, 300_000_000


def row(index, util, *, pdu="pdu6", bad="false", bad_production="false"):
    return f"{START + index * STEP},a,{pdu},{util},0.5,{bad},{bad_production}"


def load(folder, content, name="cella_pdu6.csv.gz", **options):
    data = content.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return feed(folder, name, **options)


def feed(folder, name, **options):
    power = GooglePower(path=name, **{"capacity_w": 1000, **options})
    site = SiteSettings(name="s", samples_per_s=1, power=power)
    return load_google([site], Context(seed=0, base_dir=folder, data_dir=None))[0]


def test_official_form_is_sorted_and_bad_rows_are_filled(tmp_path):
    rows = [
        row(3, 0.70),
        row(0, 0.60),
        row(2, 0.99, bad="true"),
        row(1, 0.60),
        row(5, "", bad_production="true"),
        row(4, 0.72),
        row(6, 0.74),
    ]
    made = load(tmp_path, "\n".join([HEADER, *rows]), share=0.5, offset_s=300)
    assert made.gain == 500
    assert made.offset_s == 300
    assert made.trace.values == pytest.approx([0.40, 0.40, 0.35, 0.30, 0.28, 0.27, 0.26])
    assert made.trace.times_s.tolist() == [300.0 * i for i in range(7)]
    assert made.trace.end_s == 2100


def test_domain_is_chosen(tmp_path):
    rows = [row(0, 0.5), row(0, 0.7, pdu="pdu7"), row(1, 0.5), row(1, 0.8, pdu="pdu7")]
    text = "\n".join([HEADER, *rows])
    assert load(tmp_path, text, pdu="pdu7").trace.values == pytest.approx([0.3, 0.2])
    with pytest.raises(InputError, match=r"several power domains \(pdu6, pdu7\); name one"):
        load(tmp_path, text)
    with pytest.raises(InputError, match=r"no power domain 'pdu8'; power\.pdu must be one of"):
        load(tmp_path, text, pdu="pdu8")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(0, 0.5), row(1, 1.2)], "line 3: measured_power_util is 1.2; it must be a fraction"),
        ([row(0, -0.1)], "line 2: measured_power_util is -0.1"),
        ([row(0, "nan")], "line 2: measured_power_util is 'nan'"),
        ([row(0, 0.5), row(0, 0.5)], "appears twice"),
        ([row(0, 0.5), row(1, 0.5), row(40, 0.5)], "gap of 11700 s"),
        ([row(0, 0.5, bad="true")], "every row is marked as bad"),
        ([row(0, 0.5, bad="maybe")], "line 2: bad_measurement_data is 'maybe'"),
        ([row(0.5, 0.5)], "time is '750000000.0'; it must be a whole number of microseconds"),
    ],
)
def test_bad_rows_are_refused(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        load(tmp_path, "\n".join([HEADER, *rows]))


def test_wrong_header_is_refused(tmp_path):
    with pytest.raises(InputError, match="without measured_power_util"):
        load(tmp_path, "time,util\n1,2\n", "power.csv")


def test_reduced_form_of_the_real_trace(real_data, tmp_path):
    path = real_data / "google_power/cella_pdu7.csv"
    made = feed(path.parent, path.name)
    with path.open() as file:
        used = np.array([float(r["measured_power_util"]) for r in csv.DictReader(file)])
    assert made.trace.end_s == 31 * 86400
    assert made.trace.at(300.0 * np.arange(used.size)) == pytest.approx(1 - used)

    rows = [row(i, util, pdu="pdu7") for i, util in enumerate(used)]
    rows.append(row(used.size, 0.1, pdu="pdu7", bad="TRUE"))
    random.Random(0).shuffle(rows)
    official = load(tmp_path, "\n".join([HEADER, *rows]))
    assert official.trace.values == pytest.approx(made.trace.values)
    assert official.trace.end_s == made.trace.end_s
