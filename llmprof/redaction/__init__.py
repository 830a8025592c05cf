"""Copies of profiles that can be handed on: only what the schema needs, without people, machines and secrets."""

from llmprof.redaction.copying import check, redact

__all__ = ["check", "redact"]
