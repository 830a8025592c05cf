"""Parts that all charts share: theme, data, bars, placement of labels, and saving."""
