"""Configuration of a run: options, files, rules and models."""
