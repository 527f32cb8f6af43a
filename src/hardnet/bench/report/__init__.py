"""Results files as tables (Markdown, LaTeX, terminal) and figures: no number is typed by hand."""

from hardnet.bench.report.cells import BASELINE
from hardnet.bench.report.files import read_results, write_report
from hardnet.bench.report.kinds import figure, figures, tables
from hardnet.bench.report.table import Table

__all__ = ["BASELINE", "Table", "figure", "figures", "read_results", "tables", "write_report"]
