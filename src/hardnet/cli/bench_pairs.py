"""`hardnet bench pairs`: whole image pairs through the pipeline of `hardnet match`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardnet.cli.bench_output import Descriptors, Json, Output, check_output, finish, labels
from hardnet.cli.image_option import reads_images
from hardnet.cli.stage import Stage


def register(bench: typer.Typer) -> None:
    """Add the command to ``hardnet bench``."""
    bench.command("pairs")(reads_images(pairs))


def pairs(
    data: Annotated[
        list[Path],
        typer.Argument(help="Folders of sequences (N.png, H_1_k) or of pairs (1/, 2/, h/)."),
    ],
    output: Output = None,
    descriptors: Descriptors = "hardnet,rootsift",
    sequences: Annotated[
        str | None, typer.Option(help="Only these, by name, separated by commas.")
    ] = None,
    keypoints: Annotated[int, typer.Option(min=1, help="Budget per image.")] = 2048,
    json_: Json = False,
) -> None:
    """Correct matches and verified image pairs, in the pipeline of `hardnet match`.

    Example: hardnet bench pairs data/oxford-affine data/evd -o results/match_benchmark.json
    """
    from hardnet.bench import pairs as benchmark
    from hardnet.descriptors import load, parse_specs
    from hardnet.patchsets.sequences import find_sequences

    check_output(output)
    chosen = find_sequences(data, None if sequences is None else sequences.split(","))
    specs = parse_specs(descriptors)
    contestants = {spec.label: load(spec.spec) for spec in specs}
    total = sum(len(s.targets) for s in chosen) * len(contestants)
    with Stage() as stage:
        rows = benchmark.compare(chosen, contestants, keypoints, stage.counter("pairs", total))
    settings = {
        "descriptors": labels(specs),
        "sequences": [s.name for s in chosen],
        "keypoints": keypoints,
        "model": "homography",
    }
    body = {
        "kind": "pairs",
        "rules": benchmark.RULES,
        "total": benchmark.summarise(rows, "sequence"),
        "rows": rows,
    }
    finish(body, settings, data, output, json_)
