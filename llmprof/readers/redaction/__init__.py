"""Redacted copies of profiles, which can be shared: only the content that the schema needs,
texts as pseudonyms.
"""

from llmprof.readers.redaction.copying import list_redactions, redact

__all__ = ["list_redactions", "redact"]
