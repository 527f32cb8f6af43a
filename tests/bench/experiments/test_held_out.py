"""Scores of a network are those that `hardnet bench` gives it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hardnet.bench import brown
from hardnet.bench.experiments import Tests
from hardnet.bench.hpatches import protocol
from hardnet.bench.hpatches.lists import prepare
from hardnet.descriptors import unit_rows
from hardnet.errors import HardnetError
from hardnet.frames import resize_patches
from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.hpatches import TAGS, read_hpatches


def blocks(patches: np.ndarray) -> np.ndarray:
    """Means of 8 x 8 blocks: a descriptor that knows something, but not all."""
    small = np.asarray(patches[:], np.float32).reshape(-1, 8, 4, 8, 4).mean((2, 4))
    rows = small.reshape(len(small), -1)
    return unit_rows(rows - rows.mean(1, keepdims=True))


def test_brown_scores_are_those_of_the_benchmark(sets: Path) -> None:
    held_out = Tests((sets / "test",)).open(32)
    (row,) = held_out.score(blocks)["brown"]
    full = read_brown(sets / "test")
    expected = brown.evaluate(
        lambda key, patches: blocks(resize_patches(patches(), 32)), full, "blocks"
    )
    assert {key: expected[key] for key in row} == row
    assert row["set"] == "test"
    assert 0 < row["fpr95"] < 1


def test_matching_scores_are_those_of_the_benchmark(sets: Path) -> None:
    hpatches = read_hpatches(sets / "sequences")
    counts = {name: sequence.count for name, sequence in hpatches.sequences.items()}
    lists = prepare("full", tuple(counts), counts, chosen=("matching",))

    def lookup(name: str, tag: str) -> np.ndarray:
        return blocks(resize_patches(hpatches.sequences[name].patches(tag), 32))

    _, expected = protocol.matching(lookup, lists)
    found = Tests(hpatches=sets / "sequences").open(32).score(blocks)["matching"]
    assert found["value"] == pytest.approx(expected["value"])
    assert (found["low"], found["high"]) == pytest.approx((expected["low"], expected["high"]))
    assert found["noise"]["easy"] > found["noise"]["tough"]
    assert np.mean(list(found["sequences"].values())) == pytest.approx(found["value"])


def test_a_limit_takes_patches_evenly_from_every_strip(sets: Path) -> None:
    held_out = Tests(hpatches=sets / "sequences", strip=5).open(32)
    assert held_out.hpatches is not None
    hpatches = read_hpatches(sets / "sequences")
    for name, places in (("v_wall", [0, 2, 4, 7, 9]), ("v_graf", [0, 1, 3, 5, 7])):
        for tag in ("ref", "h3", TAGS[-1]):
            whole = resize_patches(hpatches.sequences[name].patches(tag), 32)
            taken = held_out.hpatches.patches[held_out.strips[name, tag]]
            np.testing.assert_array_equal(taken, whole[places])
    few = held_out.score(blocks)["matching"]["value"]
    assert few > Tests(hpatches=sets / "sequences").open(32).score(blocks)["matching"]["value"]


def test_pairs_of_one_kind_are_refused(sets: Path) -> None:
    with pytest.raises(HardnetError, match="both matching and non-matching"):
        Tests((sets / "test",), pairs=1).open(32)
    assert len(Tests((sets / "test",), pairs=30).open(32).brown[0].pairs) == 30
