"""Damage of every kind: found, and said in words that name the file and the fix."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.query import BowTerms, HeTerms, Scoring, prepare_terms, score_images
from hardnet.retrieval.store.snapshot import (
    compute_statistics,
    open_snapshot,
    read_manifest,
    verify,
)
from hardnet.retrieval.store.writer import Writer

KINDS = ["segments", "generations", "vocabulary"]
FIX = "bring the index folder back from a copy, or build the index again"


def file_of(folder: Path, kind: str) -> Path:
    return next(
        path
        for path in map(folder.joinpath, sorted(read_manifest(folder).files()))
        if kind in str(path.relative_to(folder))
    )


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_sound_index(made_index: Path) -> None:
    steps = []
    report = verify(made_index, lambda *step: steps.append(step))
    assert report.ok
    assert (report.generation, report.files) == (2, 4)
    names = read_manifest(made_index).files()
    assert report.bytes == sum((made_index / name).stat().st_size for name in names)
    assert steps[-1] == ("checking", report.bytes, report.bytes)


@pytest.mark.parametrize("kind", KINDS)
def test_any_flipped_bit_is_found(made_index: Path, kind: str) -> None:
    path = file_of(made_index, kind)
    content = path.read_bytes()
    for position in range(0, len(content), max(1, len(content) // 40)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        report = verify(made_index)
        assert report.problems == (f"{path} is damaged: its checksum is wrong",)
    path.write_bytes(content)
    assert verify(made_index).ok


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_the_wrong_size_or_none(made_index: Path, kind: str) -> None:
    path = file_of(made_index, kind)
    content = path.read_bytes()
    before = len(content)
    for size in (0, 7, 100, before - 1, before + 1):
        path.write_bytes(content[:size].ljust(size, b"\0"))
        damage = f"{path} (is empty|has {size} bytes .*{before}).*{FIX}"
        with pytest.raises(HardnetError, match=damage):
            open_snapshot(made_index)
        with pytest.raises(HardnetError, match=str(path)):
            Writer(made_index)
        assert verify(made_index).problems == (f"{path} has {size} bytes instead of {before}",)
    path.unlink()
    with pytest.raises(HardnetError, match=f"{path} is missing; {FIX}"):
        open_snapshot(made_index)
    assert verify(made_index).problems == (f"{path} is missing",)


def test_every_problem_is_said(made_index: Path) -> None:
    file_of(made_index, "segments").unlink()
    os.truncate(file_of(made_index, "generations"), 5)
    assert len(verify(made_index).problems) == 2


def test_a_header_that_says_something_else(made_index: Path) -> None:
    path = file_of(made_index, "segments")
    content = path.read_bytes()
    changes = {
        b'"image_ids"': b'"image_xxx"',
        b'"U16"': b'"U99"',
        b'"offsets"': b'"offset\xff"',
        b'"shape":[51]': b'"shape":[50]',
        b'"shape"': b'"shqpe"',
        content[:8]: b"\xff" * 8,
    }
    for old, new in changes.items():
        assert old in content
        assert len(old) == len(new)
        path.write_bytes(content.replace(old, new, 1))
        with pytest.raises(HardnetError, match=f"{path} .*{FIX}"):
            open_snapshot(made_index)


def test_a_manifest_that_is_none(made_index: Path) -> None:
    for content in ("", "{", "[]", "null", '"x"', "{}", "\0" * 300, '{"format": 1}'):
        (made_index / "manifest.json").write_text(content)
        damage = f"{made_index}/manifest.json is damaged: .*{FIX}"
        for use in (open_snapshot, verify, Writer):
            with pytest.raises(HardnetError, match=damage):
                use(made_index)


def test_a_manifest_that_was_edited(made_index: Path) -> None:
    change_manifest(made_index, images=4)
    with pytest.raises(HardnetError, match=r"manifest.json is damaged: its checksum is wrong"):
        open_snapshot(made_index)


def test_a_manifest_that_is_cut_off_or_has_another_bit(made_index: Path) -> None:
    path = made_index / "manifest.json"
    content = path.read_bytes()
    for position in range(0, len(content) - 2, 7):
        for damaged in (content[:position], _flipped(content, position)):
            path.write_bytes(damaged)
            try:
                manifest = read_manifest(made_index)
            except HardnetError as error:
                assert str(path) in str(error)  # noqa: PT017
            else:  # white space
                assert json.loads(damaged) == json.loads(content)
                assert manifest.images == 3


def _flipped(content: bytes, position: int) -> bytes:
    out = bytearray(content)
    out[position] ^= 4
    return bytes(out)


def test_a_manifest_of_a_newer_version(made_index: Path) -> None:
    change_manifest(made_index, format=2, something="new")
    with pytest.raises(HardnetError, match=r"manifest.json is of format 2.*reads format 1.*pip"):
        open_snapshot(made_index)


def overwrite(path: Path, column: str, byte: int) -> None:
    """Fill a column of a segment with one byte; the size of the file stays."""
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    start, end = json.loads(content[8 : 8 + length])[column]["data_offsets"]
    content[8 + length + start : 8 + length + end] = bytes([byte]) * (end - start)
    path.write_bytes(content)


def test_a_damaged_segment_is_not_read_beyond_its_end(made_index: Path) -> None:
    path = file_of(made_index, "segments")
    for column in ("image_ids", "forward_words"):
        overwrite(path, column, 255)
    snapshot = open_snapshot(made_index)
    segment, words = snapshot.segments[0], np.arange(snapshot.words, dtype=np.int32)
    for norms, terms, scoring in (
        (snapshot.statistics.bow_norms, BowTerms(words, np.ones(len(words), np.float32)), "bow"),
        (
            snapshot.statistics.he_norms,
            HeTerms(words, np.array(segment.signatures[words % len(segment.signatures)]), words),
            "he",
        ),
    ):
        idf = np.ones(len(words), np.float32)
        lookup = prepare_terms(terms, idf, Scoring(method=scoring))
        found = score_images(lookup, segment, 0, segment.images, norms[0], None)
        assert found.tolist() == [0] * segment.images
    with pytest.raises(HardnetError, match=f"{path} is damaged: it points outside itself; {FIX}"):
        segment.postings_of(0)
    assert (
        compute_statistics([segment], [None], len(words)).bow_norms[0].tolist()
        == [0] * segment.images
    )


def test_offsets_that_do_not_ascend(made_index: Path) -> None:
    path = file_of(made_index, "segments")
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    start, _ = json.loads(content[8 : 8 + length])["offsets"]["data_offsets"]
    content[8 + length + start + 7] = 255  # the highest byte of the second one
    path.write_bytes(content)
    with pytest.raises(HardnetError, match=f"{path} is damaged: its columns do not fit; {FIX}"):
        open_snapshot(made_index)


def test_damage_is_not_written_again_with_a_good_checksum(made_index: Path) -> None:
    path = file_of(made_index, "segments")
    overwrite(path, "geometry", 7)
    before = (made_index / "manifest.json").read_bytes()
    with (
        Writer(made_index) as writer,
        pytest.raises(HardnetError, match=f"{path} is damaged: its checksum is wrong; {FIX}"),
    ):
        writer.compact()
    assert (made_index / "manifest.json").read_bytes() == before
    assert not verify(made_index).ok
