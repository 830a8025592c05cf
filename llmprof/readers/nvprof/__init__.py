"""What nvprof wrote: CSV of its summary and traces, and sessions in SQLite (``.nvvp``, ``nvprof -o``)."""
