"""The device side of Draftwire."""
