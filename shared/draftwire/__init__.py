"""What the two sides of Draftwire share: types, errors, sampling, noise and the wire codec."""

__version__ = "0.1.0"
