"""The tables of the benchmarks that only these scripts run.

A results file carries its tables, so that `hardnet bench table` and `hardnet bench refresh` show
it without this code. After a change of the wording, renew the tables from the stored numbers:

    python benchmarks/report/tables.py results/*.json
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from hardnet.bench.report.table import Column, Results, Table, Value, column, distinct

GROWTH_STAGES = {
    "he": "Hamming embedding",
    "bow": "bag of words",
    "top_k": "best 100 of all scores",
    "reliable": "close features of 100 images",
    "features_of": "features of 10 images",
}
"""What is timed of a query of a growing index; the best scores are part of the first two."""


def write(results: Mapping[str, Any], output: Path) -> None:
    """Write a results file with its tables."""
    shown = [
        {"title": t.title, "columns": t.headings, "rows": t.rows, "note": t.note}
        for t in TABLES[results["kind"]](results)
    ]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({**results, "tables": shown}, indent=1) + "\n")


def renew(
    paths: Annotated[list[Path], typer.Argument(help="Results files; others are left alone.")],
) -> None:
    """Make the tables of results files again from their numbers."""
    for path in paths:
        results = json.loads(path.read_text())
        if results.get("kind") in TABLES:
            write(results, path)


def assign_words(results: Results) -> list[Table]:
    """One line per size of vocabulary and way to search it."""
    settings = results["provenance"]["settings"]
    count = settings["words_per_descriptor_of_a_query"]
    lines = [(size, name) for size, found in results["sizes"].items() for name in found]
    rows = [results["sizes"][size][name] for size, name in lines]
    query = f"query of {settings['descriptors_of_a_query']}, {count} words each, ms"
    columns = [
        Column("words", [size for size, _ in lines]),
        Column("search", [name for _, name in lines]),
        column("descriptors/s", rows, "per_second", "{:.0f}"),
        column("times faiss flat", rows, "times_faiss_flat", "{:.1f}x"),
        column("recall", rows, "recall", "{:.4f}"),
        column(f"recall of {count}", rows, "recall_of_several", "{:.4f}"),
        column(query, rows, "query_ms", "{:.1f}"),
    ]
    return [Table(f"Nearest words of descriptors, {settings['threads']} threads", columns)]


def crops(results: Results) -> list[Table]:
    """Crops found by their size: one line per way to choose keypoints."""
    rows, settings = results["rows"], results["provenance"]["settings"]
    columns = [
        Column("keypoints", ["spread" if row["spread"] else "strongest" for row in rows]),
        *(
            Column(f"{side} of the side", [row["found"][side] for row in rows], "{}", "largest")
            for side in settings["sides"]
        ),
        Column(
            "another photo verified first",
            [sum(row["other_verified"].values()) for row in rows],
            "{}",
        ),
        Column("features of the index", [f"{row['features']:,}" for row in rows]),
        Column("MB", [row["bytes"] / 1e6 for row in rows], "{:.1f}"),
    ]
    title = f"Exact crops of indexed photos found, of {settings['crops']} per size"
    note = (
        f"Found: the photo is the first hit, and verified. {settings['photos']} photos, "
        f"{settings['descriptor']}, {settings['keypoints']} keypoints per photo and per crop, "
        f"longer sides of at most {settings['max_size']} pixels. The rule that spreads keypoints "
        "was chosen on other photos."
    )
    return [Table(title, columns, note)]


def describe(results: Results) -> list[Table]:
    """Patches per second for each batch size."""
    rates, ratios = results["patches_per_second"], results["ratio_to_kornia"]
    names = list(next(iter(rates.values())))
    columns = [
        Column(
            f"patches/s, batch {batch} (ratio)",
            [f"{rates[batch][name]:.0f} ({ratios[batch][name]:.2f}x)" for name in names],
        )
        for batch in rates
    ]
    return [Table("Describing real patches, 2 threads", [Column("descriptor", names), *columns])]


def defaults(results: Results) -> list[Table]:
    """The best way to match of every detector, orientation and window; then the curve of ratios."""
    rows = results["rows"]
    kinds = [kind for kind in ("pose", "light", "planar") if kind in rows[0]]
    setups = list(dict.fromkeys((r["detector"], r["upright"], r["window"]) for r in rows))
    best = [
        max(
            (r for r in rows if (r["detector"], r["upright"], r["window"]) == setup),
            key=lambda row: row["mean"],
        )
        for setup in setups
    ]
    first = max(best, key=lambda row: row["mean"])
    chosen = [r for r in rows if all(r[k] == first[k] for k in ("detector", "upright", "window"))]

    def shown(title: str, some: list[Any], note: str) -> Table:
        scores = [column(kind, some, kind) for kind in (*kinds, "mean")]
        columns = [
            column("detector", some, "detector"),
            Column("patches", ["upright" if r["upright"] else "turned" for r in some]),
            column("window / sigma", some, "window"),
            Column("mutual", ["yes" if r["mutual"] else "no" for r in some]),
            column("ratio", some, "ratio", "{:g}"),
        ]
        return Table(title, [*columns, *scores], note)

    settings = results["provenance"]["settings"]
    note = (
        f"{settings['descriptor']}, {settings['keypoints']} keypoints, scenes that choose. pose: "
        "mAA(10 degrees); light and planar: the same mean over 1 to 10 px of the corners' error "
        "under the estimated homography."
    )
    return [
        shown("Detectors and windows, each with the way to match that is best for it", best, note),
        shown("Ratio, and mutual matches or not, for the best of them", chosen, ""),
    ]


def detect(results: Results) -> list[Table]:
    """Repeatability per sequence, then speed."""
    rows, settings = results["repeatability"], results["provenance"]["settings"]
    means, rules = results["mean"], results["rules"]

    def of_sequence(sequence: str) -> Column:
        values: list[Value] = []
        for name in means:
            part = [r for r in rows if (r["detector"], r["sequence"]) == (name, sequence)]
            values.append(float(np.mean([row["overlap"] for row in part])))
        return Column(sequence, values)

    repeat = Table(
        f"Repeatability, at most {settings['keypoints']} frames",
        [
            Column("detector", list(means)),
            *(of_sequence(sequence) for sequence in distinct(rows, "sequence")),
            Column("mean", [row["overlap"] for row in means.values()], best="largest"),
            Column("mean by distance", [row["distance"] for row in means.values()]),
        ],
        f"Repeatability: {rules['overlap']}. By distance: {rules['distance']}. Pairs of "
        f"{', '.join(settings['chosen_on'])} decided the settings of our affine shape; the other "
        "sequences took no part.",
    )
    seconds, ratios = results["seconds_per_image"], results["speed_ratio_to_kornia"]
    speed = Table(
        f"Seconds per image of {settings['timed']}, {settings['threads']} threads",
        [
            Column("detector", list(seconds)),
            Column("seconds", list(seconds.values())),
            Column("speed, kornia = 1", [ratios[name] for name in seconds], "{:.1f}"),
        ],
        f"{rules['time'].capitalize()}.",
    )
    return [repeat, speed]


def extract_folder(results: Results) -> list[Table]:
    """Seconds per photo of each stage, of all in a row, and overlapped."""
    settings, rows = results["provenance"]["settings"], results["rows"]
    stages = {
        **{stage: stage for stage in ("decode", "detect", "describe")},
        "sequential": "one by one",
        "overlapped": "overlapped",
        "hdf5": "`hardnet extract`",
    }
    if "index" in rows[0]["seconds"]:
        stages["index"] = "`hardnet index build`"
    memory = [
        f"{r['memory_mb']['sequential']:.0f} / {r['memory_mb']['overlapped']:.0f}" for r in rows
    ]
    columns = [
        column("descriptor", rows, "descriptor", ""),
        *(
            Column(name, [row["seconds"][stage] / settings["images"] for row in rows], "{:.2f}")
            for stage, name in stages.items()
        ),
        column("speed-up", rows, "speedup", "{:.2f}x"),
        column("to slowest stage", rows, "ratio_to_slowest_stage", "{:.2f}"),
        column("to all cores busy", rows, "ratio_to_all_cores_busy", "{:.2f}"),
        Column("MB, one by one / overlapped", memory),
    ]
    note = (
        f"Seconds per photo; {settings['images']} photos of {settings['megapixels']:.1f} "
        f"megapixels on average, {settings['detector']}, {settings['keypoints']} keypoints, "
        f"{results['provenance']['machine']['cores']} cores. Every stage alone uses all cores it "
        "can, so the lower limit of the time is the larger of the slowest stage and of the work of "
        'all stages spread over all cores ("all cores busy").'
    )
    if "index_to_extraction" in rows[0]:
        columns.append(column("index build to extraction", rows, "index_to_extraction", "{:.2f}"))
    if "speed_of_hardnet" in rows[0]:
        columns.append(column("speed of hardnet", rows, "speed_of_hardnet", "{:.1f}x"))
    return [Table("Describing a folder of photos", columns, note)]


def hpatches_scale(results: Results) -> list[Table]:
    """Time and memory of each task at each size."""
    lists = {
        "verification": "3 x {pairs:,} pairs",
        "matching": "{sequences} sequences",
        "retrieval": "{queries:,} queries, {distractors:,} distractors",
    }
    order = list(lists)
    rows = sorted(results["rows"], key=lambda row: (order.index(row["task"]), row["size"]))
    columns = [
        column("task", rows, "task", ""),
        Column("size", [lists[row["task"]].format(**row) for row in rows]),
        column("time", rows, "seconds", "{:.1f} s"),
        column("memory above descriptors", rows, "memory_mb", "{:.0f} MB"),
        column("descriptors", rows, "descriptors_mb", "{:.0f} MB"),
        column("plain / ours", rows, "ratio", "{:.1f}x"),
    ]
    patches = results["from_patches"]
    note = (
        "All three noise levels. Times are with intervals; the ratio to the plain way, which has "
        "none and is extrapolated from a part, is without. Describing comes before: "
        f"{patches['patches_per_second']:.0f} patches/s with hardnet here, so about "
        f"{patches['full_set_minutes']:.0f} minutes for the full set, once (extrapolated)."
    )
    return [Table("HPatches tasks against the size of the set", columns, note)]


def large_image(results: Results) -> list[Table]:
    """One line per detector, and one for all of extraction; then tiles against OpenCV."""
    rows, settings = results["rows"], results["provenance"]["settings"]
    width, height = rows[0]["size"]
    names = [
        "extract (dog)" if row["name"] == "extract" else f"detector {row['name']}" for row in rows
    ]
    found = [row["frames"] is not None for row in rows]
    memory = [f"{row['extra_mb']:.0f}" for row in rows]
    columns = [
        Column("", names),
        Column(
            "MB besides the image",
            [
                mb if good else f"more than {settings['most_gb']:g} GB"
                for mb, good in zip(memory, found, strict=True)
            ],
        ),
        Column("CPU s", [row["cpu_seconds"] if row["frames"] else None for row in rows], "{:.0f}"),
        Column("frames", [row["frames"] for row in rows], "{}"),
    ]
    title = f"A mosaic of {width} x {height} pixels as it is, {settings['threads']} threads"
    note = f"Each in a process of its own that may take {settings['most_gb']:g} GB more."
    total, only_whole, only_tiles = (
        sum(row[key] for row in results["equality"])
        for key in ("keypoints", "only_whole", "only_tiles")
    )
    agreement = (
        f" Of the {total:,} strongest keypoints of {len(results['equality'])} photos enlarged to"
        f" {settings['compared_megapixels']:g} megapixels, {only_whole} are only found by OpenCV in"
        f" the whole image and {only_tiles} only in tiles (within 0.01 px and 0.1 degrees)."
    )
    return [Table(title, columns, note + agreement)]


def match_descriptors(results: Results) -> list[Table]:
    """Seconds for each number of descriptors; then memory, then recall of approximate search."""
    sizes, memory = results["sizes"], results["extra_memory_mb"]
    names = list(next(iter(sizes.values()))["seconds"])
    times, extra = [Column("matcher", names)], [Column("matcher", list(memory))]
    for size, row in sizes.items():
        faster = row["times_faster_than_opencv"]
        texts = [f"{row['seconds'][name]:.3f} s ({faster[name]:.1f}x)" for name in names]
        times.append(Column(f"{size} x {size}", texts))
        extra.append(column(f"{size} x {size}", list(memory.values()), size, "{:.0f}"))
    threads = results["provenance"]["settings"]["threads"]
    found = list(results["recall"].values())
    recall = [
        Column("search", list(results["recall"])),
        column("all", found, "all", "{:.3f}"),
        column("matches", found, "matches", "{:.3f}"),
        column("seconds", found, "seconds", "{:.2f}"),
    ]
    title = f"Two nearest neighbours and ratio test, {threads} threads (times faster than OpenCV)"
    return [
        Table(title, times),
        Table("Memory besides the descriptors, MB", extra),
        Table("Nearest neighbours found, of all and of those that pass the ratio test", recall),
    ]


def match_pair(results: Results) -> list[Table]:
    """Time per pair with the ratios, then where the time goes."""
    settings, seconds = results["provenance"]["settings"], results["seconds"]
    found = [results["found"][name] for name in seconds]
    judged = any("correct" in row for row in found)
    columns = [
        Column("", list(seconds)),
        column("seconds", list(seconds.values()), "total", "{:.2f}"),
        *(
            [Column("speed of kornia", [results["speed_of_kornia"][n] for n in seconds], "{:.1f}x")]
            if "speed_of_kornia" in results
            else []
        ),
        Column("speed of SIFT", [results["speed_of_sift"][n] for n in seconds], "{:.2f}x"),
        column("inliers", found, "inliers", "{}"),
        *([column("correct", found, "correct", "{}")] if judged else []),
    ]
    note = (
        f"{' and '.join(settings['images'])}, {settings['keypoints']} keypoints, "
        f"{settings['threads']} threads, median of {settings['repetitions']} runs that take turns. "
        "kornia: Hessian, dominant orientation, HardNet with the same weights. Models are loaded "
        "before; the verification is the same for all."
    )
    stages = [
        ", ".join(f"{s} {v:.3f} ({v / row['total']:.0%})" for s, v in row.items() if s != "total")
        for row in seconds.values()
    ]
    shares = [Column("", list(seconds)), Column("seconds (share) per stage", stages)]
    return [
        Table("From two image files to verified matches", columns, note),
        Table("Where the time goes", shares),
    ]


def orientation(results: Results) -> list[Table]:
    """One line per scene, turn of the second photo and way."""
    rows = results["rows"]
    pairs = [row["pairs"] for row in rows]
    columns = [
        column("scene", rows, "scene"),
        column("second photo turned", rows, "turned", "{}°"),
        column("orientation, or rival", rows, "way"),
        Column("pairs", pairs, "{}"),
        column("verified", rows, "verified", "{}"),
        column("inliers per pair", rows, "inliers", "{:.0f}"),
        column("mAA(10)", rows, "maa"),
        column("matched with dominant orientations", rows, "dominant", "{}"),
    ]
    settings = results["provenance"]["settings"]
    note = (
        f"{settings['descriptor']}, DoG, {settings['keypoints']} keypoints, the default ratio. "
        "auto: upright first, dominant orientations where these verify more. Rivals find keypoints "
        "of their own. The pose is judged where no photo is turned."
    )
    return [Table("Upright, dominant orientation, or the choice for each pair", columns, note)]


def groups_growth(results: Results) -> list[Table]:
    """What comparing a photo with all others takes, beside describing it."""
    settings, rows = results["provenance"]["settings"], results["rows"]
    described = results["describe_ms"]
    columns = [
        column("photos", rows, "photos", "{:,}"),
        column("compare a photo (ms)", rows, "compare_ms", "{:.1f}"),
        Column("describe it (ms)", [described] * len(rows), "{:.0f}"),
        Column(
            "compare all (CPU h)",
            [row["photos"] * row["compare_ms"] / 3.6e6 for row in rows],
            "{:.2f}",
        ),
        Column(
            "describe all (CPU h)", [row["photos"] * described / 3.6e6 for row in rows], "{:.2f}"
        ),
        column("copies found", rows, "copies_found", "{:.2f}"),
        column("peak memory (MB)", rows, "peak_memory_mb", "{:.0f}"),
    ]
    note = (
        f"CPU time. Photos drawn with {settings['features']} features on average and "
        f"{settings['words']:,} words; {settings['copies']} is a copy. Each is compared with its "
        f"{settings['shortlist']} most similar ones. Memory with the pages of the index that were "
        "read, which the system takes back when it needs them. Mirror images are described again: "
        "that takes as long as describing."
    )
    return [Table("Comparing all photos of a collection", columns, note)]


def axes(results: Results) -> list[Table]:
    """One line per short training: what was changed, and what it scores on photographs."""
    rows, settings = results["rows"], results["provenance"]["settings"]
    columns = [
        column("changed", rows, "cell"),
        column("light", rows, "oriented"),
        column("light, upright", rows, "upright"),
        column("ratio, upright", rows, "ratio"),
    ]
    note = (
        f"{settings['pairs']:,} pairs each from one start, one seed; AP on scenes that choose. "
        "start: the weights all cells begin with."
    )
    return [Table("What data, batches and objectives do on photographs", columns, note)]


def retrieval_growth(results: Results) -> list[Table]:
    """What an index of each size takes, and how long its queries do."""
    settings, rows = results["provenance"]["settings"], results["rows"]
    shape = settings["shape"]
    sizes = [
        column("images", rows, "images", "{:,}"),
        Column("features", [row["features"] / 1e6 for row in rows], "{:.1f} M"),
        column("write all", rows, "build_seconds", "{:.1f} s"),
        column("add one image", rows, "add_one_seconds", "{:.2f} s"),
        Column("on disk", [row["bytes"] / 1e6 for row in rows], "{:,.0f} MB"),
        Column("bytes per feature", [row["bytes"] / row["features"] for row in rows], "{:.1f}"),
        column("open", rows, "open_ms", "{:.1f} ms"),
        column("own memory", rows, "own_memory_mb", "{:.0f} MB"),
        column("mapped memory", rows, "mapped_memory_mb", "{:,.0f} MB"),
    ]
    size_note = (
        f"Images drawn like those of an index of {shape['images']} photos: {settings['features']} "
        f"features on average, {settings['words']:,} words, "
        f"{100 * shape['matching_pairs']:.1f} % of the features of a word match. Extraction is not "
        "part of it. Own memory is what opening and querying take; mapped memory is the part of "
        "the files that was read, which the system takes back when it needs it."
    )
    queries = [
        column("images", rows, "images", "{:,}"),
        Column("postings read", [row["postings_per_query"] / 1e6 for row in rows], "{:.2f} M"),
        column("first query", rows, "first_query_ms", "{:.1f}"),
        *(
            Column(name, [row["query_ms"][stage] for row in rows], "{:.2f}")
            for stage, name in GROWTH_STAGES.items()
        ),
    ]
    query_note = (
        f"Milliseconds, median of {settings['queries']} queries; ma "
        f"{settings['scoring']['ma']} for the Hamming embedding, whose postings are counted. Files "
        "are in the page cache; the first query maps them."
    )
    return [
        Table("Growth of an index", sizes, size_note),
        Table("Time of a query against the size of the index", queries, query_note),
    ]


def retrieval_speed(results: Results) -> list[Table]:
    """Times, memory and scores of ours and of its peers, in one run."""
    settings, rows = results["provenance"]["settings"], list(results["rows"].values())
    columns = [
        Column("method", list(results["rows"])),
        column("build (s)", rows, "build_seconds", "{:.2f}"),
        column("times faster", rows, "build_ratio", "{:.1f}x"),
        column("query (ms)", rows, "query_milliseconds", "{:.2f}"),
        column("times faster", rows, "query_ratio", "{:.1f}x"),
        column("bytes per feature", rows, "bytes_per_feature", "{:.1f}"),
        Column("mAP (%)", [100 * row["map"] for row in rows], "{:.2f}"),
        column("N-S", rows, "ns", "{:.3f}"),
    ]
    note = (
        f"{settings['photos']} photos of {settings['longer_side']} pixels, "
        f"{settings['features_per_photo']:.0f} {settings['descriptor']} features each, "
        f"{settings['words']} words, {settings['threads']} threads; times faster than asmk, median "
        "of repeats that take turns. Assignment to words is in both times, extraction in neither. "
        "Bytes: all files of the index besides the vocabulary. The flat search, which is slow, has "
        f"its scores of {settings['flat_search_scored_on']} queries, one per object."
    )
    return [Table("Building and querying an index", columns, note)]


def train_step(results: Results) -> list[Table]:
    """Speed and memory of a step in chunks, then how far its gradients are from the plain one's."""
    speed, settings = results["pairs_per_second"], results["provenance"]["settings"]
    rate = [f"{speed['plain']:.0f}", f"{speed['chunked']:.0f}", f"{results['ratio']:.2f}x"]
    cost = [[f"pairs/s at batch {results['batch']}", *rate]]
    if "student" in results:  # compared with HardNet in chunks
        taught = [f"{speed['taught']:.0f}", f"{results['taught_ratio']:.2f}x"]
        cost.append([f"pairs/s of {results['student']} with a teacher", "", *taught])
    for row in results["memory_mb"]:
        plain, share = ("", "")
        if row.get("plain"):
            plain, share = f"{row['plain']:.0f} MB", f"{row['share']:.0%}"
        cost.append(
            [f"peak memory at batch {row['batch']}", plain, f"{row['chunked']:.0f} MB", share]
        )
    apart = []
    for row in results["equality"]:
        for name, key in (
            ("in chunks - plain", "chunked_to_plain"),
            ("plain - plain in float64", "plain_to_float64"),
        ):
            if row[key]:
                texts = [f"{row[key][k]:.0e}" for k in ("loss", "absolute", "largest", "norm")]
                apart.append([f"{name}, batch {row['batch']}, {row['dtype']}", *texts])
    cost_note = (
        f"HardNet, hardest-in-batch triplet loss, chunks of {settings['chunk']} patches, "
        f"{settings['threads']} threads; each measurement in a process of its own, memory with "
        "PyTorch itself. Plain: contiguous layout, whole batch, full distance matrix, autograd."
    )
    apart_note = (
        "Of the gradients, the worst parameter. In float32 an activation within rounding of zero "
        "passes ReLU in one computation and not in the other, so two correct steps differ; the "
        "lines of plain against plain in float64 show how much."
    )
    measures = ["difference", "loss", "gradients", "of the largest entry", "of the norm"]
    return [
        Table.of_texts("A training step", ["", "plain", "in chunks", "ratio"], cost, cost_note),
        Table.of_texts("The same step? Largest differences", measures, apart, apart_note),
    ]


