"""`hardnet bench brown` and `w1bs`: patch benchmarks of the paper, for any descriptor."""

from __future__ import annotations

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
)
from hardnet.cli.image_option import reads_images
from hardnet.cli.stage import Stage


def register(bench: typer.Typer) -> None:
    """Add the commands to ``hardnet bench``."""
    bench.command("brown")(reads_images(brown))
    bench.command("w1bs")(reads_images(w1bs))


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
    from hardnet.descriptors import load, parse_specs
    from hardnet.patchsets.brown import read_brown
    from hardnet.patchsets.catalogue import require
    from hardnet.patchsets.fingerprint import fingerprint

    check_output(output)
    for folder in sets:
        require(folder, "brown")
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
    from hardnet.descriptors import load, parse_specs
    from hardnet.patchsets.catalogue import require
    from hardnet.patchsets.fingerprint import fingerprint
    from hardnet.patchsets.w1bs import read_w1bs

    check_output(output)
    require(folder, "w1bs")
    patchset = read_w1bs(folder)
    specs = parse_specs(descriptors)
    data, predictions = fingerprint(folder), Store(store)
    describers = {spec.label: predictions.open(load(spec.spec), data).get for spec in specs}
    with Stage() as stage:
        body = benchmark.compare(describers, patchset, stage.part("matching"))
    finish(body, {"descriptors": labels(specs)}, [folder], output, json_)
