"""Configurations on disk: YAML and JSON, plain data only."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

from llmprof.errors import ConfigError, LaunchError
from llmprof.launch.run import files

_FOLDED: Final = re.compile("[\x85\u2028\u2029\ufeff]")


def load(path: Path) -> Any:
    """Content of a YAML or JSON file.

    Parameters
    ----------
    path : pathlib.Path
        The file; JSON if its suffix says so, else YAML.

    Raises
    ------
    ConfigError
        It is missing, not UTF-8, not valid, has a key twice, or has tags that would make Python objects.
    """
    text = read_text(path, "a configuration (YAML or JSON)")
    if path.suffix == ".json":
        try:
            return json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, path))
        except ValueError as error:
            raise ConfigError(f"{path.name} is not valid JSON: {error}", hint="correct it at that place") from error
    yaml = _yaml()

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """Safe loader that refuses a key that comes twice."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            _once([(self.construct_object(key, deep=True), None) for key, _ in node.value], path)
            return super().construct_mapping(node, deep)  # type: ignore[no-any-return]

    try:
        return yaml.load(text, Loader=Loader)
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(
            f"{path.name} has something that is no plain data: {_said(error)}",
            expected="text, numbers, true and false, null, lists and mappings",
            hint="take tags such as !!python/object out; nothing of it was run",
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path.name} is not valid YAML: {_said(error)}", hint="correct it at that place") from error


def save(values: dict[str, Any], path: Path) -> Path:
    """Write values as YAML or JSON by the suffix, whole or not at all.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    if path.suffix == ".json":
        text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    else:
        text = _dumped(values)
    return files.write(path, text)


def read_text(path: Path, what: str) -> str:
    """Text of a UTF-8 file.

    Raises
    ------
    ConfigError
        It is missing, unreadable or not UTF-8; the error says where.
    """
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
    """YAML of values; texts with line breaks that YAML folds (NEL, LS, PS) are quoted, so that they survive."""
    yaml = _yaml()

    class Dumper(yaml.SafeDumper):  # type: ignore[misc, name-defined]
        """Safe dumper that quotes what would be folded."""

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


def _said(error: Exception) -> str:
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
