"""Text of a profile without what it says of people, machines and secrets: pseudonyms in its place.

What looks like a path, a host, an address, a user, a token, a value of the environment, an e-mail address or an
identifier of a device is replaced by a word such as ``<path:1f3a9c0b12>``. Equal texts get equal words, so an analysis
of the copy finds the same groups. The words are made with a key, so they cannot be found by trying likely names.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import OutputError

REMOVED: Final = "<removed>"
"""What stands in the files of a run where a value may not be written down."""

_PUBLIC: Final = frozenset(
    [
        "torch",
        "torchvision",
        "torchaudio",
        "torch_npu",
        "torch_xla",
        "vllm",
        "vllm_ascend",
        "sglang",
        "transformers",
        "accelerate",
        "diffusers",
        "triton",
        "flashinfer",
        "flash_attn",
        "xformers",
        "deepspeed",
        "megatron",
        "apex",
        "transformer_engine",
        "tensorrt_llm",
        "jax",
        "jaxlib",
        "flax",
        "numpy",
        "nvidia",
        "cutlass",
        "cupy",
        "ray",
        "functorch",
        "peft",
        "safetensors",
        "tokenizers",
        "llmprof",
    ]
)
"""Public packages: a file inside one of them is no secret, and layers are recognised by it."""

_SUFFIXES: Final = (
    "py|pyc|pyx|so|dll|exe|c|cc|cpp|cxx|cu|cuh|h|hpp|rs|go|java|js|ts|json|jsonl|yaml|yml|toml|ini|cfg|conf|env|pem|"
    "txt|log|csv|sql|sqlite|db|pt|pth|bin|safetensors|gguf|onnx|npz|npy|pkl|pickle|parquet|ipynb|sh|md|zip|gz|tar|"
    "nsys-rep|ncu-rep|qdrep"
)
_PART: Final = r"[^\s\"'<>|,;:()\[\]{}=/\\]{1,255}"
"""One part of a path."""

_ROOTS: Final = (
    "home|root|Users|mnt|data|tmp|var|opt|usr|workspace|workspaces|workdir|scratch|nfs|lustre|gpfs|srv|private|app|"
    "storage|etc|gpu|glade|global|project|projects|work|shared|proc|sys|dev|run|content|kaggle|databricks|efs|fsx"
)
_OF_SECRETS: Final = (
    r"(?:token(?!iz|s(?![a-z]))|secret|passw(?:or)?d|passwd|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"credential|(?<![a-z])auth(?![a-z])|(?<![a-z])pwd(?![a-z]))"
)
_VALUE: Final = r"[^\s\"',;)\]}]+"

_KINDS: Final[dict[str, str]] = {
    "url": r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s\"'<>|]+",
    "token": (
        r"(?<![A-Za-z0-9])(?:sk-|sk_|pk_|rk_|hf_|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abps]-|nvapi-|dop_v1_)[\w-]{8,}"
        r"|\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\beyJ[\w-]{8,}(?:\.[\w-]+)*|(?i:\bbearer\s+)[\w.~+/=-]{6,}"
        r"|-----BEGIN[^\0]*"
    ),
    "uuid": (
        r"(?:\b(?:GPU|MIG)-)?(?<![0-9a-fA-F])[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-"
        r"[0-9a-fA-F]{12}(?![0-9a-fA-F])|(?<![0-9A-Za-z_])(?:[0-9a-f]{32,}|[0-9A-F]{32,})(?![0-9A-Za-z_])"
    ),
    "email": r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)*",
    "secret": (
        rf"(?i:[\w.-]{{0,40}}{_OF_SECRETS}[\w.-]{{0,40}}[\"']?\s{{0,4}}[=:](?!:)\s{{0,4}}[\"']?){_VALUE}"
        rf"|(?<!\S)--[\w-]{{0,40}}(?:key|token|secret|pass|auth|user|host|login)[\w-]{{0,40}}[= ]{_VALUE}"
    ),
    "variable": rf"(?<![A-Za-z0-9_])[A-Z_][A-Z0-9_]{{2,64}}=(?!\d{{1,9}}(?:\.\d+)?(?![\w.])){_VALUE}",
    "path": (
        rf"(?<![\w.)\]>}}*&/~-])(?!(?<=%)/[A-Za-z]{{1,12}}(?![\w/.]))~?/{_PART}(?:/+{_PART})*/?"  # not %/register
        rf"|/(?:{_ROOTS})/(?:{_PART}/*)*"
        rf"|(?<![\w./])\.{{1,2}}/{_PART}(?:/+{_PART})*/?"
        rf"|~[\w-]{{1,64}}/{_PART}(?:/+{_PART})*"
        rf"|(?<![\w./-])(?:{_PART}/+){{1,40}}{_PART[:-7]}{{0,255}}?\.(?:{_SUFFIXES})(?![A-Za-z0-9_])"
        rf"|(?<![A-Za-z0-9_])[A-Za-z]:\\+(?:{_PART}\\*)*"
        rf"|(?<![A-Za-z0-9_])[A-Za-z]:/(?!/)(?:{_PART}/*)+"
        rf"|\\\\{_PART}(?:\\+{_PART})+"
    ),
    "address": (
        r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])(?::\d{1,5})?"
        r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}(?![\w:])"
        r"|(?<![\w:])(?i:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3})(?::[0-9a-fA-F]{0,4}){2,7}(?![\w:])"
    ),
    "host": (
        r"(?<![\w.-])(?i:ip-\d+-\d+-\d+-\d+[\w.-]*)"
        r"|(?<![\w.:-])(?:[A-Za-z0-9-]{1,63}\.){1,8}"
        r"(?:com|net|org|edu|gov|mil|local|internal|lan|corp|intranet)(?![\w(.-])"
    ),
    "random": r"(?<![A-Za-z0-9_$.])(?=[A-Za-z0-9+/]{0,200}?[A-Z])(?=[A-Za-z0-9+/]{0,200}?[a-z])"
    r"(?=(?:[A-Za-z+/]{0,40}\d){4})[A-Za-z0-9+/]{24,}={0,2}",
}
_PATTERN: Final = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))
_SUSPICIOUS: Final = re.compile(
    r"[/\\@=]|[A-Za-z0-9+]{24}|[0-9a-fA-F]{8}-|\d\.\d+\.\d|(?i:sk-|sk_|pk_|rk_|hf_|gh[pos]_|_pat_|glpat|xox|nvapi|dop_|akia|aiza|eyj|"
    r"bearer|begin|ip-\d|\.(?:com|net|org|edu|gov|mil|local|internal|lan|corp|intranet)|:[0-9a-f]{0,4}:|--|"
    r"token|secret|passw|passphrase|key|credential|auth|pwd)"
)
"""What every one of the patterns needs somewhere in the text; most texts have none of it."""

_LIBRARY: Final = re.compile(r"/(?:site-packages|dist-packages)/|/lib/python\d[\d.]*/")
_HARMLESS: Final = re.compile(
    r"(?:[\d.,\s:+-]*|true|false|yes|no|on|off|none|null|default|auto|unknown|local|localhost|root|user|users|nobody|"
    r"admin|linux.*|ubuntu.*|debian.*|x86_64.*|aarch64.*|python[\d.]*|main|prod|production|test|dev|staging|kernel|"
    r"stream|device|host|path|value|process|worker|thread|model|torch|vllm|cuda|nccl|memory|compute|utility|all|vm|"
    r"node|server|client|engine|b?float\d+|fp\d+\w*|u?int\d+|[abhv]\d+|default_pg|en_us.*|c\.utf-8|utf-8|xterm.*|compute,utility|graphics.*|noninteractive)",
    re.IGNORECASE,
)
_LONGEST_NAME: Final = 1 << 14
"""A longer text is no name of anything: it is replaced as a whole."""
_SPACE: Final = re.compile(r"\s")
_LONGEST_KNOWN: Final = 4096
_MOST_KNOWN: Final = 4096


class Pseudonyms:
    """Replaces what a text says of people, machines and secrets.

    Parameters
    ----------
    key : bytes, optional
        Key of the pseudonyms; a random one if not given. Two copies made with one key have the same pseudonyms, and
        who has the key can find a name by trying.

    Attributes
    ----------
    counts : collections.Counter
        How many texts were replaced, by kind.
    examples : dict of str to str
        The first text of each kind, cut; kept for :func:`llmprof.redaction.check` and never written.

    Examples
    --------
    >>> names = Pseudonyms(b"key")
    >>> names.text("aten::mm") == "aten::mm", names.text("load /home/me/w.bin") == names.text("load /home/me/w.bin")
    (True, True)
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(16) if key is None else key
        self._known: set[str] = set()
        self._phrases: list[str] = []
        self._words: list[str] = []
        self._made: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def know(self, values: Iterable[object], *, identity: bool = False) -> None:
        """Take up what is known to be about a person or machine: wherever it stands, it is replaced.

        Parameters
        ----------
        values : iterable
            Texts; what is no text is left out.
        identity : bool
            Whether these are names of users, hosts, jobs: then short and plain words count, too. Values of an
            environment do only if they are no plain word.
        """
        new = {
            text
            for value in values
            if isinstance(value, str)
            and (3 if identity else 6) <= len(text := value.strip()) <= _LONGEST_KNOWN
            and not _HARMLESS.fullmatch(text)
            and (identity or not re.fullmatch(r"[a-z_]+|[A-Z_]+|[A-Z]?[a-z]+|[\w.]{1,7}", text))
        }
        if new - self._known and len(self._known) < _MOST_KNOWN:
            self._known |= new
            ordered = sorted(self._known, key=lambda text: (-len(text), text))[:_MOST_KNOWN]
            self._phrases = [text for text in ordered if _SPACE.search(text)]
            self._words = [text for text in ordered if not _SPACE.search(text)]
            self._made.clear()

    def text(self, text: str) -> str:
        """A text with pseudonyms in place of what it says of people, machines and secrets."""
        made = self._made.get(text)
        if made is None:
            if len(text) > _LONGEST_NAME:
                return self._word("text", text)
            made = text
            if _SPACE.search(made):
                made = self._without(self._phrases, made)
            if _SUSPICIOUS.search(made):
                made = _PATTERN.sub(self._replaced, made)
            made = self._without(self._words, made)
            if len(self._made) < 1 << 18:
                self._made[text] = made
        return made

    def column(self, name: str) -> pl.Expr:
        """A column of texts, each distinct one replaced once."""
        return pl.col(name).map_batches(self._series, return_dtype=pl.String)

    def frame(self, frame: pl.DataFrame) -> pl.DataFrame:
        """A frame with all its columns of texts replaced."""
        texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
        return frame.with_columns(self._series(frame[name]) for name in texts)

    def value(self, value: Any) -> Any:
        """A value of JSON with all its texts replaced, those of its keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def name(self, kind: str, text: str) -> str:
        """A pseudonym for the whole of a text."""
        return self._word(kind, text)

    def _without(self, known: list[str], text: str) -> str:
        """A text without what is known to be about a person or machine, where it stands as a word of its own."""
        for one in known:
            if one in text:
                pattern = rf"(?<![A-Za-z0-9]){re.escape(one)}(?![A-Za-z0-9])"
                text = re.sub(pattern, lambda match: self._word("value", match[0]), text)
        return text

    def _series(self, series: pl.Series) -> pl.Series:
        distinct = series.drop_nulls().unique()
        changed = {text: new for text in distinct if (new := self.text(text)) != text}
        return series.replace(changed) if changed else series

    def _replaced(self, match: re.Match[str]) -> str:
        kind, text = match.lastgroup or "value", match[0]
        if kind == "host" and text.partition(".")[0] in _PUBLIC:
            return text
        return self._path(text) if kind == "path" else self._word(kind, text)

    def _path(self, text: str) -> str:
        """A path; its end inside a public package stays as it is."""
        public = _public_part(text.replace("\\", "/"))
        if public is None:
            return self._word("path", text)
        return text if not public else f"{self._word('path', text[:public])}/{text[public:]}"

    def _word(self, kind: str, text: str) -> str:
        self.counts[kind] += 1
        self.examples.setdefault(kind, text[:80])
        digest = hmac.new(self._key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:10]
        return f"<{kind}:{digest}>"


def _public_part(path: str) -> int | None:
    """Where in a path a public package begins; 0 for a path that is one as a whole, None if there is none."""
    if path.partition("/")[0] in _PUBLIC:
        return 0
    for library in reversed(list(_LIBRARY.finditer(path))):
        first = re.split(r"[/.]", path[library.end() :], maxsplit=1)[0]
        if first in _PUBLIC or ("packages" not in library[0] and first in sys.stdlib_module_names):
            return library.end()
    places = [match.start(1) for match in re.finditer(r"/(\w+)(?=/)", path) if match[1] in _PUBLIC]
    return places[-1] if places and path.endswith(".py") else None


class Ledger:
    """Counts of what stayed behind, by place and kind.

    Parameters
    ----------
    names : Pseudonyms
        What replaces texts.
    """

    def __init__(self, names: Pseudonyms) -> None:
        self.names = names
        self._left_out: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], str] = {}

    def leave_out(self, place: str, what: str, count: int = 1, *, example: object = None) -> None:
        """Count something that is not in the copy."""
        if count:
            self._left_out[place, what] += count
            if example is not None:
                self._examples.setdefault((place, what), str(example)[:80])

    def text(self, text: str, place: str) -> str:
        """A text as it stands in the copy."""
        made = self.names.text(text)
        if made != text:
            self.leave_out(place, "texts with a pseudonym", example=text)
        return made

    def frame(self, *, examples: bool) -> pl.DataFrame:
        """``place, what, count``, and ``example`` if asked for: the first text of each that was found, cut."""
        rows = [(place, what, count) for (place, what), count in sorted(self._left_out.items())]
        columns = {"place": pl.String, "what": pl.String, "count": pl.Int64}
        frame = pl.DataFrame(rows, schema=columns, orient="row")
        if not examples:
            return frame
        shown = [self._examples.get((place, what)) for place, what, _ in rows]
        return frame.with_columns(example=pl.Series(shown, dtype=pl.String))


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn failures to write a copy into an error that names the copy, and not the file it is made of.

    Raises
    ------
    OutputError
        The copy cannot be written.
    """
    try:
        yield
    except (OSError, sqlite3.OperationalError, pl.exceptions.PolarsError) as error:
        said = getattr(error, "strerror", None) or error
        raise OutputError(
            f"cannot write the copy {target.name}: {said}",
            hint=f"free space in {target.parent}, or choose another folder",
        ) from error
