"""Parts that all readers share: reading in blocks, the description of a file's content, joining
files.
"""
