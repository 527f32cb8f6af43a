"""What all commands have in common: help, version, names of files, Ctrl-C."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import click.testing
import cv2
import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from hardnet.cli import app as module
from hardnet.cli.output import Stage, console, in_words
from hardnet.errors import counted, install_from

from .conftest import run

runner = CliRunner()


def commands(group: typer.core.TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


APP = module.command_line()
for each in module.COMMANDS:
    APP.load(each)


def test_the_list_of_commands_has_the_first_line_of_each() -> None:
    listed = runner.invoke(module.app, ["--help"], env={"COLUMNS": "250"}).output
    for name, line in module.COMMANDS.items():
        assert (APP.commands[name].help or "").split("\n")[0] == line
        assert re.search(rf"│ {name} +{re.escape(line)} ", listed)


def test_help_imports_no_command_and_nothing_heavy_and_needs_no_torch() -> None:
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"  # import torch now raises ImportError
        "from hardnet.cli.app import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(*sys.modules)\n"
    )
    arguments = [sys.executable, "-c", script, "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "hardnet.cli.app" in loaded
    unwanted = {f"hardnet.cli.{name}" for name in module.COMMANDS}
    assert not loaded & (unwanted | {"numpy", "cv2", "onnxruntime", "numba"})


@pytest.mark.parametrize("path", sorted(commands(APP)), ids=" ".join)
def test_help_shows_every_word_of_its_texts(path: tuple[str, ...]) -> None:
    command = APP
    for name in path:
        command = command.commands[name]
    environment = {"COLUMNS": "250", "TERM": "dumb"}
    done = click.testing.CliRunner().invoke(APP, [*path, "--help"], env=environment)
    assert done.exit_code == 0
    shown = re.sub(r"[\s│╭╮╰╯─]+", " ", done.output)
    assert re.search(r"Examples?: +hardnet|\n +hardnet ", command.help or ""), "an example"
    texts = [command.help or "", *(each.help or "" for each in command.params)]
    for word in " ".join(texts).replace("\\[", "[").split():
        assert word in shown


@pytest.mark.parametrize("start", [["-m", "hardnet"], ["-m", "hardnet.cli.app"]], ids=str)
def test_version_and_both_ways_to_start(start: list[str]) -> None:
    done = subprocess.run([sys.executable, *start, "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert re.fullmatch(r"hardnet \d+\.\d+\.\d+\S*\n", done.stdout)


def test_ctrl_c_while_modules_are_imported_is_130_without_a_word() -> None:
    script = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Stop:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'hardnet.errors':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Stop())\n"
        "from hardnet.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_in_a_command_is_130(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "hardnet", "match", "a", "b", "--descriptor", "slow:describe"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said


def test_names_of_files_are_printed_as_they_are(
    tmp_path: Path, command: Callable[..., object]
) -> None:
    name = tmp_path / ":x:[bold].jpg"
    cv2.imwrite(str(name), np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8))
    done = command("match", name, name)
    assert ":x:[bold].jpg" in done.stdout + done.stderr
    done = command("match", name, tmp_path / ":cat:[red]gone.jpg")
    assert ":cat:[red]gone.jpg does not exist" in done.stderr


def test_no_command_has_a_console_with_emoji() -> None:
    for file in Path(module.__file__).parent.glob("*.py"):
        for line in file.read_text().splitlines():
            assert "Console(" not in line or "emoji=False" in line, file.name


def test_names_in_a_bar_are_shown_as_they_are() -> None:
    output = Console(file=io.StringIO(), force_terminal=True, width=200, emoji=False)
    with Stage(output) as stage:
        stage(":x:[bold].jpg", 1, 2, "[red]:cat:")
    assert ":x:[bold].jpg" in output.file.getvalue()
    assert "[red]:cat:" in output.file.getvalue()
    assert not console()._emoji


def test_a_log_file_gets_a_line_now_and_then() -> None:
    output = Console(file=io.StringIO(), force_terminal=False, width=200)
    with Stage(output, every=0.0) as stage:
        stage("matching", 1, 4)
        stage("matching", 2, 4)
        stage("training", 1, 4, "loss [0.5]")
    first, second, third = output.file.getvalue().splitlines()
    assert first == "matching: 1 of 4, 0 s elapsed"
    assert re.fullmatch(r"matching: 2 of 4, 0 s elapsed, about 0 s left", second)
    assert third == "training: 1 of 4, loss [0.5], 0 s elapsed"
    output = Console(file=io.StringIO(), force_terminal=False)
    with Stage(output, every=60.0) as stage:
        stage("matching", 1, 4)
    assert output.file.getvalue() == ""


def test_ctrl_c_says_what_can_be_resumed() -> None:
    for resumes in (True, False):
        output = Console(file=io.StringIO(), force_terminal=False, width=200)
        with pytest.raises(KeyboardInterrupt), Stage(output, resumes=resumes):
            raise KeyboardInterrupt
        assert ("run the same command to resume" in output.file.getvalue()) == resumes


def test_times_and_counts_in_words() -> None:
    seconds = [0.4, 59, 185, 1500, 7500]
    assert [in_words(s) for s in seconds] == ["0 s", "59 s", "3 min 5 s", "25 min", "2 h 5 min"]
    assert [counted(n, "photo") for n in (0, 1, 2)] == ["0 photos", "1 photo", "2 photos"]
    things = ("match", "box", "copy", "3D point")
    assert [counted(1, thing) for thing in things] == [f"1 {thing}" for thing in things]
    several = ["0 matches", "0 boxes", "0 copies", "0 3D points"]
    assert [counted(0, thing) for thing in things] == several


@pytest.mark.parametrize("name", ["x.txt", "x", "nowhere/x.png"])
def test_a_picture_that_cannot_be_written_is_refused_before_the_work(
    name: str, tmp_path: Path, command: Callable[..., object]
) -> None:
    done = command("match", tmp_path / "gone.jpg", tmp_path / "gone.jpg", "-o", tmp_path / name)
    assert done.returncode == 1
    assert "gone.jpg" not in done.stderr
    assert re.search(r"name it \.png or \.jpg|there is no folder", done.stderr)


def test_other_outputs_of_a_wrong_kind_are_refused_before_the_work(
    tmp_path: Path, command: Callable[..., object]
) -> None:
    done = command("bench", "pairs", tmp_path, "-o", tmp_path / "x.csv")
    assert "results are JSON, name it x.json" in done.stderr
    done = command("bench", "table", tmp_path / "gone.json", "--figure", tmp_path / "x.pdf")
    assert "a figure file must end in .png or .svg" in done.stderr
    done = command("extract", tmp_path, "-o", tmp_path / "x.txt")
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, 'pip install "hardnet[sfm]"'),
        (
            '{"url": "file:///a%20b/hardnet", "dir_info": {"editable": true}}',
            'pip install -e "/a b/hardnet[sfm]"',
        ),
        ('{"url": "file:///src/hardnet", "dir_info": {}}', 'pip install "/src/hardnet[sfm]"'),
        (
            '{"url": "https://x.org/h.git", "vcs_info": {"vcs": "git", "commit_id": "1"}}',
            'pip install "hardnet[sfm] @ git+https://x.org/h.git"',
        ),
        (
            '{"url": "file:///d/hardnet-1-py3-none-any.whl", "archive_info": {}}',
            'pip install "hardnet[sfm] @ file:///d/hardnet-1-py3-none-any.whl"',
        ),
    ],
)
def test_the_command_that_installs_an_extra_suits_the_copy(
    origin: str | None, expected: str
) -> None:
    assert install_from("sfm", origin) == expected


def test_the_command_in_the_checkout_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    origin = f'{{"url": "{tmp_path.as_uri()}", "dir_info": {{"editable": true}}}}'
    assert install_from("sfm", origin) == 'pip install -e ".[sfm]"'


@pytest.mark.parametrize(("name", "threads"), [("match", "1"), ("colmap", None)])
def test_each_of_two_photos_has_a_core(name: str, threads: str | None) -> None:
    plain = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    with patch.dict(os.environ, plain, clear=True):
        run(name, "--help")
        assert os.environ.get("OPENBLAS_NUM_THREADS") == threads


@pytest.mark.parametrize("group", ["index", "data", "bench", "experiment"])
def test_no_group_offers_completion(group: str) -> None:
    assert "completion" not in runner.invoke(module.app, [group, "--help"]).output


def test_a_photo_that_may_not_be_read_is_no_mistake_in_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system says so here, since root may read everything."""
    photo = tmp_path / "photo.png"
    photo.touch()
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert run("match", photo, photo).returncode == 1


def test_a_negative_number_of_threads() -> None:
    done = runner.invoke(module.app, ["train", "post-nips", "--threads", "-4"])
    assert done.exit_code == 2
