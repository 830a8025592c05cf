"""Parts that all explorers share: the widget class, the messages, and the JavaScript bundle."""
