import gzip
from pathlib import Path

import pytest

from powertrip.errors import InputError
from powertrip.world.files import find_file, read_table


def test_configuration_folder_comes_before_data_folder(tmp_path):
    here, data = tmp_path / "here", tmp_path / "data"
    for folder in (here, data):
        folder.mkdir()
        (folder / "both.csv").touch()
    (data / "only.csv").touch()
    assert find_file(Path("both.csv"), here, data) == here / "both.csv"
    assert find_file(Path("only.csv"), here, data) == data / "only.csv"
    assert find_file(data / "only.csv", here, None) == data / "only.csv"


def test_missing_file_names_the_folders_searched(tmp_path):
    here, data = tmp_path / "here", tmp_path / "data"
    with pytest.raises(InputError) as caught:
        find_file(Path("power.csv"), here, data)
    assert f"no file power.csv (searched in {here} and {data})" in str(caught.value)
    assert "POWERTRIP_DATA" in str(caught.value)
    with pytest.raises(InputError, match="POWERTRIP_DATA is not set"):
        find_file(Path("power.csv"), here, None)
    with pytest.raises(InputError, match=r"there is no file .*gone\.csv; correct the path"):
        find_file(tmp_path / "gone.csv", here, data)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_reads_columns_in_any_order(tmp_path, pack):
    path = tmp_path / "table.csv"
    path.write_bytes(pack(b"\xef\xbb\xbfb, a,more\r\n1,2,x\r\n\r\n3,4.5,y\r\n"))
    table = read_table(path, ("a", "b"))
    assert [*table.numbers("a")] == [2.0, 4.5]
    assert [line for line, _ in table.rows] == [2, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"table\.csv is empty; it needs the header a,b"),
        (b"\n\n", "is empty"),
        (b"a,b\n", "has a header but no rows"),
        (b"a,c\n1,2\n", "line 1: the header is 'a,c', without b; it needs the columns a,b"),
        (b"1,2\n3,4\n", "without a, b"),
        (b"a,b\n1,2\n1,2,3\n", r"line 3: 3 fields where the header has 2 \(a,b\)"),
        (b"\x1f\x8b broken", "is a damaged gzip file"),
        (gzip.compress(b"a,b\n1,2\n")[:-9], "is a damaged gzip file"),
        (b"\xff\xfe\x00", "is not a CSV file in UTF-8"),
    ],
)
def test_bad_file_is_refused(tmp_path, content, message):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_table(path, ("a", "b"))


@pytest.mark.parametrize("text", ["", "ten", "nan", "-inf"])
def test_what_is_no_number_is_refused_with_its_line(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(f"a,b\n1,2\n{text},4\n")
    with pytest.raises(InputError, match=f"line 3: a is '{text}'; write a number"):
        list(read_table(path, ("a", "b")).numbers("a"))


def test_folder_is_not_a_table(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_table(tmp_path, ("a",))
