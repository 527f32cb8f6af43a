"""What is refused: other sites, other names, large requests, files outside the index, code."""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest

import hardnet

STATIC = Path(hardnet.__file__).parent / "web" / "static"


def test_every_answer_forbids_foreign_scripts_and_frames(site) -> None:
    for path in ("/", "/docs", "/info", "/static/main.js", "/nowhere", "/photos/none/thumbnail"):
        headers = site.client.get(path).headers
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers


def test_the_page_asks_nobody_else_and_has_no_script_inside() -> None:
    for path in STATIC.iterdir():
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text), path.name
        assert not re.search(r"<script(?![^>]*\ssrc=)", text), path.name
        assert not re.search(r"\s(on\w+|style)=\"", text) or path.suffix == ".js", path.name


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[", "10.0.0.7"])
def test_a_name_that_was_made_to_lead_here_is_refused(site, host: str) -> None:
    assert site.client.get("/photos", headers={"host": host}).status_code == 421


def test_our_own_names_are_accepted(site) -> None:
    port = site.url.rpartition(":")[2]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST"):
        assert site.client.get("/info", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},  # no address at all
        {"origin": "http://127.0.0.1:1"},  # another server of this machine
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_pages_of_others_can_change_and_read_nothing(site, headers: dict[str, str]) -> None:
    photo = site.photo("page.png")
    assert site.client.delete(f"/photos/{photo['id']}", headers=headers).status_code == 403
    assert site.client.get("/photos", headers=headers).status_code == 403
    assert site.client.get(f"/photos/{photo['id']}/thumbnail", headers=headers).status_code == 403
    assert site.photo("page.png") == photo


def test_our_own_page_and_a_link_to_it_are_accepted(site) -> None:
    assert site.client.get("/info", headers={"origin": site.url}).status_code == 200
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert site.client.get("/", headers={**link, "sec-fetch-dest": "document"}).status_code == 200
    assert site.client.get("/", headers={**link, "sec-fetch-dest": "iframe"}).status_code == 403
    assert site.client.get("/photos", headers=link).status_code == 403


def test_a_token_is_needed_where_one_is_set(own_site: Callable) -> None:
    site = own_site(token="correct horse", any_address=True)
    for path in ("/", "/info", "/docs", "/static/main.js", "/openapi.json"):
        assert site.client.get(path).status_code == 401
        assert site.client.get(path, params={"token": "wrong"}).status_code == 401
        bad = {"authorization": "Bearer wrong"}
        assert site.client.get(path, headers=bad).status_code == 401
    good = {"authorization": "Bearer correct horse"}
    assert site.client.get("/info", headers=good).status_code == 200
    assert site.client.get("/info", headers={**good, "host": "192.168.3.4"}).status_code == 200
    assert site.client.get("/info", headers={**good, "host": "evil.example"}).status_code == 421
    opened = site.client.get("/", params={"token": "correct horse"})
    assert opened.status_code == 303
    assert "token" not in opened.headers["location"]
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert site.client.get("/").status_code == 200  # the client keeps cookies, as a browser does
    assert site.client.delete("/photos/none").status_code == 404


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "/etc/passwd", "..%2f..%2findex", "\0", "photos/page.png"]
)
def test_names_are_looked_up_and_never_become_paths(site, name: str) -> None:
    coded = quote(name, safe="")
    for path in (
        f"/photos/{coded}",
        f"/photos/{coded}/preview",
        f"/results/{coded}",
        f"/results/brown/{coded}",
        f"/jobs/{coded}/events",
        f"/static/{coded}",
        f"/static/..%2f{coded}",
    ):
        assert site.client.get(path).status_code == 404, path
    assert site.client.post("/photos", json={"folder": name}).status_code == 404
    assert site.client.post("/extract", data={"photo": name}).status_code == 404


