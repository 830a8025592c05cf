"""Findings: ranked statements about where the time of a run goes."""
