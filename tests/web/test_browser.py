"""The page in a real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.web.state import Settings

from .conftest import serving

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: install Debian's package chromium to test the page"
)

SHOTS = Path(__file__).parents[2] / "docs"
"""Pictures of the page that the documentation shows, and that it is compared with."""
RENEW = bool(os.environ.get("HARDNET_RENEW_SHOTS"))
TOLERANCE = 0.06  # of the page that may look different
WAIT = 120_000  # milliseconds: machines that run tests are busy


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--force-color-profile=srgb"]
        )
        yield opened
        opened.close()


@pytest.fixture
def visit(browser) -> Iterator[Callable[..., object]]:
    """Open the page; at the end nobody else was asked, and no script has failed."""
    contexts, asked, problems = [], [], []

    def opened(site, fragment: str = "", expected: tuple[str, ...] = (), **options: object):
        size = options.pop("viewport", {"width": 1200, "height": 900})
        context = browser.new_context(viewport=size, device_scale_factor=1, **options)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))

        def note(message) -> None:
            if message.type == "error" and not any(e in message.text for e in expected):
                problems.append(message.text)

        page.on("console", note)
        page.goto(f"{site.url}/{fragment}", wait_until="networkidle", timeout=WAIT)
        page.own = site.url
        return page

    yield opened
    own = {context.pages[0].own for context in contexts}
    for context in contexts:
        context.close()
    foreign = [u for u in asked if not u.startswith(("blob:", "data:", *own))]
    assert foreign == []
    assert problems == []


def says(element, words: str) -> None:
    """Wait until an element says something."""
    playwright.expect(element).to_contain_text(words, timeout=WAIT)


def match(page, a: Path, b: Path) -> None:
    first, second = page.locator("#match input[type=file]").all()
    first.set_input_files(a)
    second.set_input_files(b)
    page.locator("#match label", has_text="keypoints").locator("input").fill("600")
    page.get_by_role("button", name="Match", exact=True).click()
    says(page.locator("#match .status"), "agree")


def compare(page, name: str) -> None:
    """A picture of the page, beside the one that the documentation has."""
    data = page.screenshot(animations="disabled")
    seen = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    path = SHOTS / name
    if RENEW:
        cv2.imwrite(str(path), seen, [cv2.IMWRITE_JPEG_QUALITY, 70])
    known = cv2.imread(str(path))
    assert known is not None, f"{path} is missing: HARDNET_RENEW_SHOTS=1 makes it"
    assert known.shape == seen.shape
    assert changed(known, seen) < TOLERANCE


def changed(known: np.ndarray, seen: np.ndarray) -> float:
    """Fonts differ between machines: what counts is that things are where they were."""
    small = [cv2.resize(p, (60, 45), interpolation=cv2.INTER_AREA) for p in (known, seen)]
    difference = cv2.absdiff(*small).max(axis=2)
    return float((difference > 40).mean())


def test_a_page_that_looks_different_is_noticed() -> None:
    match, groups = (cv2.imread(str(SHOTS / f"serve_{n}.jpg")) for n in ("match", "groups"))
    assert changed(match, match) == 0
    assert changed(match, cv2.GaussianBlur(match, (0, 0), 2)) < TOLERANCE
    assert changed(match, groups) > TOLERANCE
    lower = np.roll(match, match.shape[0] // 8, axis=0)
    assert changed(match, lower) > TOLERANCE
    empty = match.copy()
    empty[match.shape[0] // 2 :] = match[-1, -1]
    assert changed(match, empty) > TOLERANCE


@needs_chromium
def test_the_page_opens(visit, tmp_path: Path) -> None:
    with serving(Settings(), tmp_path) as running:
        page = visit(running, "#match")
        assert page.get_by_role("tab").count() == 4
        page.get_by_role("button", name="Match", exact=True).wait_for()


@pytest.mark.slow
@needs_chromium
def test_matches_are_seen_zoomed_stepped_through_and_saved(site, files, visit) -> None:
    page = visit(site, "#match")
    match(page, files["left"], files["right"])
    assert int(page.locator("#match .status").text_content().split()[0]) > 60
    assert "keypoints" in page.locator("#match .numbers").text_content()
    compare(page, "serve_match.jpg")
    canvas = page.locator("#match canvas")
    before = canvas.screenshot()
    canvas.hover(position={"x": 300, "y": 200})
    page.mouse.wheel(0, -600)
    assert canvas.screenshot() != before
    canvas.focus()
    page.keyboard.press("0")
    page.keyboard.press("ArrowRight")
    assert "match " in page.locator("#match .hint").first.text_content()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save Python").click()
    script = Path(saved.value.path()).read_text()
    assert 'hardnet.match("left.jpg", "right.jpg", keypoints=600)' in script
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save PNG").click()
    assert cv2.imread(str(saved.value.path())) is not None


@pytest.mark.slow
@needs_chromium
def test_one_photo_fades_into_the_other(site, files, visit, made: Path) -> None:
    page = visit(site, "#match")
    match(page, made / "photos" / "coffee.png", files["turned"])
    fade = page.locator("#match .fade")
    slider = page.get_by_label("Fade from the first photo to the second")
    pictures = []
    for value in ("0", "100"):
        slider.fill(value)
        shot = cv2.imdecode(np.frombuffer(fade.screenshot(), np.uint8), cv2.IMREAD_GRAYSCALE)
        height, width = shot.shape
        middle = shot[height // 4 : -height // 4, width // 4 : -width // 4]
        pictures.append(cv2.GaussianBlur(middle, (0, 0), 3).astype(float))
    assert np.abs(pictures[0] - pictures[1]).mean() < 6  # the turned photo lies on the other


@pytest.mark.slow
@needs_chromium
def test_a_box_is_searched_for_and_a_hit_explained(site, visit) -> None:
    page = visit(site, "#search", viewport={"width": 1200, "height": 1250})
    page.get_by_role("option", name="photos/astronaut.png").click()
    picture = page.locator(".query img")
    picture.wait_for()
    box = picture.bounding_box()
    page.mouse.move(box["x"] + 0.33 * box["width"], box["y"] + 0.05 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.5 * box["height"], steps=4)
    page.mouse.up()
    first = page.locator("#search .hits li").first
    assert "astronaut.png" in first.text_content()
    assert "verified" in first.text_content()
    assert first.locator("polygon").count() == 1
    page.wait_for_load_state("networkidle")
    compare(page, "serve_search.jpg")
    first.locator("button").click()
    page.get_by_text("agree on one map").wait_for()
    page.locator("#search canvas").wait_for()


@pytest.mark.slow
@needs_chromium
def test_a_photo_is_removed_and_comes_back_and_a_folder_is_added(own_site, visit) -> None:
    page = visit(own_site(), "#search")
    page.get_by_role("option", name="photos/page.png").click()
    page.get_by_role("button", name="Remove from index").click()
    page.get_by_text("11 photos", exact=True).wait_for()
    page.get_by_role("button", name="Undo removal").click()
    page.get_by_text("12 photos", exact=True).wait_for()
    page.get_by_role("button", name="Add folder").click()
    page.get_by_text("1 photo added").wait_for()
    page.get_by_text("13 photos", exact=True).wait_for()


@pytest.mark.slow
@needs_chromium
def test_groups_are_found_and_a_pair_is_shown(own_site, visit) -> None:
    page = visit(own_site(), "#groups", expected=("404",))
    page.get_by_role("button", name="Compare all photos").click()
    page.locator(".group").first.wait_for()
    assert page.locator(".group .best").count() >= 1
    page.locator(".group polygon").first.wait_for(state="attached")
    page.locator(".group li button:enabled").first.click()
    page.locator(".group canvas").first.wait_for()
    page.wait_for_timeout(300)
    compare(page, "serve_groups.jpg")


@pytest.mark.slow
@needs_chromium
def test_broken_and_huge_photos_are_refused_in_words(site, files, visit, tmp_path) -> None:
    huge = tmp_path / "huge.png"
    cv2.imwrite(str(huge), np.zeros((10_000, 10_000), np.uint8))
    page = visit(site, "#match", expected=("400", "413"))
    status = page.locator("#match .status")
    first, second = page.locator("#match input[type=file]").all()
    second.set_input_files(files["right"])
    for content, words in ((b"words", "not an image"), (files["broken"].read_bytes(), "truncated")):
        # Dropped, as from a file manager.
        page.evaluate(
            """bytes => {
                const transfer = new DataTransfer();
                transfer.items.add(new File([new Uint8Array(bytes)], "broken.jpg"));
                const zone = document.querySelector("#match .zone");
                zone.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer}));
            }""",
            list(content),
        )
        if words == "truncated":  # of which a browser shows what there is
            page.get_by_role("button", name="Match", exact=True).click()
        says(status, words)
        assert "bad" in status.get_attribute("class")
    first.set_input_files(files["left"])
    second.set_input_files(huge)
    page.get_by_role("button", name="Match", exact=True).click()
    says(status, "megapixels")
    match(page, files["left"], files["right"])  # and nothing is lost


@pytest.mark.slow
@needs_chromium
def test_a_narrow_screen_has_all_of_it(site, files, visit) -> None:
    phone = {"viewport": {"width": 375, "height": 812}, "has_touch": True}
    page = visit(site, "#match", expected=("404",), **phone)
    match(page, files["left"], files["right"])
    for tab in ("Match", "Search", "Groups", "Results"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, tab


@pytest.mark.slow
@needs_chromium
def test_dark_and_light_follow_the_system(site, visit) -> None:
    brightness = {}
    for scheme in ("light", "dark"):
        page = visit(site, "#results", color_scheme=scheme)
        page.locator("#results table").first.wait_for()
        if scheme == "dark":
            compare(page, "serve_results.jpg")
        shot = page.screenshot(clip={"x": 0, "y": 60, "width": 1200, "height": 40})
        brightness[scheme] = cv2.imdecode(np.frombuffer(shot, np.uint8), 0).mean()
    assert brightness["dark"] < 60
    assert brightness["light"] > 200


@pytest.mark.slow
@needs_chromium
def test_the_keyboard_is_enough(site, visit) -> None:
    page = visit(site, "#match", expected=("404",))
    page.get_by_role("tab", name="Match").focus()
    page.keyboard.press("ArrowRight")
    page.locator(".grid .cell img").first.wait_for()
    assert page.get_by_role("tab", name="Search").get_attribute("aria-selected") == "true"
    page.locator(".grid .cell").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator(".query img").wait_for()
    assert "brick.png" in page.locator("#search .hint").nth(1).text_content()
    page.get_by_role("tab", name="Search").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.locator("#results table").first.wait_for()
    header = page.locator("#results th button").nth(2)
    header.focus()
    page.keyboard.press("Enter")
    column = page.locator("#results tbody").first.locator("tr td:nth-child(3)").all_text_contents()
    numbers = [float(text.split()[0]) for text in column if text != "-"]
    assert numbers == sorted(numbers)


@pytest.mark.slow
@needs_chromium
def test_thousands_of_photos_scroll(site, visit) -> None:
    """The grid has only what one sees, whatever the collection says it has."""
    page = visit(site, "#search")
    count = page.evaluate(
        """async () => {
            const {Grid} = await import("/static/grid.js");
            const photos = (await (await fetch("/photos")).json()).photos;
            const real = window.fetch;
            window.fetch = async (url) => {
                const offset = Number(new URLSearchParams(url.split("?")[1]).get("offset"));
                const one = (_, i) => photos[(offset + i) % photos.length];
                const part = Array.from({length: 200}, one);
                return new Response(JSON.stringify({total: 50000, offset, photos: part}));
            };
            const grid = new Grid(() => {});
            document.getElementById("search").replaceChildren(grid.element);
            await grid.load();
            let most = 0;
            for (let i = 0; i < 20; i += 1) {
                grid.element.scrollTop = i * 20000;
                await new Promise(requestAnimationFrame);
                await new Promise(requestAnimationFrame);
                most = Math.max(most, grid.element.querySelectorAll(".cell").length);
            }
            window.fetch = real;
            return most;
        }"""
    )
    assert 0 < count < 400


@pytest.mark.slow
@needs_chromium
def test_the_api_is_described_without_help_from_elsewhere(site, visit) -> None:
    page = visit(site, "docs")
    page.get_by_role("heading", name="POST /match").wait_for()
    assert "MatchAnswer" in page.locator("#api").text_content()
