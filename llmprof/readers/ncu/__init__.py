"""Reader of Nsight Compute: CSV of the raw and details pages, and reports."""
