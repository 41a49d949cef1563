"""The protocols: codecs, the one door they call, and the transports that serve them."""
