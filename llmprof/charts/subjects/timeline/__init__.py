"""Timeline chart: what each stream of each rank did in a window."""
