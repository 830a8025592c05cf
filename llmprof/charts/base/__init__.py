"""Parts that all charts share: theme, data, bars, places of labels, and saving."""