def test_a_photo_that_became_a_link_to_another_file_is_not_shown(own_site: Callable) -> None:
    site = own_site()
    photo, secret = site.photo("page.png"), site.root / "secret.png"
    secret.write_bytes((site.root / "photos" / "coins.png").read_bytes())
    Path(photo["path"]).unlink()
    Path(photo["path"]).symlink_to(secret)
    assert site.client.get(f"/photos/{photo['id']}/preview").status_code == 404
    assert site.client.post("/extract", data={"photo": photo["id"]}).status_code == 404
    # The very file that was indexed may lie elsewhere by now, with a link in its place.
    coins = site.photo("coins.png")
    os.rename(coins["path"], site.root / "moved.png")
    Path(coins["path"]).symlink_to(site.root / "moved.png")
    assert site.client.get(f"/photos/{coins['id']}/preview").status_code == 200
    os.unlink(coins["path"])
    assert site.client.get(f"/photos/{coins['id']}/preview").status_code == 404


def test_links_out_of_the_folders_are_not_offered(own_site: Callable) -> None:
    site = own_site()
    (site.root / "new" / "outside").symlink_to(site.root / "photos")
    (site.root / "new" / ".hidden").mkdir()
    assert [Path(f["path"]).name for f in site.client.get("/folders").json()] == ["new"]


@pytest.mark.parametrize(
    "settings",
    [
        {"descriptor": "os:system"},
        {"descriptor": "/etc/passwd"},
        {"detector": "affnet:weights.pth"},
        {"keypoints": "0"},
        {"keypoints": "1000000"},
        {"max_size": "100000"},
        {"ratio": "nan"},
        {"ratio": "7"},
    ],
)
def test_a_request_names_no_code_no_file_and_no_endless_work(site, files, settings) -> None:
    both = {"a": files["broken"].read_bytes(), "b": files["broken"].read_bytes()}
    answer = site.client.post("/match", files=both, data=settings)
    assert answer.status_code == 422
    assert next(iter(settings)) in answer.json()["detail"]


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def test_pictures_are_judged_by_their_headers(site, files) -> None:
    answer = site.client.post("/extract", files={"file": ("large.png", bomb(60_000, 60_000))})
    assert answer.status_code == 413
    assert "megapixels: more than 64" in answer.json()["detail"]
    broken = {
        "truncated": files["broken"].read_bytes(),
        "empty": b"",
        "not an image": b"words" * 99,
    }
    for words, content in broken.items():
        answer = site.client.post("/extract", files={"file": ("bad.jpg", content)})
        assert answer.status_code == 400
        assert words in answer.json()["detail"]
        assert "bad.jpg" in answer.json()["detail"]


def test_large_requests_are_refused_before_they_are_read(own_site: Callable) -> None:
    site = own_site(max_upload=100_000)
    photo = {"file": ("large.jpg", bytes(200_000))}
    answer = site.client.post("/extract", files=photo)
    assert answer.status_code == 413
    assert "0 MB" in answer.json()["detail"]

    def endless():  # no length is said
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(300):
            yield bytes(1000)
        yield b"\r\n--x--\r\n"

    kind = {"content-type": "multipart/form-data; boundary=x"}
    answer = site.client.post("/extract", content=endless(), headers=kind)
    assert answer.status_code == 413
    # The body is announced and never sent: a client that sends it may find the connection closed.
    client = own_site().client
    connection = HTTPConnection(client.base_url.host, client.base_url.port, timeout=30)
    connection.request("POST", "/photos", headers={**client.headers, "content-length": "2000000"})
    assert connection.getresponse().status == 413
    connection.close()


def test_names_of_uploads_are_shown_and_no_more(site, files) -> None:
    photo = ("../../etc/\u202e\x07evil.jpg", files["left"].read_bytes())
    answer = site.client.post(
        "/extract", files={"file": photo}, data={"descriptor": "rootsift", "keypoints": "10"}
    )
    assert re.fullmatch(r"[^/\\]*evil\.jpg", answer.json()["path"])


def test_short_tokens_and_wrong_folders_are_refused(capsys, monkeypatch, tmp_path: Path) -> None:
    from hardnet.cli.app import main

    for arguments, words in (
        (["--token", "short"], "at least 12"),
        (["--photos", str(tmp_path / "none")], "is not a folder"),
        (["--max-upload", "much"], "is not a size"),
        ([str(tmp_path / "none")], "holds no index"),
        (["--host", "203.0.113.77"], "cannot listen"),
    ):
        monkeypatch.setattr("sys.argv", ["hardnet", "serve", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 1
        assert words in " ".join(capsys.readouterr().err.split())
