"""`hardnet bench stereo`: wide-baseline stereo, the paper's Table 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from hardnet.cli.bench_output import (
    Descriptors,
    Json,
    Output,
    StoreFolder,
    check_output,
    detector_names,
    finish,
    labels,
)
from hardnet.cli.image_option import reads_images
from hardnet.cli.stage import Stage
from hardnet.errors import HardnetError

if TYPE_CHECKING:
    from hardnet.bench.stereo.sets import OpenSet


def register(bench: typer.Typer) -> None:
    """Add the command to ``hardnet bench``."""
    bench.command("stereo")(reads_images(stereo))


def stereo(
    sets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER...",
            help="Folders of image pairs; the name of a folder says which set it is, else write "
            "SET=FOLDER with SET one of EF, EVD, OxAff, SymB, GDB, WxBS, LTLL, HPatches.",
        ),
    ] = None,
    output: Output = None,
    descriptors: Descriptors = "hardnet,rootsift",
    detectors: Annotated[str, typer.Option(help="Separated by commas.")] = "dog",
    rule: Annotated[
        str, typer.Option(help="When a pair is matched: gt-15, mods, mods-deep or geometry.")
    ] = "gt-15",
    strategy: Annotated[
        str, typer.Option(help="How it is matched: default, mods or mods-degensac.")
    ] = "default",
    ratio: Annotated[
        float | None, typer.Option(help="Of the ratio test, instead of the strategy's.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="What is fitted: by-truth, homography or fundamental.")
    ] = "by-truth",
    keypoints: Annotated[int, typer.Option(min=1, help="Budget per image and detector.")] = 2048,
    upright: Annotated[bool, typer.Option("--upright", help="Turn no frame.")] = False,
    store: StoreFolder = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only say whether the sets are complete, exit code 1 if not; without a folder: "
            "what a complete one of each set holds.",
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Image pairs matched and inliers per matched pair, for descriptors x detectors.

    A folder holds sequences (N.png, H_1_k), pairs (1/, 2/, h/), scenes with corrs.txt (WxBS), or
    images and pairs.txt: a line IMAGE_A IMAGE_B [TRUTH] for each pair, TRUTH a file with a
    homography or with rows x1 y1 x2 y2. An interrupted run goes on where it was.

    Example: hardnet bench stereo data/evd data/wxbs --detectors dog,hessian-affine -o stereo.json

    Is my copy complete? hardnet bench stereo EF=data/edge --check
    """
    from hardnet.bench.stereo.rules import rule_by_name, summarise
    from hardnet.bench.stereo.run import Protocol, compare, label_of, strategy_by_name
    from hardnet.bench.stereo.sets import conventions, open_sets
    from hardnet.descriptors import load, parse_specs

    if not sets:
        if not check:
            raise HardnetError("no folder of image pairs: name one, or ask with --check what it is")
        print(conventions())
        return
    opened = open_sets(sets)
    if check:
        _check(opened)
        return
    check_output(output)
    chosen = rule_by_name(rule)
    setup = Protocol(
        keypoints=keypoints,
        upright=upright,
        model=model,  # type: ignore[arg-type]  # Protocol says which there are
        strategy=strategy_by_name(strategy, ratio),
    )
    found_by = detector_names(detectors)
    specs = parse_specs(descriptors)
    contestants = {spec.label: load(spec.spec) for spec in specs}
    total = sum(len(each.pairs) for each in opened) * len(found_by) * len(contestants)
    with Stage() as stage:
        advance = stage.counter("stereo", total)
        rows = compare(opened, contestants, found_by, setup, store, advance)
    shown = [label_of(name) for name in found_by]
    settings = {"descriptors": labels(specs), "detectors": shown, "rule": rule}
    settings |= {"strategy_name": strategy} | setup.settings()
    body = {
        "kind": "stereo",
        "rule": {"name": chosen.name, "about": chosen.about},
        "sets": [_about(each) for each in opened],
        "summary": summarise(rows, chosen),
        "rows": rows,
    }
    finish(body, settings, [each.folder for each in opened], output, json_)


def _about(opened: OpenSet) -> dict[str, Any]:
    return {
        "name": opened.name,
        "pairs": len(opened.pairs),
        "complete": opened.known.pairs if opened.known else None,
    }


def _check(opened: list[OpenSet]) -> None:
    console = Console()
    for each in opened:
        console.print(each.summary(), markup=False, highlight=False, soft_wrap=True)
        if not each.complete and each.known is not None:
            advice = f"  a complete {each.name} holds {each.known.layout}"
            console.print(advice, markup=False, highlight=False, soft_wrap=True)
    if not all(each.complete for each in opened):
        raise typer.Exit(1)
