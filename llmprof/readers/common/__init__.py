"""What all readers share: reading a file in blocks, the part of a trace that a file holds, and joining parts."""
