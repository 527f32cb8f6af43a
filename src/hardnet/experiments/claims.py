"""Which orderings the numbers show: each claim of the paper, pair by pair, with its exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hardnet.bench.bootstrap import mean_interval

Scores = Mapping[str, Mapping[str, Any]]
"""Cell -> what ``results.summarise`` says of it."""


@dataclass(frozen=True)
class Claim:
    """A statement about pairs of cells.

    Attributes:
        text: the statement.
        pairs: (better, worse) names of cells.
        gain: True: the first of each pair is better. False: the first brings no clear gain.
    """

    text: str
    pairs: tuple[tuple[str, str], ...]
    gain: bool = True


def judge(claim: Claim, scores: Scores, measure: str) -> dict[str, Any]:
    """What the numbers say to a claim.

    A pair for which both cells were run holds or does not; how sure that is, is said apart: it is
    *clear* if the interval of the difference leaves out zero (see :func:`compare`).

    Args:
        claim: the statement.
        scores: of the cells that were run.
        measure: "matching" or "fpr95".

    Returns:
        JSON: the claim, the measure, the answer ("yes": all pairs were run and hold; "no": some
        pair contradicts; "open": none contradicts, but some were not run), the number of pairs
        that hold, those that hold clearly, those that contradict, and those not run.
    """
    verdict: dict[str, Any] = {"claim": claim.text, "measure": measure}
    holds, clear, against, missing = [], [], [], []
    for better, worse in claim.pairs:
        pair = f"{better} > {worse}" if claim.gain else f"{better} ~ {worse}"
        if not all(scores.get(name, {}).get(measure) for name in (better, worse)):
            missing.append(pair)
            continue
        found = compare(scores[better], scores[worse], measure)
        says = f"{pair}: {_signed(found, measure)}"
        sure = found["clear"]
        if found["gain"] > 0 if claim.gain else not (sure and found["gain"] > 0):
            holds.append(says)
            if sure and claim.gain:
                clear.append(says)
        else:
            against.append(says + (", clear" if sure else ", not clear"))
    verdict["answer"] = "no" if against else "open" if missing or not holds else "yes"
    counts = {"pairs": len(claim.pairs), "hold": len(holds), "clear": len(clear)}
    return verdict | counts | {"holds": holds, "against": against, "not_run": missing}


def compare(better: Mapping[str, Any], worse: Mapping[str, Any], measure: str) -> dict[str, Any]:
    """How much better one cell is than another, positive if it is.

    Matching: the same sequences were matched by both, so the interval is that of the mean
    difference when sequences are drawn again. FPR95: the difference is clear if the intervals of
    the two do not overlap, which is cautious. With several seeds it is clear only if, in addition,
    every seed of the one is better than every seed of the other.
    """
    a, b = better[measure], worse[measure]
    sign = 1 if measure == "matching" else -1
    low = high = None
    if measure == "matching":
        names = a["sequences"]
        low, high = mean_interval([names[name] - b["sequences"][name] for name in names])
        clear = low is not None and high is not None and (low > 0 or high < 0)
    else:
        clear = _apart(a["low"], a["high"], b["low"], b["high"])
    if max(len(a["seeds"]), len(b["seeds"])) > 1:
        clear &= _apart(min(a["seeds"]), max(a["seeds"]), min(b["seeds"]), max(b["seeds"]))
    gain = sign * (a["value"] - b["value"])
    return {"gain": float(gain), "low": low, "high": high, "clear": bool(clear)}


def _apart(
    low: float | None, high: float | None, other_low: float | None, other_high: float | None
) -> bool:
    if low is None or high is None or other_low is None or other_high is None:
        return False
    return bool(high < other_low or other_high < low)


def _signed(found: Mapping[str, Any], measure: str) -> str:
    """The gain as text: mAP, or points of FPR95 (fewer are a gain)."""
    text = (
        f"{found['gain']:+.3f}" if measure == "matching" else f"{100 * found['gain']:+.2f} points"
    )
    if found["low"] is None:
        return text
    return f"{text} [{found['low']:+.3f}, {found['high']:+.3f}]"
