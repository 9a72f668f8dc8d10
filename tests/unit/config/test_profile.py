"""Profiles: what inherits what, and what a mistake says."""

import copy
from dataclasses import field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.errors import UserError
from config.paths import RunPaths
from config.profile import build, merge, read_params, read_section, read_yaml, resolve, to_yaml
from config.schema import section


@section
class Learning:
    rate: float = 0.1
    steps: int = 10
    kind: str = "plain"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError("steps is at least 1")


@section
class Item:
    name: str


@section
class Whole:
    learning: Learning = Learning()
    items: tuple[Item, ...] = ()
    note: str | None = None
    floors: dict[str, float] = field(default_factory=dict)
    needed: int = 0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    write(tmp_path, "base", "learning:\n  rate: 0.5\n  steps: 20\nitems:\n  - name: a\n  - name: b\n")
    write(tmp_path, "child", "extends: base\nlearning:\n  rate: 0.25\n")
    write(tmp_path, "grandchild", "extends: child\nitems:\n  - name: c\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> Path:
    path = root / "profiles" / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def message(root: Path, name: str, overrides: str = "") -> str:
    """What the user reads when the profile, under these overrides, is wrong."""
    (root / "params.yaml").write_text(f"profile: {name}\n{overrides}")
    with pytest.raises(UserError) as caught:
        wanted, over = read_params(root)
        build(Whole, resolve(wanted, root, over))
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(f"{root}/", "")


def test_a_child_changes_single_keys_and_replaces_lists(root: Path) -> None:
    whole = build(Whole, resolve("grandchild", root))
    assert whole.learning == Learning(rate=0.25, steps=20)
    assert whole.items == (Item("c"),)


def test_overrides_lie_on_top_and_name_their_line(root: Path) -> None:
    (root / "params.yaml").write_text("profile: child\noverrides:\n  learning:\n    steps: 7\n")
    name, overrides = read_params(root)
    resolved = resolve(name, root, overrides)
    assert build(Whole, resolved).learning == Learning(rate=0.25, steps=7)
    assert resolved.where(("learning", "steps")) == f"{root}/params.yaml:4"
    assert resolved.where(("learning", "rate")) == f"{root}/profiles/child.yaml:3"
    assert resolved.where(("items", 1, "name")) == f"{root}/profiles/base.yaml:6"
    assert resolved.where(("items", 1, "absent")) == f"{root}/profiles/base.yaml:6"


@pytest.mark.parametrize("overrides", ["", "overrides:\n", "overrides: {}\n"])
def test_no_overrides(root: Path, overrides: str) -> None:
    (root / "params.yaml").write_text(f"profile: child\n{overrides}")
    name, over = read_params(root)
    assert resolve(name, root, over).values == resolve("child", root).values


def test_an_unknown_key_names_file_line_and_the_nearest_key(root: Path) -> None:
    write(root, "wrong", "extends: base\nlearning:\n  # a comment\n  rat: 0.5\n")
    assert message(root, "wrong") == "profiles/wrong.yaml:4: unknown key `learning.rat`; did you mean `rate`?"


def test_an_unknown_section_and_an_unknown_key_of_a_list_item(root: Path) -> None:
    write(root, "wrong", "lerning: {}\n")
    assert message(root, "wrong") == "profiles/wrong.yaml:1: unknown key `lerning`; did you mean `learning`?"
    write(root, "wrong", "items:\n  - name: a\n  - name: b\n    nme: c\n")
    assert message(root, "wrong") == "profiles/wrong.yaml:4: unknown key `items.1.nme`; did you mean `name`?"


def test_an_unknown_key_with_no_near_one_lists_the_valid_ones(root: Path) -> None:
    write(root, "wrong", "learning: {zzz: 1}\n")
    assert message(root, "wrong").endswith("unknown key `learning.zzz`; valid keys: rate, steps, kind")


def test_an_unknown_key_in_the_overrides(root: Path) -> None:
    found = message(root, "base", "overrides:\n  learning: {stepz: 3}\n")
    assert found == "params.yaml:3: unknown key `learning.stepz`; did you mean `steps`?"


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("learning: {steps: 1.5}", "`learning.steps` is 1.5; expected a valid integer"),
        ("learning: {steps: true}", "`learning.steps` is True; expected a valid integer"),
        ('learning: {rate: "0.5"}', "`learning.rate` is '0.5'; expected a valid number"),
        ("learning: {kind: 3}", "`learning.kind` is 3; expected a valid string"),
        ("learning: 3", "`learning` is 3; expected"),
        ("items: {name: a}", "`items` is {'name': 'a'}; expected a valid array"),
        ("items: [{}]", "`items.0.name` is missing"),
        ("learning: {steps: 0}", "`learning`: steps is at least 1"),
        ("needed: null", "`needed` is None; expected a valid integer"),
    ],
)
def test_wrong_types_missing_keys_and_impossible_values(root: Path, yaml: str, expected: str) -> None:
    write(root, "wrong", f"\n{yaml}\n")
    found = message(root, "wrong")
    assert found.startswith("profiles/wrong.yaml:2: ") and expected in found, found


