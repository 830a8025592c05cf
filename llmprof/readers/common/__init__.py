"""Parts that all readers share: reading files in blocks, the record of what a file holds, joining files of a run."""
