"""What a user gets: a light import, and a wheel that works in an empty environment."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_importing_hardnet_imports_nothing_heavy_and_all_names_are_there_without_extras():
    script = """
import sys
import hardnet
heavy = ("torch", "kornia", "matplotlib", "lightning_fabric", "tensorboard", "onnxruntime")
assert not [name for name in heavy if name in sys.modules]
for name in ("torch", "numba", "faiss", "ray"):
    sys.modules[name] = None
from hardnet import *
assert match and Index
import pydoc
assert all(hasattr(hardnet, name) for name in hardnet.__all__)
assert "extract" in pydoc.render_doc(hardnet)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_file_names_a_folder_of_somebodys_machine():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = [n for n in listed.stdout.split("\0") if n and (ROOT / n).is_file()]
    folders = [b"/" + part + b"/" for part in (b"root", b"home", b"work")]
    guilty = [n for n in names if any(f in (ROOT / n).read_bytes() for f in folders)]
    # Weights are binary: three such bytes in a row may be there by chance.
    assert [n for n in guilty if not n.endswith((".onnx", ".safetensors", ".png"))] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", folder, ROOT)
    (built,) = folder.glob("hardnet-*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_the_weights_the_licence_and_the_type_marker(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    recipes = [f"hardnet/recipes/{path.name}" for path in (ROOT / "recipes").glob("*.yaml")]
    for wanted in ("hardnet/weights/hardnet.onnx", "hardnet/py.typed", *recipes):
        assert wanted in names
    pages = [path for path in (ROOT / "src/hardnet/web/static").rglob("*") if path.is_file()]
    assert pages
    for page in (*pages, ROOT / "src/hardnet/retrieval/groups_page.html"):
        assert page.relative_to(ROOT / "src").as_posix() in names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert not any(n.startswith(("tests/", "benchmarks/")) for n in names)


@pytest.mark.slow
def test_the_wheel_matches_two_photos_in_an_empty_venv_without_torch(wheel, tmp_path):
    photos = Path(pytest.importorskip("skimage").__file__).parent / "data"
    left, right = photos / "motorcycle_left.png", photos / "motorcycle_right.png"
    venv.create(tmp_path / "venv", with_pip=True)
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    constraints = ROOT / "constraints.txt"
    _run(scripts / "python", "-m", "pip", "install", "-qq", "-c", constraints, wheel)
    listed = _run(scripts / "python", "-m", "pip", "list", "--format=json")
    assert "torch" not in {package["name"] for package in json.loads(listed)}
    # From a folder without the sources, so that it is the wheel that runs.
    found = json.loads(_run(scripts / "hardnet", "match", left, right, "--json", cwd=tmp_path))
    assert found["geometry"]["kind"] in ("homography", "fundamental")
    assert sum(found["inliers"]) > 200


def _run(*command, cwd=None):
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
