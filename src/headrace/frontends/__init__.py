"""The protocols: codecs, the Service that they ask, and the transports that serve them."""
