"""Summaries under the names of Nsight Systems, from any trace."""
