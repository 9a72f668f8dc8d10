"""Profiles: YAML with inheritance and overrides, read into frozen dataclasses, with errors that name the line.

`profiles/<name>.yaml` holds sections; `extends: <other>` inherits from another profile, key by key.
`params.yaml` names the profile and may hold `overrides:`. What results is one nested dict, whose every
value remembers the file and line it came from.
"""

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from config.errors import UserError
from config.paths import RunPaths

KeyPath = tuple[str | int, ...]
Layer = tuple[dict[str, Any], dict[KeyPath, str]]  # values, and the `file:line` of each of their keys
_BOOL, _FLOAT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:float"
_EXPONENT = re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)[eE][-+]?[0-9]+$")


# LibYAML's loader is ten times faster than the pure Python one, and resolve runs at every `dvc repro`.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Booleans and numbers as in YAML 1.2, which DVC reads too: in PyYAML's 1.1 `off` is false and 1e-3 a text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in known if tag != _BOOL]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):
    """Quotes what either version of YAML would take for something else than text."""


_Loader.add_implicit_resolver(_BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))


@dataclass(frozen=True)
class Resolved:
    """A profile after inheritance and overrides: its values, and where each key was written."""

    name: str
    values: dict[str, Any]
    origins: dict[KeyPath, str]

    def where(self, path: KeyPath) -> str:
        """`file:line` of a key, or of the nearest key above it."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, f"profiles/{self.name}.yaml")


def to_yaml(values: dict[str, Any]) -> str:
    """YAML that `read_yaml` reads back as it was; sorted, so that moving a key about in a profile changes nothing."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=True, allow_unicode=True)


def read_yaml(path: Path) -> Layer:
    """Read a YAML mapping and the `file:line` of each of its keys; a syntax error or a repeated key is a UserError."""
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)
        if node is None:
            return {}, {}
        if not isinstance(node, yaml.MappingNode):
            raise UserError(f"{path}:1: expected sections such as `model:`, found a {node.id}")
        origins: dict[KeyPath, str] = {}
        _note_origins(node, (), path, origins)
        return _Loader("").construct_document(node), origins
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date such as 2024-13-45
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{path}{line}: not valid YAML: {problem}") from None


