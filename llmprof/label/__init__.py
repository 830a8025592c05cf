"""Labels of what ran on a device: launches, categories, steps, layers and stages."""
