"""The table of describing a folder, from numbers written by hand."""

from hardnet.bench.report import tables


def test_seconds_per_photo_and_ratios() -> None:
    seconds = {
        "decode": 1.0, "detect": 6.0, "describe": 12.0, "sequential": 20.0, "overlapped": 15.0,
        "hdf5": 16.0,
    }  # fmt: skip
    row = {
        "descriptor": "hardnet",
        "seconds": seconds,
        "speedup": 20 / 15,
        "ratio_to_slowest_stage": 1.25,
        "ratio_to_all_cores_busy": 1.05,
        "memory_mb": {"sequential": 300.4, "overlapped": 499.6},
    }
    settings = {"images": 10, "megapixels": 2.34, "detector": "dog", "keypoints": 2048}
    provenance = {"settings": settings, "machine": {"cores": 2}}
    (table,) = tables({"kind": "extract_folder", "rows": [row], "provenance": provenance})
    assert table.rows == [
        ["hardnet", "0.10", "0.60", "1.20", "2.00", "1.50", "1.60", "1.33x", "1.25", "1.05",
         "300 / 500"]
    ]  # fmt: skip
    assert len(table.columns) == len(table.rows[0])
    assert "10 photos of 2.3 megapixels" in table.note
