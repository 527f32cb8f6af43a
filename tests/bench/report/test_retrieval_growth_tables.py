import cv2
import pytest

from hardnet.bench.report import figure, figures, tables
from hardnet.bench.report.retrieval_growth import STAGES


def growth_results(sizes=(1000, 10_000)):
    return {
        "kind": "retrieval_growth",
        "rows": [
            {
                "images": size,
                "features": 400 * size,
                "segments": 1,
                "bytes": 400 * size * 27.25,
                "build_seconds": size / 4000,
                "add_one_seconds": 0.05,
                "open_ms": 3.26,
                "own_memory_mb": 0.0,
                "mapped_memory_mb": 9.6,
                "postings_per_query": 20 * size,
                "first_query_ms": 2.0,
                "query_ms": {stage: size / 1000 + k for k, stage in enumerate(STAGES)},
                "found_first": 1.0,
            }
            for size in sizes
        ],
        "provenance": {
            "settings": {
                "features": 400,
                "words": 65_536,
                "queries": 12,
                "scoring": {"ma": 3},
                "shape": {"images": 100, "matching_pairs": 0.0113},
            }
        },
    }


def test_sizes_and_queries():
    sizes, queries = tables(growth_results())
    assert sizes.rows[1] == (
        ["10,000", "4.0 M", "2.5 s", "0.05 s", "109 MB", "27.2", "3.3 ms", "0 MB", "10 MB"]
    )
    assert "65,536 words, 1.1 % of" in sizes.note
    assert queries.rows[1][:4] == ["10,000", "0.20 M", "2.0", "10.00"]
    assert len(queries.columns) == len(queries.rows[0])


def test_the_figure_needs_two_sizes_and_bears_zeros(tmp_path):
    pytest.importorskip("matplotlib")
    assert figures(growth_results(sizes=(1000,))) == []
    figure(growth_results(), tmp_path / "growth.png")
    assert cv2.imread(str(tmp_path / "growth.png")).std() > 5
