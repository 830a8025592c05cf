"""Reader of Nsight Systems: SQLite exports, Parquet folders and reports."""
