"""The options of commands that extract features."""

from __future__ import annotations

from typing import Annotated

import typer

from hardnet.descriptors import names

DetectorName = Annotated[
    str,
    typer.Option(help="dog, hessian, hessian-affine, mser, or affnet:AffNet.pth[,OriNet.pth]."),
]
DescriptorName = Annotated[
    str, typer.Option(help=f"{', '.join(names())}, a weights file, or MODULE:FUNCTION.")
]
KnownDescriptor = Annotated[
    str | None,
    typer.Option(
        help="MODULE:FUNCTION, if the index was made with one: an index cannot name code to run.",
    ),
]
Keypoints = Annotated[int, typer.Option(min=1, help="Keep the strongest per photo.")]
MaxSize = Annotated[
    int, typer.Option(min=0, help="Shrink longer sides to this many pixels; 0: never.")
]
Upright = Annotated[
    bool, typer.Option("--upright", help="The photos are the right way up: turn no frame.")
]
