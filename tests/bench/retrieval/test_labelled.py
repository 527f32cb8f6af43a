import pytest

from hardnet.bench.retrieval.labelled import read_labels, read_ukbench
from hardnet.errors import HardnetError


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
