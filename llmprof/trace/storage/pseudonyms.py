"""Pseudonyms in place of the texts of a profile that identify people and machines or are secrets.

A text that looks like a path, a host, an address, a user, a token, a value of the environment, an
e-mail address or an identifier of a device is replaced by a word such as ``<path:1f3a9c0b12>``.
Equal texts get equal words, so an analysis of the copy finds the same groups. The words are made
with a key, so names cannot be found by trying likely ones.
"""

from __future__ import annotations

import ast
import base64
import binascii
import hashlib
import hmac
import html
import json
import re
import secrets
import sqlite3
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import OutputError
from llmprof.trace.storage.files import words_of

REMOVED: Final = "<removed>"
"""Word that replaces a secret value in the files of a run."""

_META_KEPT: Final = (
    "format",
    "start_epoch_ns",
    "clock",
    "device",
    "world_size",
    "world_size_from",
    "missing_ranks",
    "versions",
    "options",
)
"""Metadata that a redacted trace keeps."""

_FREE_META: Final = frozenset({"device", "versions"})
_FREE_COLUMNS: Final = frozenset({"group", "unit", "device_name"})
"""Metadata and columns whose texts are no names: only known words stay."""

_RANK_KEPT: Final = ("backend", "groups", "devices")
"""Metadata of a rank that a redacted trace keeps."""

_PUBLIC: Final = words_of("packages.txt")
"""Public packages. Paths inside them are not secret, and layers are recognised by them."""

_VOCABULARY: Final = words_of("words.txt")
"""Words of the field: what profilers, runtimes and libraries write besides names.

No word of a person is here.
"""

_TYPE_WORDS: Final = words_of("type_words.txt")
"""Words after or before which C++ writes a name without punctuation."""

_SENSITIVE: Final = re.compile(
    r"(?i)(?:token(?!iz|s(?![a-z]))|secret|pass[\s_-]?(?:w(?:or)?[dt]|phrase|code)|api[_-]?key|access[_-]?key|"
    r"private[_-]?key|credential|(?:(?<![a-z])|(?-i:(?<=[a-z])(?=[AP])))(?:auth|p(?:ass|s?wd?)(?![a-z]))|"
    r"kennwort|contrase\u00f1a|mot de"
    r" passe|\u043f\u0430\u0440\u043e\u043b\u044c|\u5bc6[\u7801\u78bc]|\u53e3\u4ee4)"
    r"[\w.-]{0,40}[\"'\\]{0,4}(?:\s+is)?\s{0,4}(?:=|:(?!:))|"
    r"(?<![a-z_])(?:host|user|login|account|owner|tenant|customer|organi[sz]ation|"
    r"e?mail|prompt|completion|instruction|model)s?(?:[_"
    r" -]?(?:name|id|path))?[\"'\\]{0,4}\s{0,4}(?:=|:(?!:))|"
    r"(?<![a-z])(?:password|passphrase|passwd|pwd?|bearer|basic)\s|(?:(?<!\S)-|--)(?!nan|inf)[A-Za-z]|"
    r"-----BEGIN|\bssh-[a-z0-9]{3,12} "
)
"""What is followed by a secret, up to the end of the text."""