def _load(results: Results) -> str:
    machine = results["provenance"]["machine"]
    return f"Load of the machine: {machine['load_average']} on {machine['cores']} cores."


def serve_soak(results: Results) -> list[Table]:
    """Requests of each kind, then the memory of the server."""
    kinds, settings = results["by_request"], results["provenance"]["settings"]
    rows = list(kinds.values())
    columns = [
        Column("request", list(kinds)),
        column("answers", rows, "requests", "{}"),
        column("median, ms", rows, "median_ms", "{:.1f}"),
        column("slowest, ms", rows, "slowest_ms", "{:.0f}"),
    ]
    title = f"`hardnet serve`, {settings['clients']} clients for {settings['minutes']:g} minutes"
    told = ", ".join(f"{count} times {status}" for status, count in results["statuses"].items())
    memory = results["memory"]
    names = {
        "first_megabytes": "at the start",
        "early_megabytes": "settled",
        "late_megabytes": "later",
        "most_megabytes": "most",
    }
    return [
        Table(title, columns, f"Answers: {told}. {_load(results)}"),
        Table(
            "Memory of the server",
            [
                Column("when", list(names.values())),
                Column("MB", [memory[name] for name in names], "{:.0f}"),
            ],
            "Settled and later are the means of both halves of the last three quarters.",
        ),
    ]


TABLES: Mapping[str, Callable[[Results], list[Table]]] = {
    each.__name__: each
    for each in (
        assign_words,
        axes,
        crops,
        describe,
        defaults,
        detect,
        extract_folder,
        hpatches_scale,
        large_image,
        match_descriptors,
        match_pair,
        orientation,
        groups_growth,
        retrieval_growth,
        retrieval_speed,
        serve_soak,
        train_step,
    )
}

if __name__ == "__main__":
    typer.run(renew)