def test_a_key_written_twice_is_not_silently_the_last_one(root: Path) -> None:
    write(root, "wrong", "learning:\n  rate: 1.0\n  steps: 3\n  rate: 2.0\n")
    found = message(root, "wrong")
    assert found == "profiles/wrong.yaml:4: `rate` stands twice; the first is at profiles/wrong.yaml:2"


def test_a_circle_of_extends_is_shown(root: Path) -> None:
    write(root, "one", "extends: two\n")
    write(root, "two", "\nextends: one\n")
    assert message(root, "one") == "profiles/two.yaml:2: profiles extend each other in a circle: one → two → one"


def test_an_unknown_profile_is_answered_with_the_nearest(root: Path) -> None:
    found = message(root, "bse")
    assert found == "no profile `bse`; did you mean `base`? There are: base, child, grandchild"
    assert message(root, "zzzzzz") == "no profile `zzzzzz`; there are: base, child, grandchild"
    write(root, "wrong", "learning: {}\nextends: ../secrets\n")
    assert message(root, "wrong").startswith("profiles/wrong.yaml:2: no profile `../secrets`; there are:")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"learning:\n  rate: [1, 2\n", "profiles/wrong.yaml:3: not valid YAML"),
        (b"learning:\n\trate: 1\n", "profiles/wrong.yaml:2: not valid YAML"),
        (b"learning: {rate: \xff}\n", "profiles/wrong.yaml: not valid YAML"),
        (b"learning: \x00\n", "profiles/wrong.yaml"),
        (b"- a\n- b\n", "profiles/wrong.yaml:1: expected sections such as `model:`, found a sequence"),
        (b"a: !!python/object:os.system {}\n", "profiles/wrong.yaml:1: not valid YAML"),
        (b"a: 2024-13-45\n", "profiles/wrong.yaml: not valid YAML"),
        (b"? [a, b]\n: 1\n", "profiles/wrong.yaml:1: expected a name before the colon, found a sequence"),
    ],
)
def test_what_is_not_yaml(root: Path, content: bytes, expected: str) -> None:
    write(root, "wrong", "").write_bytes(content)
    assert message(root, "wrong").startswith(expected)


def test_an_empty_profile_is_all_defaults(root: Path) -> None:
    write(root, "empty", "# nothing\n")
    assert build(Whole, resolve("empty", root)) == Whole()


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("1E5", 1e5), ("-2.5e+2", -250.0), (".5e1", 5.0), ("3", 3.0), ("1_000.5", 1000.5)],
)
def test_numbers_in_any_notation(root: Path, text: str, value: float) -> None:
    write(root, "numbers", f"learning: {{rate: {text}}}\n")
    assert build(Whole, resolve("numbers", root)).learning.rate == value


