"""The API: the same objects as the commands print, jobs with progress, work that is limited."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

import hardnet
from hardnet.images import read_image

QUICK = {"keypoints": 300, "max_size": 400, "descriptor": "rootsift"}


def upload(path: Path) -> tuple[str, bytes]:
    return path.name, path.read_bytes()


def test_a_match_is_the_object_of_the_command(site, files) -> None:
    both = {"a": upload(files["left"]), "b": upload(files["right"])}
    answer = site.client.post("/match", files=both, data=QUICK)
    assert answer.status_code == 200
    given = answer.json()
    expected = hardnet.match(files["left"], files["right"], **QUICK).to_json()
    for path, image in zip(("left.jpg", "right.jpg"), expected["images"], strict=True):
        image["path"] = path
    assert set(given.pop("seconds")) == set(expected.pop("seconds"))
    assert given == json.loads(json.dumps(expected))
    assert sum(given["inliers"]) > 60


def test_a_photo_of_the_index_is_matched_by_its_id(site, files) -> None:
    coffee = site.photo("coffee.png")
    data = {**QUICK, "photo_a": coffee["id"]}
    answer = site.client.post("/match", files={"b": upload(files["turned"])}, data=data)
    given = answer.json()
    assert given["images"][0]["path"] == coffee["path"]
    assert given["geometry"]["kind"] == "homography"
    assert given["orientation"] == "dominant"
    # The middle of the photo is the middle of the turned one.
    width, height = coffee["size"]
    u, v, w = np.array(given["geometry"]["model"]) @ (width / 2, height / 2, 1)
    size = given["images"][1]["size"]
    assert np.abs([u / w - size[0] / 2, v / w - size[1] / 2]).max() < 3


def test_features_with_and_without_vectors(site, files) -> None:
    data = {**QUICK, "orientation": "dominant"}
    plain = site.client.post("/extract", files={"file": upload(files["left"])}, data=data).json()
    assert plain["descriptors"] is None
    full = site.client.post(
        "/extract", files={"file": upload(files["left"])}, data={**data, "vectors": "true"}
    ).json()
    expected = hardnet.extract(files["left"], **QUICK)
    assert np.allclose(full["frames"], expected.frames, atol=1e-4)
    assert np.allclose(full["descriptors"], expected.descriptors)
    assert full["frames"] == plain["frames"]


def test_a_search_is_the_object_of_the_command_with_ids(site, made: Path) -> None:
    astronaut = site.photo("astronaut")
    data = {"photo": astronaut["id"], "box": "130,20,150,180", "k": "5"}
    given = site.client.post("/search", data=data).json()
    index = hardnet.Index(made / "index")
    found = index.search(astronaut["path"], 5, (130, 20, 150, 180))
    expected = json.loads(json.dumps(found.to_json(index.folder, len(index), "he+sv")))
    hits = [{k: v for k, v in hit.items() if k not in ("id", "size")} for hit in given["hits"]]
    assert hits == expected["hits"]
    assert given["query"] == expected["query"]
    assert given["hits"][0]["id"] == astronaut["id"]
    assert given["hits"][0]["verified"]
    assert {"read", "detect", "describe", "words", "score", "verify"} <= set(given["seconds"])
    assert given["seconds"]["describe"] > 0


def test_a_photo_from_outside_is_found_and_explained(site, files) -> None:
    query = {"file": upload(files["turned"])}
    found = site.client.post("/search", files=query).json()
    assert found["query"][0]["path"] == "turned.jpg"
    sure = [Path(hit["path"]).name for hit in found["hits"] if hit["verified"]]
    assert {"coffee.png", "coffee_crop.png", "coffee_turned.png"} <= set(sure)
    best = found["hits"][0]
    why = site.client.post("/explain", files=query, data={"hit": best["id"]}).json()
    assert why["inliers"] == len(why["pairs"]) == best["inliers"]
    assert why["shared"] >= why["inliers"]
    pairs, transform = np.array(why["pairs"]), np.array(why["transform"])
    moved = pairs[:, :2] @ transform[:, :2].T + transform[:, 2]
    assert np.median(np.linalg.norm(moved - pairs[:, 2:], axis=1)) < 5


def test_the_collection_in_parts(site) -> None:
    everything = site.client.get("/photos").json()
    assert everything["total"] == len(everything["photos"]) == 12
    paths = [photo["path"] for photo in everything["photos"]]
    assert paths == sorted(paths)
    part = site.client.get("/photos", params={"offset": 5, "limit": 3}).json()
    assert [photo["path"] for photo in part["photos"]] == paths[5:8]
    assert site.client.get("/photos", params={"text": "COFFEE"}).json()["total"] == 3
    facts = site.client.get(f"/photos/{part['photos'][0]['id']}").json()
    assert facts == part["photos"][0]


def test_thumbnails_are_small_and_kept(site) -> None:
    page = site.photo("page.png")
    answer = site.client.get(f"/photos/{page['id']}/thumbnail")
    assert answer.headers["content-type"] == "image/jpeg"
    picture = cv2.imdecode(np.frombuffer(answer.content, np.uint8), cv2.IMREAD_COLOR)
    original = read_image(page["path"])
    assert max(picture.shape[:2]) == 256
    assert abs(picture.mean() - original.mean()) < 3
    again = site.client.get(
        f"/photos/{page['id']}/thumbnail", headers={"if-none-match": answer.headers["etag"]}
    )
    assert again.status_code == 304
    larger = site.client.get(f"/photos/{page['id']}/preview")
    size = cv2.imdecode(np.frombuffer(larger.content, np.uint8), cv2.IMREAD_COLOR).shape
    assert size[:2] == original.shape[:2]


def test_a_picture_that_browsers_do_not_show_has_a_preview(site, tmp_path: Path, photos) -> None:
    cv2.imwrite(str(tmp_path / "scan.pgm"), cv2.imread(str(photos / "page.png"), 0))
    answer = site.client.post("/preview", files={"file": upload(tmp_path / "scan.pgm")})
    assert answer.headers["content-type"] == "image/jpeg"


def events(site, job: dict[str, str]) -> list[tuple[str, dict]]:
    """All events of a job, as (name, facts)."""
    with site.client.stream("GET", f"/jobs/{job['id']}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = answer.read().decode()
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    return [(a.removeprefix("event: "), json.loads(b.removeprefix("data: "))) for a, b in blocks]


def test_a_folder_is_added_photos_go_and_come_back(own_site: Callable) -> None:
    site = own_site()
    [folder] = site.client.get("/folders").json()
    assert (Path(folder["path"]).name, folder["images"]) == ("new", 2)
    started = site.client.post("/photos", json={"folder": folder["id"]})
    assert started.status_code == 202
    told = events(site, started.json())
    assert [name for name, _ in told][-1] == "done"
    result = told[-1][1]["result"]
    assert (result["indexed"], result["images"]) == (1, 13)
    assert "damaged" in result["skipped"][0]["reason"]
    clock = site.photo("clock.png")
    removed = site.client.delete(f"/photos/{clock['id']}").json()
    assert (removed["removed"], removed["images"], removed["undo"]) == (1, 12, 1)
    assert site.client.get(f"/photos/{clock['id']}/thumbnail").status_code == 404
    assert Path(clock["path"]).exists()
    restored = site.client.post("/undo").json()
    assert (restored["removed"], restored["images"], restored["undo"]) == (-1, 13, 0)
    assert site.photo("clock.png") == clock
    assert site.client.post("/undo").status_code == 409
    site.client.delete(f"/photos/{clock['id']}")
    told = events(site, site.client.post("/compact").json())
    assert told[-1][1]["result"]["removed"] == 0
    assert site.client.post("/undo").status_code == 409
    assert site.client.get("/photos").json()["total"] == 12


def test_groups_are_compared_once_and_kept(own_site: Callable) -> None:
    pytest.importorskip("hardnet.retrieval.groups")
    site = own_site()
    assert site.client.get("/groups").status_code == 404
    told = events(site, site.client.post("/groups", params={"mirrored": "false"}).json())
    assert told[-1][0] == "done", told[-1]
    found = site.client.get("/groups").json()
    coffees = {site.photo(name)["path"] for name in ("coffee.png", "_crop", "_turned")}
    assert any(coffees <= set(group["photos"]) for group in found["groups"])
    crop = site.photo("_crop")
    pairs = [pair for pair in found["pairs"] if crop["id"] in pair["ids"]]
    assert {"crop", "rotated"} >= {pair["kind"] for pair in pairs} >= {"crop"}
    assert all(len(point) == 4 for pair in pairs for point in pair["points"])


RESULTS = Path(__file__).parents[2] / "results" / "match_real_pairs.json"


def test_results_are_tables_and_figures(own_site: Callable, tmp_path: Path) -> None:
    shutil.copy(RESULTS, tmp_path)
    (tmp_path / "other.json").write_text('{"kind": "unknown"}')
    site = own_site(index=None, results=tmp_path)
    entries = site.client.get("/results").json()
    assert [entry["name"] for entry in entries] == ["match_real_pairs"]
    found = site.client.get("/results/match_real_pairs").json()
    first = found["tables"][0]
    assert first["columns"][0] == "descriptor"
    assert "hardnet" in {row[0] for row in first["rows"]}
    assert all(len(row) == len(first["columns"]) for row in first["rows"])
    pytest.importorskip("matplotlib")
    answer = site.client.get(f"/results/match_real_pairs/{found['figures'][0]}")
    assert answer.content.startswith(b"\x89PNG")


def test_without_an_index_photos_are_matched_and_nothing_is_searched(
    own_site: Callable, files
) -> None:
    site = own_site(index=None)
    assert site.client.get("/info").json()["collection"] is None
    answer = site.client.post("/search", files={"file": upload(files["left"])})
    assert answer.status_code == 404
    assert "hardnet serve INDEX" in answer.json()["detail"]
    assert site.client.get("/results").json() == []


def raw_request(site, path: str, fields: dict[str, bytes]) -> bytes:
    """A multipart request as bytes."""
    parts = b"".join(
        b'--limit\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
        % (name.encode(), b'; filename="x.jpg"' if len(content) > 100 else b"", content)
        for name, content in fields.items()
    )
    body = parts + b"--limit--\r\n"
    host = site.url.removeprefix("http://")
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
        "Content-Type: multipart/form-data; boundary=limit\r\n\r\n"
    )
    return head.encode() + body


def connected(site) -> socket.socket:
    host, port = site.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)))


def test_too_much_work_is_turned_away_at_once(own_site: Callable, files) -> None:
    site = own_site(queue=0)
    settings = {name: str(value).encode() for name, value in QUICK.items()}
    request = raw_request(site, "/extract", {"file": files["left"].read_bytes(), **settings})
    with connected(site) as slow:
        slow.sendall(request[:-100])  # it is let in, and takes its time
        deadline = time.monotonic() + 60
        while True:
            answer = site.client.post("/extract", files={"file": upload(files["left"])}, data=QUICK)
            if answer.status_code == 429 or time.monotonic() > deadline:
                break
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        slow.sendall(request[-100:])
        assert slow.recv(12) == b"HTTP/1.1 200"
    answer = site.client.post("/extract", files={"file": upload(files["left"])}, data=QUICK)
    assert answer.status_code == 200


def test_work_stops_when_nobody_waits(own_site: Callable, files) -> None:
    site = own_site()
    photo = files["left"].read_bytes()
    request = raw_request(site, "/match", {"a": photo, "b": photo, "keypoints": b"800"})
    pool, clients = site.state.pool, [connected(site) for _ in range(3)]
    for client in clients:
        client.sendall(request)
    deadline = time.monotonic() + 60
    while not pool.begun and time.monotonic() < deadline:
        time.sleep(0.01)
    for client in clients:
        client.close()
    while not pool.stopped and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (pool.begun, pool.stopped) == (1, 1)  # the others had not begun, and never do
    answer = site.client.post("/extract", files={"file": upload(files["left"])}, data=QUICK)
    assert answer.status_code == 200


def test_the_missing_extra_is_named(capsys, monkeypatch) -> None:
    from hardnet.cli.app import main

    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.setattr("sys.argv", ["hardnet", "serve"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    words = " ".join(capsys.readouterr().err.split())
    assert "fastapi is not installed; it comes with hardnet[web]" in words
