"""Charts of theory: structure and costs of a model, latencies over a range, and measured times beside their bounds."""
