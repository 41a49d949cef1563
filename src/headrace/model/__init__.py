"""Models as the server calls them: Servables, Signatures, the batch contract, casts, and packed texts."""