_TOKEN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-|sk_|pk_|rk_|hf_|gh[opsur]_|github_pat_|gl[a-z]{2,5}-|xox[a-z]-|xapp-|nvapi-|dop_v1_|npm_|gsk_|"
    r"r8_|pypi-|SG\.)[\w.-]{8}|(?:AKIA|ASIA|AROA|AIDA|AGPA)[0-9A-Z]{12}|AIza[\w-]{20}|(?<![A-Za-z0-9])eyJ[\w-]{8}|"
    r"ya29\.|dapi[0-9a-f]{16}|(?<![A-Za-z0-9])[A-Z]{2}\d{2}[A-Z0-9]{4}\d{7}[A-Z0-9]{0,16}(?![A-Za-z0-9])"
)
_ADDRESS: Final = re.compile(
    r"(?<!\d)(?<!\d\.)\d{1,3}(?:\.\d{1,3}){3}(?!\.?\d)|(?<![0-9a-fA-F])(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}(?![0-9a-fA-F])|"
    r"(?<![0-9a-fA-F])(?:[0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4}(?![0-9a-fA-F])|(?<![0-9a-z])(?:fe80|f[cd][0-9a-f]{2})::[0-9a-f:]*\d"
)
_GROUPS: Final = re.compile(r"(?<![0-9a-fA-F:])[0-9a-fA-F]*:[0-9a-fA-F:]+")
_KEY: Final = re.compile(
    r"(?<![A-Z0-9])(?:[A-Z0-9]{4,6}-){3,}[A-Z0-9]{4,6}|(?<![0-9a-fA-F])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\d{21}"
)
_BETWEEN: Final = r"[-_\s./+]"
_CARD: Final = re.compile(
    rf"(?<!\d)(?<!\d\.)(?=(?=[3-6]|2[2-7])(\d{{13,19}}(?!\.\d)|\d{{8}}{_BETWEEN}\d{{8}}|\d{{6}}{_BETWEEN}\d{{7,13}}|"
    rf"\d{{4}}({_BETWEEN}{{1,2}})(?:(?:\d{{4}}\2){{2}}\d{{1,7}}|\d{{6}}\2\d{{4,5}}))(?!\d))"
)
_IDENTITY: Final = re.compile(
    rf"(?=([1-9]\d{{5}}{_BETWEEN}{{0,2}}(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01]){_BETWEEN}{{0,2}}\d{{3}}[\dXx]))"
)
_IBAN: Final = re.compile(
    rf"(?=((?:(?<![A-Z])[A-Z]{{2}}|(?<![A-Za-z])[a-z]{{2}})\d\d({_BETWEEN}{{0,2}})"
    r"(?:\d{11,30}|[A-Za-z0-9]{4}(?:\2[A-Za-z0-9]{4}){1,6}(?:\2[A-Za-z0-9]{1,4})?)))"
)
_LAST: Final = re.compile(r"[A-Za-z0-9](?![A-Za-z0-9])")
_ONLY_NUMBERS: Final = re.compile(r"[\d\s.,)}\]-]*")
_DIVISIBLE: Final = frozenset({"token", "address", "uuid", "random", "email", "url"})
"""Kinds of words that a line end may divide."""
_WRITTEN_END: Final = re.compile(r"(?<!\\)(?:\\+[nr])+")
_WRITTEN_SIGN: Final = re.compile(r"&#?\w{1,8};|(?<!\\)\\+u(?![dD][89a-fA-F])([0-9a-fA-F]{4})")
"""A sign as HTML and JSON write it."""
_NODES: Final = re.compile(r"(?<![\w.-])[\w.-]+\[(?:0\d|[\d,]{0,20}\d-\d)[\d,-]*\]?")
_ESCAPED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_DOMAIN: Final = re.compile(
    r"\.(?:com|net|org|edu|gov|mil|local|internal|lan|corp|intranet)(?![A-Za-z0-9])"
)
_TOP_LEVEL: Final = re.compile(
    r"\.(?:io|ai|dev|cloud|app|co|us|eu|uk|de|fr|ch|nl|jp|cn|in|kr|ru|tech|team)(?::\d+)?$"
)
_SOURCE_FILE: Final = re.compile(
    r"[\w-]+\.(?:py|pyx|c|cc|cpp|cxx|cu|cuh|h|hpp|so|rs|go|js|ts)(?![A-Za-z0-9])", re.ASCII
)
_OF_CANN: Final = re.compile(
    r"(?:AscendCL|Node|Model|Hccl|HCCL|GE|Runtime|Enqueue|Dequeue|Communication)@[A-Za-z_]\w{0,80}",
    re.ASCII,
)
_GRAPH_KEY: Final = re.compile(r"(?<=CompiledFxGraph )f[a-z2-7]{40,60}(?![a-z0-9])")
_JOINED: Final = re.compile(r"[A-Za-z]+(?:_[A-Za-z]+)+")
_PADDED: Final = re.compile(r"=(?:[^\w.:-]|_|$)")
_NUMBER_OR_OWN: Final = re.compile(r"0x[0-9a-f]+|[a-z]{3,10}:[0-9a-f]{10}")
"""Addresses and pseudonyms."""
_HIDDEN: Final = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_WORD: Final = re.compile(r"[^\s\"'`<>(){}\[\],;|*&=!]+")
_SUBWORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_STRIPPED: Final = ".:?#-+~$%^/"
_GAP: Final = re.compile(r"(?=[,;!\"'`]*+\s)[\s,;!\"'`]*+")
_CHIP: Final = re.compile(r"[A-Z]{1,3}\d{2,4}[A-Z]?")
_METRIC: Final = re.compile(r"\.(?:sum|avg|max|min|pct|ratio)(?:\.|$)")
_SCOPE: Final = re.compile(
    r"(?:Default|Gradients)(?:/\w+(?:-(?:[A-Z]\w*|op[\d_]+|expand|_\w*))*+)++", re.ASCII
)
_BUILTIN: Final = re.compile(
    r"<built-in (?:function|method) \w+(?: of [\w.]+ object at 0x[0-9a-f]+)?>|"
    r"<frozen [\w.]+>(?:\(\d+\): \w+)?$",
    re.ASCII,
)
_TILE: Final = re.compile(r"\d+(?:x\d+)+|0x[0-9a-f]{1,16}")
_MANGLED: Final = re.compile(r"_{1,2}(?:Z[NKLT]{0,3}|R[NIMX]\w?)\d?\w*\d[A-Za-z_]")
_SIGNS: Final = frozenset("µμ×°±→←–—…²³")


