"""The paper's own numbers, typed once. Table and figure numbers are those of the arXiv version."""

from __future__ import annotations

Value = float | str
"""A number of the paper, or the word that stands in its place."""

ABLATION_SOURCE = "Table 2: mean matching mAP on HPatches, trained on Liberty"
OVERFIT = "overfit"
ABLATION: dict[str, tuple[Value, Value, Value, Value]] = {
    "random": (OVERFIT,) * 4,
    "classical": (OVERFIT,) * 4,
    "random + CPR": (0.349, 0.286, 0.007, 0.083),
    "classical + CPR": (0.391, 0.346, 0.055, 0.279),
    "hardest": (0.474, 0.482, 0.444, 0.482),
}
"""Sampling -> mAP with softmin, triplet m=1, contrastive m=1, contrastive m=2."""

ABLATION_SAYS = "hardest in batch beats the other samplings for every loss"

BATCH_SIZE_SOURCE = (
    "Figure 3, FPR95 on Notredame and Yosemite, trained on Liberty: a curve without printed "
    "numbers, so none are repeated here"
)
BATCH_SIZE_SAYS = "larger batches are better, more than 512 brings no significant benefit"
BATCH_SIZES = (16, 64, 128, 512, 1024, 2048)
"""The batch sizes of the paper's figure."""

RECIPES_SOURCE = "Table 1: mean FPR95 [%] of six pairs of training and test sets of Brown"
RECIPES_SAYS = "learning rate 10 and dropout 0.3 lead to better results"
RECIPES: dict[str, tuple[float, ...]] = {
    "HardNetNIPS": (3.06, 4.27, 0.96, 1.40, 3.04, 2.53, 2.54),
    "HardNet": (1.47, 2.67, 0.62, 0.88, 2.14, 1.65, 1.57),
    "HardNet+NIPS": (2.28, 3.25, 0.57, 0.96, 2.13, 2.22, 1.90),
    "HardNet+": (1.49, 2.51, 0.53, 0.78, 1.96, 1.84, 1.51),
}
"""Name in the paper ("+" is flip / rotate) -> FPR95 [%] tested on Liberty (trained on Notredame,
Yosemite), Notredame (Liberty, Yosemite), Yosemite (Liberty, Notredame), and the printed mean."""
