from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from hardnet.errors import HardnetError
from hardnet.retrieval.store import segment as segments
from hardnet.retrieval.store.segment import (
    SEGMENT_IMAGES,
    HashedNames,
    IndexedImage,
    Segment,
    write_segment,
)

ODD_NAMES = [
    "",
    "a\nb",
    "nul \0 byte",
    "Fußgänger 猫 🐈.png",
    b"not utf-8 \xff\xfe.jpg".decode("utf-8", "surrogateescape"),
    "x" * 5000,
    "a",
    " a ",
]


def find(segment: Segment, name: str) -> int | None:
    _, images = segment.find_many(HashedNames([name]))
    return int(images[0]) if len(images) else None


@pytest.fixture
def images(made: SimpleNamespace) -> list[IndexedImage]:
    empty, twin = (made.make_image(name, features=0) for name in ("no features", "last"))
    return [empty, *(made.make_image(f"{k}.jpg") for k in range(20)), twin]


@pytest.fixture
def segment(tmp_path: Path, images: list[IndexedImage], made: SimpleNamespace) -> Segment:
    write_segment(tmp_path / "segment", images, made.WORDS)
    return Segment(tmp_path / "segment")


def test_postings_are_those_of_a_loop(
    segment: Segment, images: list[IndexedImage], made: SimpleNamespace
) -> None:
    expected = [
        (word, image, tuple(signature), tuple(geometry))
        for word in range(made.WORDS)
        for image, stored in enumerate(images)
        for own, signature, geometry in zip(
            stored.words, stored.signatures.tolist(), stored.geometry.tolist(), strict=True
        )
        if own == word
    ]
    found = [
        (word, int(segment.image_ids[p]), tuple(s), tuple(g))
        for word in range(made.WORDS)
        for p in range(segment.offsets[word], segment.offsets[word + 1])
        for s, g in [(segment.signatures[p].tolist(), segment.geometry[p].tolist())]
    ]
    assert found == expected
    assert segment.features == len(expected) > 500
    assert segment.words == made.WORDS
    documents = Counter(word for image in images for word in set(image.words.tolist()))
    assert segment.document_counts.tolist() == [documents[w] for w in range(made.WORDS)]


def test_an_image_knows_its_features(segment: Segment, images: list[IndexedImage]) -> None:
    assert (len(segment), segment.images) == (len(images), len(images))
    assert segment.feature_counts.tolist() == [len(image) for image in images]
    for number, image in enumerate(images):
        order = np.argsort(image.words, kind="stable")
        words = segment.words_of(number)
        assert words.dtype == np.int32
        np.testing.assert_array_equal(words, image.words[order])
        postings = segment.postings_of(number)
        assert postings.dtype == np.int64
        np.testing.assert_array_equal(segment.signatures[postings], image.signatures[order])
        np.testing.assert_array_equal(segment.geometry[postings], image.geometry[order])
        assert segment.size(number) == image.size
        assert segment.file_bytes[number] == image.file_bytes
        assert segment.mtime_ns[number] == image.mtime_ns


def test_columns_are_mapped_and_cannot_be_changed(segment: Segment) -> None:
    for column in (segment.offsets, segment.image_ids, segment.signatures, segment.forward_words):
        assert not column.flags.writeable
        assert column.flags.aligned
        assert not column.flags.owndata


def test_others_can_read_the_file(segment: Segment) -> None:
    stored = load_file(segment.path)
    np.testing.assert_array_equal(stored["signatures"], segment.signatures)
    np.testing.assert_array_equal(stored["geometry"], segment.geometry)
    np.testing.assert_array_equal(stored["offsets"], segment.offsets)


def test_it_stays_readable_after_its_file_was_deleted(segment: Segment) -> None:
    before = segment.signatures.tobytes()
    segment.path.unlink()
    assert segment.signatures.tobytes() == before


def test_any_name(tmp_path: Path, made: SimpleNamespace) -> None:
    write_segment(tmp_path / "s", [made.make_image(name) for name in ODD_NAMES], made.WORDS)
    segment = Segment(tmp_path / "s")
    assert segment.names() == ODD_NAMES
    assert [find(segment, name) for name in ODD_NAMES] == list(range(len(ODD_NAMES)))
    assert find(segment, "b") is None
    with pytest.raises(HardnetError, match="half a character at position 1"):
        find(segment, "x\ud800")


def test_names_of_the_same_hash(
    tmp_path: Path, made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Same:
        def __init__(self, *_: object, **__: object) -> None: ...

        def digest(self) -> bytes:
            return b"12345678"

    monkeypatch.setattr(segments, "blake2b", Same)
    write_segment(tmp_path / "s", [made.make_image(name) for name in "abc"], made.WORDS)
    rows, images = Segment(tmp_path / "s").find_many(HashedNames(["c", "d", "a", "b"]))
    assert (rows.tolist(), images.tolist()) == ([0, 2, 3], [2, 0, 1])


def test_no_images(tmp_path: Path) -> None:
    segment = Segment(tmp_path / "s", write_segment(tmp_path / "s", [], 5).bytes)
    assert (segment.images, segment.features, segment.names()) == (0, 0, [])
    assert segment.document_counts.tolist() == [0] * 5
    assert find(segment, "a") is None


def test_more_features_than_two_bytes_count(tmp_path: Path, made: SimpleNamespace) -> None:
    image = made.make_image("large", features=70_000)
    write_segment(tmp_path / "s", [image], made.WORDS)
    segment = Segment(tmp_path / "s")
    np.testing.assert_array_equal(segment.words_of(0), np.sort(image.words))
    np.testing.assert_array_equal(segment.postings_of(0), np.arange(70_000))


def test_limits_of_a_segment(tmp_path: Path, made: SimpleNamespace) -> None:
    image = made.make_image("a", features=0)
    with pytest.raises(ValueError, match="65537 images"):
        write_segment(tmp_path / "s", [image] * (SEGMENT_IMAGES + 1), 2)
    with pytest.raises(ValueError, match="16777217 words"):
        write_segment(tmp_path / "s", [image], 2**24 + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"words": np.array([0, 50], np.int32)}, "words of 'a' are not below 50"),
        ({"words": np.array([0, -1], np.int32)}, "words of 'a' are not below 50"),
        ({"signatures": np.zeros((2, 2), np.int64)}, "Cannot cast"),
        ({"geometry": np.zeros((2, 2), np.uint16)}, "must match exactly"),
    ],
)
def test_arrays_that_do_not_fit(
    tmp_path: Path, made: SimpleNamespace, change: dict[str, np.ndarray], message: str
) -> None:
    fields = {**vars(made.make_image("a", features=2)), **change}
    with pytest.raises((ValueError, TypeError), match=message):
        write_segment(tmp_path / "s", [IndexedImage(**fields)], 50)


def test_no_file_is_ever_overwritten(segment: Segment, images: list[IndexedImage]) -> None:
    with pytest.raises(FileExistsError):
        write_segment(segment.path, images, 50)
