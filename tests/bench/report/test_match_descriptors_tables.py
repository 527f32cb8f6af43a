from __future__ import annotations

from hardnet.bench.report import kinds

RESULTS = {
    "kind": "match_descriptors",
    "sizes": {
        "2000": {
            "seconds": {"opencv": 0.3, "hardnet": 0.1},
            "times_faster_than_opencv": {"opencv": 1.0, "hardnet": 3.0},
            "same_matches": {"opencv": 1.0, "hardnet": 1.0},
        },
        "50000": {
            "seconds": {"opencv": 90.0, "hardnet": 20.0},
            "times_faster_than_opencv": {"opencv": 1.0, "hardnet": 4.5},
            "same_matches": {"opencv": 1.0, "hardnet": 1.0},
        },
    },
    "extra_memory_mb": {"hardnet": {"2000": 4.1, "50000": 20.6}},
    "recall": {
        "exact": {"all": 1.0, "matches": 1.0, "seconds": 0.5},
        "flann": {"all": 0.5505, "matches": 0.9114, "seconds": 0.43},
    },
    "provenance": {"settings": {"threads": 2}},
}


def test_tables_by_hand() -> None:
    speed, memory, recall = kinds.tables(RESULTS)
    assert "2 threads" in speed.title
    assert speed.columns == ["matcher", "2000 x 2000", "50000 x 50000"]
    assert speed.rows == [
        ["opencv", "0.300 s (1.0x)", "90.000 s (1.0x)"],
        ["hardnet", "0.100 s (3.0x)", "20.000 s (4.5x)"],
    ]
    assert memory.rows == [["hardnet", "4", "21"]]
    assert recall.rows == [
        ["exact", "1.000", "1.000", "0.50"],
        ["flann", "0.550", "0.911", "0.43"],
    ]
    assert kinds.figures(RESULTS) == []
