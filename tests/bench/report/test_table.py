"""One table as Markdown, LaTeX and in the terminal."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from hardnet.bench.report.cells import bold_best, by_descriptor, by_name, interval, number, ratio
from hardnet.bench.report.latex import SAME, escape, inline
from hardnet.bench.report.table import Table

GROUPED = Table(
    "Rates, %",
    ["test: trained on", "nd_1", "yos", "mean"],
    [["sift", "29.84", SAME, "29.84"], ["a & b", "**1.47**", "2.67", "-"]],
    [("", 1), ("liberty", 2), ("", 1)],
    "One note.",
)


def test_markdown_puts_the_group_into_the_heading():
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


def test_a_bar_does_not_end_a_markdown_cell():
    assert "| a\\|b | 1 |" in Table("t", ["x", "y"], [["a|b", "1"]]).markdown()


def test_latex_line_by_line():
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


def test_a_long_latex_table_may_run_over_pages():
    text = Table("t", ["x", "y"], [[f"row{i}", "1"] for i in range(60)]).latex()
    assert text.startswith(r"\begin{longtable}{@{}lr@{}}")
    assert text.count(r"\caption") == 1
    assert "tabular" not in text


def test_every_special_character_is_escaped():
    assert escape(r"50% of a_b & $x^2 #1 {~} \ <|>") == (
        r"50\% of a\_b \& \$x\textasciicircum{}2 \#1 \{\textasciitilde{}\} "
        r"\textbackslash{} \textless{}\textbar{}\textgreater{}"
    )
    assert inline("**a_b** ± 1") == r"\textbf{a\_b} $\pm$ 1"


def test_a_row_that_starts_with_a_bracket_is_not_an_argument_of_the_line_before():
    text = Table("t", ["x", "y"], [["a", "1"], ["[b]", "2"], ["*", "3"]]).latex()
    assert "\n{}[b] & 2" in text
    assert "\n{}* & 3" in text


def test_the_terminal_shows_the_same_and_no_markup():
    out = StringIO()
    table = Table("T", ["name", "value", "95 % interval"], [["net", "**0.5**", "[0.4, 0.6]"]])
    Console(file=out, width=80).print(table.rich())
    assert "[0.4, 0.6]" in out.getvalue()
    assert "0.5 " in out.getvalue()
    assert "*" not in out.getvalue()


def test_cells():
    assert number(None) == interval(None, None) == ratio(1.0, None) == ratio(None, 2.0) == "-"
    assert interval(0.1, 0.25) == "[0.100, 0.250]"
    assert ratio(3.0, 2.0) == "1.50x"


def test_the_best_is_bold_and_so_is_what_reads_the_same():
    assert bold_best([0.5, None, 0.50001, 0.4]) == ["**0.500**", "-", "**0.500**", "0.400"]
    assert bold_best([2.0, 1.0], "{:.0f}", smaller=True) == ["2", "**1**"]
    assert bold_best([0.5, None]) == ["0.500", "-"]  # alone, it is not the best of anything
    assert bold_best([]) == []


def test_missing_cells_of_both_layouts():
    values = {"net": {"a": 1.0}, "sift": {"a": 2.0, "b": 3.0}}
    assert by_name("t", "sequence", values, "{:.0f}").rows == [["a", "1", "**2**"], ["b", "-", "3"]]
    columns = [{"net": 1.0, "sift": 2.0}, {"sift": 3.0}]
    assert by_descriptor(columns, ["net", "sift"], "{:.0f}") == [
        ["net", "1", "-"],
        ["sift", "**2**", "3"],
    ]
