"""Programs that measure headrace against other servers, with fixed inputs; what they print is the record."""
