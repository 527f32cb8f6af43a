"""Tables for one photo or two: detecting, describing, matching."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardnet.bench.report.table import Column, Results, Table, Value, column, distinct


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
        f"Repeatability: {rules['overlap']}. By distance: {rules['distance']}. The "
        f"settings of our affine shape were tuned on pairs of {', '.join(settings['chosen_on'])}; "
        "the other sequences were not used for tuning.",
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
    """Seconds per photo of each stage, of all stages in sequence, and overlapped."""
    settings, rows = results["provenance"]["settings"], results["rows"]
    stages = {
        **{stage: stage for stage in ("decode", "detect", "describe")},
        "sequential": "one by one",
        "overlapped": "overlapped",
        "hdf5": "`hardnet extract`",
        "index": "`hardnet index build`",
    }
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
        column("index build to extraction", rows, "index_to_extraction", "{:.2f}"),
        column("extract, to hardnet", rows, "speed_of_hardnet", "{:.1f}x"),
        column("index, to hardnet", rows, "index_speed_of_hardnet", "{:.1f}x"),
    ]
    note = (
        f"Seconds per photo; {settings['images']} photos of {settings['megapixels']:.1f} "
        f"megapixels on average, {settings['detector']}, {settings['keypoints']} keypoints, "
        f"{results['provenance']['machine']['cores']} cores. Each stage alone uses as many "
        "cores as it can, so the time cannot be below that of the slowest stage or below the total "
        'work spread over all cores ("all cores busy").'
    )
    return [Table("Describing a folder of photos", columns, note)]


def start_up(results: Results) -> list[Table]:
    """Seconds of each command in a new process."""
    rows, settings = results["rows"], results["provenance"]["settings"]
    said = {
        "python": "`python -c pass`",
        "help": "`hardnet --help`",
        "opencv-sift": "OpenCV's SIFT, the same two photos",
        "match": "`hardnet match`, one window",
        "match, three windows": "`hardnet match`, three windows",
        "search again": f"`hardnet search`, {settings['photos']} photos",
        "first build": "first `hardnet index build`, "
        f"{settings['photos_of_a_fresh_installation']} photos",
        "first search": "first `hardnet search` in them",
        "second search": "second `hardnet search` in them",
    }
    columns = [
        Column("", [said[name] for name in rows]),
        Column("seconds", [row["seconds"] for row in rows.values()], "{:.2f}"),
        Column("CPU s", [row["processor_seconds"] for row in rows.values()], "{:.2f}"),
    ]
    note = (
        "Each from the start of its process to its end; two photos of 1600 pixels, "
        f"{settings['descriptor']}; median of {settings['repetitions']} runs, except for the first "
        f"ones, which ran once; {settings['packages']} packages installed."
    )
    return [Table("Time of a command from start to end", columns, note)]


def large_image(results: Results) -> list[Table]:
    """One line per detector and one for extraction; the note compares tiles with OpenCV."""
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
            "MB, without the image",
            [
                mb if good else f"more than {settings['most_gb']:g} GB"
                for mb, good in zip(memory, found, strict=True)
            ],
        ),
        Column("CPU s", [row["cpu_seconds"] if row["frames"] else None for row in rows], "{:.0f}"),
        Column("frames", [row["frames"] for row in rows], "{}"),
    ]
    title = f"A mosaic of {width} x {height} pixels at full size, {settings['threads']} threads"
    note = f"Each in its own process, limited to {settings['most_gb']:g} GB of additional memory."
    total, only_whole, only_tiles = (
        sum(row[key] for row in results["equality"])
        for key in ("keypoints", "only_whole", "only_tiles")
    )
    agreement = (
        f" Of the {total:,} strongest keypoints of {len(results['equality'])} photos enlarged to"
        f" {settings['compared_megapixels']:g} megapixels, {only_whole} are found only by OpenCV in"
        f" the whole image and {only_tiles} only in tiles (within 0.01 px and 0.1 degrees)."
    )
    return [Table(title, columns, note + agreement)]


def match_descriptors(results: Results) -> list[Table]:
    """Seconds for each number of descriptors, then memory, then recall of approximate search."""
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
        Table("Memory in MB, without the descriptors", extra),
        Table("Recall of nearest neighbours: all, and those that pass the ratio test", recall),
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
        f"{settings['threads']} threads, median of {settings['repetitions']} alternating runs. "
        "kornia: Hessian, dominant orientation, HardNet with the same weights. Loading models is "
        "not included; verification is the same for all."
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


def defaults(results: Results) -> list[Table]:
    """The best matching of each detector, orientation and window; then every ratio for the best."""
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
            Column("patches", ["upright" if r["upright"] else "oriented" for r in some]),
            column("window / sigma", some, "window"),
            Column("mutual", ["yes" if r["mutual"] else "no" for r in some]),
            column("ratio", some, "ratio", "{:g}"),
        ]
        return Table(title, [*columns, *scores], note)

    settings = results["provenance"]["settings"]
    note = (
        f"{settings['descriptor']}, {settings['keypoints']} keypoints, tuning scenes. pose: "
        "mAA(10 degrees); light and planar: the same mean over 1 to 10 px of the corner error of "
        "the estimated homography."
    )
    return [
        shown("Detectors and windows, each with its best matching", best, note),
        shown("Ratio threshold and mutual matching for the best detector and window", chosen, ""),
    ]


def orientation(results: Results) -> list[Table]:
    """One line per scene, rotation of the second photo and method."""
    rows = results["rows"]
    pairs = [row["pairs"] for row in rows]
    columns = [
        column("scene", rows, "scene"),
        column("second photo rotated", rows, "turned", "{}°"),
        column("orientation or rival", rows, "way"),
        Column("pairs", pairs, "{}"),
        column("verified", rows, "verified", "{}"),
        column("inliers per pair", rows, "inliers", "{:.0f}"),
        column("mAA(10)", rows, "maa"),
        column("matched with dominant orientations", rows, "dominant", "{}"),
    ]
    settings = results["provenance"]["settings"]
    note = (
        f"{settings['descriptor']}, DoG, {settings['keypoints']} keypoints, the default ratio. "
        "auto: upright first; dominant orientations if these verify more matches. Rivals detect "
        "their own keypoints. mAA is for pairs without rotation."
    )
    return [Table("Orientation: upright, dominant or chosen per pair", columns, note)]
