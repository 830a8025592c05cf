"""Readers of ROCm's profilers: CSV of rocprofv3, and databases of rpd and rocprofv3 (rocpd)."""
