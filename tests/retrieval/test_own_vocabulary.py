from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import hardnet
from hardnet.descriptors import WEIGHTS
from hardnet.errors import HardnetError
from hardnet.retrieval.build import build, write_vocabulary
from hardnet.retrieval.photos import Describing, IndexSettings, quantise_many
from hardnet.retrieval.training import kept_features, train_on_photos

SETTINGS = IndexSettings(descriptor="rootsift", keypoints=60, max_size=200)
DESCRIBING = Describing(SETTINGS)
NAMES = ("camera.png", "coins.png", "page.png", "rocket.jpg", "text.png", "coffee.png")


@pytest.fixture
def album(photos: Path, tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "photos").mkdir()
    return {
        f"../photos/{name}": Path(shutil.copy(photos / name, tmp_path / "photos")) for name in NAMES
    }


def test_a_stopped_training_continues(album: dict[str, Path], tmp_path: Path) -> None:
    whole, skipped = train_on_photos(album, tmp_path / "whole", DESCRIBING, words=24)
    assert (len(whole), whole.descriptor, skipped) == (24, "rootsift", {})
    assert whole.provenance["words_asked"] == 24

    def stop(what: str, done: int, total: int) -> None:
        if what != "describing" and done:
            raise KeyboardInterrupt

    work = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train_on_photos(album, work, DESCRIBING, words=24, progress=stop)
    told: list[tuple[str, int]] = []
    vocabulary, _ = train_on_photos(
        album,
        work,
        DESCRIBING,
        words=24,
        progress=lambda what, done, total: told.append((what, done)),
    )
    assert vocabulary.digest == whole.digest
    assert next(done for what, done in told if what == "describing") == 5, "nothing twice"
    told.clear()
    again, _ = train_on_photos(
        album, work, DESCRIBING, words=24, progress=lambda what, *_: told.append((what, 0))
    )
    assert again.digest == whole.digest
    assert {what for what, _ in told} == {"describing"}, "once trained it is only read"


def test_the_sample_waits_for_the_index(album: dict[str, Path], tmp_path: Path) -> None:
    work = tmp_path / "work"
    # 12 features for each of 10 words are those of two photos; which two, the names decide.
    train_on_photos(album, work, DESCRIBING, words=10)
    found = {name: kept_features(name, photo, work) for name, photo in album.items()}
    names = [name for name, features in found.items() if features is not None]
    assert len(names) == 2
    name = names[0]
    direct = hardnet.extract(album[name], "dog", "rootsift", 60, 200, spread=True)
    np.testing.assert_array_equal(found[name].descriptors, direct.descriptors)
    np.testing.assert_array_equal(found[name].frames, direct.frames)
    shutil.copy(album["../photos/text.png"], album[name])
    assert kept_features(name, album[name], work) is None, "the file has changed"
    album[name].unlink()
    assert kept_features(name, album[name], work) is None
    # A larger collection: the same photos are of the sample, unless new ones come before them.
    train_on_photos(dict(list(album.items())[::-1]), tmp_path / "other", DESCRIBING, words=10)
    again = [n for n, p in album.items() if kept_features(n, p, tmp_path / "other") is not None]
    assert names[1] in again


def test_few_photos_get_few_words(album: dict[str, Path], tmp_path: Path) -> None:
    vocabulary, _ = train_on_photos(album, tmp_path / "work", DESCRIBING)
    assert len(vocabulary) == sum(60 for _ in NAMES) // 8


def test_more_words_than_features_take_no_more_memory(
    album: dict[str, Path], tmp_path: Path
) -> None:
    vocabulary, _ = train_on_photos(album, tmp_path / "work", DESCRIBING, words=10**15)
    assert 0 < len(vocabulary) <= 60 * len(NAMES)


def test_mistakes(album: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="words is 0"):
        train_on_photos(album, tmp_path / "work", DESCRIBING, words=0)
    broken = tmp_path / "broken.jpg"
    broken.write_text("words")
    with pytest.raises(HardnetError, match=r"no photo has a keypoint.*skipped: "):
        train_on_photos({"broken.jpg": broken}, tmp_path / "none", DESCRIBING)


def test_bits_are_refused_before_a_photo_is_described(
    album: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import numpy\ndef bits(patches): return numpy.zeros((len(patches), 4), numpy.uint8)"
    (tmp_path / "photos" / "bitmaker.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path / "photos"))
    bits = IndexSettings(descriptor="bitmaker:bits", keypoints=60, max_size=200)
    message = "bitmaker:bits makes bits, which have no visual words"
    with pytest.raises(HardnetError, match=message):
        build(tmp_path / "index", album, bits)
    with pytest.raises(HardnetError, match=message):
        write_vocabulary(tmp_path / "w.safetensors", [tmp_path / "photos"], bits, words=5)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    # Features that somebody brings along are looked at too.
    features = hardnet.extract(album["../photos/coins.png"], "dog", "bitmaker:bits", 60, 200)
    vocabulary, _ = train_on_photos(album, tmp_path / "work", DESCRIBING, words=5)
    with pytest.raises(HardnetError, match=message):
        list(quantise_many([("coins.png", features)], vocabulary))


def test_other_weights_of_the_same_name_do_not_continue(
    album: dict[str, Path], tmp_path: Path
) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what == "learning words":
            raise KeyboardInterrupt

    output, photos = tmp_path / "w.safetensors", [tmp_path / "photos"]
    for folder, weights in (("a", "hardnet-int8"), ("b", "hardnet")):
        (tmp_path / folder).mkdir()
        shutil.copy(WEIGHTS / f"{weights}.onnx", tmp_path / folder / "mine.onnx")
    first, second = (
        IndexSettings(descriptor=str(tmp_path / folder / "mine.onnx"), keypoints=20, max_size=100)
        for folder in ("a", "b")
    )
    with pytest.raises(KeyboardInterrupt):
        write_vocabulary(output, photos, first, words=5, progress=stop)
    with pytest.raises(HardnetError, match="made with other weights"):
        write_vocabulary(output, photos, second, words=5)


def test_photos_added_while_the_training_was_stopped(
    album: dict[str, Path], tmp_path: Path
) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what == "learning words" and done > total // 2:
            raise KeyboardInterrupt

    few, work = dict(list(album.items())[:4]), tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        train_on_photos(few, work, DESCRIBING, progress=stop)
    assert (work / "kmeans").exists()
    made, _ = train_on_photos(album, work, DESCRIBING)
    whole, _ = train_on_photos(album, tmp_path / "whole", DESCRIBING)
    assert made.digest == whole.digest
