from __future__ import annotations

import resource
from pathlib import Path

import pytest

from hardnet.cli.bench_output import Spec, parse_specs
from hardnet.errors import HardnetError

from .conftest import run


def test_names_files_functions_and_labels() -> None:
    text = "sift, weights/a.onnx,mine:f,My net=b.pth, TFeat[liberty]=w/tfeat-liberty.params"
    assert parse_specs(text) == [
        Spec("sift", None, "sift"),
        Spec("a.onnx", None, "weights/a.onnx"),
        Spec("mine:f", None, "mine:f"),
        Spec("My net", None, "b.pth"),
        Spec("TFeat", "liberty", "w/tfeat-liberty.params"),
    ]


def test_the_first_equals_sign_ends_the_label() -> None:
    assert parse_specs("x=lr=0.1/net.pth") == [Spec("x", None, "lr=0.1/net.pth")]


def test_one_label_for_several_training_sets() -> None:
    specs = parse_specs("T[liberty]=a.pth,T[yosemite]=b.pth,T=c.pth")
    assert [(s.label, s.trained) for s in specs] == [
        ("T", "liberty"),
        ("T", "yosemite"),
        ("T", None),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "missing in the list"),
        ("sift,,pixels", "missing in the list"),
        ("sift,", "missing in the list"),
        ("A=", "missing in the list at 'A='"),
        ("=sift", "neither LABEL=SPEC"),
        ("A[=sift", "neither LABEL=SPEC"),
        ("A[]=sift", "neither LABEL=SPEC"),
        ("sift,sift", r"two descriptors are called 'sift' \(sift and sift\)"),
        ("a/net.pth,b/net.pth", r"'net.pth' \(a/net.pth and b/net.pth\): give them labels"),
        ("T[x]=a,T[x]=b", r"called 'T\[x\]'"),
    ],
)
def test_wrong_lists_say_why(text: str, message: str) -> None:
    with pytest.raises(HardnetError, match=message):
        parse_specs(text)


def test_a_full_disk_leaves_the_document_as_it_was(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text("words " * 2000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        done = run("bench", "refresh", document)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.returncode == 1
    assert document.read_text() == "words " * 2000
