"""Configurations on disk (YAML and JSON, plain data only), and values checked against declared types."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import types
import typing
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from llmprof.errors import ConfigError, LaunchError
from llmprof.storage import files

_FOLDED: Final = re.compile("[\x85\u2028\u2029\ufeff]")


def load(path: Path) -> Any:
    """Content of a YAML or JSON file."""
    text = read_text(path, "a configuration (YAML or JSON)")
    if path.suffix == ".json":
        try:
            return json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, path))
        except ValueError as error:
            raise ConfigError(f"{path.name} is not valid JSON: {error}", hint="correct it at that place") from error
    yaml = _yaml()

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """Safe loader that refuses duplicate keys."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            _once([(self.construct_object(key, deep=True), None) for key, _ in node.value], path)
            return super().construct_mapping(node, deep)  # type: ignore[no-any-return]

    try:
        return yaml.load(text, Loader=Loader)
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(
            f"{path.name} has a value that is not plain data: {_parser_message(error)}",
            expected="text, numbers, true and false, null, lists and mappings",
            hint="remove tags such as !!python/object; no code of the file was run",
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(
            f"{path.name} is not valid YAML: {_parser_message(error)}", hint="correct it at that place"
        ) from error


def save(values: dict[str, Any], path: Path, *, overwrite: bool = False) -> Path:
    """Write values as YAML or JSON, by the suffix; if that fails, an earlier file stays as it was."""
    if path.suffix == ".json":
        text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    else:
        text = _dumped(values)
    return files.write_output(path, text, overwrite=overwrite)


def read_text(path: Path, what: str) -> str:
    """Text of a UTF-8 file."""
    try:
        data = path.expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}", expected=what, hint="check the path"
        ) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        guess = "UTF-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "Latin-1 or Windows-1252"
        raise ConfigError(
            f"{path.name} is not UTF-8: byte {data[error.start]:#04x} in line {line}",
            expected=what,
            hint=f"it may be {guess}: iconv -f {'UTF-16' if guess == 'UTF-16' else 'WINDOWS-1252'} -t UTF-8",
            line=line,
        ) from error


def _dumped(values: dict[str, Any]) -> str:
    """YAML of the values; texts with line breaks that YAML folds (NEL, LS, PS) are quoted to keep them."""
    yaml = _yaml()

    class Dumper(yaml.SafeDumper):  # type: ignore[misc, name-defined]
        """Safe dumper that quotes texts with line breaks that would be folded."""

    def text(dumper: Any, value: str) -> Any:
        style = '"' if _FOLDED.search(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return str(yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True))


def _once(pairs: list[tuple[Any, Any]], path: Path) -> dict[Any, Any]:
    seen: dict[Any, Any] = {}
    for key, value in pairs:
        if isinstance(key, Hashable) and key in seen:
            raise ConfigError(f"{path.name} has the key {key!r} twice", hint="keep one of them")
        seen[str(key) if not isinstance(key, Hashable) else key] = value
    return seen


def _parser_message(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 1}" if mark is not None else ""
    return f"{getattr(error, 'problem', None) or type(error).__name__}{where}"


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise LaunchError(
            "YAML needs the package pyyaml, which is not installed", hint="pip install 'llmprof[launch]'"
        ) from error
    return yaml


_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
    type(None): "null",
}


def checked(value: Any, hint: Any, name: str) -> Any:
    """Check that a value has its declared type, and return it.

    Whole numbers pass as numbers and lists as tuples; nothing else is converted, so that ``"4"`` or ``yes`` in the
    wrong place is an error and not a guess.
    """
    plain = str(value) if isinstance(value, Path) else value
    try:
        converted = msgspec.convert(plain, hint, strict=True)
    except msgspec.ValidationError as error:
        raise _refusal(plain, hint, name, str(error)) from error
    if isinstance(converted, float) and not math.isfinite(converted):
        raise _wrong(value, hint, name)
    return converted


