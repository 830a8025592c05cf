"""Pseudonyms in place of the texts of a profile that identify people and machines or are secrets.

A text that looks like a path, a host, an address, a user, a token, a value of the environment, an e-mail address or an
identifier of a device is replaced by a word such as ``<path:1f3a9c0b12>``. Equal texts get equal words, so an analysis
of the copy finds the same groups. The words are made with a key, so names cannot be found by trying likely ones.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import OutputError

REMOVED: Final = "<removed>"
"""Word that replaces a secret value in the files of a run."""

_META_KEPT: Final = (
    "format", "start_epoch_ns", "clock", "device", "world_size", "world_size_from", "missing_ranks", "versions",
    "options",
)  # fmt: skip
"""Metadata that a redacted trace keeps."""

_RANK_KEPT: Final = ("backend", "groups", "devices")
"""Metadata of a rank that a redacted trace keeps."""

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
"""Public packages. Paths inside them are not secret, and layers are recognised by them."""

_SUFFIXES: Final = (
    "py|pyc|pyx|so|dll|exe|c|cc|cpp|cxx|cu|cuh|h|hpp|rs|go|java|js|ts|json|jsonl|yaml|yml|toml|ini|cfg|conf|env|pem|"
    "txt|log|csv|sql|sqlite|db|pt|pth|bin|safetensors|gguf|onnx|npz|npy|pkl|pickle|parquet|ipynb|sh|md|zip|gz|tar|"
    "nsys-rep|ncu-rep|qdrep"
)
_PART: Final = r"[^\s\"'<>|,;:()\[\]{}=/\\]{1,255}"
"""Pattern of one part of a path."""

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
        r"(?<![A-Za-z0-9])(?:(?:sk-|sk_|pk_|rk_|hf_|gh[opsur]_|github_pat_|gl[a-z]{2,5}-|xox[a-z]-|xapp-|nvapi-|dop_v1_)"
        r"[\w-]{8,}|(?:gsk|r8|npm)_[A-Za-z0-9]{16,}|pypi-[\w-]{12,}|dapi[0-9a-f]{32}|ya29\.[\w-]{10,}|"
        r"SG\.[\w-]{8,}\.[\w-]{8,}|ssh-[a-z0-9]{3,12} [A-Za-z0-9+/=]{16,})"
        r"|\bA(?:KIA|SIA|ROA|IDA|GPA)[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\beyJ[\w-]{8,}(?:\.[\w-]+)*"
        r"|(?i:\b(?:bearer|basic)\s+)(?=[\w.~+/=-]*[\dA-Z=])[\w.~+/=-]{6,}|-----BEGIN[^\0]*"
    ),
    "uuid": (
        r"(?:\b(?:GPU|MIG)-)?(?<![0-9a-fA-F])[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-"
        r"[0-9a-fA-F]{12}(?![0-9a-fA-F])|(?<![0-9A-Za-z_])(?:[0-9a-f]{32,}|[0-9A-F]{32,})(?![0-9A-Za-z_])"
    ),
    # CANN's calls are named LEVEL@CALL
    "email": (
        r"(?<![\w.+-])(?!(?:AscendCL|Node|Model|Hccl|HCCL|GE|Runtime|Enqueue|Dequeue|Communication)@)(?:[\w.+-]{1,64}:)?"
        r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)*(?::[\w./-]*[A-Za-z][\w./-]*)?"
    ),
    "secret": (
        rf"(?i:[\w.-]{{0,40}}{_OF_SECRETS}[\w.-]{{0,40}}[\"']?\s{{0,4}}[=:](?!:)\s{{0,4}}[\"']?){_VALUE}"
        r"|(?<!\S)--[\w-]{0,40}(?:key|token|secret|pass|auth|user|host|login|model|prompt|project)[\w-]{0,40}[= ]"
        rf"{_VALUE}"
        rf"|(?i:\b(?:password|passphrase|passwd)\s+){_VALUE}"
    ),
    "identity": (
        rf"(?i:(?<![a-z_])(?:host|user|login|account|owner|tenant|customer|organi[sz]ation|e?mail)(?:[_ -]?name)?"
        rf"[\"']?\s{{0,4}}[=:](?!:)\s{{0,4}}[\"']?)(?![\d.]+\b){_VALUE}"
        rf"|(?i:(?<![a-z])model(?:_name|_id|_path)?[\"']?\s{{0,4}}[=:](?!:)\s{{0,4}}[\"']?)[\w.-]+/[\w./-]+"
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
        rf"|\\\\[?.]\\(?:[A-Za-z]:)?(?:\\*{_PART})+"
        rf"|\\\\{_PART}(?:\\+{_PART})+"
    ),
    "address": (
        r"(?<![A-Za-z0-9.])\d{1,3}(?:\.\d{1,3}){3}(?![A-Za-z0-9.])(?::\d{1,5})?"
        r"|(?<![\w-])[0-9a-fA-F]{2}(?:-[0-9a-fA-F]{2}){5}(?![\w-])"
        r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}(?![\w:])"
        r"|(?<![\w:])(?i:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3})(?::[0-9a-fA-F]{0,4}){2,7}(?![\w:])"
    ),
    "host": (
        r"(?<![\w.-])(?i:ip-\d+-\d+-\d+-\d+[\w.-]*)"
        r"|(?<![\w.:-])(?:[A-Za-z0-9-]{1,63}\.){1,8}"
        r"(?:(?:com|net|org|edu|gov|mil|local|internal|lan|corp|intranet)(?![\w(.-])"
        r"|(?:io|ai|dev|cloud|app|co|us|eu|uk|de|fr|ch|nl|jp|cn|in|kr|ru|tech|team|systems)(?=/|:\d)(?::\d+)?(?:/[\w./-]*)?)"
        r"|(?<![\w.-])[a-z][a-z0-9-]*-[0-9a-f]{8,10}-[a-z0-9]{5}(?![\w-])"  # a pod of Kubernetes
    ),
    "account": r"\barn:aws[\w-]*:[^\s\"']+|(?i:\bresourceGroups/)[\w.-]+",
    "random": r"(?<![A-Za-z0-9+/=_$.-])(?=[A-Za-z0-9+/]*[A-Z])(?=[A-Za-z0-9+/]*[a-z])(?=[A-Za-z0-9+/]*\d)"
    r"(?![A-Za-z0-9+/]*[a-z]{6})[A-Za-z0-9+/]{40}(?![A-Za-z0-9+/=_])|"
    r"(?<![A-Za-z0-9+/=_$.-])(?=[a-z0-9+/]*[A-Z])(?=[A-Z0-9+/]*[a-z])(?![A-Za-z0-9+/]*[a-z]{7})[A-Za-z0-9+/]{20,}={1,2}"
    r"(?![\w=])|"
    r"(?<![A-Za-z0-9_$.])(?=[A-Za-z0-9+/]{0,200}?[A-Z])(?=[A-Za-z0-9+/]{0,200}?[a-z])"
    r"(?=(?:[A-Za-z+/]{0,40}\d){4})(?![A-Za-z0-9+/]*[a-z]{7})[A-Za-z0-9+/]{24,}={0,2}",
}
_PATTERN: Final = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))
_SUSPICIOUS: Final = re.compile(
    r"[/\\@=]|[A-Za-z0-9+]{24}|[0-9a-fA-F]{8}-|\d\.\d+\.\d|[0-9a-fA-F]-[0-9a-fA-F]{2}-[0-9a-fA-F]|-[a-z0-9]{5}\b|"
    r"(?i:sk-|sk_|pk_|rk_|hf_|gh[opsur]_|_pat_|\bgl[a-z]{2,5}-|xox|xapp|nvapi|dop_|gsk_|r8_|npm_|pypi|dapi|ya29|sg\.|"
    r"ssh-|a(?:kia|sia|roa|ida|gpa)|aiza|eyj|bearer|basic|begin|ip-\d|arn:|:[0-9a-f]{0,4}:|--|\.[a-z]{2,7}:\d|"
    r"\.(?:com|net|org|edu|gov|mil|local|internal|lan|corp|intranet)|token|secret|passw|passphrase|key|credential|auth|"
    r"pwd|(?:host|user|login|account|owner|tenant|customer|organi[sz]ation|mail|name)[\"']?\s{0,4}:)"
)
"""Every pattern needs at least one of these characters, which most texts lack."""

_RUN_OF_WORDS: Final = re.compile(
    r"(?<![^\W\d_])[^\W\d_]++(?:['\u2019][^\W\d_]{1,2})?(?:,? [^\W\d_]+(?:['\u2019][^\W\d_]{1,2})?){2,}"
)
_FUNCTION_WORDS: Final = frozenset({
    "a", "an", "the", "is", "are", "was", "were", "be", "been", "am", "he", "his", "she", "her", "they", "their",
    "it", "its", "this", "that", "these", "those", "which", "when", "where", "and", "or", "but", "not", "of", "to",
    "in", "on", "for", "from", "with", "about", "at", "by", "as", "if", "than", "then", "do", "does", "did", "can",
    "could", "would", "should", "will", "may", "has", "have", "had", "there", "here", "into", "over", "under",
})  # fmt: skip
_PERSONAL_WORDS: Final = frozenset({
    "i", "my", "me", "mine", "you", "your", "yours", "we", "our", "us", "please", "what", "who", "whom", "whose",
    "how", "why", "tell", "write", "summarize", "summarise", "explain", "translate", "describe", "answer", "dear",
    "hello", "thanks",
})  # fmt: skip
_PROMPT: Final = re.compile(
    r"(?i)(?<![a-z])(?:prompts?|completions?|user_messages?|instructions?)[\"']?\s{0,4}[:=]\s{0,4}[\[\"'({]{0,4}"
    r"(?!true|false|none|null)[^\W\d_]{2}"
)
_NOT_LATIN: Final = re.compile(r"[\u0370-\u1fff\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff]{2}")


def is_prose(text: str) -> bool:
    """Whether a text reads like prose of a person, such as a prompt, rather than like a name.

    Prose is three or more words in a row, one of which asks or addresses somebody; four or more words, two of which are
    function words; text after the word "prompt"; or letters of a script that is not used for names of kernels.

    Examples
    --------
    >>> [is_prose(text) for text in ("Tell me about the merger", "Runtime Triggered Module Loading", "unsigned long")]
    [True, False, False]
    """
    if _PROMPT.search(text) or _NOT_LATIN.search(text):
        return True
    if text.startswith("<built-in "):  # Python's representation of functions
        return False
    for run in _RUN_OF_WORDS.finditer(text):
        plain = [word.strip(",") for word in run[0].split(" ")]
        words = [word.lower() for word in plain if word == "I" or not word.isupper()]
        if not _PERSONAL_WORDS.isdisjoint(words):
            return True
        if len(words) > 3 and sum(word in _FUNCTION_WORDS for word in words) > 1:
            return True
    return False


_LIBRARY: Final = re.compile(r"/(?:site-packages|dist-packages)/|/lib/python\d[\d.]*/")
_HARMLESS: Final = re.compile(
    r"(?:[\d.,\s:+-]*|true|false|yes|no|on|off|none|null|default|auto|unknown|local|localhost|root|user|users|nobody|"
    r"admin|linux.*|ubuntu.*|debian.*|x86_64.*|aarch64.*|python[\d.]*|main|prod|production|test|dev|staging|kernel|"
    r"stream|device|host|path|value|process|worker|thread|model|torch|vllm|cuda|nccl|memory|compute|utility|all|vm|"
    r"node|server|client|engine|b?float\d+|fp\d+\w*|u?int\d+|[abhv]\d+|default_pg|en_us.*|c\.utf-8|utf-8|xterm.*|compute,utility|graphics.*|noninteractive)",
    re.IGNORECASE,
)
_LONGEST_NAME: Final = 1 << 14
"""Length of the longest name (characters); a longer text is replaced as a whole."""
_SPACE: Final = re.compile(r"\s")
_LONGEST_KNOWN: Final = 4096
_MOST_KNOWN: Final = 4096


class Pseudonyms:
    """Replaces texts that identify people and machines, or are secrets.

    Parameters
    ----------
    key : bytes, optional
        Key of the pseudonyms; random by default. Copies made with the same key have the same pseudonyms. Whoever has
        the key can find a name by trying likely ones.

    Attributes
    ----------
    counts : collections.Counter
        How many texts were replaced, by kind.
    examples : dict of str to str
        The first text of each kind, shortened. It is kept for :func:`llmprof.redaction.check` and never written.

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
        self._prose: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def know(self, values: Iterable[object], *, identity: bool = False) -> None:
        """Add texts that are known to identify a person or machine; they are replaced wherever they occur.

        Parameters
        ----------
        values : iterable
            Texts; other values are ignored.
        identity : bool
            Whether these are names of users, hosts or jobs: short and plain words are then replaced, too. Values of
            environment variables are replaced only if they are not plain words.
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
        """Replace the parts of a text that identify people or machines, or are secrets."""
        replaced = self._made.get(text)
        if replaced is None:
            if len(text) > _LONGEST_NAME:
                return self._word("text", text)
            replaced = text
            if _SPACE.search(replaced):
                replaced = self._without(self._phrases, replaced)
            if _SUSPICIOUS.search(replaced):
                replaced = _PATTERN.sub(self._replaced, replaced)
            replaced = self._without(self._words, replaced)
            if len(self._made) < 1 << 18:
                self._made[text] = replaced
        return replaced

    def label(self, text: str) -> str:
        """Like :meth:`text`, for a text that a program wrote into the profile (range, marker): prompts are replaced."""
        if " " in text or _NOT_LATIN.search(text) or _PROMPT.search(text):
            replacement = self._prose.get(text)
            if replacement is None and is_prose(text):
                replacement = self._prose[text] = self._word("text", text)
            if replacement is not None:
                return replacement
        return self.text(text)

    def frame(self, frame: pl.DataFrame, *, labels: bool = False) -> pl.DataFrame:
        """Replace the texts of a frame; with ``labels``, as texts that a program wrote (:meth:`label`)."""
        texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
        return frame.with_columns(self._series(frame[name], self.label if labels else self.text) for name in texts)

    def value(self, value: Any) -> Any:
        """Replace the texts of a JSON value, including its keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def trace(
        self, tables: Mapping[str, pl.DataFrame], meta: Mapping[str, Any], coverage: Mapping[str, Any]
    ) -> tuple[dict[str, pl.DataFrame], dict[str, Any], dict[str, Any]]:
        """Redact the tables, metadata and coverage of a trace; only the metadata that the schema needs is kept."""
        kept = {key: self.value(meta[key]) for key in _META_KEPT if key in meta}
        if "ranks" in meta:
            kept["ranks"] = [
                {"rank": rank.get("rank"), "file": f"rank {rank.get('rank')}"}
                | {key: self.value(rank[key]) for key in _RANK_KEPT if key in rank}
                for rank in meta["ranks"]
            ]
        counts = {key: value for key, value in coverage.items() if isinstance(value, int | float) or key == "asked"}
        counts["files"] = [
            {"rank": part.get("rank"), "file": f"rank {part.get('rank')}"}
            | {key: value for key, value in part.items() if isinstance(value, int | float)}
            for part in coverage.get("files", [])
        ]
        frames = {name: self.frame(frame, labels=True) for name, frame in tables.items()}
        return frames, kept, counts | {"warnings": []}

    def name(self, kind: str, text: str) -> str:
        """Pseudonym of a whole text; ``kind`` becomes part of it."""
        return self._word(kind, text)

    def _without(self, known: list[str], text: str) -> str:
        """Replace known texts about people and machines where they are separate words."""
        for name in known:
            if name in text:
                pattern = rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
                text = re.sub(pattern, lambda match: self._word("value", match[0]), text)
        return text

    @staticmethod
    def _series(series: pl.Series, make: Callable[[str], str]) -> pl.Series:
        distinct = series.drop_nulls().unique()
        changed = {text: new for text in distinct if (new := make(text)) != text}
        return series.replace(changed) if changed else series

    def _replaced(self, match: re.Match[str]) -> str:
        kind, text = match.lastgroup or "value", match[0]
        if kind == "host" and text.partition(".")[0] in _PUBLIC:
            return text
        return self._path(text) if kind == "path" else self._word(kind, text)

    def _path(self, text: str) -> str:
        """Pseudonym of a path; its part inside a public package stays as it is."""
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
    """Index in a path at which a public package begins; 0 if the whole path is in one, None if none is named."""
    if path.partition("/")[0] in _PUBLIC:
        return 0
    for library in reversed(list(_LIBRARY.finditer(path))):
        first = re.split(r"[/.]", path[library.end() :], maxsplit=1)[0]
        if first in _PUBLIC or ("packages" not in library[0] and first in sys.stdlib_module_names):
            return library.end()
    places = [match.start(1) for match in re.finditer(r"/(\w+)(?=/)", path) if match[1] in _PUBLIC]
    return places[-1] if places and path.endswith(".py") else None


