"""Command line of llmprof."""
