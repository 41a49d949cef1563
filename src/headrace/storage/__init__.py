"""Where data is kept: stores of values by key, queues of messages, and the LMDB files of both."""
