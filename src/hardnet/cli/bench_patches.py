"""`hardnet bench brown`, `w1bs` and `hpatches`: the patch benchmarks of the paper."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hardnet.cli.bench_output import (
    RIVALS,
    Descriptors,
    Json,
    Output,
    StoreFolder,
    check_output,
    finish,
    labels,
    parse_specs,
)
from hardnet.cli.options import reads_images
from hardnet.cli.output import Stage, say
from hardnet.errors import HardnetError


def register(bench: typer.Typer) -> None:
    """Add the commands to ``hardnet bench``."""
    bench.command("brown")(reads_images(brown))
    bench.command("w1bs")(reads_images(w1bs))
    bench.command("hpatches")(reads_images(hpatches))


def brown(
    sets: Annotated[list[Path], typer.Argument(help="Sets in the Brown (PhotoTour) layout.")],
    output: Output = None,
    descriptors: Descriptors = RIVALS,
    store: StoreFolder = None,
    json_: Json = False,
) -> None:
    """Patch verification: FPR95 (and FDR95, ROC AUC) on the pairs of each set, as in Table 1.

    Example: hardnet bench brown sets/lund-door --descriptors hardnet,rootsift -o brown.json

    The paper's table: hardnet bench brown liberty notredame yosemite --descriptors
    "sift,TFeat[liberty]=tfeat-liberty.params,TFeat[notredame]=tfeat-notredame.params"
    """
    from hardnet.bench import brown as benchmark
    from hardnet.bench.store import Store
    from hardnet.descriptors import load
    from hardnet.patchsets.brown import read_brown
    from hardnet.patchsets.sets import require
    from hardnet.provenance import data_digest

    check_output(output)
    for folder in sets:
        require(folder, "brown")
    specs = parse_specs(descriptors)
    contestants = [(spec, load(spec.spec)) for spec in specs]
    predictions = Store(store)
    rows = []
    with Stage(resumes=True) as stage:
        for folder in sets:
            patchset = read_brown(folder, progress=stage.part(f"reading {folder.name}"))
            data = data_digest(folder).sha256
            for spec, descriptor in contestants:
                show = stage.part(f"{patchset.name}: {spec.label}")
                describe = predictions.open(descriptor, data).get
                rows.append(benchmark.evaluate(describe, patchset, spec.label, spec.trained, show))
    settings = {"descriptors": labels(specs), "sets": [folder.name for folder in sets]}
    finish({"kind": "brown", "rows": rows}, settings, sets, output, json_)


def w1bs(
    folder: Annotated[Path, typer.Argument(help="A set in the W1BS layout.")],
    output: Output = None,
    descriptors: Descriptors = RIVALS,
    store: StoreFolder = None,
    json_: Json = False,
) -> None:
    """Matching under one extreme change: area under the precision-recall curve per nuisance.

    Example: hardnet bench w1bs data/W1BS --descriptors hardnet,rootsift,sift -o w1bs.json
    """
    from hardnet.bench import w1bs as benchmark
    from hardnet.bench.store import Store
    from hardnet.descriptors import load
    from hardnet.patchsets.sets import require
    from hardnet.patchsets.w1bs import read_w1bs
    from hardnet.provenance import data_digest

    check_output(output)
    require(folder, "w1bs")
    patchset = read_w1bs(folder)
    specs = parse_specs(descriptors)
    data, predictions = data_digest(folder).sha256, Store(store)
    describers = {spec.label: predictions.open(load(spec.spec), data).get for spec in specs}
    with Stage(resumes=True) as stage:
        body = benchmark.compare(describers, patchset, stage.part("matching"))
    finish(body, {"descriptors": labels(specs)}, [folder], output, json_)


def hpatches(
    folder: Annotated[Path, typer.Argument(help="A set in the HPatches layout.")],
    output: Output = None,
    descriptors: Descriptors = RIVALS,
    split: Annotated[
        str, typer.Option(help="Test sequences: full, view, illum, or one of the split file.")
    ] = "full",
    splits: Annotated[
        Path | None,
        typer.Option(help="The split file [splits.json of the set, of TASKS or of TASKS/splits]."),
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(help="Folder with the official task lists; what it lacks is drawn."),
    ] = None,
    only: Annotated[
        str, typer.Option(help="Tasks to run, separated by commas.")
    ] = "verification,matching,retrieval",
    pairs: Annotated[
        int, typer.Option(min=5, help="Rows of each verification list; the benchmark has 1M.")
    ] = 1_000_000,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--write-csv",
            help="Also write all descriptors as CSV, the benchmark's exchange format.",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export-lists", help="Also write the task lists, in the format of the official ones."
        ),
    ] = None,
    store: StoreFolder = None,
    json_: Json = False,
) -> None:
    """Verification, matching and retrieval by the HPatches protocol, with intervals.

    A folder of CSV files (SEQUENCE/ref.csv ...) can take the place of a descriptor.

    Example: hardnet bench hpatches sets/sequences --descriptors hardnet,rootsift -o hpatches.json

    The paper's figure: hardnet bench hpatches hpatches-release --tasks hpatches-benchmark/tasks
    """
    from hardnet.bench.hpatches import run
    from hardnet.bench.hpatches.lists import OWN_DRAW, prepare, write_lists
    from hardnet.bench.hpatches.run import describe_all, open_source, stored_scores, write_all
    from hardnet.bench.store import Store
    from hardnet.patchsets.hpatches import choose_split, read_hpatches
    from hardnet.patchsets.sets import require
    from hardnet.provenance import data_digest

    chosen = [task.strip() for task in only.split(",")]
    if unknown := [task for task in chosen if task not in run.TASKS]:
        raise HardnetError(f"no task {unknown[0]!r}: choose from {', '.join(run.TASKS)}")
    check_output(output)
    require(folder, "hpatches")
    patchset, predictions = read_hpatches(folder), Store(store)
    test = choose_split(patchset, split, _split_file(splits, tasks))
    specs = parse_specs(descriptors)
    # Before the lists are drawn, which takes a while: a misspelt name should not.
    sources = [open_source(spec.spec, patchset, predictions) for spec in specs]
    with Stage(resumes=True) as stage:
        lists = prepare(
            split,
            test.test,
            {name: sequence.count for name, sequence in patchset.sequences.items()},
            tasks,
            lambda name: patchset.sequences[name].patches("ref"),
            pairs,
            stage.part("drawing pairs"),
            data_digest(folder).sha256,
            chosen,
        )
        if export is not None:
            write_lists(lists, export)
        options = run.TaskSettings(chosen)
        found = []
        for spec, source in zip(specs, sources, strict=True):
            label, show = spec.label, stage.within(spec.label)
            describe_all(source, test.test, stage.part(f"{label}: describing"))
            if csv is not None:
                write_all(source, test.test, csv / label)
            compute = partial(run.evaluate, label, source.lookup, lists, options, show)
            made_by = f"{label}: {source.digest}"
            found.append(stored_scores(store, made_by, lists, options, compute))
    asked = {"pairs": "verification", "retrieval": "retrieval"}
    if any(lists.origin[key] == OWN_DRAW and task in chosen for key, task in asked.items()):
        say(
            f"Pairs or retrieval lists are {OWN_DRAW}, by the published rule: for the published "
            "ones give --tasks hpatches-benchmark/tasks.",
            error=True,
        )
    body = run.combine(found)
    body = {"kind": "hpatches", **body, "set": {"name": patchset.name, **body["set"]}}
    settings = {"descriptors": labels(specs), "split": split, "tasks": chosen, "pairs": pairs}
    finish(body, settings, [folder], output, json_)


def _split_file(splits: Path | None, tasks: Path | None) -> Path | None:
    """The split file that was given, or the one with the task lists."""
    if splits is None and tasks is not None:
        places = (tasks / "splits.json", tasks / "splits" / "splits.json")
        return next((place for place in places if place.is_file()), None)
    return splits
