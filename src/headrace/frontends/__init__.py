"""The protocols: codecs, the Service that they call, and the transports that serve them."""
