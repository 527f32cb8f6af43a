"""`hardnet serve`: a web page for matching and searching photos."""

from __future__ import annotations

import secrets
import socket
from importlib.util import find_spec
from pathlib import Path

from hardnet.cli.options import KnownDescriptor, argument, option, reads_images
from hardnet.cli.output import say
from hardnet.errors import HardnetError, MissingExtraError
from hardnet.image_files import parse_size

_LEAST_TOKEN = 12


@reads_images
def serve(
    index: Path | None = argument("Folder of the index.", default=None, metavar="[INDEX]"),
    host: str = option("127.0.0.1", "Address to listen on."),
    port: int = option(8737, "Port; 0 for any free one.", min=0, max=65535),
    token: str | None = option(None, "Secret that other machines must send [generated if needed]."),
    name: list[str] | None = option(
        None, "Host name by which others reach this server; repeatable."
    ),
    photos: list[Path] | None = option(None, "Folder from which photos may be added; repeatable."),
    results: Path | None = option(None, "Folder of benchmark results [./results if it exists]."),
    descriptor: KnownDescriptor = None,
    max_upload: str = option("64MB", "Refuse larger requests.", metavar="SIZE"),
    workers: int | None = option(None, "Requests handled at the same time [one per core].", min=1),
) -> None:
    """Serve a page in the browser: match two photos, search an index, see its groups.

    Without INDEX, you can only match photos dropped on the page. The page works offline, and
    everything it does is also a documented API (/docs). Photos can be added from the folder that
    contains the index and from the folders of --photos; no other file is ever read.

    Only this machine can use it, unless --host names another address. Clients then need a token,
    which is generated and printed if --token does not give one.

    Example: hardnet serve photos.index --photos photos/
    """
    for package in ("fastapi", "uvicorn", "python_multipart"):
        if find_spec(package) is None:
            raise MissingExtraError(package.replace("_", "-"), "web")
    # Imported here so that --help does not wait for them.
    from hardnet.web.app import serve
    from hardnet.web.state import LOOPBACK, Settings

    local = host in LOOPBACK
    if token is not None and len(token) < _LEAST_TOKEN:
        raise HardnetError(f"--token is short: use at least {_LEAST_TOKEN} characters, or omit it")
    if not local and token is None:
        token = secrets.token_urlsafe(24)
    for folder in photos or []:
        if not folder.is_dir():
            raise HardnetError(f"--photos {folder} is not a folder")
    try:
        largest = parse_size(max_upload)
    except ValueError as error:
        raise HardnetError(f"--max-upload: {error}") from None
    beside = [] if index is None else [index.absolute().parent]
    settings = Settings(
        index=index,
        roots=[*(photos or []), *beside],
        results=results or (Path("results") if Path("results").is_dir() else None),
        descriptor=descriptor,
        hosts=LOOPBACK | set(name or ()) | (set() if local else {host, socket.gethostname()}),
        any_address=not local,
        token=token,
        max_upload=largest,
        workers=workers,
    )
    serve(settings, host, port, say)
