"""Which orderings numbers show, on cells made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hardnet.bench.grids import Claim, compare, judge


def matching(*sequences: float, seeds: list[float] | None = None) -> dict[str, Any]:
    value = sum(sequences) / len(sequences)
    named = {f"s{i}": v for i, v in enumerate(sequences)}
    found = {"value": value, "low": 0, "high": 1, "seeds": seeds or [value], "sequences": named}
    return {"matching": found}


def fpr95(value: float, low: float, high: float, seeds: list[float] | None = None) -> Any:
    return {"fpr95": {"value": value, "low": low, "high": high, "seeds": seeds or [value]}}


def test_a_gain_on_every_sequence_is_clear() -> None:
    found = compare(matching(0.5, 0.6, 0.1), matching(0.4, 0.55, 0.05), "matching")
    assert found["gain"] == pytest.approx((0.1 + 0.05 + 0.05) / 3)
    assert 0.05 - 1e-9 <= found["low"] <= found["gain"] <= found["high"] <= 0.1 + 1e-9
    assert found["clear"]


def test_a_gain_on_some_sequences_is_not_clear() -> None:
    found = compare(matching(0.9, 0.3), matching(0.4, 0.4), "matching")
    assert found["gain"] == pytest.approx(0.2)
    assert not found["clear"]


def test_one_sequence_is_never_clear() -> None:
    assert not compare(matching(0.9), matching(0.1), "matching")["clear"]


def test_seeds_that_overlap_are_not_clear() -> None:
    a, b = matching(0.5, 0.6, seeds=[0.4, 0.7]), matching(0.3, 0.4, seeds=[0.3, 0.41])
    assert not compare(a, b, "matching")["clear"]
    a["matching"]["seeds"] = [0.42, 0.7]
    assert compare(a, b, "matching")["clear"]


def test_fewer_false_positives_are_a_gain() -> None:
    found = compare(fpr95(0.02, 0.01, 0.03), fpr95(0.05, 0.04, 0.06), "fpr95")
    assert found["gain"] == pytest.approx(0.03)
    assert found["clear"]
    assert not compare(fpr95(0.02, 0.01, 0.045), fpr95(0.05, 0.04, 0.06), "fpr95")["clear"]


def test_yes_no_and_open() -> None:
    cells = {
        "a": matching(0.5, 0.6),
        "b": matching(0.4, 0.5),
        "c": matching(0.6, 0.7),
        "failed": {},
    }
    claim = Claim("a is best", (("a", "b"), ("a", "c")))
    found = judge(claim, cells, "matching")
    assert found["answer"] == "no"
    assert (found["pairs"], found["hold"], found["clear"]) == (2, 1, 1)
    assert found["against"] == ["a > c: -0.100 [-0.100, -0.100], clear"]
    assert judge(Claim("", (("a", "b"),)), cells, "matching")["answer"] == "yes"
    for other in ("absent", "failed"):
        found = judge(Claim("", (("a", "b"), ("a", other))), cells, "matching")
        assert found["answer"] == "open"
        assert found["not_run"] == [f"a > {other}"]
    assert judge(Claim("", (("absent", "failed"),)), cells, "matching")["answer"] == "open"
    # A contradiction outweighs what was not run.
    assert judge(Claim("", (("a", "c"), ("a", "x"))), cells, "matching")["answer"] == "no"


def test_what_is_not_clear_decides_nothing() -> None:
    cells = {"a": matching(0.5, 0.6), "b": matching(0.4, 0.5), "unsure": matching(0.9, 0.3)}
    unsure = Claim("", (("a", "unsure"),))
    found = judge(unsure, cells, "matching")
    assert found["against"] == ["a > unsure: -0.050 [-0.400, +0.300], not clear"]
    assert found["answer"] == "open"
    assert judge(Claim("", (("unsure", "a"),)), cells, "matching")["answer"] == "open"
    # Beside a clear pair it is only reported.
    found = judge(Claim("", (("a", "b"), ("a", "unsure"))), cells, "matching")
    assert (found["answer"], found["hold"], found["clear"]) == ("yes", 1, 1)


def test_no_clear_gain() -> None:
    small, same, better = (
        fpr95(0.05, 0.04, 0.06),
        fpr95(0.045, 0.035, 0.055),
        fpr95(0.01, 0.005, 0.02),
    )
    cells = {"512": small, "1024": same, "2048": better}
    claim = Claim("enough", (("1024", "512"),), gain=False)
    assert judge(claim, cells, "fpr95")["answer"] == "yes"
    claim = Claim("enough", (("1024", "512"), ("2048", "512")), gain=False)
    found = judge(claim, cells, "fpr95")
    assert found["answer"] == "no"
    assert found["against"] == ["2048 ~ 512: +4.00 points, clear"]
