"""Local archives through the real unpacking, selection, deduplication and split; no network."""

import functools
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.errors import HardnetError
from hardnet.images import shrink
from hardnet.patchsets import fetch
from hardnet.patchsets.fetch import (
    CREDITS,
    PhotoFolder,
    Source,
    SourceError,
    fetch_photos,
    find_archive,
    is_validation,
    perceptual_hash,
    read_frames,
    read_manifest,
    read_pictures,
    select,
    unpack,
    write_frames,
)
from hardnet.storage import OwnedFolder

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")


@functools.cache
def photo(seed: int, size: tuple[int, int] = (600, 800)) -> np.ndarray:
    """A picture with structure at every scale, so that its hash is stable and its own."""
    rng = np.random.default_rng(seed)
    image = np.zeros((*size, 3), np.float32)
    for cells in (4, 9, 30, 120):
        noise = rng.uniform(0, 255 / 4, (cells, cells, 3)).astype(np.float32)
        image += cv2.resize(noise, size[::-1], interpolation=cv2.INTER_LINEAR)
    return np.clip(image, 0, 255).astype(np.uint8)


def save(path: Path, image: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)
    return path


def npm_archive(cache: Path, tree: Path, name: str, version: str) -> Path:
    cache.mkdir(exist_ok=True)
    archive = cache / f"{name}-{version}.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tree, "package")
    return archive


def npm(name: str = "kit", **fields: object) -> Source:
    settings = {"version": "1.0.0", "licence": "MIT", "take": ("*.jpg",), **fields}
    return Source(kind="npm", name=name, **settings)  # type: ignore[arg-type]


# ---- the manifest -------------------------------------------------------------------------------


def test_the_shipped_manifest_is_complete_and_pinned():
    sources = read_manifest()
    assert len(sources) > 20
    assert [s.name for s in sources] == sorted({s.name for s in sources})
    for source in sources:
        assert source.licence
        assert source.take
        assert bool(source.version) == (source.kind != "folder"), source.name
        assert source.scene_of("folder/a01.jpg").startswith(f"{source.name}/")


def test_the_shipped_manifest_leaves_benchmark_and_demo_pictures_out():
    text = (Path(fetch.__file__).parent / "photo_sources.toml").read_text("utf-8")
    for word in ("motorcycle_", "graf", "leuven", "oxford", "hpatches", "ukbench", "wxbs"):
        assert word not in text.replace("startbootstrap-grayscale", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[source", "not a manifest"),
        ("[other]", "source"),
        ('[[source]]\nkind = "rpm"\nname = "x"', "npm, debian, pypi, folder, git"),
        ('[[source]]\nkind = "npm"\nname = "x"\nlicense = "MIT"', "license"),
    ],
)
def test_a_broken_manifest_is_a_clear_error(tmp_path, text, said):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(HardnetError, match=said) as caught:
        read_manifest(path)
    assert "mine.toml" in str(caught.value)


def test_a_missing_manifest_is_a_clear_error(tmp_path):
    with pytest.raises(HardnetError, match=r"absent\.toml"):
        read_manifest(tmp_path / "absent.toml")


# ---- archives -----------------------------------------------------------------------------------


def test_npm_tarball(tmp_path):
    save(tmp_path / "tree/dist/img/b.jpg", photo(1))
    save(tmp_path / "tree/dist/img/sub/a.jpg", photo(2))
    save(tmp_path / "tree/dist/img/logo.jpg", photo(3))
    save(tmp_path / "tree/other/c.jpg", photo(4))
    archive = npm_archive(tmp_path / "cache", tmp_path / "tree", "kit", "1.0.0")
    source = npm(root="dist/img", leave=("logo*",))
    assert find_archive(source, tmp_path / "cache") == archive
    root = unpack(source, archive, tmp_path / "out")
    assert select(source, root) == ["b.jpg", "sub/a.jpg"]


