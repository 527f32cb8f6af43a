from __future__ import annotations

from hardnet.bench.report import detect


def row(detector: str, sequence: str, target: str, overlap: float) -> dict[str, object]:
    return {
        "detector": detector,
        "sequence": sequence,
        "target": target,
        "overlap": overlap,
        "distance": 0.5,
    }


RESULTS = {
    "kind": "detect",
    "rules": {"overlap": "rule a", "distance": "rule b", "time": "rule c"},
    "repeatability": [
        row("kornia", "graf", "2", 0.5),
        row("kornia", "graf", "3", 0.3),
        row("hessian", "graf", "2", 0.7),
        row("hessian", "graf", "3", 0.5),
    ],
    "mean": {
        "kornia": {"overlap": 0.4, "distance": 0.5},
        "hessian": {"overlap": 0.6, "distance": 0.5},
    },
    "seconds_per_image": {"kornia": 1.5, "hessian": 0.25},
    "speed_ratio_to_kornia": {"kornia": 1.0, "hessian": 6.0},
    "large_image": {"hessian": {"seconds": 6.84, "extra_mb": 204.4, "frames": 2048}},
    "provenance": {
        "settings": {
            "keypoints": 2048,
            "threads": 2,
            "timed": "graf",
            "megapixels": 20.0,
            "chosen_on": ["graf"],
        }
    },
}


def test_tables_hold_the_numbers() -> None:
    repeat, speed, large = detect.tables(RESULTS)
    assert repeat.columns == ["detector", "graf", "mean", "mean by distance"]
    assert "graf decided the settings" in repeat.note
    assert repeat.rows == [
        ["kornia", "0.400", "0.400", "0.500"],
        ["hessian", "0.600", "**0.600**", "0.500"],
    ]
    assert speed.rows == [["kornia", "1.500", "1.0"], ["hessian", "0.250", "6.0"]]
    assert large.rows == [["hessian", "6.8", "204", "2048"]]
