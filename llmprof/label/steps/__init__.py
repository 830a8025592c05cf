"""Steps of the engine: labels, inference without labels, and summaries."""
