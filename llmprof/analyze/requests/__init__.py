"""Requests on the clock of a trace: what each waited for, the steps that processed it, and why
it was slow.
"""
