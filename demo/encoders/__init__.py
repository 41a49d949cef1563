"""Encoders of one's own: small ones, trained here on real data, that the archive uses by configuration."""
