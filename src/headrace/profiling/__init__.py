"""Where a model's time goes, operation by operation: measured, as a table and as a trace."""
