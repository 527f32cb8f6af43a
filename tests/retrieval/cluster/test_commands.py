"""The option --cluster, with the Ray of the other tests."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.cli.index import describing_on
from hardnet.cli.search import opened
from hardnet.retrieval.photos import IndexSettings

from .conftest import SETTINGS, SmallIndex


def said(*words: object) -> Any:
    """What a command prints as JSON."""
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    # The Ray of the tests outlives the command, and may speak of dead workers before and after it.
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow  # test_sharded has the same search without the command
def test_search(ray: Any, small: SmallIndex) -> None:
    query = [small.photos["coffee.png"], "--box", "20,20,400,300", "--mode", "he+sv"]
    here = said("search", small.folder, *query)
    there = said("search", small.folder, *query, "--cluster", "local")
    assert here.pop("seconds").keys() == there.pop("seconds").keys()
    assert here == there
    assert there["hits"][0]["path"].endswith("coffee.png")
    assert there["missing"] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["search", "build"])
def test_what_ray_says_is_not_on_stdout(
    command: str,
    ray: Any,
    small: SmallIndex,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from ray._private.utils import push_error_to_driver
    from ray._private.worker import global_worker

    # The Ray of the tests speaks; shards and workers of the command's own would only take time.
    for there in ("shards.ShardedIndex", "describers.describers_on"):
        monkeypatch.setattr(f"hardnet.retrieval.cluster.{there}", lambda *a, **k: nullcontext())
    message = f"a worker died, says the test of {command}"
    working: AbstractContextManager[Any] = (
        opened(small.folder, None, "local", 1)
        if command == "search"
        else describing_on("local", IndexSettings(**SETTINGS), 1)
    )
    with working:
        # The way that reports of raylets take, without a death.
        push_error_to_driver(global_worker, "test", message)
        out = err = ""
        deadline = time.monotonic() + 20
        while message not in out + err and time.monotonic() < deadline:
            time.sleep(0.01)
            seen = capsys.readouterr()
            out, err = out + seen.out, err + seen.err
    assert message in err
    assert message not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster", "nowhere"], "nowhere"),
        (["--shards", "2"], "--shards needs --cluster"),
    ],
)
def test_wrong_options(small: SmallIndex, words: list[str], message: str) -> None:
    pytest.importorskip("ray")
    command = ["search", str(small.folder), str(small.photos["coins.png"]), *words]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert message in str(result.exception)
