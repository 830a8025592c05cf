"""Parts that all readers share: files in blocks, the part of a trace that a file holds, and joining parts."""
