"""Access control, independent of protocols: keys, what they permit, and limits per caller."""
