"""Which photos are matched with which."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import pytest

from hardnet.errors import HardnetError
from hardnet.interop.colmap.database import in_blocks
from hardnet.interop.colmap.reconstruction import PairSettings, choose_pairs, read_pairs


def test_all_pairs_once() -> None:
    pairs = choose_pairs(["c", "a", "b"], PairSettings())
    assert pairs == [("a", "b"), ("a", "c"), ("b", "c")]
    assert choose_pairs(["a"], PairSettings()) == []


def test_photos_that_follow_one_another() -> None:
    names = [f"frame{k}.jpg" for k in range(12)]  # frame10 comes after frame9, not after frame1
    near = choose_pairs(names, PairSettings("sequential", overlap=2, quadratic=False))
    assert near == [
        (f"frame{i}.jpg", f"frame{j}.jpg") for i in range(12) for j in (i + 1, i + 2) if j < 12
    ]
    far = choose_pairs(names, PairSettings("sequential", overlap=3))
    steps = {int(b[5:-4]) - int(a[5:-4]) for a, b in far}
    assert steps == {1, 2, 3, 4, 8}
    looped = choose_pairs(names, PairSettings("sequential", 1, quadratic=False, loop=5))
    extra = set(looped) - set(choose_pairs(names, PairSettings("sequential", 1, False)))
    assert extra == {
        ("frame0.jpg", "frame5.jpg"),
        ("frame0.jpg", "frame10.jpg"),
        ("frame5.jpg", "frame10.jpg"),
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "retrieval"}, "no pairs 'retrieval': choose exhaustive or sequential"),
        ({"overlap": 0}, "overlap is 0"),
        ({"loop": -1}, "loop is -1"),
    ],
)
def test_settings_without_sense(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(HardnetError, match=message):
        PairSettings(**wrong)  # type: ignore[arg-type]


def test_a_file_of_pairs(tmp_path: Path) -> None:
    names = ["a.jpg", "in/b.jpg", "my photo 1.jpg", "my photo 2.jpg", "é.jpg"]
    file = tmp_path / "pairs.txt"
    file.write_text(
        "# two names per line\n\na.jpg in/b.jpg\nmy photo 1.jpg my photo 2.jpg\n"
        "é.jpg\ta.jpg\nin/b.jpg a.jpg\na.jpg gone.jpg\n",
        encoding="utf-8",
    )
    assert read_pairs(file, names, ["gone.jpg"]) == [
        ("a.jpg", "in/b.jpg"),
        ("my photo 1.jpg", "my photo 2.jpg"),
        ("a.jpg", "é.jpg"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jpg\n", "line 1: 'a.jpg' is not two names"),
        ("\na.jpg c.jpg\n", "line 2: no photo is called c.jpg"),
        ("a.jpg a.jpg\n", "a.jpg is paired with itself"),
        ("# nothing\n", "names no pair"),
    ],
)
def test_a_file_that_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pairs.txt").write_text(text)
    with pytest.raises(HardnetError, match=message):
        read_pairs(tmp_path / "pairs.txt", ["a.jpg", "b.jpg"])
    with pytest.raises(HardnetError, match="cannot be read as a list of pairs"):
        read_pairs(tmp_path / "absent.txt", ["a.jpg", "b.jpg"])


def test_blocks_keep_every_pair_and_need_few_photos_at_a_time() -> None:
    pairs = list(combinations([f"{k:02d}" for k in range(12)], 2))
    blocks = in_blocks(pairs, 4)
    assert sorted(blocks) == pairs
    first = blocks[:6]  # the pairs within the first four photos
    assert {name for pair in first for name in pair} == {"00", "01", "02", "03"}


def test_a_pipe_is_not_read_as_pairs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pairs")
    with pytest.raises(HardnetError, match="is a pipe"):
        read_pairs(tmp_path / "pairs", ["a", "b"])
