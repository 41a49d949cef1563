"""Redis, Apache Cassandra and Apache Kafka on a bare machine, fetched and started by one command.

``python -m tools.services start`` is for people (``make services``); tests get theirs from
``tests/services.py``. Needs nothing but Python's own library, and trustme for TLS.
"""
