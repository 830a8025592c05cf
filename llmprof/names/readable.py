"""Names of kernels that people can read: library, device, type and tile in place of template
arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import polars as pl

from llmprof.names import kernels
from llmprof.names.mangled import demangled

_TYPES: Final = {
    "bf16": "BF16",
    "bfloat16": "BF16",
    "f16": "FP16",
    "fp16": "FP16",
    "half": "FP16",
    "f32": "FP32",
    "fp32": "FP32",
    "float": "FP32",
    "f64": "FP64",
    "fp64": "FP64",
    "double": "FP64",
    "e4m3": "FP8",
    "e5m2": "FP8",
    "f8": "FP8",
    "fp8": "FP8",
    "i8": "INT8",
    "s8": "INT8",
    "int8": "INT8",
    "i32": "INT32",
    "tf32": "TF32",
    "mxfp4": "MXFP4",
}
_TENSILE: Final = {
    "B": "BF16",
    "H": "FP16",
    "S": "FP32",
    "D": "FP64",
    "I8": "INT8",
    "F8": "FP8",
    "X": "TF32",
}
_GEMM_LETTER: Final = {
    "s": "FP32",
    "d": "FP64",
    "h": "FP16",
    "c": "complex FP32",
    "z": "complex FP64",
}


def _type(word: str | None) -> str:
    return f" {_TYPES[word.lower()]}" if word and word.lower() in _TYPES else ""


def _tensile(found: re.Match[str]) -> str:
    library = "hipBLASLt" if "UserArgs" in found.string else "Tensile"
    return f"{library} {_TENSILE[found['type']]} {found['tile']}"


def _nvjet(found: re.Match[str]) -> str:
    parts = ["nvjet", found["sm"], found["tile"], *re.findall(r"_(splitK|bias)(?=_)", found.string)]
    return " ".join(part for part in parts if part)


def _flash_3(found: re.Match[str]) -> str:
    what = found["what"]
    side = " backward" if what.startswith("Bwd") else ""
    for part in ("Preprocess", "Postprocess", "Combine"):
        if part in what:
            return f"FlashAttention-3{side} {part.lower()}"
    # three sizes of the cluster, then the tile: rows of queries, rows of keys, size of a head
    sizes = re.findall(r"\bC<(?:\(int\))?(\d+)", found.string.partition("Mainloop")[2])
    return f"FlashAttention-3{side}" + (f" hdim{sizes[5]}" if len(sizes) > 5 else "")


def _flash_2(found: re.Match[str]) -> str:
    third = "compute_attn" in found["what"]
    side = (
        " backward" if "bwd" in found["what"] else " splitkv" if "splitkv" in found["what"] else ""
    )
    return f"FlashAttention-{3 if third else 2}{side} hdim{found['dim']}"


def _nccl(found: re.Match[str]) -> str:
    words = [_TYPES.get(word.lower(), word) for word in found["what"].split("_")]
    return f"NCCL {' '.join(words)}"


def _elementwise(found: re.Match[str]) -> str:
    rest = found.string[found.end() :]
    rest = re.sub(r"gpu_kernel_impl\w{0,16}<", "", rest)
    functor = re.search(
        r"CUDAFunctor(?:OnSelf)?_(\w+)|(\w{1,48}?)_kernel(?:_impl|_cuda)|(\w{1,48}?)Functor\b", rest
    )
    if functor is not None and re.search(r"Unary$|Binary$", functor[0].removesuffix("Functor")):
        functor = re.search(r"(\w{1,48}?)Functor\b", rest[functor.end() :])
    if functor is None:
        return "elementwise"
    return f"elementwise {next(group for group in functor.groups() if group).lower()}"


def _reduce(found: re.Match[str]) -> str:
    what = re.search(r"(\w{1,48}?)_functor\b|(\w{1,48}?)Ops<|(\w{1,48}?)NanFunctor\b", found.string)
    return "reduce" + (
        f" {next(group for group in what.groups() if group).lower()}" if what else ""
    )


_FORMS: Final[tuple[tuple[str, Callable[[re.Match[str]], str]], ...]] = (
    (
        r"^Cijk_\w{1,8}?_\w{1,8}?_(?P<type>B|H|S|D|I8|F8|X)[A-Z0-9]{0,4}_.*?MT(?P<tile>\d+x\d+x\d+)",
        _tensile,
    ),
    (r"^nvjet_(?:(?P<sm>sm\d+)_)?\w+?_(?P<tile>\d+x\d+)_", _nvjet),
    (
        r"^(?P<sm>sm\d+)_xmma_\w*?gemm_(?P<type>bf16|f16|f32|f64|e4m3|e5m2|i8)\w*?_tilesize(?P<tile>\d+x\d+x\d+)",
        lambda m: f"xmma {m['sm']}{_type(m['type'])} {m['tile']}",
    ),
    (r"device_kernel<(?:\w+::)*(?P<what>\w+)::GemmKernel\b", lambda m: f"CUTLASS {m['what']}"),
    (
        r"cutlass_(?P<sm>\d+)_(?:tensorop|simt|wmma_tensorop)_(?:(?P<type>bf16|f16|f32|s8|tf32)_)?(?P<letter>[sdhcz])?"
        r"\w*?gemm\w*?_(?P<tile>\d+x\d+)",
        lambda m: f"CUTLASS sm{m['sm']}{_type(m['type']) or _letter(m['letter'])} {m['tile']}",
    ),
    (
        r"^(?P<arch>volta|turing|ampere|hopper|maxwell|pascal)_(?:(?P<type>bf16|fp16|fp32|int8)_)?(?P<letter>[sdhcz])\w*?gemm\w*?_"
        r"(?P<tile>\d+x\d+)",
        lambda m: f"cuBLAS {m['arch']}{_type(m['type']) or _letter(m['letter'])} {m['tile']}",
    ),
    (r"flash::(?:\w+::)*FlashAttn(?P<what>(?:Fwd|Bwd)\w*)<", _flash_3),
    (
        r"flash::(?P<what>compute_attn\w*|flash_(?:fwd|bwd)\w*_kernel)<(?:\w+::)*Flash_\w+_traits<(?:\(int\))?(?P<dim>\d+)",
        _flash_2,
    ),
    (
        r"^aiter::fmha_(?P<side>fwd|bwd)_hd(?P<dim>\d+)_(?P<type>bf16|fp16)",
        lambda m: (
            f"AITER fmha{' backward' if m['side'] == 'bwd' else ''}{_type(m['type'])}"
            f" hdim{m['dim']}"
        ),
    ),
    (r"^nccl(?:Dev)?Kernel_(?P<what>\w+)", _nccl),
    (r"^void at::native::(?:\w+_)?elementwise_kernel\w*<", _elementwise),
    (r"^void at::native::reduce_kernel<", _reduce),
    (r"^(?P<node>[^\s<(]+?)/?_kernel_time$", lambda m: m["node"]),  # a node of ONNX Runtime
)
_COMPILED: Final = tuple((re.compile(pattern), form) for pattern, form in _FORMS)


def _letter(letter: str | None) -> str:
    return f" {_GEMM_LETTER[letter]}" if letter else ""


def _readable(name: str) -> str:
    for pattern, form in _COMPILED:
        if found := pattern.search(name):
            return form(found)
    if not re.search(r"^(?:_Z|[A-Za-z_].*?(?:\w<|\w\())", name):
        return name
    function = kernels.function_of(name)
    inner = re.search(r"device_kernel<(?:(?:\w+::)*enable_\w+<)?(?:\w+::)*(\w+)", name)
    return inner[1] if inner and function == "device_kernel" else function


def readable(names: pl.Series) -> pl.Series:
    """Names of kernels as people read them.

    GEMMs have their library, type and tile, attention its version and the size of a head,
    collectives their kind and algorithm, kernels of torch their operation, and nodes of ONNX
    Runtime the name in their graph. Any other kernel has the name of its function. Different
    kernels may have the same readable name; what is not in a kernel's name is not guessed.

    Examples
    --------
    >>> import polars as pl
    >>> written = pl.Series(["nvjet_sm90_tst_192x8_64x8_4x1_v_bz_TNT", "void vllm::rms_norm_kernel<float>(int)"])
    >>> readable(written).to_list()
    ['nvjet sm90 192x8', 'rms_norm_kernel']
    """  # noqa: E501
    return kernels.map_names(names, _readable)


def without_common_start(names: list[str], limit: int) -> list[str]:
    """Names of at most ``limit`` characters; of long ones that begin alike, what they share is
    cut.
    """
    out = []
    for name in names:
        if len(name) <= limit:
            out.append(name)
            continue
        others = [other for other in names if other != name and len(other) > limit]
        shared = max((_shared(name, other) for other in others), default=0)
        starts = [at.end() for at in re.finditer(r"[_:<,\s]+", name) if at.end() <= shared]
        fitting = next((start for start in starts if len(name) - start < limit), None)
        if fitting is None and starts:
            fitting = starts[-1]
        cut = name if fitting is None else "…" + name[fitting:]
        out.append(cut if len(cut) <= limit else cut[: limit - 1] + "…")
    return out


def _shared(one: str, other: str) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


_WORD: Final = re.compile(r"[A-Za-z0-9.]+")
_MANGLED_NUMBER: Final = re.compile(r"L[a-z](\d+)E")
_MOST_WORDS, _MOST_LETTERS = 3, 28


def distinct_labels(names: pl.Series, labels: pl.Series) -> list[str]:
    """Labels of names; where several names have one label, each has behind it the words in which
    it differs.
    """
    groups: dict[str, list[str]] = {}
    for name, label in zip(names, labels, strict=True):
        groups.setdefault(label, []).append(name)
    made = {name: label for label, group in groups.items() for name in group}
    for label, group in groups.items():
        if len(group) > 1:
            made |= {
                name: f"{label} · {words}" for name, words in _differences(group).items() if words
            }
    return [made[name] for name in names]


def _differences(group: list[str]) -> dict[str, str]:
    """Words that tell names apart: few, and more for those that have the same few."""
    found = _few_differences(group)
    for words in set(found.values()):
        alike = [name for name in group if found[name] == words]
        if 1 < len(alike) < len(group):
            found |= {name: f"{words} {more}".strip() for name, more in _differences(alike).items()}
    return found


def _few_differences(group: list[str]) -> dict[str, str]:
    """The fewest words that tell names apart: at places where they differ, else those that not
    all have.
    """
    written = demangled(pl.Series(group))
    texts = {name: written.get(name, name) for name in group}
    texts |= {
        name: _MANGLED_NUMBER.sub(r" \1 ", text)
        for name, text in texts.items()
        if text.startswith("_Z")
    }
    words = {
        name: [word[:_MOST_LETTERS] for word in _WORD.findall(text)] for name, text in texts.items()
    }
    if len({len(found) for found in words.values()}) > 1:
        common = set.intersection(*(set(found) for found in words.values()))
        rest = {
            name: list(dict.fromkeys(word for word in found if word not in common))
            for name, found in words.items()
        }
        return {name: " ".join(found[:_MOST_WORDS]) for name, found in rest.items()}
    places: list[int] = []
    for _ in range(_MOST_WORDS):
        told = {tuple(found[place] for place in places) for found in words.values()}
        if len(told) == len(group):
            break
        left = [place for place in range(len(words[group[0]])) if place not in places]
        gains = {
            place: len({tuple(found[p] for p in (*places, place)) for found in words.values()})
            for place in left
        }
        best = max(left, key=lambda place: gains[place], default=-1)
        if best < 0 or gains[best] == len(told):
            break
        places = sorted([*places, best])
    return {name: " ".join(found[place] for place in places) for name, found in words.items()}
