"""One table as Markdown, LaTeX and in the terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from hardnet.bench.report.table import (
    SAME,
    Column,
    Table,
    against_baseline,
    by_name,
    interval,
    latex_text,
)

GROUPED = Table(
    "Rates, %",
    [
        Column("test: trained on", ["sift", "a & b"]),
        Column("nd_1", [29.84, 1.47], "{:.2f}", "smallest", "liberty"),
        Column("yos", [SAME, 2.67], "{:.2f}", "smallest", "liberty"),
        Column("mean", [29.84, None], "{:.2f}"),
    ],
    "One note.",
)


def two_columns(*rows: tuple[str, str]) -> Table:
    return Table.of_texts("t", ["x", "y"], rows)


def test_markdown_puts_the_group_into_the_heading() -> None:
    assert GROUPED.markdown().splitlines() == [
        "**Rates, %**",
        "",
        "| test: trained on | liberty: nd_1 | liberty: yos | mean |",
        "| --- | ---: | ---: | ---: |",
        f"| sift | 29.84 | {SAME} | 29.84 |",
        "| a & b | **1.47** | 2.67 | - |",
        "",
        "One note.",
    ]
    assert "| a\\|b | 1 |" in two_columns(("a|b", "1")).markdown()  # a bar does not end a cell


def test_latex_line_by_line() -> None:
    assert GROUPED.latex().splitlines() == [
        r"\begin{table}[htb]",
        r"\centering",
        r"\caption{Rates, \%. One note.}\label{tab:rates}",
        r"\begin{tabular}{@{}lrrr@{}}",
        r"\toprule",
        r" & \multicolumn{2}{c}{liberty} &  \\",
        r"\cmidrule(lr){2-3}",
        r"test: trained on & nd\_1 & yos & mean \\",
        r"\midrule",
        r"sift & \multicolumn{2}{c}{29.84} & 29.84 \\",
        r"a \& b & \textbf{1.47} & 2.67 & - \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    assert r"\label{tab:mine}" in GROUPED.latex("tab:mine")


def test_a_long_latex_table_may_run_over_pages() -> None:
    text = two_columns(*((f"row{i}", "1") for i in range(60))).latex()
    assert text.startswith(r"\begin{longtable}{@{}lr@{}}")
    assert text.count(r"\caption") == 1
    assert "tabular" not in text


def test_latex_shows_every_character_literally() -> None:
    assert latex_text(r"50% of a_b & $x^2 #1 {~} \ <|>") == (
        r"50\% of a\_b \& \$x\textasciicircum{}2 \#1 \{\textasciitilde{}\} "
        r"\textbackslash{} \textless{}\textbar{}\textgreater{}"
    )
    assert latex_text("**a_b** ± 1") == r"\textbf{a\_b} $\pm$ 1"
    # A bracket or star would be an argument of the line before.
    text = two_columns(("a", "1"), ("[b]", "2"), ("*", "3")).latex()
    assert "\n{}[b] & 2" in text
    assert "\n{}* & 3" in text


def test_the_terminal_shows_the_same_and_no_markup() -> None:
    out = StringIO()
    numbers = Column("value", [0.5, 0.1], "{:.1f}", "largest", intervals=[(0.4, 0.6), (0.0, 0.2)])
    Console(file=out, width=80).print(Table("T", [Column("name", ["net", "x"]), numbers]).rich())
    assert "0.5 [0.4, 0.6]" in out.getvalue()
    assert "*" not in out.getvalue()


@pytest.mark.parametrize(
    ("best_of", "bold"),
    [
        ("column", {"x1", "y1", "w2"}),  # 5 and 5.0001 read the same; of the other, the smallest
        ("line", {"x1"}),  # alone in its line, a number is the best of nothing
        ("table", {"x1", "y1"}),
    ],
)
def test_the_best_is_bold_and_so_is_what_reads_the_same(best_of, bold) -> None:
    other = "smallest" if best_of == "column" else "largest"
    columns = [
        Column("n", list("wxyz")),
        Column("a", [None, 5, 5.0001, 2], "{:.1f}", "largest"),
        Column("b", [3, 4, None, None], "{:.1f}", other),
        Column("c", [9, 9, 9, 9], "{:.1f}"),
    ]
    rows = Table("t", columns, best_of=best_of).rows
    assert {f"{row[0]}{j}" for row in rows for j, cell in enumerate(row) if "**" in cell} == bold


def test_lines_compete_within_their_block() -> None:
    column = Column("a", [1, 2, 3, 5], "{}", "largest")
    table = Table("t", [Column("n", list("wxyz")), column], blocks=["p", "p", "q", "q"])
    assert [row[1] for row in table.rows] == ["1", "**2**", "3", "**5**"]


def test_missing_numbers() -> None:
    assert interval(None, None) == "-"
    assert interval(0.1, 0.25) == "[0.100, 0.250]"
    values = {"net": {"a": 1.0}, "sift": {"a": 2.0, "b": 3.0}}
    assert by_name("t", "sequence", values, "{:.0f}").rows == [["a", "1", "**2**"], ["b", "-", "3"]]


def test_ratios_to_the_baseline_of_the_same_block() -> None:
    assert against_baseline("matching", ["net", "sift"], [0.5, 0.4]) == []
    names, values = ["net", "rootsift", "net", "rootsift"], [0.6, 0.4, None, 0.5]
    [column] = against_baseline("matching", names, values, ["a", "a", "b", "b"])
    assert column.heading == "matching / rootsift"
    assert column.texts == ["1.50x", "1.00x", "-", "1.00x"]
