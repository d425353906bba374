"""Tools for tests, demos and benchmarks: model stand-ins, an emulated link, the demo model."""
