"""Readers of Huawei Ascend recordings: the output of torch_npu, msprof and MindSpore, as text or databases."""

from __future__ import annotations

from llmprof.readers.ascend.reader import read
from llmprof.readers.ascend.summaries import summaries

__all__ = ["read", "summaries"]
