"""Cells are really trained, killed, resumed and shared between processes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hardnet.bench import grids
from hardnet.bench.experiments import (
    RESULTS,
    SCORE,
    SETTINGS,
    Event,
    Experiment,
    Tests,
    begin,
    locked,
    read_score,
)
from hardnet.errors import HardnetError
from hardnet.learn.recipe import Recipe, read_recipe
from hardnet.learn.run import CHECKPOINT

RUN = """
import json, sys
from pathlib import Path
import torch
from hardnet.bench import grids
from hardnet.bench.experiments import Experiment, Tests
from hardnet.learn.recipe import read_recipe

torch.set_num_threads(1)
recipe, folder, test = map(Path, sys.argv[1:4])
experiment = Experiment(grids.recipes(), read_recipe(recipe, sys.argv[4:]), folder, Tests((test,)))
trained = set()
taken = experiment.run(lambda event: trained.add(event.name))
experiment.finish({})
print(json.dumps({"trained": sorted(trained), "taken": [run.cell.name for run in taken]}))
"""


@pytest.fixture(scope="session")
def tests(sets: Path) -> Tests:
    return Tests((sets / "test",), sets / "sequences", strip=5)


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def state(folder: Path) -> dict[str, Any]:
    return torch.load(folder / CHECKPOINT, weights_only=True)["net"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def whole(
    base: Recipe, tests: Tests, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Experiment, list[Event]]:
    """A grid that nobody disturbed, and what it said."""
    events: list[Event] = []
    experiment = Experiment(grids.recipes(), base, tmp_path_factory.mktemp("whole"), tests)
    assert experiment.run(events.append) == []
    return experiment, events


def test_a_grid_ends_in_one_results_file(
    whole: tuple[Experiment, list[Event]], base: Recipe, tests: Tests
) -> None:
    experiment, events = whole
    tmp_path = experiment.folder
    results = experiment.finish({"command": "x"}, tmp_path / "kept" / "r.json")
    assert json.loads((tmp_path / RESULTS).read_text()) == json.loads(json.dumps(results))
    assert (tmp_path / "kept" / "r.json").read_text() == (tmp_path / RESULTS).read_text()
    assert [cell["cell"] for cell in results["cells"]] == [
        "nips", "nips-flip", "post-nips", "post-nips-flip",
    ]  # fmt: skip
    for cell in results["cells"]:
        folder = tmp_path / cell["cell"]
        recipe = read_recipe(folder / "recipe.yaml", [])
        assert {key: getattr(recipe, key) for key in cell["changes"]} == cell["changes"]
        (run,) = cell["runs"]
        assert (run["steps"], run["pairs"], run["seed"]) == (6, 96, 0)
        assert cell["fpr95"]["low"] <= cell["fpr95"]["value"] <= cell["fpr95"]["high"]
        assert cell["matching"]["value"] == pytest.approx(run["matching"]["value"])
        assert (folder / "tfeat.safetensors").exists()
        assert len(list(csv.DictReader((folder / "log.csv").open()))) == 6
    assert results["missing"] == []
    assert {claim["answer"] for claim in results["claims"]} <= {"yes", "no", "open"}
    assert {event.name for event in events} == {cell["cell"] for cell in results["cells"]}
    assert str(tests.brown[0].parent) not in json.dumps(results)
    # A second time nothing is trained.
    again: list[Event] = []
    experiment = Experiment(grids.recipes(), base, tmp_path, tests)
    assert experiment.run(again.append) == []
    assert not again
    assert experiment.finish({"command": "x"}) == results


@pytest.mark.slow
def test_chosen_cells_and_more_seeds_later(base: Recipe, tests: Tests, tmp_path: Path) -> None:
    first = Experiment(grids.recipes(), base, tmp_path, tests, "nips")
    first.run()
    results = first.finish({})
    assert results["missing"] == ["nips-flip", "post-nips", "post-nips-flip"]
    assert all(claim["answer"] == "open" for claim in results["claims"])
    second = Experiment(grids.recipes(), base, tmp_path, tests, "nips,nips-flip", seeds=2)
    trained: set[str] = set()
    second.run(lambda event: trained.add(event.name))
    assert trained == {"nips-flip", "nips-seed1", "nips-flip-seed1"}
    results = second.finish({})
    cell = results["cells"][0]
    assert [run["seed"] for run in cell["runs"]] == [0, 1]
    values = [run["matching"]["value"] for run in cell["runs"]]
    assert values[0] != values[1]
    assert cell["matching"]["seeds"] == values
    assert cell["matching"]["value"] == pytest.approx(sum(values) / 2)


@pytest.mark.slow
def test_every_cell_of_the_ablation_trains(base: Recipe, sets: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    tests = Tests((sets / "test",))
    experiment = Experiment(grids.ablation(), replace(base, pairs=32, epoch=16), tmp_path, tests)
    experiment.run()
    results = experiment.finish({})
    assert len(results["cells"]) == 21
    assert all(cell["runs"][0]["steps"] == 2 for cell in results["cells"])
    losses = {cell["cell"]: cell["runs"][0]["loss"] for cell in results["cells"]}
    # At first all distances are small: then 1 + p - n is triplet and contrastive alike, and a
    # margin of 2 only adds 1. The samplings and regularizers must differ for every loss.
    for loss in ("softmin", "triplet", "contrastive1", "contrastive2"):
        assert len({losses[name] for name in losses if f"-{loss}" in name}) == 5
    assert losses["hardest-contrastive2"] == pytest.approx(losses["hardest-contrastive1"] + 1)
    assert all(claim["measure"] == "fpr95" for claim in results["claims"])


def test_killed_in_a_cell_it_continues_there(
    whole: tuple[Experiment, list[Event]], base: Recipe, tests: Tests, tmp_path: Path
) -> None:
    grid, chosen = grids.recipes(), "nips,nips-flip"

    class Killed(BaseException):
        pass

    def kill(event: Event) -> None:
        if (event.name, event.done) == ("nips-flip", 3):
            raise Killed

    with pytest.raises(Killed):
        Experiment(grid, base, tmp_path / "parts", tests, chosen).run(kill)
    assert (tmp_path / "parts" / "nips" / SCORE).exists()
    assert not (tmp_path / "parts" / "nips-flip" / SCORE).exists()
    seen: list[Event] = []
    parts = Experiment(grid, base, tmp_path / "parts", tests, chosen)
    parts.run(seen.append)
    assert (seen[0].name, seen[0].done) == ("nips-flip", 2)  # a step is saved after its report
    for cell in grid.choose(chosen):
        a, b = (state(root / cell.name) for root in (tmp_path / "parts", whole[0].folder))
        assert all(torch.equal(a[key], b[key]) for key in a)
    a, b = parts.finish({}), whole[0].finish({})
    for one, other in list(zip(a["cells"], b["cells"], strict=True))[:2]:
        assert one["matching"] == other["matching"]


def test_killed_while_testing_it_only_tests(base: Recipe, tests: Tests, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(event: Event) -> None:
        if event.info == "testing":
            raise Killed

    with pytest.raises(Killed):
        Experiment(grids.recipes(), base, tmp_path, tests, "nips").run(kill)
    seen: list[Event] = []
    Experiment(grids.recipes(), base, tmp_path, tests, "nips").run(seen.append)
    assert [event.done for event in seen] == [6, 6]
    assert (tmp_path / "nips" / SCORE).exists()


@pytest.mark.slow
def test_two_processes_share_the_cells(recipe_file: Path, sets: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    arguments = (recipe_file, folder, sets / "test", "pairs=480")
    both = [start(*arguments) for _ in range(2)]
    said = [json.loads(process.communicate(timeout=300)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    names = [cell.name for cell in grids.recipes().cells]
    assert sorted(said[0]["trained"] + said[1]["trained"]) == sorted(names)
    assert said[0]["trained"]
    assert said[1]["trained"]
    results = json.loads((folder / RESULTS).read_text())
    assert results["missing"] == []
    for name in names:  # nobody trained a cell twice: its log has every step once
        rows = list(csv.DictReader((folder / name / "log.csv").open()))
        assert [int(row["step"]) for row in rows] == list(range(1, 31))
        assert json.loads((folder / name / "provenance.json").read_text())["resumed"] == []


@pytest.mark.slow
def test_after_kill_9_another_process_finishes_the_cell(
    recipe_file: Path, sets: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    first = start(recipe_file, folder, sets / "test", "pairs=3200")
    try:
        deadline = time.monotonic() + 300
        while not (folder / "nips" / CHECKPOINT).exists():
            assert time.monotonic() < deadline, "training did not start"
            assert first.poll() is None
            time.sleep(0.05)
        with locked(folder / "nips") as mine:
            assert not mine
    finally:
        first.kill()  # kill -9
        first.communicate()
    with locked(folder / "nips") as mine:
        assert mine
    reached = torch.load(folder / "nips" / CHECKPOINT, weights_only=True)["step"]
    assert 20 <= reached < 200
    base = read_recipe(recipe_file, ["pairs=3200"])
    seen: list[Event] = []

    class Enough(BaseException):
        pass

    def stop(event: Event) -> None:
        seen.append(event)
        if len(seen) == 3:
            raise Enough

    with pytest.raises(Enough):
        Experiment(grids.recipes(), base, folder, Tests((sets / "test",))).run(stop)
    assert [event.done for event in seen] == [reached, reached + 1, reached + 2]


def test_what_is_taken_is_named(base: Recipe, tests: Tests, tmp_path: Path) -> None:
    experiment = Experiment(grids.recipes(), base, tmp_path, tests, "nips,post-nips")
    with locked(tmp_path / "nips"):
        taken = experiment.run()
    assert [run.cell.name for run in taken] == ["nips"]
    assert experiment.finished() == 1


def test_changes_are_refused_and_named(base: Recipe, tests: Tests, tmp_path: Path) -> None:
    grid = grids.batch_size(96)
    Experiment(grid, base, tmp_path, tests, "batch-16")
    for changes, message in [
        ({"pairs": 128}, "budget=96, not 128"),
        ({"lr": 1.0}, r"lr=0\.1, not 1\.0"),
        ({"seed": 3}, "seed=0, not 3"),
        ({"net": "hardnet"}, "net=tfeat, not hardnet"),
        ({"data": [str(tests.brown[0])]}, r"data=\['train .*'\], not \['test "),
    ]:
        with pytest.raises(HardnetError, match=message):
            Experiment(grid, replace(base, **changes), tmp_path, tests)
    with pytest.raises(HardnetError, match="test_pairs=0, not 50"):
        Experiment(grid, base, tmp_path, replace(tests, pairs=50))
    with pytest.raises(HardnetError, match=r"hpatches=sequences .*, not None"):
        Experiment(grid, base, tmp_path, replace(tests, hpatches=None))
    other = grids.batch_size(96, "steps")
    with pytest.raises(HardnetError, match="cells batch-16 pairs=None, not"):
        Experiment(other, base, tmp_path, tests)
    # What changes no number may change: how it is computed, which cells, how many seeds.
    same = replace(base, chunk=8, checkpoint_every=7)
    Experiment(grid, same, tmp_path, tests, "batch-32", seeds=2)


def test_mistakes_are_found_before_training(base: Recipe, tests: Tests, tmp_path: Path) -> None:
    grid = grids.batch_size(96)
    with pytest.raises(HardnetError, match="cell batch-2048: a batch of 2048 needs"):
        Experiment(grid, base, tmp_path / "a", tests).run()
    with pytest.raises(HardnetError, match="--brown"):
        Experiment(grid, base, tmp_path / "b", Tests())
    with pytest.raises(HardnetError, match="one device"):
        Experiment(grid, replace(base, devices=2), tmp_path / "c", tests)
    with pytest.raises(HardnetError, match="unknown network"):
        Experiment(grid, replace(base, net="none"), tmp_path / "d", tests).run()
    assert not list(tmp_path.rglob("log.csv"))


def test_a_cell_that_diverges_is_a_result(
    base: Recipe, tests: Tests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hardnet.learn import trainer

    build = trainer.Objective

    def broken(**settings: Any) -> Any:
        objective = build(**settings)

        def nan(*arguments: Any) -> Any:
            terms = objective(*arguments)
            return replace(terms, loss=terms.loss * float("nan"))

        class Nan:
            __call__ = staticmethod(nan)

            def __getattr__(self, name: str) -> Any:
                return getattr(objective, name)

        return Nan()

    experiment = Experiment(grids.recipes(), base, tmp_path, tests, "nips,nips-flip")
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "Objective", broken)
        experiment.run()
    results = experiment.finish({})
    cell = results["cells"][0]
    assert cell["failed"] == 1
    assert "the loss became nan" in cell["runs"][0]["failed"]
    assert "matching" not in cell
    assert all("nips-flip > nips" in claim["not_run"] for claim in results["claims"][2:])


def test_a_cell_that_diverges_before_mining_is_a_result(
    base: Recipe, tests: Tests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network may break in the last step of an epoch, and mining is the first to see it."""
    pytest.importorskip("faiss")
    from hardnet.learn.trainer import MinedEpochs

    describe = MinedEpochs._describe_all
    monkeypatch.setattr(MinedEpochs, "_describe_all", lambda own: describe(own) * float("nan"))
    experiment = Experiment(grids.ablation(), base, tmp_path, tests, "classical-triplet")
    assert experiment.run() == []
    cells = {cell["cell"]: cell for cell in experiment.finish({})["cells"]}
    assert "not finite" in cells["classical-triplet"]["runs"][0]["failed"]


