"""Programs for whoever works on headrace: checks, generators, and servers to test against."""
