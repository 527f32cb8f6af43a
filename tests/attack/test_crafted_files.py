"""Files that are whole by their checksums and wrong in what they say: each is one clear line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

import hardnet
from hardnet import descriptors
from hardnet.errors import HardnetError
from hardnet.interop import feature_files
from hardnet.interop.extraction import ExtractionSettings, extract_to
from hardnet.retrieval.index import Index
from hardnet.retrieval.store import snapshot as store
from hardnet.retrieval.store.segment import map_columns, tensor_file
from hardnet.storage import write_file

QUICK: dict[str, Any] = {"descriptor": "rootsift", "keypoints": 60, "max_size": 200}


def blobs(seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(0, 255, (160, 200), np.uint8)
    return cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 3), None, 0, 255, cv2.NORM_MINMAX)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos and their index, for all tests to copy."""
    root = tmp_path_factory.mktemp("original")
    (root / "photos").mkdir()
    for seed in range(3):
        cv2.imwrite(str(root / "photos" / f"{seed}.png"), blobs(seed))
    Index.build(root / "index", root / "photos", words=16, **QUICK)
    return root


@pytest.fixture
def place(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "place"))


def use(place: Path) -> None:
    """Everything that reads an index."""
    index = Index(place / "index")
    index.search(place / "photos" / "0.png")
    index.snapshot.names()
    index.snapshot.find_many(["../photos/0.png", "../photos/2.png"])
    for segment in index.snapshot.segments:
        for image in range(segment.images):
            segment.postings_of(image)
    (place / "photos" / "9.png").write_bytes((place / "photos" / "1.png").read_bytes())
    index.add(place / "photos")
    index.remove([place / "photos" / "1.png"])
    index.compact()


