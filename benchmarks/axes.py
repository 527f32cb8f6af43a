"""Which data, batch sizes and objectives help on photos: short training runs from the same weights.

Each cell is the recipe with some of its keys changed. All cells are trained for the same number of
pairs, by `hardnet train` (interrupted cells resume), and scored by `hardnet bench light` and
`bench ratio` on tuning scenes; held-out scenes are refused.

Example: python benchmarks/axes.py benchmarks/axes.yaml "" "images=0" "negatives=all"
    --runs runs/axes --camera data/webcam/mexico --camera data/webcam/panorama
    --sequences data/oxford-affine
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer
from measuring import Output, finish, run_script

from hardnet.errors import HardnetError
from hardnet.learn.recipe import read_recipe


def main(
    recipe: Annotated[Path, typer.Argument(help="Recipe that all cells share.")],
    cells: Annotated[
        list[str], typer.Argument(help='Changes: "key=value key=value"; "" for none.')
    ],
    camera: Annotated[
        list[Path], typer.Option(help="Frames of a fixed camera for tuning; repeatable.")
    ],
    sequences: Annotated[Path, typer.Option(help="Sequences for tuning.")],
    runs: Annotated[Path, typer.Option(help="Folder of the training runs.")] = Path("runs/axes"),
    keypoints: Annotated[int, typer.Option(help="Keypoints per image of the sequences.")] = 1000,
    output: Output = Path("results/axes.json"),
) -> None:
    """Train and score every cell; writes a JSON file."""
    start = read_recipe(recipe, [])
    weights = [_trained(recipe, cell, runs, start.net) for cell in cells]
    named = [f"{number}={file}" for number, file in enumerate(weights)]
    if start.init:
        named.append(f"start={start.init}")
    descriptors = ("--descriptors", ",".join([*named, "rootsift"]), "--json")
    light = _hardnet("bench", "light", *camera, *descriptors)
    ratio = _hardnet(
        "bench", "ratio", sequences, "--upright", "--keypoints", keypoints, *descriptors
    )
    scores: dict[str, dict[str, float]] = {}
    for entry in light["entries"]:
        way = "upright" if "upright" in entry["setup"] else "oriented"
        scores.setdefault(entry["descriptor"], {})[way] = _chosen(entry)
    for entry in ratio["entries"]:
        scores[entry["descriptor"]]["ratio"] = _chosen(entry)
    names = {str(number): cell or "the recipe" for number, cell in enumerate(cells)}
    rows = [{"cell": names.get(name, name), **score} for name, score in scores.items()]
    data, text = [*camera, sequences], recipe.read_text()
    finish("axes", {"rows": rows}, data, output, recipe=text, pairs=start.pairs)


def _trained(recipe: Path, cell: str, runs: Path, net: str) -> Path:
    folder = runs / (cell.translate(str.maketrans("/ [],", "-_---")) or "recipe")
    weights = folder / f"{net}.safetensors"
    if not weights.is_file():
        changes = [word for change in cell.split() for word in ("--set", change)]
        resume = ["--resume"] if (folder / "recipe.yaml").exists() else []
        print("training", cell or "the recipe", flush=True)
        words = ["hardnet", "train", recipe, "-o", folder, *changes, *resume]
        subprocess.run([str(word) for word in words], check=True)
    return weights


def _hardnet(*words: object) -> Any:
    done = subprocess.run(
        ["hardnet", *map(str, words)], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def _chosen(entry: dict[str, Any]) -> float:
    ap = entry["choose"]["ap"]
    if ap is None or entry["report"]["ap"] is not None:
        raise HardnetError("this camera or these sequences are held out: give tuning scenes")
    return float(ap)


if __name__ == "__main__":
    run_script(main)
