from hardnet.bench.report.table import against_baseline


def test_no_column_without_the_baseline() -> None:
    assert against_baseline("matching", [None, None]) == []
    [column] = against_baseline("matching", [1.5, None])
    assert (column.heading, column.texts) == ("matching / rootsift", ["1.50x", "-"])
