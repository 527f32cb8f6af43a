"""Recipes: files, overrides, mistakes, and the published numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("omegaconf")
pytest.importorskip("torch")

from hardnet.errors import HardnetError
from hardnet.learn.recipe import Recipe, find_recipe, read_recipe, refuse_changes
from hardnet.learn.run import write_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def test_published_recipes() -> None:
    nips = read_recipe(RECIPES / "nips.yaml", ["data=[x]"])
    post = read_recipe(RECIPES / "post-nips.yaml", ["data=[x]"])
    assert (nips.lr, nips.dropout, nips.augment) == (0.1, 0.1, False)
    assert (post.lr, post.dropout, post.augment) == (10.0, 0.3, True)
    for recipe in (nips, post):
        assert (recipe.momentum, recipe.dampening, recipe.weight_decay) == (0.9, 0.9, 1e-4)
        assert (recipe.batch, recipe.pairs, recipe.margin) == (1024, 50_000_000, 1.0)


def test_every_recipe_in_the_repository_is_valid() -> None:
    paths = sorted(RECIPES.glob("*.yaml"))
    assert len(paths) >= 8
    for path in paths:
        read_recipe(path, ["data=[x]", "weights=[]"])


def test_recipes_of_the_rivals() -> None:
    def axes(name: str) -> tuple[str, str, str, float]:
        recipe = read_recipe(RECIPES / f"{name}.yaml", ["data=[x]"])
        return recipe.sampling, recipe.loss, recipe.regularizer, recipe.margin

    assert axes("classical") == ("classical", "triplet", "cpr", 1.0)
    assert axes("contrastive") == ("hardest", "contrastive", "none", 2.0)
    assert axes("l2net") == ("all", "l2net", "cpr", 1.0)
    assert read_recipe(RECIPES / "hardtfeat.yaml", ["data=[x]"]).net == "hardtfeat"
    assert len(read_recipe(RECIPES / "hardnet++.yaml", []).data) == 4


def test_linear_decay_starts_after_the_second_step() -> None:
    recipe = Recipe(lr=10, batch=10, pairs=100)
    assert recipe.steps == 10
    rates = [recipe.learning_rate(t) for t in range(10)]
    assert rates == pytest.approx([10, 10, 9, 8, 7, 6, 5, 4, 3, 2])


def test_overrides_and_round_trip(tmp_path: Path) -> None:
    recipe = read_recipe(RECIPES / "nips.yaml", ["data=[a,b]", "lr=0.5", "augment=true"])
    assert (recipe.data, recipe.lr, recipe.augment) == (["a", "b"], 0.5, True)
    write_recipe(recipe, tmp_path / "r.yaml")
    assert read_recipe(tmp_path / "r.yaml", []) == recipe


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dropuot=0.1", "did you mean dropout"),
        ("lr", "key=value"),
        ("lr=fast", "lr: Value .fast."),
        ("batch=0", "batch must be 2 or more, got 0"),
        ("dropout=1.5", "dropout must be"),
        ("data=[]", "names no patch set"),
        ("sampling=hardset", "sampling: .*hardset.*did you mean hardest"),
        ("loss=zzz", "loss: .*zzz.*known: triplet, softmin, contrastive, quadratic, hybrid, l2net"),
        ("weights=[1,2]", "weights has 2 numbers for 1 patch sets"),
        ("workers=0", "workers must be positive"),
        ("loss=l2net", "use sampling=all"),
        ("net=hardnt", "unknown net 'hardnt'; did you mean hardnet"),
        ("chunk=-1", "chunk must not be negative"),
        ("lr=nan", "lr must be positive, got nan"),
        ("lr=", "lr has no value"),
        ("lr=???", "lr has no value"),
        ("lr=[1", r"--set lr=\[1 is not valid YAML"),
        ("dampening=nan", "dampening must be in"),
        ("seed=-1", "seed must be from 0"),
        ("weights=[nan]", "weights must be positive numbers, got nan"),
        ("weights=1", r"weights is a list: write \[1\]"),
        ("data=sets/a", r"data is a list: write \[sets/a\]"),
        ("data={a: 1}", "data is a list"),
        ("data.0=a", "--set data.0=a: unknown key 'data.0'; did you mean data"),
        ("data=", "names no patch set"),
        ("data=['']", "names no patch set"),
    ],
)
def test_mistakes_are_named(override: str, message: str) -> None:
    with pytest.raises(HardnetError, match=message):
        read_recipe(RECIPES / "nips.yaml", ["data=[x]", override])


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="no such recipe"):
        read_recipe(tmp_path / "none.yaml", [])
    (tmp_path / "bad.yaml").write_text("lr: [1\n")
    with pytest.raises(HardnetError, match=r"bad\.yaml"):
        read_recipe(tmp_path / "bad.yaml", [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- a\n- b\n", "is not a recipe: write a line"),
        (b"3", "is not a recipe"),
        (b"\xff\xfe\x00", "is not a recipe"),
        (b"data: [a]\nlr:\n", "lr has no value"),
    ],
)
def test_files_that_are_no_recipes(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(HardnetError, match=rf"bad\.yaml.*{message}"):
        read_recipe(tmp_path / "bad.yaml", [])


def test_keys_without_a_value_are_empty(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("data: [a]\nvalidation:\n")
    assert read_recipe(tmp_path / "r.yaml", []) == Recipe(data=["a"])
    (tmp_path / "r.yaml").write_text("data: [a]\nvalidation: b\ninit: c\nweights: [2]\n")
    empty = ["validation=", "init=", "weights="]
    assert read_recipe(tmp_path / "r.yaml", empty) == Recipe(data=["a"])


def test_defaults_are_the_paper_after_nips() -> None:
    """A recipe without any key but data trains HardNet as in recipes/post-nips.yaml."""
    assert Recipe(data=["x"]) == read_recipe(RECIPES / "post-nips.yaml", ["data=[x]"])


def test_only_keys_that_do_not_change_the_result_may_change(tmp_path: Path) -> None:
    begun = Recipe(data=["x"])
    write_recipe(begun, tmp_path / "recipe.yaml")
    free = {"workers": 4, "devices": 2, "checkpoint_every": 7, "validation": "y", "chunk": 64}
    refuse_changes(tmp_path / "recipe.yaml", replace(begun, **free))  # type: ignore[arg-type]
    for key, value in {"lr": 1.0, "data": ["y"], "loss": "softmin", "pairs": 5}.items():
        changed = replace(begun, **{key: value})  # type: ignore[arg-type]
        with pytest.raises(HardnetError, match=f"made with (other )?{key}.*checkpoint_every"):
            refuse_changes(tmp_path / "recipe.yaml", changed)


def test_a_recipe_of_an_older_version_resumes(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("data: [x]\nlr: 1.0\nnet: hardnet\n")
    refuse_changes(tmp_path / "recipe.yaml", Recipe(data=["x"], lr=1.0))


def test_recipes_of_the_package_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe(Path("post-nips")).read_text().startswith("#")
    (tmp_path / "post-nips").write_text("loss: softmin\n")
    assert find_recipe(Path("post-nips")) == Path("post-nips")  # a file of the user comes first
    with pytest.raises(HardnetError, match="no such recipe; give a YAML file, or one of classical"):
        find_recipe(Path("post-nipps"))
    with pytest.raises(HardnetError, match="no such recipe"):
        find_recipe(Path("recipes/nips"))
