"""The tables of the pair benchmark, from numbers written by hand."""

from typing import Any

from hardnet.bench.report.match_pair import tables


def results() -> dict[str, Any]:
    return {
        "kind": "match_pair",
        "seconds": {
            "kornia": {"detect": 3.0, "describe": 1.0, "total": 4.0},
            "opencv-sift": {"match": 0.1, "total": 0.2},
            "dog + hardnet": {"describe": 0.75, "match": 0.25, "total": 1.0},
        },
        "found": {
            "kornia": {"inliers": 30, "correct": 20},
            "opencv-sift": {"inliers": 12, "correct": 11},
            "dog + hardnet": {"inliers": 31, "correct": 29},
        },
        "speed_of_kornia": {"kornia": 1.0, "opencv-sift": 20.0, "dog + hardnet": 4.0},
        "speed_of_sift": {"kornia": 0.05, "opencv-sift": 1.0, "dog + hardnet": 0.2},
        "provenance": {
            "settings": {
                "images": ["graf/1.png", "graf/3.png"],
                "keypoints": 2048,
                "threads": 2,
                "repetitions": 7,
            }
        },
    }


def test_ratios_and_what_is_found() -> None:
    totals, _ = tables(results())
    assert totals.rows[0] == ["kornia", "4.00", "1.0x", "0.05x", "30", "20"]
    assert totals.rows[2] == ["dog + hardnet", "1.00", "4.0x", "0.20x", "31", "29"]
    assert len(totals.columns) == 6
    assert "graf/1.png and graf/3.png, 2048 keypoints, 2 threads" in totals.note


def test_stages_are_shares_of_the_total() -> None:
    _, stages = tables(results())
    assert stages.rows[2] == ["dog + hardnet", "describe 0.750 (75%), match 0.250 (25%)"]
    assert stages.rows[1] == ["opencv-sift", "match 0.100 (50%)"]


def test_without_ground_truth_there_is_no_column_of_it() -> None:
    unknown = results()
    unknown["found"] = {name: {"inliers": 5} for name in unknown["found"]}
    totals, _ = tables(unknown)
    assert totals.columns[-1] == "inliers"
    assert all(len(row) == 5 for row in totals.rows)
