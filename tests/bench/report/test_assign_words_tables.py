from __future__ import annotations

from hardnet.bench.report import assign_words

RESULTS = {
    "kind": "assign_words",
    "sizes": {
        "8192": {
            "faiss flat": {
                "per_second": 20_000.4,
                "times_faiss_flat": 1.0,
                "recall": 1.0,
                "recall_of_several": 1.0,
                "query_ms": 30.06,
            },
            "hardnet": {
                "per_second": 200_000.0,
                "times_faiss_flat": 9.98,
                "recall": 0.99996,
                "recall_of_several": 0.9987,
                "query_ms": 2.5,
            },
        }
    },
    "provenance": {
        "settings": {
            "threads": 2,
            "words_per_descriptor_of_a_query": 3,
            "descriptors_of_a_query": 500,
        }
    },
}


def test_table_by_hand() -> None:
    (table,) = assign_words.tables(RESULTS)
    assert "2 threads" in table.title
    assert table.columns[-1] == "query of 500, 3 words each, ms"
    assert table.rows == [
        ["8192", "faiss flat", "20000", "1.0x", "1.0000", "1.0000", "30.1"],
        ["8192", "hardnet", "200000", "10.0x", "1.0000", "0.9987", "2.5"],
    ]
