"""Loads files into an archive in batches: Parquet, Arrow and CSV, into tables and spaces of vectors."""