def rewrite_manifest(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Another manifest with a right checksum."""
    path = place / "index" / store.MANIFEST
    body = json.loads(path.read_text())
    change(body)
    del body["crc32"]
    version = body.pop("format")
    document = {"format": version, "crc32": store._checksum(body), **body}
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("words"),
        lambda body: body.update(extra=1),
        lambda body: body.update(images="three"),
        lambda body: body.update(generation=None),
        lambda body: body.update(segments=3),
        lambda body: body["segments"][0].pop("facts"),
        lambda body: body["vocabulary"].update(file=[1, 2]),
        lambda body: body["state"].update(bytes=-1),
        lambda body: body.update(settings=[]),
        lambda body: body["settings"].pop("descriptor"),
        lambda body: body.update(words=3),
    ],
)
def test_manifests_with_other_keys(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    rewrite_manifest(place, change)
    with pytest.raises(HardnetError, match=r"manifest\.json"):
        use(place)


def rewrite_segment(place: Path, column: str, value: int) -> None:
    """A segment whose column has one wrong number, with a right checksum."""
    [path] = (place / "index" / "segments").iterdir()
    columns = {name: array.copy() for name, array in map_columns(path).items()}
    columns[column].reshape(-1)[0 if column != "name_order" else slice(None)] = value
    path.unlink()
    facts = asdict(write_file(path, tensor_file(columns)))
    rewrite_manifest(place, lambda body: body["segments"][0]["facts"].update(file=facts))


@pytest.mark.parametrize(
    ("column", "value"),
    [("image_ids", 60_000), ("name_order", 60_000), ("forward_words", 255), ("offsets", 9999)],
)
def test_columns_out_of_range(place: Path, column: str, value: int) -> None:
    rewrite_segment(place, column, value)
    assert store.verify(place / "index").ok  # a checksum is no secret
    with pytest.raises(HardnetError, match=r"segments/.* is damaged"):
        use(place)


def test_a_segment_that_is_cut_under_a_reader(place: Path) -> None:
    """In a process of its own: on the old way it ended with SIGBUS."""
    program = """
import os, sys
from pathlib import Path
from hardnet.retrieval.index import Index
place = Path(sys.argv[1])
index = Index(place / "index")
index.search(place / "photos" / "0.png")
[path] = (place / "index" / "segments").iterdir()
os.truncate(path, 100)
try:
    index.search(place / "photos" / "1.png")
except Exception as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(place)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert "was cut short while it was open" in done.stdout


def test_a_full_disk_says_what_is_committed(place: Path, small_disk: Callable) -> None:
    (place / "photos" / "9.png").write_bytes((place / "photos" / "1.png").read_bytes())
    with small_disk(3000), pytest.raises(HardnetError, match="photos are committed") as caught:
        Index(place / "index").add(place / "photos")
    assert store.verify(place / "index").ok
    kept = store.open_snapshot(place / "index")
    words = f"{kept.images} photos are committed (generation {kept.generation}) and unharmed"
    assert words in str(caught.value)


def test_empty_settings_of_a_build(place: Path, tmp_path: Path) -> None:
    """What a power failure can leave of a build that was killed."""
    from hardnet.retrieval.build import begin
    from hardnet.storage import OwnedFolder

    work = OwnedFolder.mark(tmp_path / "work")
    work.claim("settings.json").write_text("")
    with pytest.raises(HardnetError, match=r"settings\.json is damaged: delete"):
        begin(work, {}, tmp_path)


def test_settings_of_a_feature_file_that_are_no_json(place: Path, tmp_path: Path) -> None:
    photos = {"0.png": place / "photos" / "0.png"}
    extract_to(tmp_path / "f.h5", photos, ExtractionSettings(**QUICK))
    with h5py.File(tmp_path / "f.h5", "a") as file:
        file.attrs["settings"] = "{"
    with pytest.raises(HardnetError, match="its settings are no JSON"):
        extract_to(tmp_path / "f.h5", photos, ExtractionSettings(**QUICK))


WRONG: dict[str, Any] = {
    "keypoints": [np.zeros(3), np.array(["a", "b"]), np.full((2, 2), np.nan), np.zeros((3, 2))],
    "descriptors": [
        np.zeros(4),
        np.zeros((1, 2, 2)),
        np.array([["x"] * 2] * 4),
        np.full((4, 2), np.inf),
    ],
    "image_size": [np.zeros(2), np.array([1, 2, 3]), np.array(["a", "b"]), np.array(5)],
    "scores": [np.zeros((2, 1)), np.array(["a", "b"]), np.zeros(0)],
    "frames": [np.zeros((2, 3)), np.full((2, 2, 3), np.nan)],
    "scale": [np.array([1, 2]), np.array("x"), np.array(np.nan), np.array(-1.0)],
}


def test_crafted_features(tmp_path: Path) -> None:
    good = {
        "keypoints": np.ones((2, 2), np.float32),
        "descriptors": np.ones((4, 2), np.float32),
        "image_size": np.array([40, 30]),
        "scores": np.ones(2, np.float32),
        "frames": np.ones((2, 2, 3), np.float32),
        "scale": np.array(1.0),
        "descriptor": np.array("mine"),
    }
    for name, values in WRONG.items():
        for value in values:
            np.savez(tmp_path / "a.npz", **good | {name: value})
            readers: list[Callable[[], object]] = [
                lambda: feature_files.read_npz(tmp_path / "a.npz"),
                lambda: feature_files.read_hdf5(tmp_path / "a.h5", "x"),
            ]
            with h5py.File(tmp_path / "a.h5", "w") as file:
                group = file.create_group("x")
                for key, array in (good | {name: value}).items():
                    stored = array.astype("S") if array.dtype.kind == "U" else array
                    if key in feature_files.FACTS:
                        group.attrs[key] = stored
                    else:
                        group[key] = stored
            for read in readers:
                with pytest.raises(HardnetError, match=r"a\.(npz|h5)"):
                    read()


def test_features_that_claim_all_memory(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("x")
        for name in ("keypoints", "descriptors", "image_size"):
            group.create_dataset(name, (1 << 20, 1 << 14), np.float32, chunks=(1, 1 << 14))
    assert os.path.getsize(tmp_path / "a.h5") < 100_000
    with pytest.raises(HardnetError, match="claims 206 GB of features"):
        feature_files.read_hdf5(tmp_path / "a.h5", "x")


def onnx_net(path: Path, constant: float, rows: int | None = None) -> Path:
    """A network that multiplies the mean of a patch; or gives a fixed number of rows."""
    onnx = pytest.importorskip("onnx", reason="the networks of this test are made with onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    weights = helper.make_tensor("w", kinds.FLOAT, [32 * 32, 4], [constant] * 4096)
    shape = helper.make_tensor("shape", kinds.INT64, [2], [rows or 0, 32 * 32 if not rows else -1])
    nodes = [
        helper.make_node("Reshape", ["patches", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("patches", kinds.FLOAT, ["n", 1, 32, 32])],
        [helper.make_tensor_value_info("out", kinds.FLOAT, ["n", 4])],
        [weights, shape],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def test_networks_that_fail(tmp_path: Path) -> None:
    patches = np.random.default_rng(0).integers(0, 255, (20, 32, 32), np.uint8)
    good = descriptors.load(onnx_net(tmp_path / "good.onnx", 1.0))
    assert np.isfinite(good(patches)).all()
    for value in (np.nan, np.inf):
        with pytest.raises(HardnetError, match=r"network bad gives NaN or infinity for .* patches"):
            descriptors.load(onnx_net(tmp_path / "bad.onnx", value))(patches)
    failing = descriptors.load(onnx_net(tmp_path / "fails.onnx", 1.0, rows=7))
    with pytest.raises(HardnetError, match="the network fails cannot run") as caught:
        failing(patches)
    assert "\n" not in str(caught.value)


def test_a_random_colmap_model(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap", reason="COLMAP models need hardnet[sfm]")
    from hardnet.patchsets.build.colmap_model import Scene, read_model

    for name in ("cameras", "images"):
        (tmp_path / f"{name}.bin").write_bytes(bytes(8))
    (tmp_path / "points3D.bin").write_bytes(np.random.default_rng(0).bytes(1000))
    with pytest.raises(HardnetError, match=r"model: points3D\.bin does not have the length"):
        read_model(Scene("random", tmp_path, tmp_path))


@pytest.mark.slow
def test_words_do_not_depend_on_cores(tmp_path: Path) -> None:
    """One core and all of them: the same vocabulary, bit by bit."""
    program = """
import os, sys
if sys.argv[1] == "1":
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
import numpy as np
from hardnet.retrieval.training import train
rows = np.random.default_rng(0).normal(size=(6000, 128)).astype(np.float32)
print(train(rows, 300, descriptor="test", iterations=2).digest)
"""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core")
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, cores],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        ).stdout
        for cores in ("1", "all")
    }
    assert len(digests) == 1


def test_pipes_are_no_features(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npz")
    for read in (feature_files.read_npz, hardnet.Features.load):
        with pytest.raises(HardnetError, match="pipe, device or socket"):
            read(tmp_path / "a.npz")
