"""Files loaded into an archive, batch by batch: Parquet, Arrow and CSV, into tables and spaces of vectors."""
