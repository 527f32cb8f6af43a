"""`hardnet bench brown|hpatches|w1bs` on sets built by `hardnet data build`, all from the shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.errors import HardnetError

run = CliRunner()


def hardnet(*arguments: object) -> Any:
    done = run.invoke(app, [str(a) for a in arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done


@pytest.fixture(scope="module")
def hpatches_set(sequences: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets") / "turned"
    hardnet("data", "build", "sequences", sequences, "-o", folder, "--limit", 40, "--workers", 1)
    return folder


@pytest.fixture(scope="module")
def hpatches_results(hpatches_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    names = "rootsift,Grey values=pixels"
    arguments = ("--descriptors", names, "--pairs", 500, "--store", folder / "store")
    csv = ("--write-csv", folder / "csv")
    hardnet("bench", "hpatches", hpatches_set, "-o", folder / "h.json", *arguments, *csv)
    return folder / "h.json"


def _mean(results: dict[str, Any], descriptor: str, task: str) -> float:
    (value,) = [
        row["value"]
        for row in results["means"]
        if (row["descriptor"], row["task"]) == (descriptor, task)
    ]
    return float(value)


def test_hpatches_scores_all_tasks_and_says_where_the_numbers_come_from(
    hpatches_results: Path, hpatches_set: Path
) -> None:
    results = json.loads(hpatches_results.read_text())
    assert results["set"]["name"] == "turned"
    assert results["set"]["sequences"] == 2
    for task in ("verification", "matching", "retrieval"):
        assert results[task]
        mine = [row for row in results[task] if row["descriptor"] == "rootsift"]
        easy, tough = (
            np.mean([row["ap_hits"] for row in mine if row["noise"] == noise])
            for noise in ("easy", "tough")
        )
        assert 0.05 < tough < easy <= 1
        assert _mean(results, "rootsift", task) > _mean(results, "Grey values", task)
    assert results["provenance"]["settings"]["pairs"] == 500
    assert str(hpatches_set.parent) not in hpatches_results.read_text()


def test_a_second_run_describes_nothing_and_gives_the_same_numbers(
    hpatches_results: Path, hpatches_set: Path, tmp_path: Path
) -> None:
    store, output = hpatches_results.parent / "store", tmp_path / "again.json"

    def kept() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}

    before = kept()
    assert len(before) > 2 * 2  # descriptors of two sequences by two descriptors, and scores
    names = "rootsift,Grey values=pixels"
    arguments = ("--descriptors", names, "--pairs", 500, "--store", store, "-o", output)
    hardnet("bench", "hpatches", hpatches_set, *arguments)
    assert kept() == before
    first, second = (json.loads(p.read_text()) for p in (hpatches_results, output))
    del first["provenance"], second["provenance"]
    assert first == second


def test_a_name_wins_over_a_folder_of_that_name(
    hpatches_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pixels").mkdir()
    arguments = ("--descriptors", "pixels", "--only", "matching", "--pairs", 100, "--json")
    done = hardnet("bench", "hpatches", hpatches_set, *arguments)
    assert _mean(json.loads(done.stdout), "pixels", "matching") > 0


def test_descriptors_written_as_csv_score_like_those_they_were_written_from(
    hpatches_results: Path, hpatches_set: Path
) -> None:
    csv = hpatches_results.parent / "csv"
    assert sorted(p.name for p in csv.iterdir()) == ["Grey values", "rootsift"]
    arguments = ("--descriptors", f"theirs={csv / 'rootsift'}", "--only", "matching", "--json")
    done = hardnet("bench", "hpatches", hpatches_set, *arguments, "--pairs", 100)
    again, first = json.loads(done.stdout), json.loads(hpatches_results.read_text())
    assert _mean(again, "theirs", "matching") == pytest.approx(
        _mean(first, "rootsift", "matching"), abs=1e-6
    )
    assert not again["retrieval"]


def test_a_function_of_the_user_is_a_descriptor(
    hpatches_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("--only", "matching", "--pairs", 100, "--store", tmp_path / "store", "--json")

    def score(module: str, body: str) -> float:
        text = f"import numpy as np\n\ndef describe(patches):\n    {body}\n"
        (tmp_path / f"{module}.py").write_text(text)
        spec = f"mine={module}:describe"
        done = hardnet("bench", "hpatches", hpatches_set, "--descriptors", spec, *arguments)
        return _mean(json.loads(done.stdout), "mine", "matching")

    good = score("mine_a", "return patches[:, ::8, ::8].reshape(len(patches), -1).astype(float)")
    flat = score("mine_b", "return np.ones((len(patches), 4))")
    assert good > 0.1 > flat


def test_w1bs_from_the_same_sequences(
    sequences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def brightness(patches):\n    return patches.mean((1, 2))[:, None] // 50\n"
    (tmp_path / "bright.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    folder, output = tmp_path / "w", tmp_path / "w.json"
    options = ("--layout", "w1bs", "--limit", 60, "--workers", 1)
    hardnet("data", "build", "sequences", sequences, "-o", folder, *options)
    names = "rootsift,bright:brightness"
    arguments = ("--descriptors", names, "--store", tmp_path / "store", "-o", output)
    done = hardnet("bench", "w1bs", folder, *arguments)
    assert "rootsift" in done.output
    results = json.loads(output.read_text())
    assert len(results["rows"]) == 2 * 10
    means = {
        row["descriptor"]: row["value"]
        for row in results["means"]
        if (row["subset"], row["score"]) == ("Total", "ap_hits")
    }
    # Patches carried without noise are easy, unless all that is known is one of five shades.
    assert means["rootsift"] > 0.95 > 0.5 > means["bright:brightness"] > 0


@pytest.mark.slow
def test_brown_of_photos_as_the_readme_shows_it(photos: Path, tmp_path: Path) -> None:
    folder, output = tmp_path / "mine", tmp_path / "mine.json"
    options = ("--points", 40, "--views", 3, "--pairs", 2000, "--workers", 1)
    hardnet("data", "build", "photos", photos, "-o", folder, *options)
    names = "hardnet,rootsift,R[mine]=pixels"
    arguments = ("--descriptors", names, "--store", tmp_path / "store", "-o", output)
    hardnet("bench", "brown", folder, *arguments)
    rows = {row["descriptor"]: row for row in json.loads(output.read_text())["rows"]}
    assert rows["hardnet"]["fpr95"] < rows["rootsift"]["fpr95"] < rows["R"]["fpr95"]
    assert rows["R"]["trained"] == "mine"
    for row in rows.values():
        assert row["low"] <= row["fpr95"] <= row["high"]
        assert row["fdr95"] == pytest.approx(row["fpr95"] / (row["fpr95"] + 0.95), abs=2e-3)
    hardnet("bench", "report", output, "-o", tmp_path / "report")
    files = sorted(p.name for p in (tmp_path / "report").iterdir())
    assert files == ["mine-rates.png", "mine-rates.svg", "mine.md", "mine.tex"]
    assert "rootsift" in (tmp_path / "report" / "mine.md").read_text()


def test_mistakes_are_named(hpatches_set: Path, tmp_path: Path) -> None:
    (tmp_path / "csv" / "v_left").mkdir(parents=True)
    np.savetxt(tmp_path / "csv" / "v_left" / "ref.csv", np.ones((3, 4)), delimiter=",")
    few = ("--pairs", "100")
    (tmp_path / "f").write_text("a file, not a folder")
    for arguments, message in [
        (["brown", tmp_path / "none"], "none"),
        (["brown", hpatches_set], "use `hardnet bench hpatches`"),
        (["hpatches", tmp_path], "is not a patch set"),
        (["hpatches", hpatches_set, "--split", "a"], "split a is not known"),
        (["hpatches", hpatches_set, "--only", "guessing"], "no task 'guessing'"),
        (["hpatches", hpatches_set, "--descriptors", "pixels,pixels"], "two descriptors"),
        (["hpatches", hpatches_set, "--descriptors", "nobody:home"], "no module 'nobody'"),
        (["hpatches", hpatches_set, *few, "--descriptors", tmp_path / "csv"], "3 rows"),
        (["hpatches", hpatches_set, "--descriptors", "no/such/folder/"], "no folder no/such"),
        (["hpatches", hpatches_set, "-o", tmp_path], "is a folder"),
        (["hpatches", hpatches_set, "-o", tmp_path / "f" / "x.json"], "cannot be written"),
        (["w1bs", hpatches_set], "use `hardnet bench hpatches`"),
    ]:
        done = run.invoke(app, ["bench", *map(str, arguments)])
        assert isinstance(done.exception, HardnetError), (arguments, done.exception)
        assert message in str(done.exception)
