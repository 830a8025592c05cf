"""Layers of a step and their stages, and the label of every device event."""
