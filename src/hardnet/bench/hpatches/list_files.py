"""The official task files: ``verif_*_split-X.csv`` and ``retr_*_split-X.csv``."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from hardnet.bench.hpatches.drawing import PairLists, RetrievalLists, Rows
from hardnet.errors import HardnetError
from hardnet.patchsets.hpatches import TARGETS

PAIR_COLUMNS = ("s1", "t1", "idx1", "s2", "t2", "idx2")
PATCH_COLUMNS = ("s", "idx")
PAIR_FILES = ("verif_pos", "verif_neg_intra", "verif_neg_inter")
RETRIEVAL_FILES = ("retr_queries", "retr_distractors")
_PORTION = 100_000  # rows held as text


def find_files(folder: Path | None, split: str, stems: Sequence[str]) -> list[Path]:
    """The files of a split, of ``PAIR_FILES`` or ``RETRIEVAL_FILES``; empty if there are none.

    Raises:
        HardnetError: some are there and some are not.
    """
    if folder is None:
        return []
    paths = [folder / f"{stem}_split-{split}.csv" for stem in stems]
    missing = [path for path in paths if not path.is_file()]
    if len(missing) == len(paths):
        return []
    if missing:
        there = next(path for path in paths if path not in missing)
        raise HardnetError(f"{missing[0]} is missing, {there.name} is there: add it or remove both")
    return paths


def read_pairs(
    paths: Sequence[Path], names: Sequence[str], counts: Sequence[int], pairs: int
) -> PairLists:
    """The three lists of a split, their first ``pairs`` rows.

    Args:
        paths: of positives, negatives of one sequence, negatives of two.
        names: the test sequences: column s becomes the number in here.
        counts: patches of each.
        pairs: most rows to take.
    """
    positive, intra, inter = (_read(p, PAIR_COLUMNS, names, counts, pairs) for p in paths)
    return PairLists(positive, intra, inter)


def read_retrieval(
    paths: Sequence[Path], names: Sequence[str], counts: Sequence[int]
) -> RetrievalLists:
    """The queries and distractors of a split; arguments as for :func:`read_pairs`."""
    queries, distractors = (_read(p, PATCH_COLUMNS, names, counts, None) for p in paths)
    return RetrievalLists(queries, distractors)


def _read(
    path: Path,
    columns: Sequence[str],
    names: Sequence[str],
    counts: Sequence[int],
    limit: int | None,
) -> Rows:
    """(N, columns) numbers, checked."""
    number = {name: k for k, name in enumerate(names)}
    portions: list[Rows] = []
    with path.open(newline="") as stream:
        reader = csv.reader(stream)
        if tuple(next(reader, ())) != tuple(columns):
            raise HardnetError(f"{path} does not begin with the line {','.join(columns)}")
        rows = islice(reader, limit)
        while portion := list(islice(rows, _PORTION)):
            done = sum(map(len, portions))
            portions.append(_numbers(path, done + 2, portion, columns, number))
            _check(path, done + 2, portions[-1], names, counts)
    if not portions:
        raise HardnetError(f"{path} has no rows")
    return np.concatenate(portions)


def _numbers(
    path: Path, line: int, rows: list[list[str]], columns: Sequence[str], number: Mapping[str, int]
) -> Rows:
    out = np.empty((len(rows), len(columns)), np.int32)
    try:
        for k, (name, values) in enumerate(zip(columns, zip(*rows, strict=True), strict=True)):
            out[:, k] = [number[v] for v in values] if name[0] == "s" else [int(v) for v in values]
    except (KeyError, ValueError, OverflowError):
        raise HardnetError(f"{path}, {_mistake(line, rows, columns, number)}") from None
    return out


def _mistake(
    line: int, rows: list[list[str]], columns: Sequence[str], number: Mapping[str, int]
) -> str:
    """What is wrong with the first bad row."""
    for k, row in enumerate(rows):
        if len(row) != len(columns):
            return f"line {line + k}: expected {len(columns)} columns, got {len(row)}"
        for name, value in zip(columns, row, strict=True):
            if name[0] == "s" and value not in number:
                return f"line {line + k}: {value} is not a test sequence of the split"
            if name[0] != "s" and not (value.strip().isdecimal() and int(value) < 2**31):
                return f"line {line + k}: {name} is not a number of a patch or image: {value}"
    return f"line {line}: not a list of numbers"


def _check(path: Path, line: int, rows: Rows, names: Sequence[str], counts: Sequence[int]) -> None:
    """HardnetError for a patch past the end of its sequence, or an image that does not exist."""
    size = np.asarray(counts)
    step = 3 if rows.shape[1] == len(PAIR_COLUMNS) else 2
    for first in range(0, rows.shape[1], step):
        sequence, patch = rows[:, first], rows[:, first + step - 1]
        wrong = np.flatnonzero((patch < 0) | (patch >= size[sequence]))
        if len(wrong):
            k = int(wrong[0])
            raise HardnetError(
                f"{path}, line {line + k}: patch {patch[k]} of {names[sequence[k]]}, "
                f"which has {size[sequence[k]]} patches: is this the list of another set?"
            )
        if step == 3:
            image = rows[:, first + 1]
            wrong = np.flatnonzero((image < 0) | (image > TARGETS))
            if len(wrong):
                k = int(wrong[0])
                raise HardnetError(f"{path}, line {line + k}: image {image[k]} is not 0 to 5")
