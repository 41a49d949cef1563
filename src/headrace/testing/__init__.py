"""Test suites for implementations of headrace's contracts: pytest plug-ins, which need pytest."""
