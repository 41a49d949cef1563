"""Who may ask what, and how much: keys, what they permit, limits for each caller. It knows no protocol."""
