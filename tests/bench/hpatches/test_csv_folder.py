"""Folders of descriptors in the exchange format of HPatches."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from hardnet.bench.hpatches.run import CsvFolder, read_csv, write_csv
from hardnet.errors import HardnetError
from hardnet.matching.neighbours import distance_matrix


def slow_read(path: Path) -> np.ndarray:
    with path.open(newline="") as file:
        return np.array([[np.float32(word) for word in row] for row in csv.reader(file)])


@pytest.fixture
def vectors() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(40, 12)) * 10.0 ** rng.integers(-30, 30, (40, 12))).astype(np.float32)


def test_what_is_written_is_read(tmp_path: Path, vectors: np.ndarray) -> None:
    path = write_csv(tmp_path / "new" / "MyDesc", "v_wall", "e1", vectors)
    assert path == tmp_path / "new" / "MyDesc" / "v_wall" / "e1.csv"
    np.testing.assert_array_equal(slow_read(path), vectors)
    folder = CsvFolder(tmp_path / "new" / "MyDesc")
    for _ in range(2):  # parsed, then mapped
        values = folder.get("v_wall", "e1", 40)
        assert values.dtype == np.float32
        assert not values.flags.writeable
        np.testing.assert_array_equal(values, vectors)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]  # and nothing else, no cache


def test_bits_keep_their_order(tmp_path: Path) -> None:
    bits = np.random.default_rng(1).integers(0, 256, (20, 4), dtype=np.uint8)
    path = write_csv(tmp_path, "v", "ref", bits)
    assert set(path.read_text()) == set("01,\n")
    values = CsvFolder(tmp_path).get("v", "ref", 20)
    assert values.shape == (20, 32)
    squared = distance_matrix(values, values) ** 2
    np.testing.assert_allclose(squared, distance_matrix(bits, bits), atol=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "1,2.5,-3e-2\n4,5,6\n",
        "1;2.5;-3e-2\r\n4;5;6\r\n",
        " 1, 2.5, -3e-2\n4,5,6",
        "\ufeff1,2.5,-0.03\n4,5,6",
    ],
)
def test_forms_that_others_write(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    expected = np.array([[1, 2.5, -0.03], [4, 5, 6]], np.float32)
    np.testing.assert_array_equal(read_csv(path), expected)


def test_one_row_and_one_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1,2,3\n")
    assert read_csv(path).shape == (1, 3)
    path.write_text("1\n2\n")
    assert read_csv(path).shape == (2, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3\n", "a.csv is not rows of numbers of one length.*columns changed from 2 to 1"),
        ("x,y\n1,2\n", "could not convert string 'x'"),
        ("1,2\n3,nan\n", "a.csv has NaN or infinity in row 2"),
        ("1,2,\n", "not rows of numbers of one length"),
        ("", "a.csv is empty"),
        ("\xff\xfe", "could not convert"),
    ],
)
def test_broken_files_say_what_and_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HardnetError, match=message):
        read_csv(path)


def test_counts_and_missing_files(tmp_path: Path, vectors: np.ndarray) -> None:
    write_csv(tmp_path, "v", "ref", vectors)
    folder = CsvFolder(tmp_path)
    with pytest.raises(HardnetError, match=r"ref\.csv has 40 rows, but the strip has 41 patches"):
        folder.get("v", "ref", 41)
    with pytest.raises(HardnetError, match=r"there is no .*e1\.csv"):
        folder.get("v", "e1", 40)
    assert folder.get("v", "ref", 40).shape == (40, 12)
    write_csv(tmp_path, "v", "e1", vectors[:, :5])
    with pytest.raises(HardnetError, match=r"e1\.csv has 5 numbers per row, but .*ref\.csv has 12"):
        folder.get("v", "e1", 40)
    (tmp_path / "file").write_text("")
    with pytest.raises(HardnetError, match="cannot be written"):
        write_csv(tmp_path / "file", "v", "ref", vectors)
