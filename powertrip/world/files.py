"""Finding and reading the files that describe a world."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from powertrip.errors import InputError

PACKAGED = Path(__file__).parent / "data"
MOST_BYTES = 2**30
"""Size of the largest table, unpacked."""
PACKAGED_LINKS = PACKAGED / "gcp_wan.csv"


def find_file(path: Path, base_dir: Path, data_dir: Path | None) -> Path:
    """Return where the file named in a setting lies.

    Parameters
    ----------
    path
        The path as it is written; `~` is the home folder.
    base_dir, data_dir
        The folders in which a relative path is looked for, in this order: that of the
        configuration file, and the data folder, if there is one.

    Raises
    ------
    InputError
        If there is no such file; the message names the folders that were searched.
    """
    try:
        path = path.expanduser()
        folders = [base_dir] if data_dir is None else [base_dir, data_dir]
        for found in [path] if path.is_absolute() else [folder / path for folder in folders]:
            if found.is_file():
                return found
    except (OSError, RuntimeError) as error:  # a name that is too long, a user that there is not
        raise InputError(f"{str(path)[:200]} is no path of a file: {error}"[:500]) from error
    if path.is_absolute():
        raise InputError(f"there is no file {path}; correct the path")
    hint = (
        "POWERTRIP_DATA is not set: let it name the folder with the data"
        if data_dir is None
        else "correct the path, or POWERTRIP_DATA"
    )
    searched = " and ".join(str(folder.absolute()) for folder in folders)
    raise InputError(f"there is no file {path} (searched in {searched}); {hint}")


@dataclass(frozen=True)
class Table:
    """The text of a CSV file with a header.

    Parameters
    ----------
    path
        Where it was read from.
    header
        The names of the columns.
    rows
        The line number and the fields of each row, as many as there are columns.
    """

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[int, list[str]], ...]

    def column(self, name: str) -> int:
        """Return the place of a column that the header has."""
        return self.header.index(name)

    def numbers(self, name: str) -> Iterator[float]:
        """Yield the numbers of a column, from top to bottom.

        Raises
        ------
        InputError
            If a field is not a finite number; the message names the line.
        """
        at = self.column(name)
        for line, fields in self.rows:
            yield self.number(line, name, fields[at])

    def number(self, line: int, name: str, text: str) -> float:
        """Return the finite number that a field holds, or raise InputError naming the line."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(
                f"{self.path}, line {line}: {name} is {text!r}; write a number, or leave the "
                "line out"
            )
        return value


def read_table(path: Path, required: Sequence[str]) -> Table:
    """Read a CSV file, plain or gzipped.

    Parameters
    ----------
    path
        The file.
    required
        The columns that it must have, in any order, beside others.

    Raises
    ------
    InputError
        If the file cannot be read, is empty, lacks a column or has a row of another length.
    """
    lines = csv.reader(io.StringIO(_read_text(path), newline=""))
    expected = ",".join(required)
    header: tuple[str, ...] | None = None
    rows = []
    try:
        for fields in lines:
            if not fields:
                continue
            if header is None:
                header = tuple(name.strip() for name in fields)
            elif len(fields) != len(header):
                raise InputError(
                    f"{path}, line {lines.line_num}: {len(fields)} fields where the header has "
                    f"{len(header)} ({','.join(header)})"
                )
            else:
                rows.append((lines.line_num, fields))
    except csv.Error as error:
        raise InputError(f"{path}, line {lines.line_num}: {error}") from error
    if header is None:
        raise InputError(f"{path} is empty; it needs the header {expected} and rows below it")
    missing = [name for name in required if name not in header]
    if missing:
        raise InputError(
            f"{path}, line 1: the header is {','.join(header)!r}, without "
            f"{', '.join(missing)}; it needs the columns {expected}"
        )
    if not rows:
        raise InputError(f"{path} has a header but no rows; it needs at least one")
    return Table(path, header, tuple(rows))


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if content.startswith(b"\x1f\x8b"):
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError(f"{path} is too large: tables may have {MOST_BYTES} bytes")
        return content.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file: {error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
