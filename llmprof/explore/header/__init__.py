"""What stands above the tabs: filters as chips, and the way back through the views."""
