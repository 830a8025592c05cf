"""Files behind a trace: Parquet folders, SQLite databases, Arrow streams, and redacted copies."""
