"""The file layout of Oxford5k, Paris6k and their revisited ground truth, made of photographs."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hardnet.bench.retrieval.collections import (
    read_labels,
    read_oxford,
    read_revisited,
    read_ukbench,
)
from hardnet.bench.retrieval.run import average_precision
from hardnet.errors import HardnetError
from hardnet.images import read_image, write_image

LANDMARKS = {"all_souls": "astronaut.png", "bodleian": "chelsea.png"}


@pytest.fixture(scope="module")
def oxford_folder(photos, tmp_path_factory):
    """Two landmarks of four photographs each: good, ok, junk and another query."""
    folder = tmp_path_factory.mktemp("oxford")
    (folder / "jpg").mkdir()
    truth = folder / "gt_files_170407"
    truth.mkdir()
    for landmark, file in LANDMARKS.items():
        pixels = read_image(photos / file)
        for number in range(4):
            turned = np.rot90(pixels, number) if number else pixels
            write_image(folder / "jpg" / f"{landmark}_{number:06d}.jpg", turned)
        lists = {"good": [0, 1], "ok": [2], "junk": [3]}
        for query in (1, 2):
            for what, numbers in lists.items():
                lines = "".join(f"{landmark}_{number:06d}\n" for number in numbers)
                (truth / f"{landmark}_{query}_{what}.txt").write_text(lines)
            box = "136.5 34.1 348.5 255.7"
            line = f"oxc1_{landmark}_{query - 1:06d} {box}"
            (truth / f"{landmark}_{query}_query.txt").write_text(line)
    return folder


def test_queries_regions_and_lists(oxford_folder):
    read = read_oxford(oxford_folder)
    assert read.name == oxford_folder.name  # Oxford5k has 55 queries
    assert len(read.images) == 8
    assert [q.name for q in read.questions] == [
        "all_souls_1",
        "all_souls_2",
        "bodleian_1",
        "bodleian_2",
    ]
    second = read.questions[1]
    assert second.image == "jpg/all_souls_000001.jpg"
    assert second.group == "all_souls"
    assert second.box == pytest.approx((136.5, 34.1, 212.0, 221.6))
    judgement = second.judgements["classic"]
    assert judgement.positives == {f"jpg/all_souls_00000{number}.jpg" for number in range(3)}
    assert judgement.junk == {"jpg/all_souls_000003.jpg"}
    assert second.image in judgement.positives  # a normal positive
    assert read.file_of(second.image).is_file()
    ranking = [f"jpg/all_souls_00000{number}.jpg" for number in (0, 3, 2, 1)]
    assert average_precision(ranking, judgement.positives, judgement.junk) == 1.0


def test_names_of_paris_have_no_prefix(oxford_folder, tmp_path):
    (tmp_path / "defense").mkdir()
    (tmp_path / "defense" / "paris_defense_000605.jpg").write_bytes(
        next(oxford_folder.rglob("*.jpg")).read_bytes()
    )
    (tmp_path / "defense_1_query.txt").write_text("paris_defense_000605 0 0 1024 768\n")
    for what in ("good", "ok", "junk"):
        (tmp_path / f"defense_1_{what}.txt").write_text("paris_defense_000605\n")
    (tmp_path / "defense_1_junk.txt").write_text("")
    read = read_oxford(tmp_path)
    assert read.questions[0].image == "defense/paris_defense_000605.jpg"
    assert read.questions[0].box == (0, 0, 1024, 768)


def test_a_missing_image_a_missing_list_and_a_broken_line_are_named(oxford_folder, tmp_path):
    with pytest.raises(HardnetError, match="contains no image"):
        read_oxford(tmp_path)
    (tmp_path / "x_000001.jpg").write_bytes(next(oxford_folder.rglob("*.jpg")).read_bytes())
    with pytest.raises(HardnetError, match="ground truth"):
        read_oxford(tmp_path)
    (tmp_path / "x_1_query.txt").write_text("oxc1_x_000001 1 2 3")
    with pytest.raises(HardnetError, match=r"x_1_query\.txt is not a line"):
        read_oxford(tmp_path)
    (tmp_path / "x_1_query.txt").write_text("oxc1_x_000001 1 2 3 4")
    with pytest.raises(HardnetError, match=r"x_1_good\.txt cannot be read"):
        read_oxford(tmp_path)
    for what in ("good", "ok", "junk"):
        (tmp_path / f"x_1_{what}.txt").write_text("x_000002\n")
    with pytest.raises(HardnetError, match="names x_000002"):
        read_oxford(tmp_path)


@pytest.fixture
def revisited_folder(oxford_folder, tmp_path):
    shutil.copytree(oxford_folder / "jpg", tmp_path / "jpg")
    searched = [f"all_souls_{number:06d}" for number in (1, 2, 3)]
    searched += [f"bodleian_{number:06d}" for number in range(4)]
    truth = {
        "imlist": searched,
        "qimlist": ["all_souls_000000", "bodleian_000000"],
        "gnd": [
            {"bbx": [10.5, 20, 110.5, 220], "easy": [0], "hard": [1], "junk": [2]},
            {"bbx": [0, 0, 50, 50], "easy": [], "hard": [3, 4], "junk": [5]},
        ],
    }
    (tmp_path / "gnd_roxford5k.json").write_text(json.dumps(truth))
    return tmp_path


def test_easy_medium_and_hard(revisited_folder):
    read = read_revisited(revisited_folder)
    assert read.name == "roxford5k"
    assert read.protocols == ["easy", "medium", "hard"]
    assert len(read.images) == 7
    assert list(read.queries_only) == ["jpg/all_souls_000000.jpg"]
    first, second = read.questions
    assert first.box == (10.5, 20, 100, 200)
    one, two, three, itself = (f"jpg/all_souls_00000{number}.jpg" for number in (1, 2, 3, 0))
    expected = {
        "easy": ({one}, {three, two, itself}),
        "medium": ({one, two}, {three, itself}),
        "hard": ({two}, {three, one, itself}),
    }
    for name, (positives, junk) in expected.items():
        assert first.judgements[name].positives == positives
        assert first.judgements[name].junk == junk
    # By hand: the ranking is three, one, bodleian, two.
    ranking = [three, one, "jpg/bodleian_000000.jpg", two]
    aps = {
        name: average_precision(ranking, judgement.positives, judgement.junk)
        for name, judgement in first.judgements.items()
    }
    assert aps == pytest.approx(
        {"easy": 1.0, "medium": (1 + (1 / 2 + 2 / 3) / 2) / 2, "hard": (0 + 1 / 2) / 2}
    )
    # The query is in the list of searched images: it is no positive of itself, and not ranked.
    itself = "jpg/bodleian_000000.jpg"
    assert second.image == itself
    assert second.judgements["hard"].positives == {"jpg/bodleian_000001.jpg"}
    assert itself in second.judgements["hard"].junk
    assert second.judgements["easy"].positives == frozenset()


def test_a_pickle_is_never_opened(revisited_folder):
    (revisited_folder / "gnd_roxford5k.json").unlink()
    marker = revisited_folder / "opened"

    class Trap:
        def __reduce__(self):
            return marker.touch, ()

    (revisited_folder / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(HardnetError, match="is a pickle"):
        read_revisited(revisited_folder)
    assert not marker.exists()


def test_the_documented_conversion_of_the_pickle(revisited_folder, tmp_path_factory):
    truth = json.loads((revisited_folder / "gnd_roxford5k.json").read_text())
    for row in truth["gnd"]:
        row["easy"] = np.array(row["easy"], np.int64)  # as some versions of the file have it
    before = read_revisited(revisited_folder)
    text = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text()
    code = text.partition('python -c "')[2].partition('" gnd_')[0]
    pkl, converted = revisited_folder / "x.pkl", revisited_folder / "gnd_roxford5k.json"
    pkl.write_bytes(pickle.dumps(truth))
    converted.unlink()
    subprocess.run([sys.executable, "-c", code.replace("\n", " "), pkl, converted], check=True)
    assert read_revisited(revisited_folder) == before


@pytest.mark.parametrize("damage", ["[]", "{}", "no json"])
def test_a_damaged_ground_truth_is_named(revisited_folder, damage):
    (revisited_folder / "gnd_roxford5k.json").write_text(damage)
    with pytest.raises(HardnetError, match=r"gnd_roxford5k\.json"):
        read_revisited(revisited_folder)


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def test_ukbench_has_four_photos_of_each_object(tmp_path):
    touch(tmp_path, *(f"ukbench{number:05d}.jpg" for number in range(12)))
    read = read_ukbench(tmp_path)
    assert len(read.questions) == len(read.images) == 12
    sixth = read.questions[6]
    assert sixth.group == "1"
    assert sixth.same == {f"ukbench{number:05d}.jpg" for number in (4, 5, 6, 7)}
    judgement = sixth.judgements["others"]
    assert judgement.positives == sixth.same - {"ukbench00006.jpg"}
    assert judgement.junk == {"ukbench00006.jpg"}


def test_some_objects_of_ukbench(tmp_path):
    touch(tmp_path, *(f"ukbench{number:05d}.jpg" for number in range(12)))
    read = read_ukbench(tmp_path, range(1, 3))
    assert sorted(read.images) == [f"ukbench{number:05d}.jpg" for number in range(4, 12)]
    with pytest.raises(HardnetError, match="no query"):
        read_ukbench(tmp_path, range(7, 9))


def test_an_object_with_three_photos_or_a_file_without_number_is_named(tmp_path):
    touch(tmp_path, *(f"ukbench{number:05d}.jpg" for number in range(7)))
    with pytest.raises(HardnetError, match="3 photos of object 1"):
        read_ukbench(tmp_path)
    touch(tmp_path, "cover.jpg")
    with pytest.raises(HardnetError, match=r"cover\.jpg has no number"):
        read_ukbench(tmp_path)


def test_one_folder_per_label(tmp_path):
    touch(tmp_path, "cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "loose.jpg")
    read = read_labels(tmp_path)
    assert len(read.images) == 4  # all are searched
    assert [q.name for q in read.questions] == ["cat/1.jpg", "cat/2.jpg"]  # a dog has no other dog
    assert read.questions[0].judgements["others"].positives == {"cat/2.jpg"}
    assert not read.questions[0].same  # N-S is of UKBench alone


def test_a_csv_file_of_labels(tmp_path):
    touch(tmp_path, "a.jpg", "b.jpg", "c.jpg", "d.jpg")
    labels = tmp_path / "labels.csv"
    labels.write_text('image,label\na.jpg,"red, dark"\nb.jpg,"red, dark"\nc.jpg,blue\n')
    read = read_labels(tmp_path, labels)
    assert [q.group for q in read.questions] == ["red, dark", "red, dark"]
    assert len(read.images) == 4
    labels.write_text("image,label\ne.jpg,red\n")
    with pytest.raises(HardnetError, match=r"names e\.jpg"):
        read_labels(tmp_path, labels)
    labels.write_text("file,thing\na.jpg,red\n")
    with pytest.raises(HardnetError, match="columns image,label"):
        read_labels(tmp_path, labels)
    with pytest.raises(HardnetError, match="cannot be read"):
        read_labels(tmp_path, tmp_path / "none.csv")


def test_a_folder_without_labels_says_what_to_do(tmp_path):
    touch(tmp_path, "a.jpg", "b.jpg")
    with pytest.raises(HardnetError, match="--labels"):
        read_labels(tmp_path)
