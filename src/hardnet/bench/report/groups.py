"""The benchmark of copies, crops and scenes."""

from __future__ import annotations

from hardnet.bench.report.style import Figures
from hardnet.bench.report.table import Results, Table, column


def tables(results: Results) -> list[Table]:
    """Recall per edit, what was joined wrongly, then what views of one scene are called."""
    edits, methods, rules = results["edits"], results["methods"], results["rules"]
    settings, photos = results["provenance"]["settings"], results["photos"]
    hashes = f"hashes: {rules['hash']} ({settings['distance']})"
    recall = Table(
        f"Copies of {photos['sources']} photographs that are found, among {photos['all']} photos",
        [
            column("edit", edits, "edit"),
            column("kind", edits, "kind"),
            column("hardnet groups", edits, "hardnet", "{:.3f}"),
            column("of the right kind", edits, "kind_right", "{:.3f}"),
            column("corner error (%)", edits, "map_error", "{:.2f}"),
            column("pHash", edits, "phash", "{:.3f}"),
            column("dHash", edits, "dhash", "{:.3f}"),
        ],
        f"Found: {rules['found']}; {hashes}. Corner error: {rules['map']}.",
    )
    wrong = Table(
        f"What is joined wrongly, per 1,000 of {photos['all']} photos",
        [
            column("method", methods, "method"),
            column("pairs", methods, "pairs", "{}"),
            column("groups", methods, "groups", "{}"),
            column("false copies", methods, "false_copies_per_1000", "{:.1f}"),
            column("false groups", methods, "false_groups_per_1000", "{:.1f}"),
            column("same object", methods, "same_object", "{:.3f}"),
        ],
        f"False copies: {rules['false copies']}. False groups: {rules['false groups']}. "
        f"Same object: {rules['same object']}.",
    )
    if not (scenes := results.get("scenes")):
        return [recall, wrong]
    listed = [
        row | {"kinds": ", ".join(f"{count} {kind}" for kind, count in row["pairs"].items()) or "-"}
        for row in scenes
    ]
    views = Table(
        "Photos of one scene",
        [
            column("scene", listed, "scene"),
            column("photos", listed, "photos", "{}"),
            column("pairs", listed, "kinds"),
            column("together", listed, "together", "{:.2f}"),
            column("as", listed, "group"),
        ],
        f"Together: {rules['together']}.",
    )
    return [recall, wrong, views]


def figures(results: Results) -> Figures:
    """None: the table says it."""
    return {}