def _known(word: str) -> bool:
    """Whether a word is made of words of the field, numbers and single letters."""
    return _CHIP.fullmatch(word) is not None or all(
        part.isdecimal() or len(part) == 1 or part.lower() in _VOCABULARY
        for part in _SUBWORD.findall(word)
    )


def _is_random(word: str, *, shortest: int = 16, mean: float = 2.2) -> bool:
    """Whether a part of a word mixes letters and digits as no name does: a key, a hash,
    something encoded.
    """
    if _MANGLED.match(word):
        return False
    for part in _ALNUM.findall(word):
        if _TILE.fullmatch(part):
            continue
        parts = _SUBWORD.findall(part)
        if _HASH.search(part) or _is_encoded(part):
            return True
        length = len(part) / max(len(parts), 1)
        if len(part) < shortest:
            continue
        if (len(set(part)) > 9 or shortest < 9) and (
            length < mean or (len(part) >= 24 and length < 2.6)
        ):
            return True
        if length < _longest_mean(part) and _share_known(part, parts) < 0.25:
            return True
    return False


def _longest_mean(part: str) -> float:
    """Mean length of the pieces of a part below which, if it has few words of the field, it is
    no name.
    """
    digits = len(_DECIMAL.findall(part))
    if part.islower() or part.isupper():
        if _HEX.fullmatch(part):
            return 99 * (digits > 2 and len(set(part)) > 5)
        return 6 * (part.isupper() and digits > 2)
    return 3.5 if digits else 2.6


def _share_known(part: str, pieces: list[str]) -> float:
    return sum(
        len(piece) for piece in pieces if len(piece) > 2 and piece.lower() in _VOCABULARY
    ) / len(part)


_ALNUM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+]{7,}")
_DECIMAL: Final = re.compile(r"\d+")
_HOST: Final = re.compile(
    r"(?<![a-z-])[a-z]+(?:(?:-[a-z]+)+-?\d+(?![a-z-])|-\d{1,3}(?:-\d{1,3}){3}(?!\d))"
)
_HEX: Final = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_HASH: Final = re.compile(r"[0-9a-f]{32}|[0-9A-F]{32}")


