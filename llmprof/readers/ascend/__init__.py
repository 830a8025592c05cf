"""Reader of recordings of Huawei's Ascend NPUs: the output of torch_npu, msprof and MindSpore."""

from __future__ import annotations

from llmprof.readers.ascend.reader import read
from llmprof.readers.ascend.summaries import summaries

__all__ = ["read", "summaries"]
