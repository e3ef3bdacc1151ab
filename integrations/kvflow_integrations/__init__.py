"""One module per agent framework."""
