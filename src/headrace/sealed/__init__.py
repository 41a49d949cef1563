"""Contents of files in memory that nobody can change, once for all processes that share a keeper."""
