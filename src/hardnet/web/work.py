"""Work outside the event loop: threads, requests that stop when the client leaves, long jobs."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import HTTPException, Request

from hardnet.errors import HardnetError
from hardnet.web.objects import JobFacts

T = TypeVar("T")

Check = Callable[[], None]
"""Called between stages of work; raises :class:`Cancelled` if nobody wants the result."""

CLIENT_GONE = 499
"""A status that nobody receives: the client has closed the connection."""
POLL_SECONDS = 0.2
ALIVE_SECONDS = 15.0
"""An event stream sends something at least this often, or proxies would close it."""
KEPT_JOBS = 20


class Cancelled(Exception):  # noqa: N818 - no error
    """Nobody is waiting for this work any more."""


class Pool(ThreadPoolExecutor):
    """A few threads for the work of requests."""

    begun = stopped = 0

    async def run(self, request: Request, work: Callable[[Check], T]) -> T:
        """The result of ``work``, which stops at its next check if the client disconnects."""
        gone = threading.Event()

        def check() -> None:
            if gone.is_set():
                raise Cancelled

        def start() -> T:
            check()
            self.begun += 1
            try:
                return work(check)
            except Cancelled:
                self.stopped += 1
                raise

        future = asyncio.get_running_loop().run_in_executor(self, start)
        watch = asyncio.create_task(_disconnected(request))
        try:
            both: set[asyncio.Future[Any]] = {future, watch}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                raise HTTPException(CLIENT_GONE, "the client has gone")
            return future.result()
        finally:
            gone.set()
            future.cancel()
            watch.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Job:
    """Work that takes longer than a request; it has the fields of :class:`JobFacts`."""

    def __init__(self, kind: str, work: Callable[[Job], Any]) -> None:
        self.id, self.kind, self._work = secrets.token_hex(8), kind, work
        self.state = "running"  # then "done", "stopped" or "failed"
        self.what, self.done, self.total = "starting", 0, 0
        self.result: Any = None
        self.problem: str | None = None
        self.stop = threading.Event()  # when set, the job ends soon; finished work is kept
        self.thread = threading.Thread(target=self._run, name=f"hardnet-{kind}", daemon=True)

    def tell(self, what: str, done: int, total: int) -> None:
        """Record progress; a job that was told to stop ends here."""
        if self.stop.is_set():
            raise Cancelled
        self.what, self.done, self.total = what, done, total

    def _run(self) -> None:
        try:
            self.result = self._work(self)
            self.state = "done"
        except Cancelled:
            self.state = "stopped"
        except HardnetError as error:
            self.problem, self.state = str(error), "failed"
        except Exception as error:  # the page must not wait forever
            self.problem, self.state = f"{type(error).__name__}: {error}", "failed"
            raise

    async def events(self) -> AsyncIterator[str]:
        """Changes as server-sent events; the last one is named after the final state."""
        before, quiet = "", 0.0
        while True:
            facts = JobFacts.model_validate(self, from_attributes=True)
            name = "progress" if facts.state == "running" else facts.state
            event = f"event: {name}\ndata: {facts.model_dump_json()}\n\n"
            if event != before:
                yield event
                before, quiet = event, 0.0
            elif quiet >= ALIVE_SECONDS:
                yield ": alive\n\n"
                quiet = 0.0
            if facts.state != "running":
                return
            await asyncio.sleep(POLL_SECONDS)
            quiet += POLL_SECONDS


class Jobs(dict[str, Job]):
    """The jobs of a server by id: one at a time, because an index has one writer."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def start(self, kind: str, work: Callable[[Job], Any]) -> Job:
        """Start a job if no other is running."""
        with self._lock:
            if running := [job for job in self.values() if job.state == "running"]:
                raise HTTPException(409, f"{running[0].kind} is running: wait until it ends")
            for old in list(self)[: -KEPT_JOBS + 1]:
                del self[old]
            job = Job(kind, work)
            self[job.id] = job
            job.thread.start()
        return job

    def __missing__(self, id: str) -> Job:
        raise HTTPException(404, f"there is no job {id!r}")

    def stop(self) -> None:
        """Stop all jobs and wait until what they write is complete."""
        for job in self.values():
            job.stop.set()
        for job in self.values():
            job.thread.join(30.0)