def _note_origins(node: yaml.Node, at: KeyPath, path: Path, origins: dict[KeyPath, str]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = f"{path}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(f"{line}: expected a name before the colon, found a {key.id}")
            here = (*at, key.value)
            if here in origins:
                raise UserError(f"{line}: `{key.value}` stands twice; the first is at {origins[here]}")
            origins[here] = line
            _note_origins(value, here, path, origins)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            origins[(*at, index)] = f"{path}:{value.start_mark.line + 1}"
            _note_origins(value, (*at, index), path, origins)


def merge(
    base: dict[str, Any],
    over: dict[str, Any],
    base_origins: dict[KeyPath, str],
    over_origins: dict[KeyPath, str],
) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """Lay `over` on `base`, mapping by mapping; a list or a scalar replaces what was there, and so do its origins."""
    origins = dict(base_origins)

    def lay(below: Any, above: Any, at: KeyPath) -> Any:
        if isinstance(below, dict) and isinstance(above, dict):
            out = dict(below)
            for key, value in above.items():
                out[key] = lay(below[key], value, (*at, key)) if key in below else value
            return out
        for key in [key for key in origins if key[: len(at)] == at]:
            del origins[key]
        return above

    values = lay(base, over, ())
    origins.update(over_origins)
    return values, origins


def profile_names(folder: Path) -> list[str]:
    """Names of the profiles in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def resolve(name: str, root: Path, overrides: Layer | None = None) -> Resolved:
    """The profile `name` under `root/profiles`, its parents below it and `overrides` (of params.yaml) on top.

    Raises UserError for an unknown name, a circle of `extends`, or a file that is not YAML.
    """
    folder = root / "profiles"
    chain: list[Layer] = []
    seen: list[str] = []
    wanted: str | None = name
    where = ""  # the line that names the profile, where a file does
    while wanted is not None:
        if not isinstance(wanted, str) or wanted not in profile_names(folder):
            names = profile_names(folder)
            close = difflib.get_close_matches(str(wanted), names, n=1)
            hint = f"did you mean `{close[0]}`? There are: " if close else "there are: "
            raise UserError(f"{where}no profile `{wanted}`; {hint}{', '.join(names)}")
        if wanted in seen:
            raise UserError(f"{where}profiles extend each other in a circle: {' → '.join([*seen, wanted])}")
        seen.append(wanted)
        values, origins = read_yaml(folder / f"{wanted}.yaml")
        where = f"{origins[('extends',)]}: " if "extends" in values else ""
        parent = values.pop("extends", None)
        chain.append((values, origins))
        wanted = parent
    values, origins = chain.pop()
    while chain:
        values, origins = merge(values, chain[-1][0], origins, chain.pop()[1])
    if overrides is not None:
        values, origins = merge(values, overrides[0], origins, overrides[1])
    return Resolved(name, values, origins)


def read_params(root: Path) -> tuple[str, Layer]:
    """The profile's name and the overrides of `params.yaml`."""
    path = root / "params.yaml"
    values, origins = read_yaml(path)
    unknown = sorted(set(values) - {"profile", "overrides"})
    if unknown:
        raise UserError(
            f"{origins[(unknown[0],)]}: unknown key `{unknown[0]}`; params.yaml holds `profile` and `overrides`"
        )
    overrides = values.get("overrides") or {}
    if not isinstance(values.get("profile"), str) or not isinstance(overrides, dict):
        raise UserError(f"{path}: expected `profile: <name>` and, if wanted, `overrides:` with sections under it")
    overrides = _without_null(overrides)
    lines = {at[1:]: line for at, line in origins.items() if at[0] == "overrides" and _holds(overrides, at[1:])}
    return values["profile"], (overrides, lines)


def _without_null(values: dict[str, Any]) -> dict[str, Any]:
    """Overrides that say something: null leaves the profile's value. `dvc exp run -S` sets only keys that it finds, so
    params.yaml lists some as null."""
    pruned = {key: _without_null(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in pruned.items() if value is not None and value != {}}


def _holds(values: Any, path: KeyPath) -> bool:
    for key in path:
        if isinstance(values, dict) and key not in values:
            return False
        values = values[key]
    return True


def build(schema: type, resolved: Resolved, prefix: str = "") -> Any:
    """Check the values against a dataclass and make it; the first mistake is a UserError with its file and line.

    `prefix` is the section's name where `schema` is one section, for the message.
    """
    try:
        # Through JSON, whose strict mode knows that a list may fill a tuple; a YAML date stays text.
        return TypeAdapter(schema).validate_json(json.dumps(resolved.values, default=str))
    except ValidationError as error:
        raise UserError(_explain(error.errors()[0], schema, resolved, prefix)) from None


def read_section(paths: RunPaths, key: str, schema: type) -> Any:
    """One section of the profile as the resolve stage wrote it; UserError when that has not run."""
    if not paths.resolved.exists():
        known = profile_names(paths.root / "profiles")
        if paths.profile not in known:
            raise UserError(f"no profile `{paths.profile}`; there are: {', '.join(known)}")
        raise UserError(
            f"{paths.resolved} is missing; run `dvc repro`, or `python -m stages.resolve {paths.profile}` first"
        )
    values, origins = read_yaml(paths.resolved)
    own = {path[1:]: where for path, where in origins.items() if path[:1] == (key,)}
    return build(schema, Resolved(paths.profile, values.get(key) or {}, own), key)


def _explain(problem: dict[str, Any], schema: type, resolved: Resolved, prefix: str) -> str:
    path: KeyPath = tuple(problem["loc"])
    dotted = ".".join(str(key) for key in ((prefix, *path) if prefix else path))
    where = resolved.where(path)
    kind = problem["type"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        valid = _keys_at(schema, path[:-1])
        close = difflib.get_close_matches(str(path[-1]), valid, n=1, cutoff=0.5)
        hint = f"did you mean `{close[0]}`?" if close else f"valid keys: {', '.join(valid)}"
        return f"{where}: unknown key `{dotted}`; {hint}"
    if kind in ("missing", "missing_argument"):
        return f"{where}: `{dotted}` is missing"
    found = problem.get("input")
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if kind == "value_error":
        return f"{where}: `{dotted}`: {message}" if dotted else f"{where}: {message}"
    return f"{where}: `{dotted}` is {found!r}; expected {message}"


def _keys_at(schema: type, path: KeyPath) -> list[str]:
    """Field names of the dataclass that lies at `path` below `schema`."""
    current: Any = schema
    for key in path:
        if isinstance(key, int):
            continue
        hints = get_type_hints(current) if is_dataclass(current) else {}
        current = next((part for part in _dataclasses_in(hints.get(key))), None)
        if current is None:
            return []
    return [field.name for field in fields(current)] if is_dataclass(current) else []


def _dataclasses_in(annotation: Any) -> Iterator[type]:
    if is_dataclass(annotation):
        yield annotation
    for part in get_args(annotation):
        yield from _dataclasses_in(part)
