"""Lists of descriptors as they are typed: ``SIFT=sift,TFeat[liberty]=tfeat-liberty.params``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hardnet.errors import HardnetError


@dataclass(frozen=True)
class Spec:
    """One descriptor of a list.

    Attributes:
        label: what tables call it.
        trained: the patch set it was trained on, None if that does not matter.
        spec: what ``hardnet.descriptors.load`` takes.
    """

    label: str
    trained: str | None
    spec: str


def parse_specs(text: str) -> list[Spec]:
    """A comma-separated list of ``SPEC``, ``LABEL=SPEC`` or ``LABEL[TRAINED]=SPEC``.

    Without a label, a file is called by its name and everything else as it is typed.

    Raises:
        HardnetError: an empty entry, a label that is not written like this, or one used twice.
    """
    specs = [_parse(entry.strip()) for entry in text.split(",")]
    seen: dict[tuple[str, str | None], Spec] = {}
    for spec in specs:
        other = seen.setdefault((spec.label, spec.trained), spec)
        if other is not spec:
            label = spec.label + (f"[{spec.trained}]" if spec.trained else "")
            raise HardnetError(
                f"two descriptors are called {label!r} ({other.spec} and {spec.spec}): "
                "give them labels, as in LABEL=SPEC"
            )
    return specs


_LABELLED = re.compile(r"(?P<label>[^\[\]=]+?)\s*(\[(?P<trained>[^\[\]=]+)\])?\s*=(?P<spec>.*)")


def _parse(entry: str) -> Spec:
    label, trained, spec = None, None, entry
    if "=" in entry:
        match = _LABELLED.fullmatch(entry)
        if not match:
            raise HardnetError(f"{entry!r} is neither LABEL=SPEC nor LABEL[TRAINED]=SPEC")
        label, trained, spec = match["label"].strip(), match["trained"], match["spec"].strip()
    if not spec:
        raise HardnetError(f"a descriptor is missing in the list at {entry!r}")
    return Spec(label or Path(spec).name, trained.strip() if trained else None, spec)
