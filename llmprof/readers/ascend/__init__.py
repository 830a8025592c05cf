"""The room of Huawei's Ascend: what torch_npu, msprof and MindSpore write, in whatever form they exported it."""

from __future__ import annotations

from llmprof.readers.ascend.reader import read
from llmprof.readers.ascend.summaries import summaries

__all__ = ["read", "summaries"]
