"""`hardnet bench brown`, `w1bs` and `hpatches`: the patch benchmarks of the paper."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hardnet.bench import w1bs as extremes
from hardnet.bench.brown import evaluate
from hardnet.bench.hpatches import run
from hardnet.bench.hpatches.lists import OWN_DRAW, prepare, write_lists
from hardnet.bench.store import Predictions
from hardnet.cli.bench_output import StoredComparison
from hardnet.cli.options import argument, option, reads_images
from hardnet.cli.output import Stage, say
from hardnet.descriptors import load
from hardnet.errors import HardnetError, within
from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.hpatches import choose_split, read_hpatches
from hardnet.patchsets.patchset import require
from hardnet.patchsets.w1bs import read_w1bs
from hardnet.provenance import data_digest


@reads_images
def brown(
    rivals: StoredComparison, sets: list[Path] = argument("Sets in the Brown (PhotoTour) layout.")
) -> None:
    """Patch verification: FPR95 (and FDR95, ROC AUC) on the pairs of each set, as in Table 1.

    Example: hardnet bench brown liberty notredame yosemite --descriptors
    "sift,TFeat[liberty]=tfeat-liberty.params,TFeat[notredame]=tfeat-notredame.params"
    """
    for folder in sets:
        require(folder, "brown")
    contestants = [(spec, load(spec.spec)) for spec in rivals.specs]
    rows = []
    with Stage(resumes=True) as stage:
        for folder in sets:
            patchset = read_brown(folder, progress=partial(stage, f"reading {folder.name}"))
            data = data_digest(folder).sha256
            for spec, descriptor in contestants:
                show = partial(stage, f"{patchset.name}: {spec.label}")
                describe = Predictions(descriptor, data, rivals.store).get
                rows.append(evaluate(describe, patchset, spec.label, spec.trained, show))
    names = [folder.name for folder in sets]
    rivals.finish({"kind": "brown", "rows": rows}, {"sets": names}, sets)


@reads_images
def w1bs(rivals: StoredComparison, folder: Path = argument("A set in the W1BS layout.")) -> None:
    """Matching under one extreme change: area under the precision-recall curve per nuisance.

    Example: hardnet bench w1bs data/W1BS --descriptors hardnet,rootsift,sift -o w1bs.json
    """
    require(folder, "w1bs")
    patchset, data = read_w1bs(folder), data_digest(folder).sha256
    describers = {n: Predictions(d, data, rivals.store).get for n, d in rivals.load().items()}
    with Stage(resumes=True) as stage:
        body = extremes.compare(describers, patchset, partial(stage, "matching"))
    rivals.finish(body, {}, [folder])


@reads_images
def hpatches(
    rivals: StoredComparison,
    folder: Path = argument("A set in the HPatches layout."),
    split: str = option("full", "Test sequences: full, view, illum, or one of the split file."),
    splits: Path | None = option(
        None, "The split file [splits.json of the set, of TASKS or of TASKS/splits]."
    ),
    tasks: Path | None = option(None, "Folder of official task lists; missing ones are drawn."),
    only: str = option("verification,matching,retrieval", "Tasks to run, separated by commas."),
    pairs: int = option(1_000_000, "Rows of each verification list; the benchmark has 1M.", min=5),
    csv: Path | None = option(
        None, "Also write all descriptors as CSV, the benchmark's exchange format.", "--write-csv"
    ),
    export: Path | None = option(
        None, "Also write the task lists, in the format of the official ones.", "--export-lists"
    ),
) -> None:
    """Verification, matching and retrieval by the HPatches protocol, with intervals.

    A folder of CSV files (SEQUENCE/ref.csv ...) can take the place of a descriptor.

    Example: hardnet bench hpatches hpatches-release --tasks hpatches-benchmark/tasks
    """
    chosen = [task.strip() for task in only.split(",")]
    if unknown := [task for task in chosen if task not in run.TASKS]:
        raise HardnetError(f"no task {unknown[0]!r}: choose from {', '.join(run.TASKS)}")
    require(folder, "hpatches")
    patchset = read_hpatches(folder)
    if splits is None and tasks is not None:
        places = (tasks / "splits.json", tasks / "splits" / "splits.json")
        splits = next((place for place in places if place.is_file()), None)
    test = choose_split(patchset, split, splits).test
    # Before the lists are drawn, which is slow: a misspelt name should fail at once.
    sources = [(s.label, run.open_source(s.spec, patchset, rivals.store)) for s in rivals.specs]
    with Stage(resumes=True) as stage:
        lists = prepare(
            split,
            test,
            {name: sequence.count for name, sequence in patchset.sequences.items()},
            tasks,
            lambda name: patchset.sequences[name].patches("ref"),
            pairs,
            partial(stage, "drawing pairs"),
            data_digest(folder).sha256,
            chosen,
        )
        if export is not None:
            write_lists(lists, export)
        found = []
        for label, source in sources:
            show = partial(stage, f"{label}: describing")
            run.describe_all(source, test, show, csv and csv / label)
            told = partial(within, stage, label)
            compute = partial(run.evaluate, label, source.lookup, lists, chosen, told)
            made_by = f"{label}: {source.digest}"
            found.append(run.stored_scores(rivals.store, made_by, lists, chosen, compute))
    asked = {"pairs": "verification", "retrieval": "retrieval"}
    if any(lists.origin[key] == OWN_DRAW and task in chosen for key, task in asked.items()):
        say(
            f"Pairs or retrieval lists are {OWN_DRAW}, by the published rule: for the published "
            "ones give --tasks hpatches-benchmark/tasks.",
            error=True,
        )
    body = run.combine(found)
    body = {"kind": "hpatches", **body, "set": {"name": patchset.name, **body["set"]}}
    rivals.finish(body, {"split": split, "tasks": chosen, "pairs": pairs}, [folder])


COMMANDS = (brown, w1bs, hpatches)
