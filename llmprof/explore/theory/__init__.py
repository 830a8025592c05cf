"""Explorer of theory: a model on a device, with sliders."""
