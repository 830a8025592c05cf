"""Requests on the clock of a trace: what each waited for, which steps carried it, and why it was slow."""
