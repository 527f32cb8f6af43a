"""`hardnet bench`: compare descriptors, and turn results files into tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from hardnet.bench import report as reports
from hardnet.bench.report.style import check_figure_name
from hardnet.cli import bench_images, bench_patches, bench_retrieval
from hardnet.cli.options import argument, group, option
from hardnet.cli.output import refuse_inputs, say
from hardnet.errors import HardnetError
from hardnet.image_files import require_regular_file
from hardnet.storage import replacing

ResultsFile = Annotated[Path, argument("A file that `hardnet bench` wrote.")]

app = group("bench", "Compare descriptors on real patches and images.")
for module in (bench_patches, bench_images, bench_retrieval):
    for command in module.COMMANDS:
        app.command()(command)


@app.command()
def report(
    results: ResultsFile, output: Path = option(..., "Folder to write.", "--output", "-o")
) -> None:
    """Write all tables (Markdown, LaTeX) and figures (PNG, SVG) of a results file.

    Example: hardnet bench report hpatches.json -o report
    """
    for path in reports.write_report(reports.read_results(results), output, results.stem):
        say(str(path))


@app.command()
def table(
    results: ResultsFile,
    latex: bool = option(False, "LaTeX instead of Markdown.", "--latex"),
    figure: Path | None = option(None, "Also draw the main figure here, .png or .svg."),
    which: str | None = option(None, "Another figure, by name."),
) -> None:
    """Print a results file as Markdown or LaTeX tables.

    Example: hardnet bench table results/hpatches.json --figure hpatches.png
    """
    refuse_inputs(figure, [results])
    if figure is not None:
        check_figure_name(figure)
    content = reports.read_results(results)
    print("\n\n".join(t.latex() if latex else t.markdown() for t in reports.tables(content)))
    if figure is not None:
        reports.figure(content, figure, which)


@app.command()
def refresh(documents: list[Path] = argument("Markdown files.")) -> None:
    """Update the tables of Markdown files from the results files they name.

    Example: hardnet bench refresh README.md docs/results.md
    """
    for path in documents:
        try:
            require_regular_file(path)
            text = path.read_text()
        except OSError as error:
            raise HardnetError(f"{path} cannot be read: {error.strerror}") from error
        with replacing(path.resolve()) as part:
            part.write_text(reports.refresh(text, Path.cwd()))
