"""`hardnet bench brown|hpatches|w1bs`: the patch benchmarks of the paper, for any descriptor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hardnet.cli.bench_output import Descriptors, Json, Output, Stage, finish
from hardnet.errors import HardnetError

if TYPE_CHECKING:
    from hardnet.bench.hpatches.strips import Lookup
    from hardnet.descriptors.spec import Spec
    from hardnet.patchsets.hpatches import HPatches

StoreFolder = Annotated[
    Path | None,
    typer.Option(help="Where descriptors are kept for the next run [the user's cache]."),
]
RIVALS = "hardnet,rootsift,sift"


def register(bench: typer.Typer) -> None:
    """Add the commands to ``hardnet bench``."""
    bench.command("brown")(brown)
    bench.command("hpatches")(hpatches)
    bench.command("w1bs")(w1bs)


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
    from hardnet.descriptors.spec import parse_specs
    from hardnet.patchsets.brown import read_brown
    from hardnet.patchsets.fingerprint import fingerprint

    specs = parse_specs(descriptors)
    contestants = [(spec, load(spec.spec)) for spec in specs]
    predictions = Store(store)
    rows = []
    with Stage() as stage:
        for folder in sets:
            patchset = read_brown(folder, progress=stage.part(f"reading {folder.name}"))
            data = fingerprint(folder)
            for spec, descriptor in contestants:
                show = stage.part(f"{patchset.name}: {spec.label}")
                describe = predictions.open(descriptor, data).get
                rows.append(benchmark.evaluate(describe, patchset, spec.label, spec.trained, show))
    settings = {"descriptors": _labels(specs), "sets": [folder.name for folder in sets]}
    finish({"kind": "brown", "rows": rows}, settings, sets, output, json_)


def hpatches(
    folder: Annotated[Path, typer.Argument(help="A set in the HPatches layout.")],
    output: Output = None,
    descriptors: Descriptors = RIVALS,
    split: Annotated[
        str, typer.Option(help="Test sequences: full, view, illum, or one of the split file.")
    ] = "full",
    splits: Annotated[
        Path | None, typer.Option(help="The split file [SET/splits.json, TASKS/splits.json].")
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
    store: StoreFolder = None,
    json_: Json = False,
) -> None:
    """Verification, matching and retrieval by the HPatches protocol, with intervals.

    A folder of CSV files (SEQUENCE/ref.csv ...) can take the place of a descriptor.

    Example: hardnet bench hpatches sets/sequences --descriptors hardnet,rootsift -o hpatches.json

    The paper's figure: hardnet bench hpatches hpatches-release --tasks hpatches-benchmark/tasks
    """
    from hardnet.bench.hpatches import run
    from hardnet.bench.hpatches.tasks import prepare
    from hardnet.descriptors.spec import parse_specs
    from hardnet.patchsets.fingerprint import fingerprint
    from hardnet.patchsets.hpatches import TAGS, choose_split, read_hpatches

    chosen = [task.strip() for task in only.split(",")]
    if unknown := [task for task in chosen if task not in run.TASKS]:
        raise HardnetError(f"no task {unknown[0]!r}: choose from {', '.join(run.TASKS)}")
    patchset = read_hpatches(folder)
    test = choose_split(patchset, split, _split_file(splits, tasks))
    # Before the lists are drawn, which takes a while: a misspelt name should not.
    contestants = [(spec, _open(spec, patchset, store)) for spec in parse_specs(descriptors)]
    with Stage() as stage:
        lists = prepare(
            split,
            test.test,
            {name: sequence.count for name, sequence in patchset.sequences.items()},
            tasks,
            lambda name: patchset.sequences[name].patches("ref"),
            pairs,
            stage.part("drawing pairs"),
            fingerprint(folder),
            chosen,
        )
        found = []
        for spec, lookup in contestants:
            strips = [(name, tag) for name in test.test for tag in TAGS]
            for done, strip in enumerate(strips, 1):
                lookup(*strip)
                stage(f"{spec.label}: describing", done, len(strips))
            if csv is not None:
                _write_csv(csv / spec.label, lookup, lists.names)
            show = stage.within(spec.label)
            found.append(run.evaluate(spec.label, lookup, lists, run.Settings(chosen), show))
    body = run.combine(found)
    body = {"kind": "hpatches", **body, "set": {"name": patchset.name, **body["set"]}}
    specs = [spec for spec, _ in contestants]
    settings = {"descriptors": _labels(specs), "split": split, "tasks": chosen, "pairs": pairs}
    finish(body, settings, [folder], output, json_)


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
    from hardnet.descriptors.spec import parse_specs
    from hardnet.patchsets.fingerprint import fingerprint
    from hardnet.patchsets.w1bs import read_w1bs

    patchset = read_w1bs(folder)
    specs = parse_specs(descriptors)
    data, predictions = fingerprint(folder), Store(store)
    describers = {spec.label: predictions.open(load(spec.spec), data).get for spec in specs}
    with Stage() as stage:
        body = benchmark.compare(describers, patchset, stage.part("matching"))
    finish(body, {"descriptors": _labels(specs)}, [folder], output, json_)


def _split_file(splits: Path | None, tasks: Path | None) -> Path | None:
    """The split file that was given, or the one beside the task lists."""
    if splits is None and tasks is not None and (tasks / "splits.json").is_file():
        return tasks / "splits.json"
    return splits


def _open(spec: Spec, patchset: HPatches, store: Path | None) -> Lookup:
    """Where descriptors come from: the store, which describes what it lacks, or CSV files."""
    from hardnet.bench.csv_folder import CsvFolder
    from hardnet.bench.store import Store
    from hardnet.descriptors import load
    from hardnet.patchsets.fingerprint import fingerprint

    sequences = patchset.sequences
    if Path(spec.spec).is_dir():
        files = CsvFolder(spec.spec)
        return lambda name, tag: files.get(name, tag, sequences[name].count)
    predictions = Store(store).open(load(spec.spec), fingerprint(patchset.folder))
    return lambda name, tag: predictions.get(f"{name}/{tag}", lambda: sequences[name].patches(tag))


def _write_csv(folder: Path, lookup: Lookup, names: tuple[str, ...]) -> None:
    from hardnet.bench.csv_folder import write_csv
    from hardnet.patchsets.hpatches import TAGS

    for name in names:
        for tag in TAGS:
            write_csv(folder, name, tag, lookup(name, tag))


def _labels(specs: list[Spec]) -> list[str]:
    return [f"{s.label}[{s.trained}]" if s.trained else s.label for s in specs]
