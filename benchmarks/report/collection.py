"""Tables for many photos: indexes, queries, groups, the server."""

from __future__ import annotations

from hardnet.bench.report.table import MISSING, Column, Results, Table, column

GROWTH_STAGES = {
    "he": "Hamming embedding",
    "bow": "bag of words",
    "top_k": "best 100 of all scores",
    "reliable": "close features of 100 images",
    "features_of": "features of 10 images",
}
"""The timed stages of a query; picking the best scores is also part of the first two."""


def assign_words(results: Results) -> list[Table]:
    """One line per vocabulary size and search method."""
    settings = results["provenance"]["settings"]
    count = settings["words_per_descriptor_of_a_query"]
    lines = [(size, name) for size, found in results["sizes"].items() for name in found]
    rows = [results["sizes"][size][name] for size, name in lines]
    query = f"query of {settings['descriptors_of_a_query']}, {count} words each, ms"
    columns = [
        Column("words", [f"{int(size):,}" for size, _ in lines]),
        Column("search", [name for _, name in lines]),
        column("descriptors/s", rows, "per_second", "{:.0f}"),
        column("times faiss flat", rows, "times_faiss_flat", "{:.1f}x"),
        column("recall", rows, "recall", "{:.4f}"),
        column(f"recall of {count}", rows, "recall_of_several", "{:.4f}"),
        column(query, rows, "query_ms", "{:.1f}"),
    ]
    return [Table(f"Assigning descriptors to words, {settings['threads']} threads", columns)]


def crops(results: Results) -> list[Table]:
    """Crops found, by size: one line per way to choose keypoints."""
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
        f"Found: the photo is the first hit and verified. {settings['photos']} photos, "
        f"{settings['descriptor']}, {settings['keypoints']} keypoints per photo and per crop, "
        f"longer side at most {settings['max_size']} pixels. The rule that spreads keypoints was "
        "tuned on other photos."
    )
    return [Table(title, columns, note)]


def groups(results: Results) -> list[Table]:
    """Recall per edit, wrong groups, sweeps, and the kinds of views of a scene."""
    edits, methods, rules = results["edits"], results["methods"], results["rules"]
    settings, photos = results["provenance"]["settings"], results["photos"]
    hashes = f"hashes: {rules['hash']} ({settings['distance']})"
    recall = Table(
        f"Copies of {photos['sources']} photographs found among {photos['all']} photos",
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
        f"Wrong groups per 1,000 photos, among {photos['all']}",
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
    sweeps, scenes = results.get("sweeps", []), results.get("scenes", [])
    swept = Table(
        "Camera sweeps found as panoramas",
        [
            column("neighbours share (%)", sweeps, "shared", "{}"),
            column("sweeps", sweeps, "sweeps", "{}"),
            column("found", sweeps, "found", "{:.2f}"),
            column("in order", sweeps, "ordered", "{:.2f}"),
        ],
        f"Found: {rules['sweep']}. False panoramas: {methods[0]['false_panoramas_per_1000']:.1f} "
        f"per 1,000 photos ({rules['false panoramas']}).",
    )
    kinds = [", ".join(f"{n} {kind}" for kind, n in row["pairs"].items()) for row in scenes]
    views = Table(
        "Photos of one scene",
        [
            column("scene", scenes, "scene"),
            column("photos", scenes, "photos", "{}"),
            Column("pairs", [each or MISSING for each in kinds]),
            column("in the largest group", scenes, "together", "{:.2f}"),
            column("kind of group", scenes, "group"),
        ],
        f"In the largest group: {rules['together']}.",
    )
    return [recall, wrong, *([swept] if sweeps else []), *([views] if scenes else [])]


def groups_growth(results: Results) -> list[Table]:
    """The cost of comparing each photo with all others, next to the cost of describing it."""
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
        f"CPU time. Simulated photos with {settings['features']} features on average and "
        f"{settings['words']:,} words; {settings['copies']} is a copy. Each photo is compared with "
        f"the {settings['shortlist']} most similar ones. Memory includes the index pages that were "
        "read, which the operating system can reclaim. Finding mirror images takes another pass of "
        "describing."
    )
    return [Table("Comparing all photos of a collection", columns, note)]


def retrieval_growth(results: Results) -> list[Table]:
    """Disk, memory and query time of an index of each size."""
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
        f"Images simulated from the statistics of an index of {shape['images']} photos: "
        f"{settings['features']} features on average, {settings['words']:,} words, "
        f"{100 * shape['matching_pairs']:.1f} % of the features of a word match. Extraction is not "
        "included. Own memory is what opening and querying allocate; mapped memory is the part of "
        "the files that was read, which the operating system can reclaim."
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
        f"Milliseconds, median of {settings['queries']} queries. The Hamming embedding assigns "
        f"{settings['scoring']['ma']} words to each feature (ma); the postings are those it reads. "
        "Files are in the page cache; the first query maps them."
    )
    return [
        Table("Growth of an index", sizes, size_note),
        Table("Query time against index size", queries, query_note),
    ]


def retrieval_speed(results: Results) -> list[Table]:
    """Times, memory and scores of our index and its peers, from one run."""
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
        "of alternating runs. Both times include assigning words and exclude extraction. Bytes: "
        "all index files except the vocabulary. The flat search is slow, so its scores are from "
        f"{settings['flat_search_scored_on']} queries, one per object."
    )
    return [Table("Building and querying an index", columns, note)]


def _load(results: Results) -> str:
    machine = results["provenance"]["machine"]
    return f"Load average: {machine['load_average']} on {machine['cores']} cores."


def serve_soak(results: Results) -> list[Table]:
    """Requests of each kind, then the server's memory."""
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
            "Settled, later: means over the two halves of the last three quarters of the run.",
        ),
    ]
