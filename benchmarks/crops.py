"""How small a crop of an indexed photo can be found: strongest against spread keypoints.

Exact crops of indexed photos are searched for in two indexes of the same photos with the same
number of keypoints, and so the same size. The rule that spreads keypoints was tuned on others.

Example: python benchmarks/crops.py photos/*.jpg
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from copies import crop
from measuring import Descriptor, Keypoints, Output, finish, run_script

from hardnet.images import Pixels, read_image
from hardnet.retrieval.index import Index

SIDES = {"1/2": 1 / 2, "1/3": 1 / 3, "1/4": 1 / 4, "0.15": 0.15}


def main(
    photos: Annotated[list[Path], typer.Argument(help="All are indexed.")],
    crops: Annotated[int, typer.Option(help="Number of photos to crop, once per size.")] = 20,
    keypoints: Keypoints = 1024,
    max_size: Annotated[int, typer.Option(help="Longer side, in pixels.")] = 1024,
    descriptor: Descriptor = "hardnet-small@12",
    seed: Annotated[int, typer.Option(help="Of the crops.")] = 0,
    output: Output = Path("results/crops.json"),
) -> None:
    """Recall of crops by their size; writes a JSON file."""
    rng = np.random.default_rng(seed)
    cropped = [photos[i] for i in sorted(rng.permutation(len(photos))[:crops])]
    queries: list[tuple[Path, str, Pixels]] = []
    for path in cropped:
        pixels = read_image(path)
        queries += [(path, name, crop(pixels, rng, side**2)[0]) for name, side in SIDES.items()]
    rows = []
    for spread in (False, True):
        with tempfile.TemporaryDirectory() as work:
            index = Index.build(
                Path(work) / "index",
                photos,
                descriptor=descriptor,
                keypoints=keypoints,
                max_size=max_size,
                spread=spread,
            )
            rows.append({"spread": spread} | _search(index, queries))
        print(rows[-1])
    given = {"photos": len(photos), "crops": len(cropped), "sides": SIDES}
    finish("crops", {"rows": rows}, photos, output, ["PHOTOS"], **given)


def _search(index: Index, queries: list[tuple[Path, str, Pixels]]) -> dict[str, Any]:
    found = dict.fromkeys(SIDES, 0)
    wrong = dict.fromkeys(SIDES, 0)
    features: dict[str, list[int]] = {name: [] for name in SIDES}
    for path, name, pixels in queries:
        described = index.extract(np.ascontiguousarray(pixels))
        features[name].append(len(described))
        hits = index.search(described, k=1)
        if hits and hits[0].verified:
            right = os.path.samefile(hits[0].path, path)
            found[name] += right
            wrong[name] += not right
    about = index.info()
    return {
        "found": found,
        "other_verified": wrong,
        "median_features": {name: float(np.median(count)) for name, count in features.items()},
        "features": about["features"],
        "bytes": about["bytes"],
    }


if __name__ == "__main__":
    run_script(main)
