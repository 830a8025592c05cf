"""Storage of traces: Parquet folders, SQLite databases, Arrow streams, whole files, and pseudonyms for texts."""
