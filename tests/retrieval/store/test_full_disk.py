"""A disk that is full, at every step of a commit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.store.snapshot import open_snapshot, verify
from hardnet.retrieval.store.writer import Writer
from hardnet.storage import MARKER


def files(folder: Path) -> set[str]:
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    return found - {MARKER}


def test_a_segment_that_does_not_fit(
    made_index: Path, made: SimpleNamespace, small_disk: Callable
) -> None:
    before, content = made.state_of(open_snapshot(made_index)), files(made_index)
    with Writer(made_index) as writer:
        writer.add([made.make_image("large", features=20_000), made.make_image("small")])
        with (
            small_disk(200_000),
            pytest.raises(HardnetError, match=f"disk of the index {made_index} is full.*make room"),
        ):
            writer.commit()
        assert made.state_of(open_snapshot(made_index)) == before
        assert files(made_index) == content
        writer.remove(["large"])  # there is room enough for the rest
        writer.commit()
    assert made.state_of(open_snapshot(made_index)) == {**before, "small": 0}
    assert verify(made_index).ok


def test_a_vocabulary_that_does_not_fit(
    tmp_path: Path, made: SimpleNamespace, new_index: dict[str, object], small_disk: Callable
) -> None:
    with Writer(tmp_path / "i", new_index) as writer:
        writer.add([made.make_image("a")])
        with small_disk(9_000), pytest.raises(HardnetError, match=r"index .* is full"):
            writer.commit()
    with pytest.raises(HardnetError, match="holds no index"):
        open_snapshot(tmp_path / "i")
    assert files(tmp_path / "i") == {"lock"}
    with Writer(tmp_path / "i", new_index) as writer:
        assert writer.commit() == 1


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
@pytest.mark.parametrize("create", [False, True])
def test_an_error_at_any_step(
    tmp_path: Path,
    made: SimpleNamespace,
    new_index: dict[str, object],
    call: str,
    create: bool,
) -> None:
    """The first, the second, ... call fails until a commit gets through."""
    folder = tmp_path / "index"
    state: dict[str, int] = {}
    if not create:
        with Writer(folder, new_index) as writer:
            writer.add(made.make_image(name) for name in "abc")
            writer.commit()
        state = dict.fromkeys("abc", 0)
    failures = 0
    while True:
        version = failures + 1
        wanted = {"b": version, "c": version, **({} if create else {"a": 0})}
        with pytest.MonkeyPatch.context() as patch:
            calls = [0]
            patch.setattr(os, call, failing(getattr(os, call), failures, calls))
            try:
                with Writer(folder, new_index if create else None) as writer:
                    writer.add(made.make_image(name, version) for name in "bc")
                    writer.compact(0)
                    writer.commit()
            except HardnetError as error:
                assert f"{folder} is full" in str(error)  # noqa: PT017
            done = calls[0] <= failures
        failures += 1
        if create and not (folder / "manifest.json").exists():
            assert not done
            assert files(folder) <= {"lock"}
            continue
        snapshot = open_snapshot(folder)
        assert verify(folder).ok
        found = made.state_of(snapshot)
        assert files(folder) - {"lock"} == {*snapshot.manifest.files(), "manifest.json"}
        if done or create:
            assert found == wanted
            break
        assert found in (state, wanted)
        state = found
    assert failures > 1


def failing(real: Callable[..., object], position: int, calls: list[int]) -> Callable[..., object]:
    def call(*arguments: object, **options: object) -> object:
        calls[0] += 1
        if calls[0] == position + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **options)

    return call
