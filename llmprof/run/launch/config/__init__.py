"""Configuration of a run: its options, their files, the rules between them, and the models."""