def _is_encoded(part: str) -> bool:
    """Whether hexadecimal digits, also behind the first one, base32 or base64 are those of a
    plain text.
    """
    whole = part[len(part) % 2 :]
    signs = _ASCII if len(whole) < 16 else _READABLE
    if _HEX.fullmatch(whole) and not whole.isdecimal() and signs.fullmatch(bytes.fromhex(whole)):
        return True
    if _BASE32.fullmatch(part) and _READABLE.fullmatch(
        base64.b32decode(part[: len(part) // 8 * 8])
    ):
        return True
    signs_of_4 = part[:-1] if len(part) % 4 == 1 else part
    return len(part) > 14 and bool(_ASCII.fullmatch(binascii.a2b_base64(f"{signs_of_4}==")))


_BASE32: Final = re.compile(r"[A-Z2-7]{16,}")
_PAIRS: Final = re.compile(
    r"(?<![0-9A-Za-z])[0-9A-Fa-f]{2}(?:([ :=-])[0-9A-Fa-f]{2}){7,}(?![0-9A-Za-z])"
)
_ASCII: Final = re.compile(rb"[\t\n\r -~]+")
_READABLE: Final = re.compile(rb"(?:[\t\n\r -~]|[\xc2-\xf4][\x80-\xbf]{1,3})+[\xc2-\xf4]?")


def _is_address(run: str) -> bool:
    """Whether hexadecimal groups with colons are an address, and not the end of a namespace or a
    time.
    """
    groups = [group for group in run.split(":") if group]
    return (
        max(map(len, groups), default=9) <= 4
        and (len(groups) > 3 or (len(groups) > 2 and "::" in run))
        and bool(re.search(r"[0-9a-fA-F]:[0-9a-fA-F]", run))
        and any(sign.isdecimal() for sign in run)
        and not all(len(group) < 3 and group.isdecimal() for group in groups)
    )


def _kind(word: str) -> str | None:  # noqa: PLR0911 (one for each kind)
    """What a word that may not be copied is; None for a name of C++, of an operator, of a
    module, or a known word.
    """
    if not word.isascii() and any(ord(sign) > 127 and sign not in _SIGNS for sign in word):
        return "text"
    bare = word.strip(_STRIPPED) if not word.startswith(("-", "/")) else word.rstrip(_STRIPPED)
    if (
        (bare.isdecimal() and len(bare) < 21)
        or bare.lstrip("-") in ("nan", "inf")
        or _NUMBER_OR_OWN.fullmatch(bare)
    ):
        return None
    if "://" in word or "arn:" in word:
        return "url"
    if "@" in word and not _OF_CANN.fullmatch(word):
        return "email"
    if "\\" in word or _ESCAPED.search(word):
        return "path"
    if _TOKEN.search(word):
        return "token"
    if _ADDRESS.search(word) or any(_is_address(run) for run in _GROUPS.findall(word)):
        return "address"
    if _SCOPE.fullmatch(bare):
        return None
    if _KEY.search(word) or _HOST.search(word):
        return "uuid" if _KEY.search(word) else "host"
    if "/" in bare:
        return None if _known(bare) and not _ROOTS.search(bare) and not _is_random(word) else "path"
    if _is_random(word):
        return "random"
    if "." in bare:
        if _DOMAIN.search(bare):
            return "host"
        first, *rest = bare.split(".")
        of_class = first[:1] in _LETTERS_OF_CLASSES
        if (
            "::" in first
            or "__" in bare
            or _METRIC.search(bare)
            or first in _PUBLIC
            or _SOURCE_FILE.match(bare)
        ):
            return None
        if of_class and not any(map(_known, rest)) and first not in sys.stdlib_module_names:
            return "module"
        if not of_class and not all(_known(part) or "_" in part for part in (first, *rest[:-1])):
            return "module"
        if not of_class and (
            _TOP_LEVEL.search(bare) or not (_known(first) or first in sys.stdlib_module_names)
        ):
            return "module"
    if "-" in bare and not (_known(bare) and len(re.findall(r"(?<!\d)\d{2,}", bare)) <= 3):
        return "host"
    return None


_LETTERS_OF_CLASSES: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_ROOTS: Final = re.compile(
    r"(?:^|/)(?:home|root|Users|mnt|data|tmp|var|usr|nfs|lustre|scratch)(?:/|$)"
)


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
    """Replaces texts that identify people and machines, or are secrets."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(16) if key is None else key
        self._known: set[str] = set()
        self._phrases: list[str] = []
        self._words: list[str] = []
        self._made: dict[tuple[str, bool], str] = {}
        self._judged: dict[str, str | None] = {}
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def know(self, values: Iterable[object], *, identity: bool = False) -> None:
        """Texts that identify a person or machine are replaced everywhere; of an ``identity``
        plain words, too.
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

    def text(self, text: str, *, free: bool = False) -> str:
        """Replace what is not a name or a known word; with ``free``, in a text that holds no
        names, names, too.
        """
        replaced = self._made.get((text, free))
        if replaced is None:
            if len(text) > _LONGEST_NAME and "\n" not in text:
                return self._word("text", text)
            clean = _WRITTEN_SIGN.sub(
                lambda m: chr(int(m[1], 16)) if m[1] else html.unescape(m[0]), text
            )
            clean = (
                unicodedata.normalize("NFKC", _HIDDEN.sub("", clean))
                if not clean.isascii()
                else clean
            )
            cut = clean.find("-----BEGIN")
            lines = (clean if cut < 0 else clean[:cut]).split("\n")
            made = [self._line(line, free=free) for line in lines]
            for i, (before, after) in enumerate(pairwise(lines)):
                if self._goes_on(before, after):
                    made[i : i + 2] = [self._word("text", line) for line in (before, after)]
            replaced = "\n".join(made)
            replaced += "" if cut < 0 else self._word("token", clean[cut:])
            replaced = text if replaced == clean else replaced
            if len(self._made) < 1 << 18:
                self._made[text, free] = replaced
        return replaced

    def _goes_on(self, before: str, after: str) -> bool:
        """Whether a secret begins at the end of a line and goes on in the next."""
        before, after = before.rstrip("\\ \t\r"), after.lstrip()
        if (found := _SENSITIVE.search(before)) and not _ONLY_NUMBERS.fullmatch(
            before[found.end() :] or "="
        ):
            return True
        words = [*_WORD.findall(before)[-1:], *_WORD.findall(after)[:1]]
        is_one = len(words) == 2 and before.endswith(words[0]) and not _MANGLED.match(words[1])
        if is_one and self._kind("".join(words)) in _DIVISIBLE:
            return True
        return any(
            number not in before and number not in after
            for sign in ("", " ")
            for number in _numbers(f"{before}{sign}{after}")
        )

    def _line(self, text: str, *, free: bool) -> str:
        """One line of a text; a document in it is taken apart, what follows the name of a secret
        goes.
        """
        if len(text) > _LONGEST_NAME:
            return self._word("text", text)
        if any(self._goes_on(*parts) for parts in pairwise(_WRITTEN_END.split(text))):
            return self._word("text", text)
        if text[:1] in ("{", "[") and ("'" in text or '"' in text):
            return self._document(text)
        text = self._without(self._phrases, text) if _SPACE.search(text) else text
        end = ""
        if found := _SENSITIVE.search(text):
            start = found.start() if found[0].startswith("-") else found.end()
            if not _ONLY_NUMBERS.fullmatch(text[start:]):
                text, end = text[:start], self._word("secret", text[start:])
        text = _PAIRS.sub(lambda match: self._of_pairs(match[0]), text)
        text = _NODES.sub(lambda match: self._word("host", match[0]), text)
        for number in _numbers(text):
            text = text.replace(number, self._word("number", number))
        text = self._words_of(text, free=free)
        return self._without(self._words, text) + end

    def _of_pairs(self, text: str) -> str:
        is_text = _READABLE.fullmatch(bytes.fromhex(re.sub(r"\W", "", text)))
        return self._word("text", text) if is_text else text

    def _words_of(self, text: str, *, free: bool) -> str:
        """Replace words that are no names, and prose from its first word that is not known to
        its last.
        """
        keys = {match.start() for match in _GRAPH_KEY.finditer(text)}
        loose = (
            "(" not in text and "<" not in text
        )  # no arguments, so what commas divide is a sentence
        out: list[str] = []
        unknown: list[int] = []
        joined: list[int] = []
        before, ok_before, at, depth = "", True, 0, 0
        for match in _WORD.finditer(text):
            word, gap = match[0], text[at : match.start()]
            is_key = match.start() in keys
            kind = None if is_key else self._kind(word)
            known = _known(word) or word in _TYPE_WORDS
            if kind is None and before and gap.strip() == "=" and not known and "[with" not in text:
                kind = None if "::" in word or word.partition(".")[0] in _PUBLIC else "value"
            if (
                kind is None
                and _PADDED.match(text, match.end())
                and _is_random(word, shortest=8, mean=3)
            ):
                kind = "random"
            named = (
                kind is not None or "_" in word or "::" in word or word.strip(_STRIPPED) in _PUBLIC
            )
            named = named or is_key or _NUMBER_OR_OWN.fullmatch(word) is not None
            depth = max(
                0,
                depth
                + sum(gap.count(sign) for sign in "(<[{")
                - sum(gap.count(sign) for sign in ")>]}"),
            )
            ok = known or named
            made = (
                word
                if kind is None
                else self._path(word)
                if kind == "path"
                else self._word(kind, word)
            )
            out += [gap, made]
            place = len(out) - 1
            if free:
                if not known and kind is None and not _NUMBER_OR_OWN.fullmatch(word):
                    unknown.append(place)
            elif before and (gap.isspace() or (not depth and loose and _GAP.fullmatch(gap))):
                typed = before in _TYPE_WORDS or word in _TYPE_WORDS
                called = text[match.end() : match.end() + 1] in ("(", "<") and "::" in before
                if not typed and not called and not before.endswith(":"):
                    unknown += [place - 2] if not ok_before else []
                    unknown += [place] if not ok else []
                    is_joined = [
                        at
                        for at, one in ((place - 2, before), (place, word))
                        if _JOINED.fullmatch(one) and not _known(one)
                    ]
                    joined += is_joined
                    unknown += is_joined if len(is_joined) == 2 else []
            before, ok_before, at = word, ok, match.end()
        out.append(text[at:])
        if _BUILTIN.match(text):
            unknown.clear()
        unknown += joined if unknown else []
        if unknown and free:
            return self._word("text", text)
        only = out[unknown[0]] if len(set(unknown)) == 1 else ""
        if unknown and not (
            only.isupper() and len(only) < 16
        ):  # else the short name of a part, after what it is
            low, high = min(unknown), max(unknown)
            out[low : high + 1] = [self._word("text", "".join(out[low : high + 1]))]
        return "".join(out)

    def _kind(self, word: str) -> str | None:
        kind = self._judged.get(word, "")
        if kind == "":
            kind = _kind(word)
            if len(self._judged) < 1 << 18:
                self._judged[word] = kind
        return kind

    def _document(self, text: str) -> str:
        """A JSON document, or a literal of Python, with its texts replaced; what cannot be
        parsed goes as a whole.
        """
        for parse, write in ((json.loads, json.dumps), (ast.literal_eval, repr)):
            try:
                value = parse(text) if "\\" not in text or parse is json.loads else None
            except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                continue
            if value is None:
                continue
            replaced = self._of_document(value)
            return text if replaced == value else str(write(replaced))
        if re.match(
            r"\[[\w |.-]{1,40}\]|\{(?:lambda|anonymous|unnamed)", text
        ):  # a label in front of a name
            return self._words_of(text, free=False)
        return self._word("text", text)

    def _of_document(self, value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return (
                self._word("secret", value)
                if _SENSITIVE.search(f"{key}=") and value
                else self.text(value)
            )
        if isinstance(value, dict):
            return {
                self.text(name) if isinstance(name, str) else name: self._of_document(
                    item, str(name)
                )
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return type(value)(self._of_document(item, key) for item in value)
        return value

    def frame(self, frame: pl.DataFrame, *, free: Container[str] = _FREE_COLUMNS) -> pl.DataFrame:
        """Replace the texts of a frame; the columns of ``free`` hold no names."""
        texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
        return frame.with_columns(
            self._series(frame[name], partial(self.text, free=name in free)) for name in texts
        )

    def value(self, value: Any, *, free: bool = False) -> Any:
        """Replace the texts of a JSON value, including its keys."""
        if isinstance(value, str):
            return self.text(value, free=free)
        if isinstance(value, dict):
            return {
                self.text(str(key), free=free): self.value(item, free=free)
                for key, item in value.items()
            }
        return (
            [self.value(item, free=free) for item in value]
            if isinstance(value, list | tuple)
            else value
        )

    def trace(
        self,
        tables: Mapping[str, pl.DataFrame],
        meta: Mapping[str, Any],
        coverage: Mapping[str, Any],
    ) -> tuple[dict[str, pl.DataFrame], dict[str, Any], dict[str, Any]]:
        """Redact the tables, metadata and coverage of a trace; only the metadata that the schema
        needs is kept.
        """
        kept = {
            key: self.value(meta[key], free=key in _FREE_META) for key in _META_KEPT if key in meta
        }
        if "ranks" in meta:
            kept["ranks"] = [
                {"rank": rank.get("rank"), "file": f"rank {rank.get('rank')}"}
                | {key: self.value(rank[key], free=True) for key in _RANK_KEPT if key in rank}
                for rank in meta["ranks"]
            ]
        counts = {
            key: value
            for key, value in coverage.items()
            if isinstance(value, int | float) or key == "asked"
        }
        counts["files"] = [
            {"rank": part.get("rank"), "file": f"rank {part.get('rank')}"}
            | {key: value for key, value in part.items() if isinstance(value, int | float)}
            for part in coverage.get("files", [])
        ]
        frames = {name: self.frame(frame) for name, frame in tables.items()}
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

    def _path(self, text: str) -> str:
        """Pseudonym of a path; its part inside a public package stays as it is."""
        public = _public_part(text.replace("\\", "/"))
        if public is None:
            return self._word("path", text)
        return text if not public else f"{self._word('path', text[:public])}/{text[public:]}"

    def _word(self, kind: str, text: str) -> str:
        self.counts[kind] += 1
        self.examples.setdefault(kind, text[:80])
        digest = hmac.new(
            self._key, text.encode("utf-8", "surrogatepass"), hashlib.sha256
        ).hexdigest()[:10]
        return f"<{kind}:{digest}>"


def _numbers(text: str) -> Iterator[str]:
    """Numbers of cards, accounts (IBAN) and persons (Chinese identity numbers), as they stand in a
    text, with spaces.

    Each has a check digit, without which sizes and times would be taken for one. What is joined to
    the end of an account can look like a group of it, so each of its groups may be the last.
    """
    for match in _CARD.finditer(text):
        number = [int(sign) for sign in match[1] if sign.isdecimal()]
        if (
            not (sum(number[-1::-2]) + sum(sum(divmod(2 * digit, 10)) for digit in number[-2::-2]))
            % 10
        ):
            yield match[1]
    for match in _IDENTITY.finditer(text):
        digits = [
            int(sign, 36) for sign in match[1].replace("X", "a").replace("x", "a") if sign.isalnum()
        ]
        if sum(digit * 2 ** (17 - place) for place, digit in enumerate(digits)) % 11 == 1:
            yield match[1]
    for match in _IBAN.finditer(text):
        ends = [last.end() for last in _LAST.finditer(text, match.start(), match.end(1) + 1)]
        for end in reversed(ends):
            written = [sign for sign in text[match.start() : end] if sign.isalnum()]
            value = "".join(str(int(sign, 36)) for sign in written[4:] + written[:4])
            if (
                14 < len(written) < 35
                and 2 * sum(map(str.isdecimal, written)) >= len(written)
                and int(value) % 97 == 1
            ):
                yield text[match.start() : end]
                break


def _public_part(path: str) -> int | None:
    """Index in a path at which a public package begins; 0 if the whole path is in one, None if
    none is named.
    """
    if path.partition("/")[0] in _PUBLIC:
        return 0
    for library in reversed(list(_LIBRARY.finditer(path))):
        first = re.split(r"[/.]", path[library.end() :], maxsplit=1)[0]
        if first in _PUBLIC or ("packages" not in library[0] and first in sys.stdlib_module_names):
            return library.end()
    places = [match.start(1) for match in re.finditer(r"/(\w+)(?=/)", path) if match[1] in _PUBLIC]
    return places[-1] if places and path.endswith(".py") else None


class Ledger:
    """Ledger of a redacted copy: counts of the content that was left out or replaced, by place
    and kind.
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

    def text(self, text: str, place: str, *, free: bool = False) -> str:
        """Text as it is written to the copy; ``free`` for a text that holds no names."""
        replaced = self.names.text(text, free=free)
        if replaced != text:
            self.leave_out(place, "texts with a pseudonym", example=text)
        return replaced

    def frame(self, *, examples: bool) -> pl.DataFrame:
        """Frame ``place, what, count``, and with ``examples`` the first text of each kind,
        shortened (``example``).
        """
        rows = [(place, what, count) for (place, what), count in sorted(self._left_out.items())]
        columns = {"place": pl.String, "what": pl.String, "count": pl.Int64}
        frame = pl.DataFrame(rows, schema=columns, orient="row")
        if not examples:
            return frame
        first_texts = [self._examples.get((place, what)) for place, what, _ in rows]
        return frame.with_columns(example=pl.Series(first_texts, dtype=pl.String))


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn a failure to write a copy into an error that names the copy instead of its source."""
    try:
        yield
    except (OSError, sqlite3.OperationalError, pl.exceptions.PolarsError) as error:
        raise unwritten(target, error) from error


def unwritten(target: Path, error: BaseException) -> OutputError:
    """Error for a copy that cannot be written."""
    return OutputError(
        f"cannot write the copy {target.name}: {getattr(error, 'strerror', None) or error}",
        hint=f"free space in {target.parent}, or choose another folder",
    )
