"""The tables of a training step, from numbers written by hand."""

from typing import Any

from hardnet.bench.report.train_step import tables

APART = {"loss": 1e-9, "absolute": 2e-8, "largest": 3e-7, "norm": 4e-7}


def results() -> dict[str, Any]:
    return {
        "batch": 1024,
        "pairs_per_second": {"plain": 80.2, "chunked": 240.6},
        "ratio": 3.0,
        "memory_mb": [
            {"batch": 2048, "plain": 4500.0, "chunked": 1500.0, "share": 1 / 3},
            {"batch": 8192, "chunked": 5000.0},
        ],
        "equality": [
            {"batch": 8, "dtype": "float64", "chunked_to_plain": APART, "plain_to_float64": None},
            {"batch": 8, "dtype": "float32", "chunked_to_plain": APART, "plain_to_float64": APART},
        ],
        "provenance": {"settings": {"chunk": 512, "threads": 2}},
    }


def test_cost_in_lines_with_a_blank_where_plain_was_not_measured() -> None:
    cost, _ = tables(results())
    assert cost.rows == [
        ["pairs/s at batch 1024", "80", "241", "3.00x"],
        ["peak memory at batch 2048", "4500 MB", "1500 MB", "33%"],
        ["peak memory at batch 8192", "", "5000 MB", ""],
    ]


def test_rounding_stands_beside_the_difference_in_float32() -> None:
    _, equality = tables(results())
    assert [row[0] for row in equality.rows] == [
        "in chunks - plain, batch 8, float64",
        "in chunks - plain, batch 8, float32",
        "plain - plain in float64, batch 8, float32",
    ]
    assert equality.rows[0][1:] == ["1e-09", "2e-08", "3e-07", "4e-07"]