def test_weights_that_no_batch_can_have_are_found_before_training(
    base: Recipe, tests: Tests, sets: Path, tmp_path: Path
) -> None:
    both = [str(sets / "train"), str(sets / "test")]  # 40 points each
    settings = replace(base, data=both, weights=[9.0, 1.0])
    experiment = Experiment(grids.batch_size(96), settings, tmp_path, tests, "batch-64")
    with pytest.raises(HardnetError, match="cell batch-64: weight 9 of set 1 asks for 58"):
        experiment.run()
    assert not list(tmp_path.rglob("log.csv"))


def test_first_weights_are_named_by_their_content(
    base: Recipe, tests: Tests, tmp_path: Path
) -> None:
    (tmp_path / "start.pth").write_bytes(b"1")
    settings = replace(base, init=str(tmp_path / "start.pth"))
    begun = Experiment(grids.recipes(), settings, tmp_path / "run", tests).settings()
    assert begun["init"].startswith("start.pth ")
    assert str(tmp_path) not in json.dumps(begun)
    (tmp_path / "start.pth").write_bytes(b"2")
    with pytest.raises(HardnetError, match=r"made with init=start\.pth"):
        Experiment(grids.recipes(), settings, tmp_path / "run", tests)


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    settings = {"experiment": "recipes", "budget": 100, "lr": 0.1, "cells": {"a": {"lr": 1.0}}}
    begin(tmp_path, settings)
    begin(tmp_path, settings)
    with pytest.raises(HardnetError, match="made with budget=100, not 200: use that value"):
        begin(tmp_path, settings | {"budget": 200})
    with pytest.raises(HardnetError, match=r"cells a lr=1\.0, not 2\.0"):
        begin(tmp_path, settings | {"cells": {"a": {"lr": 2.0}}})
    with pytest.raises(HardnetError, match="experiment=recipes, not ablation"):
        begin(tmp_path, settings | {"experiment": "ablation"})


def test_a_key_that_is_new_had_its_default(tmp_path: Path) -> None:
    begin(tmp_path, {"budget": 100})
    begin(tmp_path, {"budget": 100, "same_patch": 0.008})
    with pytest.raises(HardnetError, match=r"same_patch=0\.008, not 0\.0"):
        begin(tmp_path, {"budget": 100, "same_patch": 0.0})


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / SETTINGS).write_text("{")
    with pytest.raises(HardnetError, match=SETTINGS):
        begin(tmp_path, {"budget": 100})
    assert read_score(tmp_path) is None
    (tmp_path / SCORE).write_text("{")
    with pytest.raises(HardnetError, match=SCORE):
        read_score(tmp_path)
