"""What all `hardnet bench` commands share: the progress bar, the results file, the tables."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hardnet import provenance
from hardnet.bench import report
from hardnet.cli.options import option
from hardnet.cli.output import console, say
from hardnet.descriptors import Descriptor, load, names
from hardnet.errors import HardnetError
from hardnet.storage import replacing

Descriptors = Annotated[
    str,
    option(
        ...,
        f"Separated by commas: a name ({', '.join(names())}), a weights file, "
        "MODULE:FUNCTION, any of them with windows (hardnet@12+24), or LABEL=any of these; "
        "LABEL[SET]=... says which Brown set it was trained on. Ratios refer to rootsift.",
    ),
]
_LABELLED = re.compile(r"(?P<label>[^\[\]=]+?)\s*(\[(?P<trained>[^\[\]=]+)\])?\s*=(?P<spec>.*)")


@dataclass(frozen=True)
class Spec:
    """One descriptor of a list."""

    label: str  # what tables call it
    trained: str | None  # the patch set it was trained on; None: that does not matter
    spec: str  # what ``hardnet.descriptors.load`` takes

    def __str__(self) -> str:
        return f"{self.label}[{self.trained}]" if self.trained else self.label


def parse_specs(text: str) -> list[Spec]:
    """Descriptors as they are typed: ``SIFT=sift,TFeat[liberty]=tfeat-liberty.params``.

    A comma-separated list of ``SPEC``, ``LABEL=SPEC`` or ``LABEL[TRAINED]=SPEC``. Without a label,
    a file is called by its name and everything else as it is typed.
    """
    specs: dict[str, Spec] = {}
    for entry in (word.strip() for word in text.split(",")):
        label, trained, name = None, None, entry
        if "=" in entry:
            match = _LABELLED.fullmatch(entry)
            if not match:
                raise HardnetError(f"{entry!r} is neither LABEL=SPEC nor LABEL[TRAINED]=SPEC")
            label, trained, name = match["label"].strip(), match["trained"], match["spec"].strip()
        if not name:
            raise HardnetError(f"a descriptor is missing in the list at {entry!r}")
        spec = Spec(label or Path(name).name, trained.strip() if trained else None, name)
        if (other := specs.setdefault(str(spec), spec)) is not spec:
            raise HardnetError(
                f"two descriptors are called '{spec}' ({other.spec} and {spec.spec}): "
                "give them labels, as in LABEL=SPEC"
            )
    return list(specs.values())


@dataclass(frozen=True)
class Reported:
    """The options of every benchmark: where its results go."""

    output: Path | None = option(None, "Write numbers and their origin as JSON.", "--output", "-o")
    as_json: bool = option(False, "Print the JSON instead of tables.", "--json")

    def __post_init__(self) -> None:
        """Fail before the work if the results file cannot be written."""
        output = self.output
        if output is None:
            return
        if output.is_dir():
            raise HardnetError(f"{output} is a folder: name a file for the results")
        if output.suffix.lower() not in ("", ".json"):
            raise HardnetError(f"{output}: results are JSON, name it {output.stem}.json")
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=output.parent):
                pass
        except OSError as error:
            raise HardnetError(f"{output} cannot be written: {error.strerror}") from error

    def finish(
        self, body: Mapping[str, Any], settings: Mapping[str, Any], data: Sequence[Path]
    ) -> None:
        origin = provenance.collect(provenance.command_line(), settings, data)
        results = {**body, "provenance": origin}
        text = json.dumps(results, indent=1)
        if self.output is not None:
            with replacing(self.output.resolve()) as part:
                part.write_text(text + "\n")
        if self.as_json:
            print(text)
            return
        summary, *details = report.tables(results)
        console().print(summary.rich())
        if self.output is not None and details:
            say(f"more tables and figures: hardnet bench report {self.output} -o FOLDER")


@dataclass(frozen=True)
class Comparison(Reported):
    """The options of every comparison of descriptors."""

    descriptors: Descriptors = "hardnet,rootsift"

    @property
    def specs(self) -> list[Spec]:
        return parse_specs(self.descriptors)

    def load(self) -> dict[str, Descriptor]:
        """The descriptors by their labels."""
        return {spec.label: load(spec.spec) for spec in self.specs}

    def finish(
        self, body: Mapping[str, Any], settings: Mapping[str, Any], data: Sequence[Path]
    ) -> None:
        labels = [str(spec) for spec in self.specs]
        super().finish(body, {"descriptors": labels, **settings}, data)


@dataclass(frozen=True)
class StoredComparison(Comparison):
    """A comparison that keeps descriptors for the next run."""

    store: Path | None = option(None, "Keep descriptors for the next run here [the user's cache].")
