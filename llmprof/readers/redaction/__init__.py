"""Redacted copies of profiles, which can be shared: only the content that the schema needs,
texts as pseudonyms.
"""

from llmprof.readers.redaction.copying import check, redact

__all__ = ["check", "redact"]