@pytest.mark.parametrize("word", ["off", "on", "yes", "no", "e5", "1e", "v1e3"])
def test_words_stay_words(root: Path, word: str) -> None:
    write(root, "words", f"learning: {{kind: {word}}}\n")
    assert build(Whole, resolve("words", root)).learning.kind == word


def test_params_hold_profile_and_overrides_alone(root: Path) -> None:
    (root / "params.yaml").write_text("profile: base\noverride: {}\n")
    with pytest.raises(UserError, match=r"params\.yaml:2: unknown key `override`"):
        read_params(root)
    (root / "params.yaml").write_text("profile: base\noverrides: 3\n")
    with pytest.raises(UserError, match="expected `profile: <name>`"):
        read_params(root)
    (root / "params.yaml").unlink()
    with pytest.raises(UserError, match=r"params\.yaml does not exist"):
        read_params(root)


def test_a_section_is_read_from_the_resolved_file(root: Path) -> None:
    paths = RunPaths("base", root)
    with pytest.raises(UserError, match="is missing; run `dvc repro`"):
        read_section(paths, "learning", Learning)
    with pytest.raises(UserError, match="no profile `nothing`; there are: base"):
        read_section(RunPaths("nothing", root), "learning", Learning)
    paths.resolved.parent.mkdir(parents=True)
    paths.resolved.write_text("learning: {steps: 4}\n")
    assert read_section(paths, "learning", Learning) == Learning(steps=4)
    paths.resolved.write_text("learning:\n  stepz: 4\n")
    with pytest.raises(UserError, match=r"profile\.yaml:2: unknown key `learning\.stepz`; did you mean `steps`"):
        read_section(paths, "learning", Learning)


NAMES = st.sampled_from("abc")
SCALARS = st.one_of(
    st.integers(-5, 5), st.none(), st.booleans(), st.text("xy", max_size=2), st.lists(st.integers(0, 3))
)
TREES = st.dictionaries(NAMES, st.recursive(SCALARS, lambda inner: st.dictionaries(NAMES, inner), max_leaves=12))


def paths_of(tree: object, at: tuple = ()) -> dict:
    """Every key path of a tree."""
    found = {}
    if isinstance(tree, dict):
        for key, value in tree.items():
            found[(*at, key)] = value
            found |= paths_of(value, (*at, key))
    return found


def nested_update(base: dict, over: dict) -> dict:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            nested_update(base[key], value)
        else:
            base[key] = value
    return base


@given(TREES, TREES)
def test_merge_is_a_nested_update_and_every_key_knows_its_file(base: dict, over: dict) -> None:
    before = copy.deepcopy((base, over))
    values, origins = merge(base, over, dict.fromkeys(paths_of(base), "base"), dict.fromkeys(paths_of(over), "over"))
    assert (base, over) == before, "merge changes neither of its arguments"
    assert values == nested_update(copy.deepcopy(base), copy.deepcopy(over))
    assert set(origins) == set(paths_of(values))
    assert all((where == "over") == (path in paths_of(over)) for path, where in origins.items())


@given(st.dictionaries(st.text(min_size=1), st.one_of(SCALARS, st.text(), st.floats(allow_nan=False))))
def test_what_is_written_reads_back_as_it_was(tmp_path_factory, values: dict) -> None:
    path = tmp_path_factory.mktemp("yaml") / "x.yaml"
    path.write_text(to_yaml({"section": values}), encoding="utf-8")
    assert read_yaml(path)[0] == {"section": values}


@pytest.mark.parametrize("text", ["1e3", "off", "null", "1_000", "0x10", "2024-01-01", "=", "<<", "~", "1:30", "é🙂"])
def test_text_that_looks_like_something_else_survives_the_resolved_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(to_yaml({"learning": {"kind": text}}), encoding="utf-8")
    assert read_yaml(path)[0] == {"learning": {"kind": text}}
