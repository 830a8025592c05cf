"""Work from a notebook: the cell magic, progress, and running the tutorials."""
