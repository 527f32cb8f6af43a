"""The numbers of a stereo results file, as its tables and figures ask for them; and the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.stereo import rules
from hardnet.bench.stereo.summary import summarise

Results = Mapping[str, Any]
Entry = Mapping[str, Any]

PAPER: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "RootSIFT": {
        "EF": (33, 32),
        "EVD": (15, 34),
        "OxAff": (40, 169),
        "SymB": (45, 43),
        "GDB": (21, 52),
        "WxBS": (11, 93),
        "LTLL": (123, 27),
    },
    "TFeat-M*": {
        "EF": (32, 30),
        "EVD": (15, 37),
        "OxAff": (40, 265),
        "SymB": (40, 45),
        "GDB": (16, 72),
        "WxBS": (10, 62),
        "LTLL": (96, 29),
    },
    "L2Net+": {
        "EF": (33, 34),
        "EVD": (15, 34),
        "OxAff": (40, 304),
        "SymB": (43, 46),
        "GDB": (19, 78),
        "WxBS": (9, 51),
        "LTLL": (127, 26),
    },
    "HardNet+": {
        "EF": (33, 35),
        "EVD": (15, 41),
        "OxAff": (40, 316),
        "SymB": (44, 47),
        "GDB": (21, 75),
        "WxBS": (11, 54),
        "LTLL": (127, 31),
    },
}
"""Table 3 of the paper: descriptor -> set -> (pairs matched, mean inliers)."""
PAPER_PAIRS = {"EF": 33, "EVD": 15, "OxAff": 40, "SymB": 46, "GDB": 22, "WxBS": 37, "LTLL": 172}


def rule_of(results: Results) -> rules.Rule:
    """The rule that the results were made for."""
    return rules.by_name(results["rule"]["name"])


def entries(results: Results, rule: rules.Rule | None = None) -> dict[tuple[str, str, str], Entry]:
    """(set, detector, descriptor) -> its entry of the summary."""
    found = summarise(results["rows"], rule or rule_of(results))
    return {(entry["set"], entry["detector"], entry["descriptor"]): entry for entry in found}


def distinct(results: Results, field: str) -> list[str]:
    """The values of a field ("set", "detector", "descriptor", "pair") in their order."""
    return list(dict.fromkeys(row[field] for row in results["rows"]))


def sets_with(results: Results, field: str) -> list[str]:
    """The sets whose ground truth gives ``field`` of the summary."""
    found = {key[0] for key, entry in entries(results).items() if entry[field] is not None}
    return [name for name in distinct(results, "set") if name in found]


def set_title(results: Results, name: str) -> str:
    """The set and how much of it there is: ``EVD (8 of 15)``."""
    for about in results["sets"]:
        if about["name"] == name:
            total = about["complete"]
            count = f"{about['pairs']} of {total}" if total else f"{about['pairs']}"
            return f"{name} ({count})"
    return name
