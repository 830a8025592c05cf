"""Parts that all explorers share: the widget, the messages and the bundle of the browser side."""
