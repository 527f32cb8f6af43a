"""Files that somebody else made: whatever they name, none of it is run, and nothing is read
outside the folder they are used with."""

from __future__ import annotations

import ast
import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from safetensors.numpy import save_file

import hardnet
from hardnet.descriptors import WEIGHTS
from hardnet.errors import HardnetError
from hardnet.interop import feature_files
from hardnet.retrieval.index import Index
from hardnet.retrieval.store import snapshot as manifests
from hardnet.storage import check_inside

Hardnet = Callable[..., Any]
QUICK = {"descriptor": "rootsift", "keypoints": 60, "max_size": 200}
PAYLOAD = """
from pathlib import Path
Path("owned").write_text("this code has run")

def describe(patches):
    return patches.reshape(len(patches), -1)[:, ::8].astype("float32")

class Net:
    pass
"""


@pytest.fixture(scope="module")
def original(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos and their index, for all tests to copy."""
    root = tmp_path_factory.mktemp("original")
    (root / "photos").mkdir()
    for name in ("camera.png", "coins.png"):
        shutil.copy(photos / name, root / "photos")
    Index.build(root / "index", root / "photos", words=16, **QUICK)
    return root


@pytest.fixture
def place(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: photos, their index, and a module that leaves a file if it is run."""
    root = tmp_path / "place"
    shutil.copytree(original, root)
    (root / "payload.py").write_text(PAYLOAD)
    monkeypatch.chdir(root)
    monkeypatch.delitem(sys.modules, "payload", raising=False)
    return root


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest as an attacker would, with the right checksum."""
    path = folder / manifests.MANIFEST
    document = json.loads(path.read_text())
    body = {key: value for key, value in document.items() if key not in ("format", "crc32")}
    change(body)
    checksum = manifests._checksum(body)
    path.write_text(json.dumps({"format": document["format"], "crc32": checksum, **body}))


def refused(done: Any, *words: str) -> None:
    """One line that has these words, exit code 1, and nothing was run."""
    assert done.returncode == 1, done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    for word in words:
        assert word in lines[0]
    assert not Path("owned").exists()


def test_an_index_names_a_module(command: Hardnet, place: Path) -> None:
    change_manifest(place / "index", lambda body: body["settings"].update(
        descriptor="payload:describe", weights=None))  # fmt: skip
    words = ("manifest.json", "may not name code", "'payload:describe'", "--descriptor")
    refused(command("search", "index", "photos/coins.png"), *words)
    refused(command("index", "add", "index", "photos/coins.png"), *words)
    with pytest.raises(HardnetError, match="may not name code"):
        Index("index").search("photos/coins.png")
    with pytest.raises(HardnetError, match="may not name code"):
        Index("index").add("photos")
    # What needs no descriptor works.
    assert command("index", "info", "index").returncode == 0
    assert command("index", "remove", "index", "photos/coins.png").returncode == 0
    assert not Path("owned").exists()


def test_the_detector_of_an_index_is_no_path(command: Hardnet, place: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs hardnet[train]")
    torch.save({}, place / "AffNet.pth")
    for name in (f"affnet:{place / 'AffNet.pth'}", "affnet:../AffNet.pth", "payload:describe"):
        change_manifest(place / "index", lambda body, name=name: body["settings"].update(
            detector=name))  # fmt: skip
        refused(command("search", "index", "photos/coins.png"), "manifest.json", "build the index")


def test_a_person_names_the_module_again(command: Hardnet, place: Path) -> None:
    Path("mine.py").write_text(PAYLOAD.replace("owned", "ran"))
    Path("other.py").write_text(PAYLOAD.replace("owned", "ran too"))
    mine = ("--descriptor", "mine:describe")
    options = ("--words", 16, "--keypoints", 60, "--max-size", 200)
    assert command("index", "build", "own", "photos", *mine, *options).returncode == 0
    refused(command("search", "own", "photos/coins.png"), "'mine:describe'", "--descriptor")
    done = command("search", "own", "photos/coins.png", *mine, "--json")
    assert json.loads(done.stdout)["hits"][0]["path"].endswith("coins.png")
    assert Index("own", descriptor="mine:describe").search("photos/coins.png")
    shutil.copy("photos/coins.png", "again.png")
    refused(command("index", "add", "own", "again.png"), "'mine:describe'", "--descriptor")
    assert command("index", "add", "own", "again.png", *mine).returncode == 0
    other = command("search", "own", "photos/coins.png", "--descriptor", "other:describe")
    refused(other, "was made with descriptor=mine:describe")


def test_weights_come_with_the_index_and_are_known_by_digest(place: Path) -> None:
    shutil.copy(WEIGHTS / "hardnet-int8.onnx", "mine.onnx")
    Index.build("own", "photos", words=16, **QUICK | {"descriptor": "mine.onnx"})
    Path("mine.onnx").unlink()
    shutil.move("own", "moved")
    assert Index("moved").settings.to_json()["descriptor"] == "mine.onnx"
    assert Index("moved").search("photos/coins.png")[0].path.endswith("coins.png")
    [copy] = Path("moved").rglob("mine.onnx")
    shutil.copy(WEIGHTS / "hardnet.onnx", copy)
    with pytest.raises(HardnetError, match="is not the file that moved was made with"):
        Index("moved").search("photos/coins.png")
    change_manifest(Path("moved"), lambda body: body["settings"].update(
        descriptor=str(WEIGHTS / "hardnet.onnx"), weights=f"onnx {'0' * 64}"))  # fmt: skip
    with pytest.raises(HardnetError, match="has no copy"):
        Index("moved").search("photos/coins.png")


def test_files_of_an_index_lie_inside_it(command: Hardnet, place: Path) -> None:
    [segment] = (place / "index" / "segments").iterdir()
    shutil.move(segment, place / "outside.safetensors")
    change_manifest(place / "index", lambda body: body["segments"][0].update(
        name="../../outside"))  # fmt: skip
    done = command("search", "index", "photos/coins.png")
    refused(done, "manifest.json", "outside the index")


@pytest.mark.parametrize(
    "line",
    ["sampling: payload:describe", "regularizer: payload:describe",
     "data: !!python/object/apply:payload.describe [1]",
     "init: payload:describe"],
)  # fmt: skip
def test_recipes(command: Hardnet, place: Path, line: str) -> None:
    pytest.importorskip("torch", reason="needs hardnet[train]")
    data = "" if line.startswith("data") else "data: [photos]\n"
    Path("recipe.yaml").write_text(f"{data}{line}\n")
    done = command("train", "recipe.yaml", "-o", "run")
    assert done.returncode == 1
    assert not Path("owned").exists()
    # The same file in a run folder, where a resumed run reads it.
    from hardnet.learn.recipe import Recipe, refuse_changes

    if not line.startswith("init"):  # which is only compared there
        with pytest.raises(HardnetError, match=r"recipe\.yaml"):
            refuse_changes(Path("recipe.yaml"), Recipe(data=["photos"]))
    assert not Path("owned").exists()


@pytest.mark.parametrize(("key", "value"), [("loss", "payload:describe"), ("net", "payload:Net")])
def test_the_recipe_of_a_run_names_no_code(
    command: Hardnet, place: Path, key: str, value: str
) -> None:
    """A person may name code in a recipe; the folder of a run may come from anybody."""
    pytest.importorskip("torch", reason="needs hardnet[train]")
    from hardnet.learn.recipe import Recipe, refuse_changes

    Path("run").mkdir()
    Path("run/recipe.yaml").write_text(f"data: [photos]\n{key}: {value}\n")
    Path("run/provenance.json").write_text("{}")
    done = command("train", "run/recipe.yaml", "-o", "other")
    refused(done, "may not name code", f"--set {key}={value}")
    with pytest.raises(HardnetError, match=f"made with {key}={value}, not"):
        refuse_changes(Path("run/recipe.yaml"), Recipe(data=["photos"]))
    assert not Path("owned").exists()


class Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path("owned"), "this code has run")


@pytest.mark.parametrize("name", ["weights.pth", "weights.pt", "weights.params"])
def test_weights_with_python_objects(command: Hardnet, place: Path, name: str) -> None:
    torch = pytest.importorskip("torch", reason="needs hardnet[train]")
    for write in (
        lambda f: torch.save({"state_dict": Attack()}, f),
        lambda f: pickle.dump(Attack(), f),
    ):
        with Path(name).open("wb") as file:
            write(file)
        photos = ("photos/coins.png", "photos/camera.png")
        refused(command("match", *photos, "--descriptor", name), name)
        refused(command("match", *photos, "--detector", f"affnet:{name}"), name)
        shutil.copy(name, "last.ckpt")
        from hardnet.learn.run import read_state

        with pytest.raises(HardnetError, match=r"last\.ckpt"):
            read_state(Path())
        assert not Path("owned").exists()


def test_metadata_of_weights(command: Hardnet, place: Path) -> None:
    pytest.importorskip("torch", reason="needs hardnet[train]")
    rows = {"features.0.weight": np.zeros((32, 1, 3, 3), np.float32)}
    save_file(rows, "w.safetensors", {"net": '"payload:Net"'})
    photos = ("photos/coins.png", "photos/camera.png")
    refused(command("match", *photos, "--descriptor", "w.safetensors"), "w.safetensors")


@pytest.mark.parametrize("location", ["../secret.bin", "/secret.bin", "link.bin"])
def test_onnx_with_values_outside_its_folder(
    command: Hardnet, place: Path, tmp_path: Path, location: str
) -> None:
    (tmp_path / "secret.bin").write_bytes(np.ones((1024, 128), np.float32).tobytes())
    Path("link.bin").symlink_to("../secret.bin")
    weights = TensorProto(
        name="W", data_type=TensorProto.FLOAT, dims=[1024, 128],
        data_location=TensorProto.EXTERNAL,
    )  # fmt: skip
    where = str(tmp_path / "secret.bin") if location.startswith("/") else location
    weights.external_data.add(key="location", value=where)
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("MatMul", ["f", "W"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, ["N", 1, 32, 32])]
    outputs = [helper.make_tensor_value_info("y", 1, ["N", 128])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    Path("net.onnx").write_bytes(model.SerializeToString())
    assert onnx.load("net.onnx", load_external_data=False).graph.initializer[0].external_data
    photos = ("photos/coins.png", "photos/camera.png")
    refused(command("match", *photos, "--descriptor", "net.onnx"), "net.onnx")


def test_results_of_a_benchmark(command: Hardnet, place: Path) -> None:
    Path("results.json").write_text(json.dumps({"kind": "payload:describe", "rows": []}))
    done = command("bench", "report", "results.json", "-o", "report")
    refused(done, "results.json")


def features_file(path: Path, name: str = "coins.png") -> None:
    feature_files.write_hdf5(path, name, hardnet.extract("photos/coins.png", **QUICK))


@pytest.mark.parametrize("kind", ["link of a file", "link of a name", "link of a dataset",
                                  "external storage", "virtual"])  # fmt: skip
def test_hdf5_reads_one_file(place: Path, kind: str) -> None:
    features_file(Path("feats.h5"))
    features_file(Path("secret.h5"))
    Path("secret.bin").write_bytes(bytes(8 * 10_000))
    with h5py.File("feats.h5", "a") as file:
        group, count = file["coins.png"], len(file["coins.png/scores"])
        if kind == "link of a file":
            del file["coins.png"]
            file["coins.png"] = h5py.ExternalLink("secret.h5", "/coins.png")
        elif kind == "link of a name":
            file["again.png"] = h5py.SoftLink("/coins.png")
        else:
            del group["scores"]
            if kind == "link of a dataset":
                group["scores"] = h5py.ExternalLink("secret.h5", "/coins.png/scores")
            elif kind == "virtual":
                layout = h5py.VirtualLayout((count,), np.float32)
                layout[:] = h5py.VirtualSource("secret.h5", "coins.png/scores", (count,))
                group.create_virtual_dataset("scores", layout)
            else:
                where = [("secret.bin", 0, 4 * count)]
                group.create_dataset("scores", (count,), np.float32, external=where)
    name = "again.png" if kind == "link of a name" else "coins.png"
    with pytest.raises(HardnetError, match=r"feats\.h5 has a (link|dataset).*one file only"):
        feature_files.read_hdf5("feats.h5", name)
    if "link" in kind:
        with pytest.raises(HardnetError, match=r"feats\.h5 has a link"):
            feature_files.hdf5_names("feats.h5")


def test_hdf5_writes_one_file(place: Path) -> None:
    features_file(Path("other.h5"), "a/coins.png")
    before = Path("other.h5").read_bytes()
    with h5py.File("feats.h5", "w") as file:
        file["a"] = h5py.ExternalLink("other.h5", "/a")
    with pytest.raises(HardnetError, match=r"feats\.h5 has a link, '/a'"):
        features_file(Path("feats.h5"), "a/coins.png")
    assert Path("other.h5").read_bytes() == before


def test_names_in_hdf5_stay_inside(command: Hardnet, place: Path) -> None:
    assert command("extract", "photos", "-o", "feats.h5", "--keypoints", 20).returncode == 0
    with h5py.File("feats.h5", "a") as file:
        file.move("coins.png", "../../coins.png")
    with pytest.raises(HardnetError, match=r"feats\.h5 names the image '\.\./\.\./coins\.png'"):
        feature_files.hdf5_names("feats.h5")
    done = command("extract", "photos", "-o", "feats.h5", "--keypoints", 20)
    refused(done, "feats.h5", "../../coins.png")


@pytest.mark.parametrize("name", ["../photos/coins.png", "a/../../x.png", "/etc/x.png"])
def test_colmap(command: Hardnet, place: Path, name: str) -> None:
    pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")
    from hardnet.bench.sfm import read_poses
    from hardnet.interop.colmap.mapping import MapperSettings, build_models

    model = place / "model"
    model.mkdir()
    (model / "cameras.txt").write_text("1 PINHOLE 384 303 300 300 192 151\n")
    (model / "images.txt").write_text(f"1 1 0 0 0 0 0 0 1 {name}\n\n")
    (model / "points3D.txt").write_text("")
    (place / "images").mkdir()
    done = command("data", "build", "colmap", model, "--images", "images", "-o", "set")
    refused(done, str(model), name)
    with pytest.raises(HardnetError, match="names the image"):
        read_poses(model)
    with pycolmap.Database.open(place / "database.db") as database:
        camera = pycolmap.Camera.create_from_model_name(1, "PINHOLE", 300.0, 384, 303)
        number = database.write_camera(camera)
        database.write_image(pycolmap.Image(name=name, camera_id=number))
    (place / "sparse").mkdir()
    with pytest.raises(HardnetError, match=r"database\.db names the image"):
        build_models(place / "database.db", place / "images", place / "sparse", MapperSettings())


def test_names_that_stay_inside() -> None:
    for name in ("a.jpg", "a/b.jpg", "..a/b..jpg", "./a.jpg", "C:x.jpg", "a b/ü.jpg"):
        assert check_inside(name, "file") == name
    for name in ("", ".", "..", "a/..", "../a", "/a", "//a/b", "a\0b"):
        with pytest.raises(HardnetError, match=r"^file names the image"):
            check_inside(name, "file")


def test_every_loader_in_the_source_is_a_safe_one() -> None:
    """Modules are imported by name for our own API, for decoders, and where a person named one."""
    root = Path(hardnet.__file__).parent
    importers = set()
    # Words that every such call has: the other files need not be parsed.
    words = re.compile(r"eval|exec|pickle|yaml\.load|weights_only|torch\.load|import_|run_")
    for source in root.rglob("*.py"):
        text = source.read_text()
        for node in ast.walk(ast.parse(text)) if words.search(text) else ():
            if not isinstance(node, ast.Call):
                continue
            called = _last_names(node.func)
            options = {
                option.arg: ast.unparse(option.value)
                for option in node.keywords
                if option.arg in ("allow_pickle", "weights_only")
            }
            where = f"{source.relative_to(root)}:{node.lineno}"
            assert called not in ("eval", "exec", "pickle.load", "pickle.loads", "yaml.load"), where
            assert options.get("allow_pickle", "False") == "False", where
            if called == "torch.load":
                assert options.get("weights_only") == "True", where
            if called.split(".")[-1] in ("import_module", "__import__", "run_path", "run_module"):
                importers.add(source.relative_to(root).as_posix())
    # By names in their own tables.
    ours = {"__init__.py", "cli/app.py", "images.py"}
    assert importers == {*ours, "storage.py"}


def _last_names(function: ast.expr) -> str:
    """``name``, ``module.name``, or of anything longer the last name."""
    if isinstance(function, ast.Attribute):
        before = function.value
        return f"{before.id}.{function.attr}" if isinstance(before, ast.Name) else function.attr
    return function.id if isinstance(function, ast.Name) else ""
