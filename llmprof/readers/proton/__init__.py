"""Profiles of Triton Proton."""
