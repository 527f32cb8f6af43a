"""The requests that match, describe and search photos."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, File, Form, HTTPException, Request, UploadFile
from fastapi.responses import Response
from pydantic import AfterValidator

from hardnet import descriptors, detectors
from hardnet.features import Features, Orientation, extract
from hardnet.images import Pixels
from hardnet.matching.matches import Strategy, match
from hardnet.retrieval.query import Box
from hardnet.retrieval.search import DEFAULT_MODE, MODES
from hardnet.web import objects
from hardnet.web.state import IMAGE, JPEG, PREVIEW, PROBLEMS, State, Upload, read_upload, to_jpeg
from hardnet.web.work import Check

MOST_KEYPOINTS, MOST_PIXELS_SIDE, MOST_HITS = 20_000, 4096, 500


def _known(names: Callable[[], Sequence[str]], what: str) -> Any:
    """A text that must be one of some names: a request never names a file or code."""

    def check(name: str) -> str:
        if name not in names():
            raise ValueError(f"no {what} '{name}': choose one of {', '.join(names())}")
        return name

    return AfterValidator(check)


DetectorName = Annotated[str, _known(detectors.names, "detector")]
DescriptorName = Annotated[str, _known(descriptors.available_names, "descriptor")]
ModeName = Annotated[str, _known(lambda: list(MODES), "mode")]
Id = Annotated[
    str | None, Form(max_length=64, description="A photo of the index, in place of a file.")
]


class Describing:
    """How photos of a request are described."""

    def __init__(
        self,
        detector: Annotated[DetectorName, Form()] = "dog",
        descriptor: Annotated[DescriptorName, Form()] = descriptors.DEFAULT,
        keypoints: Annotated[int, Form(ge=1, le=MOST_KEYPOINTS)] = 2048,
        max_size: Annotated[int, Form(ge=64, le=MOST_PIXELS_SIDE)] = 1600,
        orientation: Annotated[Orientation, Form()] = "auto",
    ) -> None:
        self.detector, self.descriptor, self.keypoints = detector, descriptor, keypoints
        self.max_size, self.orientation = max_size, orientation

    def extract(self, source: Upload | Path) -> Features:
        """The features of a photo."""
        image: Pixels | Path = source.pixels() if isinstance(source, Upload) else source
        found = extract(
            image,
            self.detector,
            self.descriptor,
            self.keypoints,
            self.max_size,
            orientation=self.orientation,
        )
        if isinstance(source, Upload):
            # The pixels are not needed again; while many wait, they would fill memory.
            found = dataclasses.replace(found, path=source.name, pixels=None)
        return found


def add_matching(app: FastAPI, state: State) -> None:
    """Add the requests that need no collection."""

    @app.post("/match", response_model=objects.MatchAnswer, responses=PROBLEMS)
    async def match_photos(
        request: Request,
        describing: Annotated[Describing, Depends()],
        a: Annotated[UploadFile | None, File(description="First photo.")] = None,
        b: Annotated[UploadFile | None, File(description="Second photo.")] = None,
        photo_a: Id = None,
        photo_b: Id = None,
        ratio: Annotated[float, Form(gt=0, le=1)] = Strategy().ratio,
        model: Annotated[str, Form(pattern="^(auto|homography|fundamental)$")] = "auto",
        guided: Annotated[bool, Form()] = False,
    ) -> dict[str, Any]:
        """Match two photos and verify the matches by the geometry between them."""
        first, second = await read_upload(a), await read_upload(b)
        strategy = Strategy(ratio=ratio, guided=guided)

        def work(check: Check) -> dict[str, Any]:
            sources = state.source(first, photo_a), state.source(second, photo_b)
            one = describing.extract(sources[0])
            check()
            other = describing.extract(sources[1])
            check()
            return match(one, other, model, strategy=strategy).to_json()  # type: ignore[arg-type]

        return await state.pool.run(request, work)

    @app.post("/extract", response_model=objects.FeaturesAnswer, responses=PROBLEMS)
    async def extract_photo(
        request: Request,
        describing: Annotated[Describing, Depends()],
        file: Annotated[UploadFile | None, File(description="The photo.")] = None,
        photo: Id = None,
        vectors: Annotated[bool, Form(description="Also give the descriptors.")] = False,
    ) -> dict[str, Any]:
        """Detect and describe the keypoints of a photo."""
        upload = await read_upload(file)

        def work(check: Check) -> dict[str, Any]:
            found = describing.extract(state.source(upload, photo))
            check()
            return {
                "path": found.path,
                "size": found.image_size,
                "descriptor": found.descriptor,
                "orientation": found.orientation,
                "frames": found.frames.round(4).tolist(),
                "scores": found.scores.tolist(),
                "descriptors": found.descriptors.tolist() if vectors else None,
                "seconds": found.seconds,
            }

        return await state.pool.run(request, work)

    @app.post("/preview", response_class=Response, responses={**PROBLEMS, 200: IMAGE})
    async def preview_upload(
        request: Request, file: Annotated[UploadFile, File(description="The photo.")]
    ) -> Response:
        """A photo as JPEG, for pictures that a browser cannot show (TIFF, PGM and others)."""
        upload = await read_upload(file)
        assert upload is not None
        data = await state.pictures.run(request, lambda _: to_jpeg(upload.pixels(), PREVIEW))
        return Response(data, media_type=JPEG)


def _box(text: str | None) -> Box | None:
    if not text:
        return None
    try:
        x, y, width, height = (float(word) for word in text.split(","))
    except ValueError:
        raise HTTPException(422, f"box {text}: give x,y,width,height in pixels") from None
    return x, y, width, height


BoxText = Annotated[
    str | None,
    Form(max_length=100, description="x,y,width,height: only this part of it, in its pixels."),
]


def add_searching(app: FastAPI, state: State) -> None:
    """Add the requests that search the collection."""

    @app.post("/search", response_model=objects.SearchAnswer, responses=PROBLEMS)
    async def search_photos(
        request: Request,
        file: Annotated[UploadFile | None, File(description="The query.")] = None,
        photo: Id = None,
        box: BoxText = None,
        k: Annotated[int, Form(ge=1, le=MOST_HITS)] = 20,
        mode: Annotated[ModeName, Form()] = DEFAULT_MODE,
    ) -> dict[str, Any]:
        """Find the photos that show the same object or place as the query."""
        collection, region = state.searched(), _box(box)
        upload = await read_upload(file)

        def work(check: Check) -> dict[str, Any]:
            image = state.image(upload, photo)
            check()
            answer = collection.search(image, k, region, mode, check)
            if upload is not None:
                answer["query"][0]["path"] = upload.name
            return answer

        return await state.pool.run(request, work)

    @app.post("/explain", response_model=objects.ExplainAnswer, responses=PROBLEMS)
    async def explain_hit(
        request: Request,
        hit: Annotated[str, Form(max_length=64, description="The id of the hit.")],
        file: Annotated[UploadFile | None, File(description="The query.")] = None,
        photo: Id = None,
        box: BoxText = None,
    ) -> dict[str, Any]:
        """Why a photo was found: what it shares with the query, and what agrees on one map."""
        collection, region = state.searched(), _box(box)
        upload = await read_upload(file)

        def work(check: Check) -> dict[str, Any]:
            found = collection.photo(hit)
            image = state.image(upload, photo)
            check()
            answer = collection.explain(image, found, region, check)
            if upload is not None:
                answer["query"]["path"] = upload.name
            return answer

        return await state.pool.run(request, work)