def _refusal(value: Any, hint: Any, name: str, problem: str) -> ConfigError:
    """Error of a configuration for an error of msgspec, with the path inside the value."""
    for step in re.findall(r"\[(\d+|\.\.\.)\]|`(key)` in", problem):
        if step[0] == "...":
            declared = typing.get_args(hint)[1]
            key = next(key for key, item in value.items() if not _converts(item, declared))
            value, hint, name = value[key], declared, f"{name}.{key}"
        elif step[1]:
            declared = typing.get_args(hint)[0]
            key = next(key for key in value if not _converts(key, declared))
            value, hint, name = key, declared, f"a key of {name}"
        else:
            value, hint, name = value[int(step[0])], _items(hint, int(step[0])), f"{name}[{step[0]}]"
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return ConfigError(
            f"{name} is {value!r}",
            expected=f"one of {', '.join(map(str, choices))}",
            hint=nearest(value, choices),
            key=name,
        )
    return _wrong(value, hint, name)


def _converts(value: Any, hint: Any) -> bool:
    try:
        msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError:
        return False
    return True


def _items(hint: Any, index: int) -> Any:
    """Type of the items of a list or tuple, also if several types are declared."""
    for union_member in (hint, *typing.get_args(hint)):
        origin, args = typing.get_origin(union_member), typing.get_args(union_member)
        if origin is list:
            return args[0]
        if origin is tuple:
            return args[index]
    return hint


def nearest(key: object, known: Iterable[object]) -> str:
    """``did you mean X?`` with the known key that is most similar; empty if none is."""
    names = [str(k) for k in known]
    matches = difflib.get_close_matches(str(key).replace("-", "_").lower(), names, n=1, cutoff=0.6)
    return f"did you mean {matches[0]}?" if matches else ""


def refuse_unknown(given: Iterable[object], known: Iterable[str], what: str) -> None:
    """Raise for the first key that is not known."""
    names = list(known)
    for key in given:
        if key not in names:
            raise ConfigError(
                f"{what} has the unknown key {key!r}",
                expected="" if nearest(key, names) else f"some of {', '.join(names)}",
                hint=nearest(key, names),
                key=key,
            )


def _wrong(value: Any, hint: Any, name: str) -> ConfigError:
    kind = _WORDS.get(type(value), type(value).__name__)
    text = repr(value)
    if len(text) > 60:
        text = f"{text[:60]}…"
    advice = ""
    if isinstance(value, str) and any(_converts(0, member) for member in (hint, *typing.get_args(hint))):
        advice = "write it without quotes; a number such as 1e-3 needs a dot in YAML: 1.0e-3"
    return ConfigError(f"{name} is {kind}: {text}", expected=_words(hint), hint=advice, key=name)


def _words(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(_words(member) for member in args)
    if origin is list:
        return f"a list of {_words(args[0]).removeprefix('a ')}"
    if origin is tuple:
        return f"a list of {len(args)} values"
    if origin is Literal:
        return f"one of {', '.join(args)}"
    return _WORDS.get(origin or hint, str(hint))


_ALIASES: Final = {
    "model_path": "model",
    "base_prompt": "prompt",
    "model_name": "experiment_name",
    "name": "experiment_name",
}
"""Names in a configuration of keys that other tools call differently."""


def with_our_names(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Rename keys that other tools use to the keys of a configuration."""
    renamed: dict[Any, Any] = {}
    for key, value in values.items():
        ours = _ALIASES.get(key, key) if isinstance(key, str) else key
        if ours != key and (ours in values or ours in renamed):
            raise ConfigError(f"{key} and {ours} are given together", expected="one of them", key=key)
        renamed[ours] = value
    return renamed


def template(fields: Iterable[dataclasses.Field[Any]]) -> str:
    """Text of a commented YAML file with every field of a configuration and its default."""
    lines = ["# A run of llmprof: llmprof run --config THIS_FILE. Options in comments have their default.", ""]
    for field in fields:
        lines.append(f"# {field.metadata['help']}")
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            lines.append(f"{field.name}: random:tiny")
        else:
            made = field.default_factory() if callable(field.default_factory) else field.default
            shown = None if field.name == "python" else made
            lines.append(f"# {field.name}: {json.dumps(shown)}")
        lines.append("")
    return "\n".join(lines)
