"""What is near what among the vectors of a space: neighbours, near-duplicates, a picture of it all.

On arrays alone: rows of vectors as they are stored come in, numbers of rows go out. Nothing here knows a
store. Callers need three modules, ``neighbours``, ``duplicates`` and ``layout``; ``drawing`` and ``sheet``
show what came of them.
"""