class Ledger:
    """Ledger of a redacted copy: counts of the content that was left out or replaced, by place and kind.

    Parameters
    ----------
    names : Pseudonyms
        The pseudonyms that replace texts.
    """

    def __init__(self, names: Pseudonyms) -> None:
        self.names = names
        self._left_out: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], str] = {}

    def leave_out(self, place: str, what: str, count: int = 1, *, example: object = None) -> None:
        """Count content that was not copied."""
        if count:
            self._left_out[place, what] += count
            if example is not None:
                self._examples.setdefault((place, what), str(example)[:80])

    def text(self, text: str, place: str, *, label: bool = True) -> str:
        """Text as it is written to the copy; ``label`` is False for texts of the profiler itself."""
        replaced = self.names.label(text) if label else self.names.text(text)
        if replaced != text:
            self.leave_out(place, "texts with a pseudonym", example=text)
        return replaced

    def frame(self, *, examples: bool) -> pl.DataFrame:
        """Frame ``place, what, count``, and with ``examples`` the first text of each kind, shortened (``example``)."""
        rows = [(place, what, count) for (place, what), count in sorted(self._left_out.items())]
        columns = {"place": pl.String, "what": pl.String, "count": pl.Int64}
        frame = pl.DataFrame(rows, schema=columns, orient="row")
        if not examples:
            return frame
        first_texts = [self._examples.get((place, what)) for place, what, _ in rows]
        return frame.with_columns(example=pl.Series(first_texts, dtype=pl.String))


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn a failure to write a copy into an error that names the copy instead of its source.

    Raises
    ------
    OutputError
        The copy cannot be written.
    """
    try:
        yield
    except (OSError, sqlite3.OperationalError, pl.exceptions.PolarsError) as error:
        message = getattr(error, "strerror", None) or error
        raise OutputError(
            f"cannot write the copy {target.name}: {message}",
            hint=f"free space in {target.parent}, or choose another folder",
        ) from error
