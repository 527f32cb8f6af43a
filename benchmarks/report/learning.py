"""Tables of training and of large patch sets."""

from __future__ import annotations

from hardnet.bench.report.table import Column, Results, Table, column


def axes(results: Results) -> list[Table]:
    """One line per short training run: what was changed, and its scores on photos."""
    rows, settings = results["rows"], results["provenance"]["settings"]
    columns = [
        column("changed", rows, "cell"),
        column("light", rows, "oriented"),
        column("light, upright", rows, "upright"),
        column("ratio, upright", rows, "ratio"),
    ]
    note = (
        f"{settings['pairs']:,} training pairs each, same initial weights, one seed; AP on the "
        "tuning scenes. start: the initial weights."
    )
    return [Table("Effect of data, batch size and objective on photo scores", columns, note)]


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
        "All three noise levels. Times include intervals. The plain version computes none and is "
        "extrapolated from a part of the list, so the ratio leaves intervals out. Describing comes "
        f"first, once: {patches['patches_per_second']:.0f} patches/s with hardnet on this machine, "
        f"so about {patches['full_set_minutes']:.0f} minutes for the full set (extrapolated)."
    )
    return [Table("HPatches tasks against the size of the set", columns, note)]


def train_step(results: Results) -> list[Table]:
    """Speed and memory of a chunked step, then how far its gradients are from a plain step's."""
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
        f"{settings['threads']} threads; each measurement runs in its own process; memory "
        "includes PyTorch. Plain: contiguous layout, whole batch, full distance matrix, autograd."
    )
    apart_note = (
        "Gradients: the parameter that differs most. In float32, rounding decides whether an "
        "activation close to zero passes ReLU, so two correct steps differ; the lines of plain "
        "against plain in float64 show how much."
    )
    measures = ["difference", "loss", "gradients", "of the largest entry", "of the norm"]
    return [
        Table.of_texts("A training step", ["", "plain", "in chunks", "ratio"], cost, cost_note),
        Table.of_texts("Largest differences between the steps", measures, apart, apart_note),
    ]
