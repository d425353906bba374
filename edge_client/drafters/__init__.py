"""Implementations of `edge_client.drafter.Drafter`, one a module."""
