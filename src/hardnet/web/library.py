"""The requests that show and change the collection, follow long work and show stored results."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import Response, StreamingResponse

from hardnet.web import objects
from hardnet.web.collection import id_of
from hardnet.web.state import FIGURE, IMAGE, JPEG, PREVIEW, PROBLEMS, THUMBNAIL, State
from hardnet.web.work import Check


def add_photos(app: FastAPI, state: State) -> None:
    """Add the requests for the collection: its photos, and what changes them."""

    @app.get("/photos", response_model=objects.PhotosAnswer, responses=PROBLEMS)
    def list_photos(
        offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        text: Annotated[str, Query(max_length=200, description="A part of the path.")] = "",
    ) -> dict[str, Any]:
        """A part of the collection, sorted by path."""
        collection = state.searched()
        if not offset:
            collection.index.refresh()  # other programs may have changed it
        wanted = text.casefold()
        found = [p for p in collection.listing.photos.values() if wanted in p.path.casefold()]
        shown = [photo.to_json() for photo in found[offset : offset + limit]]
        return {"total": len(found), "offset": offset, "photos": shown}

    @app.post("/photos", response_model=objects.JobFacts, status_code=202, responses=PROBLEMS)
    def add_folder(wanted: objects.AddRequest) -> dict[str, Any]:
        """Add a folder of photos; GET /jobs/{id}/events tells how far it is."""
        collection = state.searched()
        folder = collection.folder(wanted.folder)
        return state.jobs.start("adding photos", lambda job: collection.add(folder, job)).to_json()

    @app.get("/photos/{id}", response_model=objects.PhotoFacts, responses=PROBLEMS)
    def one_photo(id: str) -> dict[str, Any]:
        """A photo of the index."""
        return state.searched().photo(id).to_json()

    @app.delete("/photos/{id}", response_model=objects.RemoveAnswer, responses=PROBLEMS)
    def remove_photo(id: str) -> dict[str, Any]:
        """Remove a photo from the index; its file stays, and POST /undo takes it back."""
        collection = state.searched()
        return collection.remove(collection.photo(id))

    @app.post("/undo", response_model=objects.RemoveAnswer, responses=PROBLEMS)
    def undo_removal() -> dict[str, Any]:
        """Undo the last removal, until the index is compacted."""
        return state.searched().undo()

    @app.post("/compact", response_model=objects.JobFacts, status_code=202, responses=PROBLEMS)
    def compact_index() -> dict[str, Any]:
        """Free the room of removed photos, which cannot come back then."""
        return state.jobs.start("compacting", state.searched().compact).to_json()

    @app.get("/folders", response_model=list[objects.FolderFacts], responses=PROBLEMS)
    def list_folders() -> list[dict[str, Any]]:
        """The folders from which photos may be added."""
        found = state.searched().folders().items()
        return [{"id": id, "path": str(path), "images": count} for id, (path, count) in found]

    async def small(request: Request, id: str, size: int) -> Response:
        collection, known = state.searched(), request.headers.get("if-none-match")

        def work(_: Check) -> Response:
            photo = collection.photo(id)
            tag = f'"{id_of(f"{photo.path} {photo.state} {size}")}"'
            headers = {"etag": tag, "cache-control": "private, max-age=3600"}
            if known == tag:
                return Response(status_code=304, headers=headers)
            data = state.previews.get(collection.file(photo), size)
            return Response(data, media_type=JPEG, headers=headers)

        return await state.pictures.run(request, work)

    given = {**PROBLEMS, 200: IMAGE}

    @app.get("/photos/{id}/thumbnail", response_class=Response, responses=given)
    async def thumbnail(request: Request, id: str) -> Response:
        """A photo of the index, small."""
        return await small(request, id, THUMBNAIL)

    @app.get("/photos/{id}/preview", response_class=Response, responses=given)
    async def preview(request: Request, id: str) -> Response:
        """A photo of the index, as large as a screen."""
        return await small(request, id, PREVIEW)


def add_jobs(app: FastAPI, state: State) -> None:
    """Add the requests for long work."""

    @app.get("/jobs/{id}", response_model=objects.JobFacts, responses=PROBLEMS)
    def job_state(id: str) -> dict[str, Any]:
        """How far a job is."""
        return state.jobs.get(id).to_json()

    events = {"content": {"text/event-stream": {}}, "description": "Events: JobFacts as JSON."}

    @app.get("/jobs/{id}/events", response_class=Response, responses={**PROBLEMS, 200: events})
    async def job_events(id: str) -> StreamingResponse:
        """The same as server-sent events: progress, and at the end done, stopped or failed."""
        job = state.jobs.get(id)
        headers = {"cache-control": "no-store"}
        return StreamingResponse(job.events(), media_type="text/event-stream", headers=headers)

    @app.delete("/jobs/{id}", response_model=objects.JobFacts, responses=PROBLEMS)
    def stop_job(id: str) -> dict[str, Any]:
        """Stop a job; what it has finished is kept."""
        job = state.jobs.get(id)
        job.stop.set()
        return job.to_json()


def add_groups(app: FastAPI, state: State) -> None:
    """Add the requests for the groups of the collection."""

    @app.get("/groups", response_model=objects.GroupsAnswer, responses=PROBLEMS)
    def groups() -> dict[str, Any]:
        """Copies, crops and scenes, as the last POST /groups found them."""
        found = state.searched().found_groups
        if found is None:
            raise HTTPException(404, "the photos are not compared yet: POST /groups does it")
        return found

    @app.post("/groups", response_model=objects.JobFacts, status_code=202, responses=PROBLEMS)
    def find_groups(
        mirrored: Annotated[bool, Query(description="Also look for mirror images.")] = True,
    ) -> dict[str, Any]:
        """Compare all photos with each other; only new ones if it was done before."""
        collection = state.searched()
        job = state.jobs.start("comparing photos", lambda job: collection.groups(job, mirrored))
        return job.to_json()


def add_results(app: FastAPI, state: State) -> None:
    """Add the requests for stored results."""

    @app.get("/results", response_model=list[objects.ResultsEntry], responses=PROBLEMS)
    def list_results() -> list[dict[str, Any]]:
        """The stored benchmark results."""
        return state.results.entries()

    @app.get("/results/{name}", response_model=objects.ResultsAnswer, responses=PROBLEMS)
    def results(name: str) -> dict[str, Any]:
        """The tables of a results file, and the names of its figures."""
        return state.results.get(name)

    given = {**PROBLEMS, 200: FIGURE}

    @app.get("/results/{name}/{figure}", response_class=Response, responses=given)
    async def figure(request: Request, name: str, figure: str) -> Response:
        """A figure of a results file."""
        data = await state.pictures.run(request, lambda _: state.results.figure(name, figure))
        return Response(data, media_type="image/png")
