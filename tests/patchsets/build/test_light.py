"""Changes of light: by values on small pictures whose answer is known."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from hardnet.patchsets.build import views as light
from hardnet.patchsets.build.views import CHANGES, LUMINANCE, random_curve, random_grey


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def photo(photos) -> np.ndarray:
    pixels = cv2.imread(str(photos / "astronaut.png"))[:, :, ::-1]
    return np.ascontiguousarray(cv2.resize(pixels, (160, 120)), np.float32) / 255


def test_grey_weights_sum_to_one_and_are_the_usual_ones_without_strength() -> None:
    primaries = np.eye(3, dtype=np.float32)[None]  # one red, one green, one blue pixel
    assert np.allclose(random_grey(primaries, rng(), 0.0)[0], LUMINANCE)
    drawn = np.stack([random_grey(primaries, rng(seed), 1.0)[0] for seed in range(200)])
    assert np.allclose(drawn.sum(1), 1, atol=1e-6)
    assert (drawn >= 0).all()
    assert np.allclose(drawn.mean(0), 1 / 3, atol=0.05)
    assert drawn.min(0).max() < 0.05
    assert drawn.max(0).min() > 0.8


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_keeps_shape_and_range_and_does_something(name: str, photo: np.ndarray) -> None:
    before = photo.copy()
    differences = []
    for seed in range(8):
        out = CHANGES[name][0](photo, rng(seed), 1.0)
        assert out.shape == photo.shape
        assert out.dtype == np.float32
        assert out.min() >= 0
        assert out.max() <= 1
        assert np.array_equal(out, CHANGES[name][0](photo, rng(seed), 1.0))
        differences.append(np.abs(out - photo).mean())
    assert np.mean(differences) > 0.015
    assert np.array_equal(photo, before)


@pytest.mark.parametrize("name", CHANGES)
def test_no_strength_is_no_change(name: str, photo: np.ndarray) -> None:
    out = CHANGES[name][0](photo, rng(3), 0.0)
    bright = photo @ LUMINANCE > 0.02  # below, the logarithm has its floor
    assert np.abs(out - photo)[bright].max() < 0.05
    assert np.abs(out - photo)[bright].mean() < 0.005


def test_edge_preserving_smoothing_is_the_guided_filter_by_loops() -> None:
    image = rng().uniform(0, 1, (9, 11)).astype(np.float32)
    radius, contrast = 1, 0.3

    def mean(values: np.ndarray) -> np.ndarray:
        padded = np.pad(values, radius, mode="reflect")
        out = np.zeros_like(values)
        for y in range(values.shape[0]):
            for x in range(values.shape[1]):
                out[y, x] = padded[y : y + 2 * radius + 1, x : x + 2 * radius + 1].mean()
        return out

    image64 = image.astype(np.float64)
    middle = mean(image64)
    variance = mean(image64**2) - middle**2
    slope = variance / (variance + contrast**2)
    expected = mean(slope) * image64 + mean(middle - slope * middle)
    assert np.allclose(light.smooth_keeping_edges(image, radius, contrast), expected, atol=1e-5)


def test_smoothing_keeps_a_step_and_removes_a_ripple() -> None:
    x = np.arange(200)
    step = np.where(x < 100, 0.0, 1.0)
    ripple = 0.02 * np.sin(x)
    image = np.repeat((step + ripple)[None], 60, 0).astype(np.float32)
    smooth = light.smooth_keeping_edges(image, 10, 0.15)
    assert smooth[30, 110] - smooth[30, 90] > 0.9
    assert np.abs(smooth[30, 20:60] - smooth[30, 20:60].mean()).max() < 0.005


def test_some_tone_curves_are_not_monotone_and_none_is_without_strength() -> None:
    curves = np.stack([random_curve(rng(seed), 1.0) for seed in range(300)])
    falls = (np.diff(curves, axis=1) < 0).any(1)
    assert 0.25 < falls.mean() < 0.5
    assert np.allclose(random_curve(rng(), 0.0), [0, 0.25, 0.5, 0.75, 1])


def test_relighting_can_reverse_areas_and_keeps_texture() -> None:
    """A dark and a bright area, both with the same ripple in log-luminance."""
    x = np.arange(240)
    base = np.where(x < 120, 0.2, 0.6)
    texture = np.exp(0.05 * np.sin(x * 1.5))
    image = np.repeat((base * texture)[None, :, None], 80, 0).repeat(3, 2).astype(np.float32)
    reversed_ = 0
    for seed in range(40):
        out = np.log(light.relight(image, rng(seed), 1.0)[40, :, 0] + 1e-6)
        reversed_ += out[20:100].mean() > out[140:220].mean()
        if out.max() < -0.01:  # not clipped
            correlation = np.corrcoef(out[20:100], np.sin(x[20:100] * 1.5))[0, 1]
            assert correlation > 0.9
    assert 2 <= reversed_ <= 20


def test_raking_light_brightens_one_side_of_a_bump() -> None:
    """A round bump: what faces the light gains what the other side loses."""
    y, x = np.mgrid[-30:31, -30:31]
    bump = np.exp(-(x**2 + y**2) / 200) * 0.4 + 0.2
    image = np.repeat(bump[:, :, None], 3, 2).astype(np.float32)
    directions = []
    for seed in range(12):
        change = np.log(light.rake(image, rng(seed), 1.0)[..., 0] / image[..., 0])
        change = change[10:51, 10:51]
        assert np.allclose(change, -change[::-1, ::-1], atol=0.02)
        centre = np.array([(change * x[10:51, 10:51]).sum(), (change * y[10:51, 10:51]).sum()])
        directions.append(centre / np.linalg.norm(centre))
    assert np.linalg.norm(np.mean(directions, 0)) < 0.7  # from all sides


def test_windows_shine_where_it_was_darker_than_around() -> None:
    image = np.full((80, 80, 3), 0.6, np.float32)
    image[30:40, 30:40] = 0.3
    gained = np.stack([light.lit_windows(image, rng(s), 1.0) - image for s in range(20)])
    assert (gained >= -1e-6).all()
    assert gained[:, 32:38, 32:38].max() > 0.2
    assert gained[:, :10].max() < 0.05
    inside = gained[:, 32:38, 32:38].mean((1, 2))
    assert (inside[:, 0] >= inside[:, 2]).all()  # warm light


def test_shadows_only_darken_and_leave_some_light() -> None:
    grey = np.full((60, 80, 3), 0.5, np.float32)
    for seed in range(20):
        out = light.cast_shadows(grey, rng(seed), 1.0)
        assert (out <= 0.5 + 1e-6).all()
        assert out.min() > 0.01
    # What is in the shadow is lit by the sky: less red is left than blue.
    assert out[..., 0].min() < out[..., 2].min()


def test_overexposure_is_lost_for_good() -> None:
    ramp = np.linspace(0, 1, 256, dtype=np.float32)[None, :, None].repeat(64, 0).repeat(3, 2)
    clipped = [(light.expose(ramp, rng(seed), 1.0) >= 0.999).mean() for seed in range(30)]
    assert max(clipped) > 0.25
    assert min(clipped) < 0.02


def test_noise_of_the_sensor_grows_with_light_where_it_is_linear() -> None:
    dark, bright = (np.full((100, 100, 3), v, np.float32) for v in (0.1, 0.7))
    more = 0
    for seed in range(20):
        a = light.expose(dark, rng(seed), 1.0) ** 2.2
        b = light.expose(bright, rng(seed), 1.0) ** 2.2
        if b.max() < 1 and a.min() > 0:
            more += 1 if b.std() > a.std() else -1
    assert more > 0


def test_glare_only_adds_and_most_at_one_place(photo: np.ndarray) -> None:
    black = np.zeros((90, 120, 3), np.float32)
    for seed in range(10):
        out = light.glare(black, rng(seed), 1.0)
        assert out.max() > 0.1
        assert out[..., 0].max() >= out[..., 2].max()  # never bluish
    assert (light.glare(photo, rng(1), 1.0) >= photo - 1e-6).all()


def test_night_is_blue_where_no_lamp_reaches() -> None:
    grey = np.full((90, 120, 3), 0.5, np.float32)
    means = []
    for seed in range(30):
        out = light.night(grey, rng(seed), 1.0)
        darkest = out[np.unravel_index(out.sum(2).argmin(), out.shape[:2])]
        means.append(out.mean())
        if darkest.sum() < 0.4:
            assert darkest[2] >= darkest[0] * 0.8
    assert np.median(means) < 0.5


def test_random_light_is_grey_uint8_and_follows_the_seed(photo: np.ndarray) -> None:
    pixels = (photo * 255).astype(np.uint8)
    out = light.random_light(pixels, rng(5))
    assert out.shape == pixels.shape[:2]
    assert out.dtype == np.uint8
    assert np.array_equal(out, light.random_light(pixels, rng(5)))
    assert not np.array_equal(out, light.random_light(pixels, rng(6)))


def test_the_picture_of_all_changes_begins_each_row_with_the_photograph(photo: np.ndarray) -> None:
    pixels = (photo * 255).astype(np.uint8)
    picture = light.draw_changes(pixels, columns=3, width=80)
    assert picture.shape == ((len(CHANGES) + 2) * (20 + 60), 3 * 80, 3)
    rows = picture.reshape(len(CHANGES) + 2, 80, 240, 3)[:, 20:]
    assert (rows[:, :, :80] == rows[0, :, :80]).all()
    assert (np.abs(rows[:, :, 80:160].astype(int) - rows[:, :, :80]).mean((1, 2, 3)) > 2).all()
