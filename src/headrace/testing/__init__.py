"""Suites for whoever implements one of headrace's contracts: pytest plug-ins, which need pytest."""
