"""Commands of `draftwire` that are more than a call of the SDK."""