def test_wheel(tmp_path):
    picture = save(tmp_path / "china.jpg", photo(1))
    archive = tmp_path / "scikit_learn-1.3.2-cp311-cp311-any.whl"
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.write(picture, "sklearn/datasets/images/china.jpg")
        wheel.writestr("sklearn/__init__.py", "")
    source = Source(
        "pypi", "scikit-learn", "CC-BY-2.0", ("*.jpg",), "1.3.2", root="sklearn/datasets/images"
    )
    assert find_archive(source, tmp_path) == archive
    assert select(source, unpack(source, archive, tmp_path / "out")) == ["china.jpg"]


@needs_dpkg
def test_debian_package_with_a_zip_inside(tmp_path):
    tree = tmp_path / "tree"
    picture = save(tmp_path / "wall.jpg", photo(1))
    (tree / "usr/share/games").mkdir(parents=True)
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        "Package: tex\nVersion: 4:2.5-2\nArchitecture: all\n"
        "Maintainer: A <a@example.org>\nDescription: textures\n"
    )
    with zipfile.ZipFile(tree / "usr/share/games/0.pk3", "w") as pk3:
        pk3.write(picture, "textures/stone/wall.jpg")
    archive = tmp_path / "tex_4%3a2.5-2_all.deb"
    subprocess.run(["dpkg-deb", "-b", tree, archive], check=True, capture_output=True)
    source = Source(
        "debian",
        "tex",
        "GPL-2+",
        ("stone/*",),
        "4:2.5-2",
        inside="usr/share/games/0.pk3",
        root="textures",
    )
    (tmp_path / "out").mkdir()
    assert find_archive(source, tmp_path) == archive
    assert select(source, unpack(source, archive, tmp_path / "out")) == ["stone/wall.jpg"]


