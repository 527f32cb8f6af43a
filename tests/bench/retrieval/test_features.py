import numpy as np
import pytest

from hardnet import descriptors
from hardnet.bench.development import Setup
from hardnet.bench.retrieval.features import BenchPhoto, FeatureStore
from hardnet.features import extract


class Counting:
    """A descriptor that notes how often it is asked."""

    def __init__(self, name):
        self._inner = descriptors.load(name)
        self.name, self.dim, self.calls = self._inner.name, self._inner.dim, 0
        self.weights = name

    def __call__(self, patches):
        self.calls += 1
        return self._inner(patches)


@pytest.fixture
def pictures(photos):
    return [
        BenchPhoto(name, photos / name, longer_side=256) for name in ("coffee.png", "chelsea.png")
    ]


def test_features_are_those_of_extract_and_frames_the_same_for_all(tmp_path, pictures):
    used = {name: descriptors.load(name) for name in ("sift", "rootsift")}
    store = FeatureStore(tmp_path, used, Setup(max_size=None, keypoints=50))
    store.fill(pictures)
    expected = extract(pictures[0].pixels(), descriptor="rootsift", keypoints=50)
    found = store.read(pictures[0], "rootsift")
    np.testing.assert_array_equal(found.descriptors, expected.descriptors)
    np.testing.assert_array_equal(found.frames, expected.frames)
    np.testing.assert_array_equal(found.frames, store.read(pictures[0], "sift").frames)
    assert found.image_size == expected.image_size
    assert found.descriptor == "rootsift"
    assert [name for name, _ in store.read_all(pictures, "sift")] == ["coffee.png", "chelsea.png"]


def test_what_is_there_is_not_described_again(tmp_path, pictures):
    first = Counting("rootsift")
    FeatureStore(tmp_path, {"a": first}, Setup(max_size=None, keypoints=50)).fill(pictures[:1])
    again, other = Counting("rootsift"), Counting("sift")
    told = []
    store = FeatureStore(tmp_path, {"a": again, "b": other}, Setup(max_size=None, keypoints=50))
    probes = again.calls  # of its digest
    store.fill(pictures, lambda what, done, total: told.append((done, total)))
    assert again.calls == probes + 1  # only the second photo
    assert other.calls == probes + 2
    assert told[-1] == (2, 2)
    store.fill(pictures)
    assert again.calls == probes + 1


def test_other_settings_have_other_features(tmp_path, pictures):
    one = {"a": descriptors.load("rootsift")}
    for keypoints in (50, 20):
        store = FeatureStore(tmp_path, one, Setup(max_size=None, keypoints=keypoints))
        store.fill(pictures[:1])
        assert len(store.read(pictures[0], "a")) == keypoints


def test_unreadable_photos_are_named_and_the_others_described(tmp_path, pictures):
    (tmp_path / "x.jpg").write_bytes(b"no picture")
    store = FeatureStore(
        tmp_path, {"a": descriptors.load("rootsift")}, Setup(max_size=None, keypoints=20)
    )
    broken = BenchPhoto("x", tmp_path / "x.jpg")
    unreadable = store.fill([broken, pictures[0]])
    assert list(unreadable) == ["x"]
    assert "x.jpg" in unreadable["x"]
    assert len(store.read(pictures[0], "a")) == 20