@pytest.mark.parametrize("damage", ["not an archive", "cut short"])
def test_a_damaged_archive_names_itself_and_the_fix(tmp_path, damage):
    save(tmp_path / "tree/a.jpg", photo(1))
    archive = npm_archive(tmp_path / "cache", tmp_path / "tree", "kit", "1.0.0")
    data = archive.read_bytes()
    cut = data[: len(data) // 2]
    archive.write_bytes(cut if damage == "cut short" else b"<html>Moved</html>")
    with pytest.raises(SourceError, match=r"^kit: kit-1\.0\.0\.tgz .*delete it and run again$"):
        unpack(npm(), archive, tmp_path / "out")


def test_a_tarball_cannot_write_outside_its_folder(tmp_path):
    picture = save(tmp_path / "a.jpg", photo(1))
    archive = tmp_path / "kit-1.0.0.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(picture, "../escaped.jpg")
    with pytest.raises(SourceError, match="kit"):
        unpack(npm(), archive, tmp_path / "deep/out")
    assert not (tmp_path / "deep/escaped.jpg").exists()


def test_a_missing_client_names_the_package_and_the_fix(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="kit: npm is missing; install it"):
        find_archive(npm(), tmp_path)


def client(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put an executable called npm on the PATH."""
    program = folder / "bin/npm"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


def test_a_failing_client_passes_its_last_words_on(tmp_path, monkeypatch):
    client(tmp_path, monkeypatch, "echo E404 not in this registry >&2; exit 1")
    with pytest.raises(SourceError, match=r"kit@1\.0\.0.*E404 not in this registry.*network"):
        find_archive(npm(), tmp_path)


def test_a_download_is_kept_and_not_repeated(tmp_path, monkeypatch):
    client(tmp_path, monkeypatch, f"echo call >> {tmp_path}/calls; echo data > kit-1.0.0.tgz")
    cache = tmp_path / "cache"
    cache.mkdir()
    for _ in range(2):
        assert find_archive(npm(), cache).read_text() == "data\n"
    assert (tmp_path / "calls").read_text() == "call\n"
    assert [path.name for path in cache.iterdir()] == ["kit-1.0.0.tgz"]


def test_globs_that_pick_nothing_are_an_error(tmp_path):
    save(tmp_path / "a.jpg", photo(1))
    with pytest.raises(SourceError, match="kit: no picture fits"):
        select(npm(take=("*.png",)), tmp_path)


# ---- pictures -----------------------------------------------------------------------------------


def test_the_hash_knows_a_picture_in_another_size_and_encoding():
    image = photo(1)
    blocky = cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 40])[1], 1)
    smaller = cv2.resize(blocky, (500, 375), interpolation=cv2.INTER_AREA)
    known = perceptual_hash(image)
    assert (known ^ perceptual_hash(smaller)).bit_count() <= 4
    others = [(known ^ perceptual_hash(photo(seed))).bit_count() for seed in range(2, 8)]
    assert min(others) > 8


def test_video_frames_are_the_ones_asked_for(tmp_path):
    path = tmp_path / "clip.avi"
    video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (640, 480))
    if not video.isOpened():
        pytest.skip("this OpenCV cannot write video")
    for number in range(10):
        video.write(np.full((480, 640, 3), 20 * number, np.uint8))
    video.release()
    frames = list(read_pictures(npm(take=("*.avi",), frames=(2, 8, 3)), tmp_path))
    assert [name for name, _ in frames] == ["clip-0002.png", "clip-0005.png", "clip-0008.png"]
    greys = [float(image.mean()) for _, image in frames if image is not None]
    assert greys == pytest.approx([40, 100, 160], abs=3)
    with pytest.raises(SourceError, match=r"clip\.avi.*frame 10"):
        list(read_pictures(npm(take=("*.avi",), frames=(2, 12, 3)), tmp_path))


def test_copies_are_dropped_but_views_of_a_scene_are_kept(tmp_path):
    folder = PhotoFolder(tmp_path)
    assert folder.add(npm("one"), "a.jpg", photo(1)) is None
    reason = folder.add(npm("two"), "b.jpg", shrink(photo(1), 500)[0])
    assert reason == "same picture as one of one/a.jpg"
    views = npm("series", scene="(.*)_", views=True)
    assert folder.add(views, "door_1.jpg", photo(2)) is None
    assert folder.add(views, "door_2.jpg", photo(2)) is None
    assert folder.add(views, "wall_1.jpg", photo(2)) == "same picture as one of series/door"
    assert folder.add(npm("one"), "icon.jpg", photo(3, (300, 390))) == "too small"
    assert sum(sum(count.values()) for count in folder.counts.values()) == 3


def test_pictures_that_differ_only_in_their_suffix_do_not_overwrite_each_other(tmp_path):
    folder, source = PhotoFolder(tmp_path), npm(scene="()")
    folder.add(source, "sub/a.jpg", photo(1))
    folder.add(source, "sub/a.png", photo(2))
    folder.finish([source])
    names = sorted(path.name for path in tmp_path.glob("*/*.jpg"))
    assert names == ["kit__sub-a-png.jpg", "kit__sub-a.jpg"]


def test_the_split_is_fixed_and_holds_out_about_six_percent():
    held = [scene for scene in (f"kit/{n}.jpg" for n in range(5000)) if is_validation(scene)]
    assert 240 < len(held) < 360
    assert is_validation("scikit-learn/china.jpg")
    assert not is_validation("scikit-learn/flower.jpg")


# ---- the whole command --------------------------------------------------------------------------


@pytest.fixture
def workshop(tmp_path):
    """A manifest of one package, one series of views and one package that cannot be had."""
    for seed in range(20, 40):
        save(tmp_path / f"tree/img/{seed:02d}.jpg", photo(seed, (320, 420)))
    (tmp_path / "tree/img/broken.jpg").write_text("not a picture")
    save(tmp_path / "tree/img/copy.jpg", photo(27, (640, 840)))
    npm_archive(tmp_path / "cache", tmp_path / "tree", "kit", "1.0.0")
    for view in range(3):
        save(tmp_path / f"series/door/{view}.jpg", photo(100, (320, 420)))
    (tmp_path / "mine.toml").write_text(
        '[[source]]\nkind = "npm"\nname = "kit"\nversion = "1.0.0"\nroot = "img"\n'
        'take = ["*.jpg"]\nlicence = "MIT"\ncredit = "A. Author"\n'
        '[[source]]\nkind = "npm"\nname = "gone"\nversion = "9.9.9"\n'
        'take = ["*.jpg"]\nlicence = "MIT"\n'
        '[[source]]\nkind = "folder"\nname = "door"\nroot = "door"\nscene = "()"\n'
        'views = true\ntake = ["*.jpg"]\nlicence = "CC0-1.0"\n'
    )
    return tmp_path


def run(workshop: Path, output: str = "out", series: bool = True):
    return fetch_photos(
        workshop / output,
        workshop / "series" if series else None,
        cache=workshop / "cache",
        manifest=workshop / "mine.toml",
    )


def pictures(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.glob("*/*")}


def test_fetch_photos_from_end_to_end(workshop, monkeypatch):
    client(workshop, monkeypatch, "echo no such package >&2; exit 1")
    summary = run(workshop)
    out = workshop / "out"
    assert summary.total("train") + summary.total("val") == 23
    door = summary.counts["door"]
    assert sorted((door["train"], door["val"])) == [0, 3]
    assert door["scenes"] == 0
    assert summary.total("val") == len(list((out / "val").iterdir()))
    assert summary.counts["kit"]["val"] > 0
    warnings = "\n".join(summary.warnings)
    assert "gone" in warnings
    assert "no such package" in warnings
    assert "kit: broken.jpg: not a picture" in warnings
    assert "kit: copy.jpg: same picture as one of kit/27.jpg" in warnings
    table = (out / CREDITS).read_text()
    counts = summary.counts["kit"]
    assert (
        f"| kit | npm | 1.0.0 | MIT | A. Author | {counts['train']} | {counts['val']} | 0 |"
        in table
    )
    assert "| gone |" not in table
    assert "- gone: " in table
    for name, data in pictures(out).items():
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert image is not None, name
        assert max(image.shape) <= 960


def test_fetch_photos_again_gives_the_same_bytes(workshop, monkeypatch):
    client(workshop, monkeypatch, "exit 1")
    run(workshop)
    first = pictures(workshop / "out")
    old = OwnedFolder.mark(workshop / "out").claim("train/left-over.jpg")
    old.write_text("from an older manifest")
    mine = workshop / "out/train/mine.jpg"
    mine.write_text("of the user")
    run(workshop)
    assert mine.read_text() == "of the user"
    mine.unlink()
    assert pictures(workshop / "out") == first
    # Elsewhere, and without the series: the packages keep their sides.
    plain = run(workshop, "elsewhere", series=False)
    assert not any("door" in text for text in (*plain.counts, *plain.warnings))
    packages = {name: data for name, data in first.items() if "door__" not in name}
    assert pictures(workshop / "elsewhere") == packages


def test_a_folder_with_other_work_is_not_touched(workshop):
    mine = save(workshop / "out/train/mine.jpg", photo(1))
    with pytest.raises(HardnetError, match="did not write"):
        run(workshop)
    assert mine.exists()


def test_nothing_fetched_is_an_error_and_keeps_the_old_result(workshop, monkeypatch):
    client(workshop, monkeypatch, "exit 1")
    run(workshop)
    before = pictures(workshop / "out")
    (workshop / "cache/kit-1.0.0.tgz").unlink()
    with pytest.raises(HardnetError, match="no photo could be fetched: gone"):
        run(workshop, series=False)
    assert pictures(workshop / "out") == before


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    """A bare copy of a repository with two scenes of two and three photos."""
    tmp_path = tmp_path_factory.mktemp("repositories")
    tree = tmp_path / "tree"
    for seed, scene in enumerate(("barn", "mill")):
        for view, size in enumerate(((900, 1600), (450, 800))):
            save(tree / f"photos/{scene}/{view}.png", photo(seed, size))
    save(tree / "photos/barn/far.png", photo(5))
    save(tree / "map.png", photo(9))
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "photos")
    bare = tmp_path / "copies/some+scenes/repo"
    git(tmp_path, "clone", "-q", "--bare", "--no-local", str(tree), str(bare))
    return tmp_path / "copies", git(tree, "rev-parse", "HEAD")


def scenes_manifest(folder: Path, commit: str) -> Path:
    path = folder / "scenes.toml"
    path.write_text(
        '[[source]]\nkind = "git"\nname = "farm"\nrepository = "some/scenes"\nroot = "photos"\n'
        f'version = "{commit}"\ntake = ["*.png"]\nscene = "([^/]+)/"\nviews = true\n'
        'licence = "CC0-1.0"\n'
    )
    return path


def test_photos_of_a_repository_become_a_folder_per_scene(tmp_path, repositories):
    copies, commit = repositories
    summary = fetch_photos(
        tmp_path / "out",
        repositories=copies,
        manifest=scenes_manifest(tmp_path, commit),
    )
    assert summary.counts == {"farm": {"train": 0, "val": 0, "scenes": 5}}
    found = sorted(p.relative_to(tmp_path / "out").as_posix() for p in tmp_path.glob("out/*/*/*"))
    assert found == [
        "scenes/farm-barn/0.jpg",
        "scenes/farm-barn/1.jpg",
        "scenes/farm-barn/far.jpg",
        "scenes/farm-mill/0.jpg",
        "scenes/farm-mill/1.jpg",
    ]
    assert cv2.imread(str(tmp_path / "out" / found[0])).shape == (675, 1200, 3)


def test_an_absent_repository_or_commit_is_a_clear_error(tmp_path, repositories):
    copies, commit = repositories
    for version, folder, said in (
        (commit, tmp_path, "no copy of some/scenes"),
        ("0" * 40, copies, "has no commit"),
    ):
        with pytest.raises(HardnetError, match=said):
            fetch_photos(
                tmp_path / "out",
                repositories=folder,
                manifest=scenes_manifest(tmp_path, version),
            )


# ---- videos -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve frames; number k is grey 20 k."""
    path = tmp_path_factory.mktemp("video") / "steps.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for k in range(12):
        writer.write(np.full((48, 64, 3), 20 * k, np.uint8))
    writer.release()
    return path


def test_the_frames_asked_for_come_with_their_numbers(video: Path) -> None:
    got = {n: float(image.mean()) for n, image in read_frames(video, 2, 10, 4)}
    assert list(got) == [2, 6, 10]
    assert all(abs(grey - 20 * n) < 4 for n, grey in got.items())
    assert len(list(read_frames(video))) == 12


def test_frames_become_pictures_named_by_number(video: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["data", "frames", str(video), "-o", str(tmp_path / "out"), "--step", "5"]
    )
    assert result.exit_code == 0, result.output
    files = sorted((tmp_path / "out").iterdir())
    assert [f.name for f in files] == ["000000.png", "000005.png", "000010.png"]
    assert abs(float(cv2.imread(str(files[1])).mean()) - 100) < 4


def test_what_is_no_video_or_too_short_is_said(video: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.mp4"
    text.write_text("no video")
    with pytest.raises(HardnetError, match=r"text\.mp4 cannot be decoded as a video"):
        list(read_frames(text))
    with pytest.raises(HardnetError, match="no video"):
        list(read_frames(tmp_path / "none.mp4"))
    with pytest.raises(HardnetError, match="at frame 12"):
        list(read_frames(video, 0, 30))
    with pytest.raises(HardnetError, match="not an empty folder"):
        write_frames(video, tmp_path)


def test_a_last_frame_before_the_first_is_said(video: Path) -> None:
    with pytest.raises(HardnetError, match="last frame, 3, is before the first, 5"):
        list(read_frames(video, first=5, last=3))
